// Parts that several pages show.
import { h } from "./dom.js";
import { ago, cut, longText, shortID, stateKind, stateShape, stateWord, when } from "./format.js";

/** A state by shape, word and colour. @param {string} state */
export const badge = state => h("span", { class: "badge is-" + stateKind(state) }, h("span", { "aria-hidden": "true" }, stateShape(state)), " ", stateWord(state));

/** The state of a run, or that it is queued, and with which priority. @param {string} state @param {{queued?: boolean, priority?: string}} [at] */
export const queuedBadge = (state, at) => at?.queued ? [badge("queued"), at.priority && at.priority !== "normal" && h("span", { class: "soft small" }, ` ${at.priority} priority`)] : badge(state);

/** That a run is paused, and why as far as that is known. @param {{paused?: boolean, pause_reason?: string} | undefined} at */
export const pausedText = at => at?.paused ? "paused" + (at.pause_reason ? ": " + cut(at.pause_reason, 80) : "") : "";

/** A link to a run, or to one of its events. @param {string} id @param {number} [n] @param {import("./dom.js").Child} [text] */
export const runLink = (id, n, text) => h("a", { href: `/runs/${encodeURIComponent(id)}` + (n ? "#n=" + n : ""), class: "mono", title: id }, text ?? shortID(id));

/** How long ago, with the time itself. @param {string | undefined} at */
export const since = at => h("time", { datetime: at, title: when(at) }, ago(at));

/** A text as it is written, of which a long one is shown in part at first. @param {string} text @param {string} [kind] class of the element @param {number} [limit] characters shown at first */
export function long(text, kind = "text", limit = longText) {
  const box = h("div", { class: kind, dir: "auto" }, cut(text, limit));
  if (text.length <= limit) return box;
  const more = h("button", { class: "quiet", onclick: () => { const next = text.slice(shown, shown + 20 * longText); shown += next.length; box.append(h("span", null, next)); tell(); } });
  let shown = limit;
  const tell = () => { more.hidden = shown >= text.length; more.textContent = `Show more (${(text.length - shown).toLocaleString("en-US")} characters)`; };
  box.replaceChildren(h("span", null, text.slice(0, limit)));
  tell();
  return h("div", null, box, more);
}

/** A field with its label, and a hint below it. @param {string} label @param {HTMLElement} input @param {string} [hint] */
export const field = (label, input, hint) => h("label", { class: "field" }, h("span", null, label), input, hint && h("span", { class: "soft small" }, hint));

/**
 * Tabs. The panel of a tab is made when it is first chosen.
 * @param {string} label @param {{id: string, name: string, panel: HTMLElement}[]} tabs @param {(id: string) => void} chosen
 */
export function tabs(label, tabs, chosen) {
  const buttons = tabs.map((tab, i) => h("button", {
    role: "tab", id: "tab-" + tab.id, "aria-controls": "panel-" + tab.id, tabIndex: i ? -1 : 0, onclick: () => choose(tab.id),
    onkeydown: (/** @type {KeyboardEvent} */ event) => {
      const to = event.key === "ArrowRight" ? i + 1 : event.key === "ArrowLeft" ? i - 1 : -1;
      const next = to < 0 && event.key !== "ArrowLeft" ? undefined : tabs[(to + tabs.length) % tabs.length];
      if (!next) return;
      event.preventDefault();
      event.stopPropagation();
      choose(next.id);
      document.getElementById("tab-" + next.id)?.focus();
    },
  }, tab.name));
  const panels = tabs.map(tab => h("div", { role: "tabpanel", id: "panel-" + tab.id, "aria-labelledby": "tab-" + tab.id, class: "panel", tabIndex: 0, hidden: true }, tab.panel));
  /** @param {string} id */
  const choose = id => {
    tabs.forEach((tab, i) => {
      const on = tab.id === id;
      buttons[i].setAttribute("aria-selected", String(on));
      buttons[i].tabIndex = on ? 0 : -1;
      panels[i].hidden = !on;
    });
    chosen(id);
  };
  return { el: h("div", { class: "tabs" }, h("div", { role: "tablist", "aria-label": label }, buttons), panels), choose };
}
