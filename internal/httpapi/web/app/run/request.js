// What the model was asked for the reply at the moment, or for the last one before it.
import { get } from "../lib/api.js";
import { empty, failed } from "../lib/dialog.js";
import { h, put } from "../lib/dom.js";
import { count, pretty } from "../lib/format.js";
import { long } from "../lib/widgets.js";
import { folded } from "./conversation.js";

/** Whether an event is a model's reply. @param {import("./history.js").RunEvent} e */
export const replied = e => e.data.finish !== undefined || !!(e.data.usage && e.data.model !== undefined && e.data.success === undefined);

/** @param {any} content */
function text(content) {
  if (typeof content === "string") return long(content, "text", 3000);
  if (!Array.isArray(content)) return content === null || content === undefined ? null : long(pretty(content), "code", 3000);
  return content.map(part => typeof part?.text === "string" ? long(part.text, "text", 3000) : long(pretty(part), "code", 1000));
}

/** @param {any} m */
function message(m) {
  const { role, content, ...rest } = m ?? {};
  return h("article", { class: "message is-" + (role === "assistant" || role === "user" ? role : "call") }, h("header", { class: "small" }, h("strong", null, role ?? m?.type ?? "item")),
    text(content), Object.keys(rest).length > 0 && long(pretty(rest), "code", 1500));
}

/** @param {import("../lib/page.js").Page} page @param {import("./history.js").History} history @param {import("./dvr.js").DVR} dvr @returns {import("./page.js").Part} */
export function request(page, history, dvr) {
  const el = h("div", { class: "stack" });
  let shown = -1, timer = /** @type {any} */ (0), asking = new AbortController();
  /** @param {number} n */
  const load = async n => {
    asking.abort();
    const mine = asking = new AbortController();
    const signal = AbortSignal.any([page.signal, mine.signal]);
    try {
      const r = await get(`/v1/runs/${history.id}/request`, { at: n }, signal);
      const { messages, tools, sampling } = r, list = Array.isArray(messages) ? messages : [messages];
      const dl = Object.entries(sampling ?? {}).flatMap(([key, value]) => [h("dt", { class: "mono" }, key), h("dd", { class: "mono" }, typeof value === "string" ? value : JSON.stringify(value))]);
      put(el, h("p", null, "What the model was asked for the reply ", h("button", { class: "quiet", onclick: () => dvr.go(n) }, `event ${n}`), "."),
        h("dl", { class: "facts" }, h("dt", null, "Model"), h("dd", null, r.model || "–"), h("dt", null, "Dialect"), h("dd", null, r.dialect),
          h("dt", null, "Exact"), h("dd", null, r.exact === undefined ? "–" : r.exact ? [h("span", { class: "badge is-good" }, "✓ exact"), ", its hash is the recorded one"] : [h("span", { class: "badge is-wait" }, "~ not proven"), ", no recorded hash agrees with it"]), dl),
        h("h2", null, `Messages (${list.length})`), list.length > 40 && folded(`The first ${list.length - 40}`, () => list.slice(0, -40).map(message)), list.slice(-40).map(message),
        h("h2", null, `Tools (${count(tools?.length ?? 0)})`), (tools ?? []).map((/** @type {any} */ t) => folded(t?.function?.name ?? t?.name ?? "tool", () => long(pretty(t), "code", 5000))),
        folded("As JSON", () => long(pretty(r), "code", 20_000)));
    } catch (err) {
      if (!signal.aborted) put(el, h("p", null, `Event ${n}`), failed(err));
    }
  };
  return {
    el,
    update({ n, history }) {
      while (n > 0 && !replied(history.events[n - 1])) n--;
      if (n === shown) return;
      shown = n;
      clearTimeout(timer);
      asking.abort();
      if (!n) return put(el, empty("No reply yet", "Up to this moment the model answered nothing."));
      timer = setTimeout(() => load(n), 200);
    },
  };
}
