// The page of one run. Every part of it shows the same moment, which the recorder chooses.
import { actions } from "../acting/actions.js";
import { get } from "../lib/api.js";
import { failed } from "../lib/dialog.js";
import { h, put, setText } from "../lib/dom.js";
import { ago, count, duration, shortID, usd, when } from "../lib/format.js";
import { bind } from "../lib/keys.js";
import { long, pausedText, queuedBadge, runLink, tabs } from "../lib/widgets.js";
import { poll } from "../fleet/parts.js";
import { interrupted } from "../lib/page.js";
import { conversation } from "./conversation.js";
import { DVR } from "./dvr.js";
import { History } from "./history.js";
import { machine } from "./machine.js";
import { memory } from "./memory.js";
import { raw } from "./raw.js";
import { request } from "./request.js";
import { timeline } from "./timeline.js";
import { usage } from "./usage.js";

/** @typedef {import("./dvr.js").Moment} Moment */
/** What shows a moment. @typedef {{el: HTMLElement, update: (moment: Moment) => void}} Part */

/** @type {[string, string, (page: import("../lib/page.js").Page, history: History, dvr: DVR) => Part][]} */
const parts = [
  ["conversation", "Conversation", (page, history) => conversation(history, page.signal)], ["states", "States", machine], ["memory", "Memory", memory],
  ["request", "Request", request], ["raw", "Raw event", raw], ["usage", "Usage and runs", usage],
];

/** @param {import("../lib/page.js").Page} page */
export default function page(page) {
  const id = page.params.id;
  page.title("Run " + shortID(id));
  page.root.className = "run-page";
  const history = new History(id, page.signal);
  const top = head(page, history);
  /** @type {Map<string, Part>} */
  const made = new Map();
  let chosen = "", now = /** @type {Moment | undefined} */ (undefined);
  const dvr = new DVR(history, moment => {
    now = moment;
    line.update(moment); // first, since it asks for places, which are known before anything changed
    made.get(chosen)?.update(moment);
    top.update(moment);
  });
  const line = timeline(dvr, history);
  const panels = parts.map(([id, name]) => ({ id, name, panel: h("div", { class: "run-panel" }) }));
  const board = tabs("What to show", panels, tab => {
    chosen = tab;
    const i = parts.findIndex(([id]) => id === tab);
    if (!made.has(tab)) {
      const part = parts[i][2](page, history, dvr);
      made.set(tab, part);
      put(panels[i].panel, part.el);
    }
    page.set({ tab: i ? tab : "" });
    if (now) made.get(tab)?.update(now);
  });
  const trouble = h("div");
  put(page.root, top.el, trouble, h("div", { class: "run-body" }, line.el, board.el), dvr.el);
  const wanted = page.query.get("tab");
  board.choose(parts.some(([id]) => id === wanted) ? String(wanted) : parts[0][0]);
  bind(page.signal, Object.fromEntries(parts.map(([id, name], i) => [String(i + 1), { help: name, run: () => board.choose(id) }])));
  void poll(page.signal, 3000, () => top.awaits().catch(() => {})); // the stream of events says it if the gateway is away
  history.onchange = () => {
    if (history.trouble) put(trouble, h("p", { class: "soft" }, "The memory of this run cannot be shown, only its events:"), failed(history.trouble));
    dvr.draw();
  };
  history.onstate = (live, reason) => {
    if (!page.signal.aborted) interrupted(live ? "" : `Not connected: ${reason}. What is shown may be old. The console continues by itself.`);
    dvr.draw();
  };
  history.start().catch(err => { if (!page.signal.aborted) put(page.root, h("h1", null, "Run ", shortID(id)), failed(err), h("p", null, h("a", { href: "/" }, "Show all runs"))); });
}

/** The header. @param {import("../lib/page.js").Page} page @param {History} history */
function head(page, history) {
  const state = h("span"), name = h("span"), past = h("span", { class: "past-sign" }), missing = h("span", { class: "past-sign", role: "status" }), facts = h("dl", { class: "run-facts" });
  const task = h("details", { class: "run-task" }), links = h("p", { class: "small run-links" });
  const acting = actions(page, history.id);
  let shown = "", asked = "", began = false;
  const acts = () => ["acting", "parallel_acting"].includes(history.events.at(-1)?.to ?? "");

  const origin = () => {
    const first = history.events[0].data;
    put(links, first.parent && ["Answers a call of ", runLink(first.parent.run), " · "], history.events[0].type === "Forked" && ["Forked from ", runLink(first.run, first.at), ` after event ${first.at} · `],
      h("span", { class: "mono soft" }, history.id));
  };
  const fact = (/** @type {string} */ name, /** @type {string} */ value) => h("div", null, h("dt", null, name), h("dd", null, value));
  return {
    el: h("header", { class: "run-head" },
      h("div", { class: "row" }, h("h1", null, name), state, past, missing), h("div", { class: "run-head-parts" }, h("div", { class: "stack grow run-about" }, task, links), h("div", { class: "run-buttons" }, acting.el)), facts),
    /** Says which pool the run waits for. No event tells it, so the gateway is asked while calls are made. */
    async awaits() {
      if (!acts()) return;
      const waits = (await get("/v1/runs", { id_prefix: history.id }, page.signal)).runs[0]?.waits_for;
      setText(missing, acts() && waits ? `waits for an actor of pool ${waits.pool} since ${when(waits.since)}` : "");
    },
    /** @param {Moment} moment */
    update(moment) {
      const { memory, event, edge, n } = moment, use = memory?.total_usage;
      if (!began) origin();
      began = true;
      setText(name, memory?.control?.agent?.name || history.events[0].data.agent?.name || "Run " + shortID(history.id));
      const queue = memory?.control?.admission, held = pausedText(memory?.control), looks = event.to + !!queue?.queued + held;
      if (shown !== looks) put(state, queuedBadge(event.to, queue), held && h("span", { class: "soft small" }, " " + held));
      shown = looks;
      if (!acts()) setText(missing, "");
      setText(past, edge ? "" : `◷ past: event ${n} of ${history.length}`);
      const text = memory?.task ?? "";
      if (asked !== text) {
        asked = text;
        put(task, h("summary", null, h("span", { class: "run-task-line" }, text.slice(0, 300))), long(text));
      }
      const took = event.at - history.events[0].at;
      put(facts, fact("Cost", use ? usd(use.cost) : "–"), fact("Tokens", use ? `${count(use.input)} in, ${count(use.output)} out` : "–"), fact("Step", String(event.step)),
        fact("Started", `${ago(history.events[0].body.time)}`), fact("At", `${when(event.body.time)} (+${duration(took)})`), fact("Event", `${n} of ${history.length}`));
      if (memory) acting.update(memory, n, edge);
    },
  };
}
