// What happened in the last 48 hours, above the list of runs.
import { bars, ranks } from "../lib/chart.js";
import { h } from "../lib/dom.js";
import { count, plural, stateKind, stateShape, stateWord, usd } from "../lib/format.js";
import { show } from "./parts.js";

const hour = 3600_000, shown = 48;

/** The last 48 hours, those without events too. @param {import("./parts.js").Stats} stats @returns {import("./parts.js").Hour[]} */
function hours(stats) {
  const known = new Map(stats.hours.map(one => [Date.parse(one.hour), one]));
  const last = Math.floor(Date.parse(stats.at) / hour) * hour;
  return Array.from({ length: shown }, (_, i) => {
    const at = last - (shown - 1 - i) * hour;
    return known.get(at) ?? { hour: new Date(at).toISOString(), started: 0, ended: 0, failed: 0, events: 0, input: 0, output: 0, agents: [] };
  });
}

const label = (/** @type {string} */ at) => new Date(at).toLocaleString("en-GB", { weekday: "short", hour: "2-digit", minute: "2-digit" });

/** The charts, which `set` fills. */
export function charts() {
  const names = ["runs", "errors", "tokens", "cost", "backlog"];
  const boxes = Object.fromEntries(names.map(name => [name, h("div", { class: "chart-box", "data-key": name })]));
  const now = h("span", { class: "soft" });
  const folded = localStorage.getItem("charts") ?? (matchMedia("(max-width: 40rem)").matches ? "closed" : "open");
  const el = /** @type {HTMLDetailsElement} */ (h("details", { class: "charts", open: folded === "open" },
    h("summary", { onclick: () => localStorage.setItem("charts", el.open ? "closed" : "open") }, "Last 48 hours ", now), h("div", { class: "charts-grid" }, names.map(name => boxes[name]))));

  /** @param {import("./parts.js").Stats} stats */
  const set = stats => {
    const all = hours(stats);
    const rates = stats.rates;
    show(now, rates, () => `${rates.events_per_s.toFixed(1)} events/s, ${(rates.runs_per_s * 60).toFixed(1)} runs/min in the last ${rates.window_s} s`);
    /** @param {string} name @param {string} title @param {(hour: import("./parts.js").Hour) => [string, number, string][]} values @param {{format?: (n: number) => string, empty?: string}} [o] */
    const chart = (name, title, values, o) => {
      const data = all.map(one => ({ label: label(one.hour), values: values(one).map(([name, value, kind]) => ({ name, value, kind })) }));
      show(boxes[name], data, () => bars(title, data, o));
    };
    chart("runs", "Runs started", one => [["started", one.started, "accent"]], { format: count });
    chart("errors", "Runs failed", one => [["failed", one.failed, "bad"]], { empty: "No run failed." });
    chart("tokens", "Tokens", one => [["input", one.input, "accent"], ["output", one.output, "off"]], { format: count });
    chart("cost", "Cost", one => [["cost", one.cost_usd ?? 0, "good"]], { format: usd, empty: "No costs, or no known prices." });
    const backlog = stats.backlog?.filter(one => one.waiting + one.in_flight > 0);
    show(boxes.backlog, [backlog, stats.backlog_reason], () => ranks("Work that waits, by state", (backlog ?? []).map(one => (
      { name: stateWord(one.state) + (one.pool ? `, pool ${one.pool}` : ""), value: one.waiting + one.in_flight, kind: one.waiting ? "wait" : "accent" })),
    { format: count, empty: stats.backlog_reason ? `Not known: ${stats.backlog_reason}.` : "Nothing waits." }));
  };
  /** Says why nothing newer is known. @param {any} err */
  const fail = err => show(now, String(err), () => `Not known: ${err.message}`);
  return { el, set, fail };
}

/** How many runs are in each state, as links to their list. @param {import("./parts.js").Stats} stats @param {string} chosen */
export function states(stats, chosen) {
  const all = Object.entries(stats.runs.by_state).sort((a, b) => b[1] - a[1]);
  return [h("a", { href: "/", class: "chip", "aria-current": !chosen && "true", "data-key": "" }, plural(stats.runs.total, "run")),
    all.map(([state, n]) => h("a", { href: "/?state=" + encodeURIComponent(state), class: "chip is-" + stateKind(state), "aria-current": chosen === state && "true", "data-key": state },
      h("span", { "aria-hidden": "true" }, stateShape(state)), ` ${stateWord(state)} `, h("strong", null, count(n))))];
}
