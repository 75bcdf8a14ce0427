// What a page of the console gets, and what it does to what stands around it.
import { h, put } from "./dom.js";

/**
 * What a page gets. signal is aborted when the page is left. set replaces parameters of the
 * query without a new entry of the history; empty ones are left out.
 * @typedef {{root: HTMLElement, params: Record<string, string>, query: URLSearchParams, signal: AbortSignal, title: (text: string) => void, set: (values: Record<string, string>) => void}} Page
 */

/** The event by which a page asks for another one. */
export const moved = "moved";

/** Goes to a page of the console. @param {string} href */
export function go(href) {
  history.pushState(null, "", href);
  dispatchEvent(new Event(moved));
}

/** Says below the bar that the gateway cannot be reached, or takes that back. @param {string} text */
export function interrupted(text) {
  const banner = /** @type {HTMLElement} */ (document.getElementById("banner"));
  put(banner, text && h("p", { class: "banner" }, h("span", { "aria-hidden": "true" }, "↻ "), text));
}
