// The list of all runs. It is live: events change the rows that are there, and what is new is
// read from the gateway, which knows the filters.
import { follow, get, session } from "../lib/api.js";
import { failed, toast } from "../lib/dialog.js";
import { h, put, setText } from "../lib/dom.js";
import { count, duration, plural, usd } from "../lib/format.js";
import { bind } from "../lib/keys.js";
import { List } from "../lib/list.js";
import { pausedText, queuedBadge, runLink, since } from "../lib/widgets.js";
import { interrupted } from "../lib/page.js";
import { charts, states } from "./charts.js";
import { filters, wanted } from "./filters.js";
import { poll, show, tick } from "./parts.js";

/** @typedef {{run_id: string, state: string, n: number, agent?: string, task?: string, started: string, updated: string, cost_usd?: number, tokens?: number, waiting?: string, waits_for?: {pool: string}, queued?: boolean, paused?: boolean, pause_reason?: string, priority?: string, error?: string, forked_from?: {run: string, at: number}, parent?: string}} Run */

const first = 100, further = 1000; // runs of a page
const most = 100_000; // runs that are kept
const pace = 1000; // between two looks at what is new, in ms
const farthest = 5000; // how many runs are read for who comes back to a list

/** Rows of runs, in the order of the gateway. */
class Runs {
  /** @param {AbortSignal} signal */
  constructor(signal) {
    this.signal = signal;
    /** @type {Run[]} */
    this.rows = [];
    /** @type {Map<string, Run>} */
    this.byID = new Map();
    this.next = "";
    /** @type {Record<string, string>} */
    this.query = {};
  }

  /** Reads the first page. Returns how many runs of it are not known; with `take` they are put in. @param {boolean} take */
  async look(take) {
    const query = this.query, page = await get("/v1/runs", { ...query, limit: first }, this.signal);
    if (query !== this.query) return 0;
    const known = page.runs.filter((/** @type {Run} */ run) => this.byID.has(run.run_id)).length;
    for (const run of page.runs) this.better(run);
    if (take) this.put(page, known > 0);
    return page.runs.length - known;
  }

  /** Replaces the begin of the list; keep says that the rest of it follows there. @param {{runs: Run[], next?: string}} page @param {boolean} keep */
  put(page, keep) {
    const ids = new Set(page.runs.map(run => run.run_id));
    const last = page.next && keep ? this.rows.findLastIndex(run => ids.has(run.run_id)) : this.rows.length;
    const rest = this.rows.slice(last + 1).filter(run => !ids.has(run.run_id));
    if (!rest.length) this.next = page.next ?? "";
    this.rows = page.runs.map(run => this.byID.get(run.run_id) ?? run).concat(rest);
    this.byID = new Map(this.rows.map(run => [run.run_id, run]));
  }

  /** Reads the next page. */
  async more() {
    const query = this.query, page = await get("/v1/runs", { ...query, limit: further, cursor: this.next }, this.signal);
    if (query !== this.query) return;
    for (const run of page.runs) {
      if (this.byID.has(run.run_id)) continue;
      this.byID.set(run.run_id, run);
      this.rows.push(run);
    }
    this.next = page.next ?? "";
  }

  /** Takes what a row says, if it is as new as what is known. @param {Run} run */
  better(run) {
    const old = this.byID.get(run.run_id);
    if (!old || old.n > run.n) return;
    for (const key of Object.keys(old)) if (!(key in run)) delete (/** @type {any} */ (old)[key]);
    Object.assign(old, run);
  }

  /** Takes an event, and returns the run's id if it is in the list. @param {any} event */
  apply(event) {
    const run = this.byID.get(event.subject);
    if (!run || event.n <= run.n) return "";
    const { usage, code } = event.data ?? {};
    Object.assign(run, { n: event.n, state: event.to, updated: event.time });
    if (usage?.total) run.tokens = (run.tokens ?? 0) + usage.total;
    if (usage?.cost_usd) run.cost_usd = (run.cost_usd ?? 0) + usage.cost_usd;
    run.waits_for = undefined;
    run.waiting = /** @type {Record<string, string>} */ ({ waiting_for_human: "human", waiting_for_user: "user" })[run.state];
    run.queued &&= run.state === "planning" && event.type !== "Admitted";
    if (event.type === "Paused" || event.type === "Resumed") Object.assign(run, { paused: event.type === "Paused", pause_reason: event.data?.reason });
    if (["done", "error", "cancelled"].includes(run.state)) run.paused = false;
    run.error = run.state === "error" ? code ?? run.error : undefined;
    return run.run_id;
  }

  /** Whether the run is still one of those that are wanted, as far as its row tells. @param {Run} run */
  fits(run) {
    return (!this.query.state || run.state === this.query.state) && (!this.query.waiting || !!run.waiting || ["client", "actor"].includes(this.query.waiting));
  }
}

const waits = /** @type {Record<string, string>} */ ({ human: "a decision", user: "a message", client: "its client" });
const cell = (/** @type {string} */ name, /** @type {string} */ unit, /** @type {import("../lib/dom.js").Child} */ text) => h("span", { class: "cell-" + name }, text, h("span", { class: "visually-hidden" }, " " + unit));

/** @param {Run} run @param {boolean} fits */
function row(run, fits) {
  return h("div", { class: "run-row" + (fits ? "" : " stale") },
    h("span", { class: "cell-state" }, queuedBadge(run.state, run)), h("span", { class: "cell-id" }, runLink(run.run_id)),
    h("span", { class: "cell-agent", title: run.agent }, run.agent || "–"), h("span", { class: "cell-task", dir: "auto", title: run.task }, h("span", { class: "narrow-agent", "aria-hidden": "true" }, run.agent, " "), run.task || (run.forked_from ? "A fork" : "–")),
    cell("n", "events", count(run.n)), cell("tokens", "tokens", count(run.tokens)), cell("cost", "", usd(run.cost_usd)), h("span", { class: "cell-age" }, since(run.started)),
    h("span", { class: "cell-note" + (run.error ? " is-bad" : run.paused || run.waiting ? " is-wait" : "") }, run.error ?? (run.paused ? pausedText(run) : run.waits_for ? "waits for an actor of pool " + run.waits_for.pool : run.waiting ? "waits for " + (waits[run.waiting] ?? run.waiting) : "")));
}

const heads = [["state", "State"], ["id", "Run"], ["agent", "Agent"], ["task", "Task"], ["n", "Events"], ["tokens", "Tokens"], ["cost", "Cost"], ["age", "Started"], ["note", "Waits, error"]];

/** Where the list was left, for whoever comes back to it: which runs were at the top and chosen. @type {{query: string, rows: number, top: string, chosen: string} | null} */
let kept = null;
/** @type {import("./parts.js").Stats | null} */
let stats = null;
let seen = ""; // whose they are

/** What is shown where no run has ever been started. */
function firstRun() {
  const agent = { name: "hello", system_prompt: "You greet.", llm: { provider: "scripted", script: [{ text: "Hello." }] } };
  const more = (session.token ? ' -H "Authorization: Bearer $MOOREBUS_TOKEN"' : "") + (session.namespace ? ` -H "Moorebus-Namespace: ${session.namespace}"` : "");
  const command = `curl ${location.origin}/v1/runs${more} -d '${JSON.stringify({ agent, task: "Say hello." })}'`;
  return h("div", { class: "empty" }, h("h2", null, "No run has been started yet"),
    h("p", { class: "soft" }, "This one needs no model. Start a stored agent under ", h("a", { href: "/agents" }, "Agents"), "."),
    h("div", { class: "row copy" }, h("code", { class: "code" }, command), h("button", { onclick: () => navigator.clipboard.writeText(command).then(() => toast("Copied."), () => toast("The browser did not allow that. Select the text instead.", "bad")) }, "Copy")));
}

/** @param {import("../lib/page.js").Page} page */
export default async function page(page) {
  const { signal } = page;
  const narrow = matchMedia("(max-width: 48rem)");
  const runs = new Runs(signal);
  const trouble = h("div", { role: "alert" }), nothing = h("div", null), chips = h("nav", { class: "chips", "aria-label": "Runs by state" });
  const status = h("span", { class: "soft small", role: "status" });
  const news = h("button", { class: "news main", hidden: true, onclick: () => { list.el.scrollTop = 0; void look(true); list.go(0, { focus: true }); } });
  let reading = false;

  const list = new List({
    label: "Runs", row: narrow.matches ? 60 : 36,
    draw: i => row(runs.rows[i], runs.fits(runs.rows[i])),
    near: () => { if (runs.next && !reading && runs.rows.length < most) void more(); },
  });
  narrow.addEventListener("change", () => { list.o.row = narrow.matches ? 60 : 36; list.set(list.length); }, { signal });
  const filter = filters(page, () => { void read(); });
  const chart = charts();
  const tally = () => {
    if (!stats) return;
    const all = stats, state = page.query.get("state") ?? "";
    chart.set(all);
    show(chips, [all.runs, state], () => states(all, state));
  };

  const shown = () => {
    if (list.length !== runs.rows.length) list.set(runs.rows.length);
    const none = runs.rows.length === 0, filtered = Object.keys(runs.query).length > 0;
    table.hidden = none;
    show(nothing, [none, filtered], () => !none ? null : !filtered ? firstRun()
      : h("div", { class: "empty" }, h("h2", null, "No run matches"), h("p", { class: "soft" }, "No run has all that the filters ask for. "), h("p", null, h("button", { onclick: () => filter.clear.click() }, "Clear filters"))));
    setText(status, none ? "" : plural(runs.rows.length, "run") + (!runs.next ? "" : runs.rows.length < most ? " so far, scroll for more" : ", the older ones are not shown: use filters"));
  };

  /** Reads the list anew. */
  const read = async () => {
    runs.query = wanted(page.query);
    const query = runs.query, began = performance.now();
    tally();
    table.setAttribute("aria-busy", "true");
    try {
      const answer = await get("/v1/runs", { ...query, limit: first }, signal);
      if (query !== runs.query) return; // it is another one meanwhile
      runs.put(answer, false);
      put(trouble);
      news.hidden = true;
      list.el.scrollTop = 0;
      list.length = -1;
      shown();
      status.title = `The gateway took ${duration(performance.now() - began)}.`;
    } catch (err) {
      if (signal.aborted || query !== runs.query) return;
      if (/** @type {any} */ (err).status === 401) throw err;
      put(trouble, failed(err));
    }
    table.removeAttribute("aria-busy");
  };

  const more = async () => {
    reading = true;
    try {
      await runs.more();
      shown();
    } catch (err) {
      if (!signal.aborted) interrupted(String(/** @type {Error} */ (err).message));
    }
    reading = false;
  };

  /** Looks for new runs. They come into the list while nobody is reading it. @param {boolean} [asked] */
  const look = async asked => {
    const free = asked || list.el.scrollTop === 0 && !list.el.matches(":hover") && !list.el.contains(document.activeElement);
    const fresh = await runs.look(free);
    if (free) {
      list.length = -1;
      shown();
    } else for (const i of list.rows.keys()) list.redraw(i);
    news.hidden = free || fresh === 0;
    setText(news, `↑ ${fresh >= first ? first + " or more" : fresh} new ${fresh === 1 ? "run" : "runs"}`);
  };

  /** @type {Set<string>} */
  const changed = new Set();
  let frame = 0, due = 0;
  const soon = () => {
    if (due || signal.aborted) return;
    due = window.setTimeout(async () => {
      due = 0;
      if (document.hidden) return soon();
      await look().catch(() => {}); // the stream says it if the gateway is away
    }, pace);
  };
  const draw = () => {
    frame = 0;
    for (const i of list.rows.keys()) if (runs.rows[i] && changed.has(runs.rows[i].run_id)) list.redraw(i);
    changed.clear();
  };
  signal.addEventListener("abort", () => { cancelAnimationFrame(frame); clearTimeout(due); list.close(); }, { once: true });

  const table = h("div", { class: "runs" }, h("div", { class: "run-row runs-head", "aria-hidden": "true" }, heads.map(([name, text]) => h("span", { class: "cell-" + name }, text))), list.el, news);
  page.root.className = "full";
  put(page.root, h("div", { class: "row" }, h("h1", null, "Runs"), status), chart.el, chips, filter.el, trouble, nothing, table);
  const step = (/** @type {number} */ by) => list.go(list.current + (list.el.contains(document.activeElement) ? by : 0), { focus: true });
  bind(signal, {
    "/": { help: "Search", run: () => filter.text.select() },
    j: { help: "Next run (also ↓)", run: () => step(1) }, k: { help: "Run before (also ↑)", run: () => step(-1) },
    n: { help: "Show new runs", run: () => { if (!news.hidden) news.click(); } },
  });
  tick(list.el, signal);
  const who = session.namespace + " " + session.token;
  if (who !== seen) kept = stats = null;
  seen = who;
  await read();
  if (kept?.query === JSON.stringify(runs.query)) {
    while (runs.next && runs.rows.length < Math.min(kept.rows, farthest)) await runs.more();
    const { top, chosen } = kept, at = (/** @type {string} */ id) => Math.max(0, runs.rows.findIndex(run => run.run_id === id));
    list.current = at(chosen);
    shown();
    list.el.scrollTop = at(top) * list.o.row;
  }
  signal.addEventListener("abort", () => {
    const id = (/** @type {number} */ i) => runs.rows[i]?.run_id ?? "";
    kept = { query: JSON.stringify(runs.query), rows: runs.rows.length, top: id(Math.ceil(list.el.scrollTop / list.o.row)), chosen: id(list.current) };
  }, { once: true });

  follow("/v1/events", { signal,
    onEvent: ({ data }) => {
      const id = runs.apply(data);
      if (id) changed.add(id);
      if (id && !frame) frame = requestAnimationFrame(draw);
      soon();
    },
    onState: (live, reason) => {
      interrupted(live ? "" : `No connection to the gateway: ${reason}. The list continues by itself.`);
      if (live) soon();
    },
  }).catch(err => { if (!signal.aborted) interrupted(`The list is not live: ${err.message}`); });
  void poll(signal, 5000, async () => {
    try {
      stats = await get("/v1/stats", {}, signal);
      tally();
    } catch (err) {
      if (!signal.aborted) chart.fail(err);
    }
  });
  document.addEventListener("visibilitychange", () => { if (!document.hidden) soon(); }, { signal });
}
