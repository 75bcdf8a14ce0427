// One event as it is stored, with its hash and its place in the chain: each body names the
// SHA-256 of the body before it, byte for byte.
import { h, put } from "../lib/dom.js";
import { count, pretty } from "../lib/format.js";
import { long } from "../lib/widgets.js";

/** The SHA-256 of a text's UTF-8 in lower-case hex. @param {string} text */
async function sha256(text) {
  const sum = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(text));
  return [...new Uint8Array(sum)].map(b => b.toString(16).padStart(2, "0")).join("");
}

/** @param {boolean} good @param {string} text */
const verdict = (good, text) => h("span", { class: "badge is-" + (good ? "good" : "bad") }, good ? "✓ " : "✗ ", text);

/** @returns {import("./page.js").Part} */
export function raw() {
  const facts = h("dl", { class: "facts" }), body = h("div");
  const readable = /** @type {HTMLInputElement} */ (h("input", { type: "checkbox", onchange: () => show() }));
  const size = h("span", { class: "soft small" });
  let shown = "", timer = /** @type {any} */ (0), text = "";
  const show = () => put(body, long(readable.checked ? pretty(text) : text, "code", 20_000));
  /** @param {import("./dvr.js").Moment} moment */
  const check = async moment => {
    const { event, history, n } = moment, before = history.events[n - 2], after = history.events[n];
    const fact = (/** @type {string} */ name, /** @type {import("../lib/dom.js").Child} */ value) => [h("dt", null, name), h("dd", null, value)];
    if (!globalThis.crypto?.subtle) return put(facts, fact("SHA-256", "Browsers compute hashes only on pages from https or localhost."), fact("prev", h("code", null, event.body.prev ?? "none")));
    const own = await sha256(event.text), last = before && await sha256(before.text);
    if (shown !== history.id + n) return;
    put(facts, fact("SHA-256", h("code", null, own)),
      fact("Before", !before ? (event.body.prev ? verdict(false, "the first event names another one before it") : verdict(true, "the first event: nothing is before it")) : event.body.prev === last ? verdict(true, `prev is the hash of event ${n - 1}`) : verdict(false, `prev is not the hash of event ${n - 1}, which is ${last}`)),
      fact("After", !after ? h("span", { class: "badge is-off" }, "○ there is no next event yet") : after.body.prev === own ? verdict(true, `event ${n + 1} names this hash`) : verdict(false, `event ${n + 1} names another hash, ${after.body.prev}`)),
      fact("prev", h("code", null, event.body.prev ?? "none")));
  };
  return {
    el: h("div", { class: "stack" }, facts, h("div", { class: "row" }, h("label", { class: "row" }, readable, "Indented"), size), body),
    update(moment) {
      const next = moment.history.id + moment.n, ended = !!moment.history.events[moment.n];
      if (shown === next && text === moment.event.text && facts.dataset.after === String(ended)) return;
      shown = next;
      facts.dataset.after = String(ended);
      text = moment.event.text;
      put(size, `${count(text.length)} characters, ${moment.event.type}`);
      show();
      clearTimeout(timer);
      timer = setTimeout(() => check(moment), 150);
    },
  };
}
