// Keys of a page. Keys with modifiers, and those typed into a field, are the browser's.
import { h } from "./dom.js";
import { dialog } from "./dialog.js";

/** @typedef {{help: string, run: () => void}} Key */
/** @type {Set<Record<string, Key>>} */
const bound = new Set();

/** Binds keys until the signal is aborted, such as {"/": {help: "Search", run}}. @param {AbortSignal} signal @param {Record<string, Key>} keys */
export function bind(signal, keys) {
  if (signal.aborted) return;
  bound.add(keys);
  signal.addEventListener("abort", () => bound.delete(keys), { once: true });
}

/** @param {Event} event */
export function typing(event) {
  const at = /** @type {HTMLElement} */ (event.target);
  return at.matches?.("input:not([type=range]):not([type=checkbox]):not([type=radio]), textarea, select, [contenteditable]") ?? false;
}

document.addEventListener("keydown", event => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented || typing(event) || document.querySelector("dialog[open]")) return;
  const at = /** @type {HTMLElement} */ (event.target);
  if ((event.key === " " || event.key === "Enter") && at.matches?.("button, a, summary, input:not([type=range])")) return; // it presses them
  for (const keys of [...bound].reverse()) {
    const key = keys[event.key];
    if (!key) continue;
    event.preventDefault();
    key.run();
    return;
  }
});

const names = /** @type {Record<string, string>} */ ({ ArrowLeft: "←", ArrowRight: "→", ArrowUp: "↑", ArrowDown: "↓", " ": "Space" });

/** Shows the keys of the page. */
export function showKeys() {
  const rows = [...bound].flatMap(keys => Object.entries(keys)).map(([key, { help }]) => h("tr", null, h("td", null, h("kbd", null, names[key] ?? key)), h("td", null, help)));
  dialog("Keys", h("table", { class: "plain" }, h("tbody", null, rows)));
}
