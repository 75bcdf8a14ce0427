// What the run used, by step, tool, model and sub-run, and the runs that it belongs to.
import { get } from "../lib/api.js";
import { failed } from "../lib/dialog.js";
import { h, put, setText } from "../lib/dom.js";
import { count, duration, plural, usd } from "../lib/format.js";
import { badge, runLink } from "../lib/widgets.js";

/** @param {string} title @param {string[]} heads @param {import("../lib/dom.js").Child[][]} rows @param {number[]} [after] numbers of the rows' events */
function table(title, heads, rows, after) {
  return h("section", { class: "stack" }, h("h2", null, title), rows.length ? h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": title }, h("table", null,
    h("thead", null, h("tr", null, heads.map((name, i) => h("th", { class: i ? "number" : null }, name)))),
    h("tbody", null, rows.map((cells, r) => h("tr", { "data-n": after?.[r] }, cells.map((cell, i) => h("td", { class: i ? "number" : null }, cell))))))) : h("p", { class: "soft" }, "None."));
}

/** A run of the tree and those below it. @param {any} node @param {string} here @returns {HTMLElement} */
function branch(node, here) {
  const why = { sub: "answers a call", fork: `fork${node.at ? " at event " + node.at : ""}`, root: "" }[/** @type {"sub" | "fork" | "root"} */ (node.relation)];
  return h("li", null, h("div", { class: "row tree-run" + (node.run_id === here ? " is-here" : "") }, badge(node.state), runLink(node.run_id), h("strong", null, node.agent), node.run_id === here && h("span", { class: "small" }, "◂ this run"),
    h("span", { class: "soft small" }, [why, plural(node.n, "event"), node.cost_usd ? usd(node.cost_usd) : "", ...(node.hand_offs ?? []).map((/** @type {any} */ o) => `handed over to ${o.to} at ${o.n}`)].filter(Boolean).join(" · "))),
  node.task && h("p", { class: "soft small tree-task" }, node.task.slice(0, 160)), node.children?.length > 0 && h("ul", { class: "tree-runs" }, node.children.map((/** @type {any} */ child) => branch(child, here))));
}

/** @param {import("../lib/page.js").Page} page @param {import("./history.js").History} history @param {import("./dvr.js").DVR} dvr @returns {import("./page.js").Part} */
export function usage(page, history, dvr) {
  const at = h("p"), used = h("div", { class: "stack" }), runs = h("section", { class: "stack" });
  let read = -1, reading = false, moment = /** @type {import("./dvr.js").Moment | undefined} */ (undefined);
  const mark = () => { for (const row of /** @type {NodeListOf<HTMLElement>} */ (used.querySelectorAll("tr[data-n]"))) row.classList.toggle("is-later", Number(row.dataset.n) > (moment?.n ?? 0)); };
  /** @param {any} u */
  const fields = u => [count(u.input), count(u.output), count(u.cached), usd(u.cost_usd), duration(u.duration_ms)];
  /** @param {any} u */
  const show = u => {
    const steps = u.steps ?? [], shown = steps.slice(-200);
    put(used, table("In all", ["Runs", "Input", "Output", "Cached", "Cost", "Time", "Model calls", "Tool calls"], [["With sub-runs", u.total], ["This run", u.own]].map(([name, use]) => [name, ...fields(use), count(use.model_calls), count(use.tool_calls)])),
      h("p", { class: "soft small" }, `${duration(u.elapsed_ms)} from the first to the last event, ${duration(u.waiting_ms)} of them waiting for people.`),
      table("By model", ["Model", "Input", "Output", "Cached", "Cost", "Time", "Calls", "Failed"], (u.models ?? []).map((/** @type {any} */ m) => [m.name || "–", ...fields(m), m.calls, m.failed])),
      table("By tool", ["Tool", "Calls", "Failed", "Time", "Cost"], (u.tools ?? []).map((/** @type {any} */ t) => [t.name, t.calls, t.failed, duration(t.duration_ms), usd(t.cost_usd)])),
      table("By sub-run", ["Sub-run", "Agent", "State", "Tokens", "Cost"], (u.children ?? []).map((/** @type {any} */ c) => [runLink(c.run_id), c.agent, badge(c.state), count(c.use.total), usd(c.use.cost_usd)])),
      table("By step" + (steps.length > shown.length ? ` (the last ${shown.length} of ${steps.length})` : ""), ["Step", "What", "Input", "Output", "Cached", "Cost", "Time", "Event"], shown.map((/** @type {any} */ s) => [s.step, [s.kind === "model" ? "◇ " : "▶ ", s.name, s.failed && h("span", { class: "is-bad" }, " ✗ failed")], ...fields(s), h("button", { class: "quiet", onclick: () => dvr.go(s.n) }, s.n)]), shown.map((/** @type {any} */ s) => s.n)));
    mark();
  };
  const load = async () => {
    if (reading || read === history.length) return;
    reading = true;
    read = history.length;
    await Promise.all([
      get(`/v1/runs/${history.id}/usage`, {}, page.signal).then(show, err => put(used, failed(err))),
      get(`/v1/runs/${history.id}/tree`, {}, page.signal).then(t => put(runs, h("h2", null, "Runs of this tree"), h("ul", { class: "tree-runs" }, branch(t.root, history.id)), t.truncated && h("p", { class: "soft" }, "Only the first 1000 runs are shown.")), err => put(runs, h("h2", null, "Runs of this tree"), failed(err))),
    ]);
    setTimeout(() => { reading = false; if (el.isConnected && el.offsetParent && !page.signal.aborted) void load(); }, 2000); // a live run is read again
  };
  const el = h("div", { class: "stack" }, at, used, runs);
  return {
    el,
    update(now) {
      moment = now;
      const use = now.memory?.total_usage;
      setText(at, use ? `Up to event ${now.n}: ${count(use.input)} tokens in, ${count(use.output)} out, ${usd(use.cost)}. Rows of later events are pale and dotted.` : "");
      mark();
      void load();
    },
  };
}
