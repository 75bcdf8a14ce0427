// Stored agents, and what was spent.
import { get, send } from "../lib/api.js";
import { ranks } from "../lib/chart.js";
import { dialog, empty, failed } from "../lib/dialog.js";
import { h, put } from "../lib/dom.js";
import { count, plural, pretty, usd } from "../lib/format.js";
import { field, since, tabs } from "../lib/widgets.js";
import { go } from "../lib/page.js";
import { poll, show, tick } from "./parts.js";

/** @typedef {{name: string, hash: string, model?: string, provider?: string, tools?: string[], description?: string, updated?: string}} Agent */
/** @typedef {{key: string, runs: number, calls: number, input: number, output: number, cached: number, cost_usd?: number}} Cost */

/** What the agents did in the hours that the gateway counts. @param {import("./parts.js").Hour[]} hours */
function used(hours) {
  /** @type {Map<string, {runs: number, tokens: number, cost?: number, failed: number}>} */
  const all = new Map();
  for (const one of hours.flatMap(hour => hour.agents)) {
    const use = all.get(one.agent) ?? { runs: 0, tokens: 0, failed: 0 };
    all.set(one.agent, { runs: use.runs + one.runs, tokens: use.tokens + one.input + one.output, failed: use.failed + one.failed, cost: one.cost_usd === undefined ? use.cost : (use.cost ?? 0) + one.cost_usd });
  }
  return all;
}

/** @param {Agent} agent */
function start(agent) {
  const task = h("textarea", { name: "task", dir: "auto", autofocus: true });
  dialog("Start a run of " + agent.name, field("Task", task, "Empty: the agent's own task."), [{
    label: "Start", run: async fields => {
      const text = String(fields.get("task")).trim();
      const run = await send("POST", "/v1/runs", { agent: agent.name, ...(text ? { task: text } : {}) });
      go("/runs/" + run.run_id);
    },
  }]);
}

/** @param {Agent} agent */
async function definition(agent) {
  const box = h("div", { class: "code", tabindex: 0, role: "region", "aria-label": "Definition" }, "…");
  dialog("Agent " + agent.name, box);
  try {
    put(box, pretty(await get("/v1/agents/" + encodeURIComponent(agent.name))));
  } catch (err) {
    put(box, failed(err));
  }
}

/** @param {Agent} agent @param {ReturnType<typeof used>} uses */
function card(agent, uses) {
  const use = uses.get(agent.name);
  const model = [agent.provider, agent.model].filter(Boolean).join("/");
  return h("div", { class: "card stack" },
    h("div", { class: "row agent-head" }, h("h2", null, agent.name), h("div", { class: "row" },
      h("button", { "data-key": "show " + agent.name, "aria-label": "Definition of " + agent.name, onclick: () => { void definition(agent); } }, "Definition"),
      h("button", { class: "main", "data-key": "start " + agent.name, "aria-label": "Start a run of " + agent.name, onclick: () => start(agent) }, "Start a run…"))),
    agent.description && h("p", { class: "text", dir: "auto" }, agent.description),
    h("dl", { class: "facts" },
      h("dt", null, "Version"), h("dd", null, h("code", { title: agent.hash }, agent.hash ? agent.hash.slice(0, 12) : "of another build"), agent.updated && [", stored ", since(agent.updated)]),
      model && [h("dt", null, "Model"), h("dd", null, h("code", null, model))],
      agent.tools && [h("dt", null, "Tools"), h("dd", null, agent.tools.length ? agent.tools.map((tool, i) => [i ? ", " : "", h("code", null, tool)]).flat() : "none")],
      h("dt", null, "Last 48 hours"), h("dd", null, use ? [h("a", { href: "/?agent=" + encodeURIComponent(agent.name) }, plural(use.runs, "run")), use.failed ? h("span", { class: "is-bad" }, `, ${count(use.failed)} failed`) : "", `, ${count(use.tokens)} tokens, ${use.cost === undefined ? "price not known" : usd(use.cost)}`] : "no run")));
}

const kinds = /** @type {[string, string][]} */ ([["agent", "By agent"], ["model", "By model"], ["tool", "By tool"], ["day", "By day"]]);

/** @param {Cost[]} rows @param {Omit<Cost, "key">} total @param {string} by */
function costTable(rows, total, by) {
  if (!rows.length) return empty("Nothing was spent", "Costs appear with the first reply of a model.");
  const label = (/** @type {string} */ key) => (by === "day" ? key.slice(0, 10) : key) || "(none)";
  /** @param {string} key @param {Omit<Cost, "key">} one @param {string} [cls] */
  const line = (key, one, cls) => h("tr", { class: cls }, h(cls ? "th" : "td", cls ? { scope: "row" } : null, key), [one.runs, one.calls, one.input, one.output, one.cached].map(n => h("td", { class: "number" }, count(n))), h("td", { class: "number" }, usd(one.cost_usd)));
  const priced = rows.some(row => row.cost_usd);
  return [ranks(priced ? "Cost" : "Tokens", rows.slice(by === "day" ? -14 : 0).slice(0, 14).map(row => ({ name: label(row.key), value: priced ? row.cost_usd ?? 0 : row.input + row.output })), { format: priced ? usd : count }),
    h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Costs, numbers" }, h("table", null,
      h("thead", null, h("tr", null, h("th", { scope: "col" }, by[0].toUpperCase() + by.slice(1)), ["Runs", "Calls", "Input", "Output", "Cached", "Cost"].map(text => h("th", { scope: "col", class: "number" }, text)))),
      h("tbody", null, rows.map(row => line(label(row.key), row)), line("Total", total, "total"))))];
}

/** @param {import("../lib/page.js").Page} page */
export default async function page(page) {
  const { signal } = page;
  const cards = h("div", { class: "grid agents" });
  const panels = Object.fromEntries(kinds.map(([by]) => [by, h("div", { class: "costs" })]));
  let by = kinds.some(([kind]) => kind === page.query.get("by")) ? page.query.get("by") ?? "" : "agent";
  const span = /** @type {HTMLSelectElement} */ (h("select", { "aria-label": "Costs since", onchange: () => { page.set({ days: span.value }); void costs(); } },
    [["", "since the beginning"], ["1", "of the last 24 hours"], ["7", "of the last 7 days"], ["30", "of the last 30 days"]].map(([value, text]) => h("option", { value, selected: value === (page.query.get("days") ?? "") }, text))));
  const costs = async () => {
    const panel = panels[by], kind = by;
    try {
      const answer = await get("/v1/costs", { by, since: span.value && new Date(Date.now() - Number(span.value) * 86_400_000).toISOString() }, signal);
      show(panel, answer, () => costTable(answer.rows, answer.total, kind));
    } catch (err) {
      if (!signal.aborted) show(panel, String(err), () => failed(err));
    }
  };
  const choice = tabs("Costs", kinds.map(([id, name]) => ({ id, name, panel: panels[id] })), id => { by = id; page.set({ by: id === "agent" ? "" : id }); void costs(); });
  put(page.root, h("h1", null, "Agents"), cards, h("section", null, h("div", { class: "row" }, h("h2", null, "Costs"), span), choice.el));
  choice.choose(by);
  tick(cards, signal);
  await poll(signal, 10_000, async () => {
    const [agents, stats] = await Promise.all([get("/v1/agents", {}, signal), get("/v1/stats", {}, signal), costs()]);
    const uses = used(stats.hours);
    show(cards, [agents, [...uses]], () => agents.length ? agents.map((/** @type {Agent} */ agent) => card(agent, uses))
      : empty("No agent is stored", "Store one from a file: ", h("code", null, "moorebus agents put examples/quickstart.yaml")));
  });
}
