// Dialogs, messages, and how errors are shown.
import { h, newID, put } from "./dom.js";
import { ApiError } from "./api.js";

/**
 * Opens a dialog and returns it. Without actions it has the button Close. An action's run is
 * called with the form's fields. The dialog stays open, with the error shown, if it throws, and
 * if it returns false.
 * @param {string} title
 * @param {import("./dom.js").Child} body
 * @param {{label: string, kind?: "main" | "danger", run: (fields: FormData) => any}[]} [actions]
 * @returns {HTMLDialogElement}
 */
export function dialog(title, body, actions = []) {
  const name = newID("dialog");
  const trouble = h("div", { role: "alert" });
  const form = /** @type {HTMLFormElement} */ (h("form", { method: "dialog", novalidate: true }));
  const box = /** @type {HTMLDialogElement} */ (h("dialog", { "aria-labelledby": name }, form));
  const buttons = actions.map(({ label, kind, run }) => /** @type {HTMLButtonElement} */ (h("button", {
    type: "submit", class: kind ?? "main", onclick: async (/** @type {Event} */ event) => {
      event.preventDefault();
      if (!form.reportValidity()) return;
      buttons.forEach(b => { b.disabled = true; });
      put(trouble);
      try {
        if (await run(new FormData(form)) !== false) box.close();
      } catch (err) {
        put(trouble, failed(err));
      }
      buttons.forEach(b => { b.disabled = false; });
    },
  }, label)));
  const close = h("button", { type: "button", class: "quiet", onclick: () => box.close() }, actions.length ? "Cancel" : "Close");
  form.append(h("h2", { id: name }, title));
  form.append(...[h("div", { class: "dialog-body" }, body), trouble, h("div", { class: "row end" }, close, buttons)]);
  const before = /** @type {HTMLElement | null} */ (document.activeElement);
  box.addEventListener("close", () => { box.remove(); before?.focus?.(); });
  document.body.append(box);
  box.showModal();
  return box;
}

/** Opens a dialog that closes when the page is left. @param {{signal: AbortSignal}} page @param {Parameters<typeof dialog>} args */
export function open(page, ...args) {
  const box = dialog(...args);
  page.signal.addEventListener("abort", () => box.close(), { once: true });
  return box;
}

/** Shows a message for some seconds. @param {string} text @param {"good" | "bad"} [kind] */
export function toast(text, kind = "good") {
  const box = h("div", { class: "toast " + kind }, h("span", { "aria-hidden": "true" }, kind === "good" ? "✓ " : "✗ "), text);
  document.getElementById("toasts")?.append(box);
  setTimeout(() => box.remove(), 8000);
}

/** What a person can do about an error, by its code. @type {Record<string, string>} */
const advice = {
  unreachable: "This page tries again by itself.",
  unauthorized: "Give the gateway's token under Connection.",
  forbidden: "Open the console under a name that the gateway knows (--host), or set a token.",
  run_not_found: "Check the id, and the namespace under Connection.",
  run_purged: "Its events were deleted by `moorebus purge`. They cannot be shown again.",
  conflict: "Somebody else changed the run meanwhile. Look again, and repeat it if it is still wanted.",
  already_decided: "Somebody else decided first. Their decision counts.",
  run_ended: "The run has ended. Fork it to continue from one of its events.",
  too_many_streams: "Close other tabs of this console.",
  unavailable: "Try again in a moment.",
};

/** An error as an element: what happened, its code, and what to do. @param {any} err */
export function failed(err) {
  const code = err instanceof ApiError ? err.code : ""; // else it is about what was written into a form
  const message = err instanceof Error ? err.message : String(err);
  return h("div", { class: "failed" }, h("p", null, h("span", { "aria-hidden": "true" }, "✗ "), message + (/[.!?]$/.test(message) ? "" : ".")),
    code && h("p", { class: "soft" }, advice[code] ? advice[code] + " " : "", "Code: ", h("code", null, code)));
}

/** What is shown where there is nothing. @param {string} title @param {...import("./dom.js").Child} text */
export const empty = (title, ...text) => h("div", { class: "empty" }, h("h2", null, title), h("p", { class: "soft" }, ...text));
