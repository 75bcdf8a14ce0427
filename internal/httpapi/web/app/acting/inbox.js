import { h, put } from "../lib/dom.js";

/** @param {import("../main.js").Page} page */
export default function page(page) {
  put(page.root, h("h1", null, "Not written yet"));
}
