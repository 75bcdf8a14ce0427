// Two runs beside each other: what is different, and both at the same moment.
import { get } from "../lib/api.js";
import { failed } from "../lib/dialog.js";
import { h, put } from "../lib/dom.js";
import { count, duration, ended, plural, shortID, usd } from "../lib/format.js";
import { bind } from "../lib/keys.js";
import { badge, field, long, runLink } from "../lib/widgets.js";
import { go, interrupted } from "../lib/page.js";
import { conversation } from "../run/conversation.js";
import { History } from "../run/history.js";
import { pretty } from "../acting/exact.js";
import { lineDiff } from "../acting/linediff.js";

/**
 * @typedef {{n: number, run?: string, name: string, arguments: string}} Call
 * @typedef {Record<string, number | undefined>} Use
 * @typedef {{fork_point: number | null, fork_run?: string, same: boolean, calls: {op: string, a?: Call, b?: Call}[], answer: {a: string | null, b: string | null, same: boolean}, state: {a: string, b: string}, usage: {a: Use, b: Use}}} Comparison
 */

/** @param {import("../lib/page.js").Page} page */
export default async function compare(page) {
  const a = page.query.get("a") ?? "", b = page.query.get("b") ?? "";
  const head = h("div", { class: "row" }, h("h1", null, "Compare"));
  if (!a || !b) return put(page.root, head, await pick(page, a, b));
  page.title(`Compare ${shortID(a)} and ${shortID(b)}`);
  const facts = h("div", { class: "stack" }), trouble = h("div", { role: "alert" });
  const again = h("button", { type: "button", hidden: true, onclick: () => read().catch(err => put(trouble, failed(err))) }, "Compare again");
  head.append(h("span", { class: "grow" }), again, h("a", { href: `/compare?a=${encodeURIComponent(b)}&b=${encodeURIComponent(a)}` }, "Swap"), h("a", { href: "/compare" }, "Other runs"));
  const read = async () => {
    /** @type {Comparison} */
    const c = await get("/v1/compare", { a, b }, page.signal);
    put(trouble);
    put(facts, verdict(c, a, b), h("section", { class: "stack" }, h("h2", null, "Calls"), calls(c, a, b)), h("section", { class: "stack" }, h("h2", null, "Answers"), answers(c)), h("section", { class: "stack" }, h("h2", null, c.fork_point === null ? "Used" : "Used after the fork point"), usage(c)));
    again.hidden = ended(c.state?.a ?? "done") && ended(c.state?.b ?? "done");
    return c;
  };
  const c = await read();
  const players = h("section", { class: "stack" });
  put(page.root, head, trouble, facts, players);
  play(page, c, a, b, players);
}

/** @param {import("../lib/page.js").Page} page @param {string} a @param {string} b */
async function pick(page, a, b) {
  const known = (await get("/v1/runs", { limit: 100 }, page.signal)).runs ?? [];
  const options = h("datalist", { id: "runs-known" }, known.map((/** @type {any} */ r) => h("option", { value: r.run_id }, `${r.agent}: ${r.task}`.slice(0, 80))));
  const id = (/** @type {string} */ name, /** @type {string} */ value) => /** @type {HTMLInputElement} */ (h("input", { name, value, list: "runs-known", required: true, autocomplete: "off", class: "mono", spellcheck: "false" }));
  const left = id("a", a), right = id("b", b);
  const form = h("form", {
    class: "stack card pick", onsubmit: (/** @type {Event} */ event) => {
      event.preventDefault();
      go(`/compare?a=${encodeURIComponent(left.value.trim())}&b=${encodeURIComponent(right.value.trim())}`);
    },
  }, field("Run A", left, "Its id. The newest runs are offered."), field("Run B", right, "Such as a fork of the first one."), options, h("div", { class: "row" }, h("button", { class: "main" }, "Compare")));
  return form;
}

/** @type {Record<string, [string, string]>} */
const ops = { same: ["=", "off"], changed: ["≠", "wait"], added: ["+", "good"], removed: ["−", "bad"] };

/** @param {string} op */
const opBadge = op => h("span", { class: "badge is-" + ops[op][1] }, h("span", { "aria-hidden": "true" }, ops[op][0]), " ", op);

/** @param {Comparison} c @param {string} a @param {string} b */
function verdict(c, a, b) {
  const counts = Object.keys(ops).map(op => /** @type {[string, number]} */ ([op, c.calls.filter(call => call.op === op).length])).filter(([, n]) => n);
  const point = c.fork_point === null ? "The runs have no event in common, so the comparison begins at their first events."
    : c.fork_run && c.fork_run !== a && c.fork_run !== b ? h("span", null, "Both are forks of ", runLink(c.fork_run), ". The last event that both have is ", runLink(c.fork_run, c.fork_point, `its event ${c.fork_point}`), ".")
      : h("span", null, "The last event that both have is ", runLink(c.fork_run ?? a, c.fork_point, `event ${c.fork_point}`), ".");
  return h("div", { class: "card stack" },
    h("p", { class: "verdict" }, c.same ? h("strong", { class: "is-good" }, h("span", { "aria-hidden": "true" }, "= "), "Same behaviour") : h("strong", { class: "is-wait" }, h("span", { "aria-hidden": "true" }, "≠ "), "Different")),
    h("div", { class: "sides" }, side("A", a, c.state?.a), side("B", b, c.state?.b)),
    h("p", null, counts.length ? counts.map(([op, n], i) => (i ? ", " : "") + `${plural(n, "call")} ${op}`).join("") + ". " : "Neither called a tool. ", point));
}

/** @param {string} name @param {string} id @param {string} [state] */
const side = (name, id, state) => h("p", { class: "row" }, h("strong", null, name), runLink(id), state && badge(state));

/** @param {Comparison} c @param {string} a @param {string} b */
function calls(c, a, b) {
  if (!c.calls.length) return h("p", { class: "soft" }, c.fork_point === null ? "Neither run called a tool." : "Neither run called a tool after the fork point.");
  /** @param {string} name @param {string} run @param {Call | undefined} call @param {boolean} body */
  const cell = (name, run, call, body) => h("div", { class: "stack small-gap" }, call
    ? [h("p", null, h("strong", { class: "soft" }, name), " ", h("span", { class: "mono" }, call.name), " ", runLink(call.run ?? run, call.n, `event ${call.n}`)), body && long(pretty(call.arguments), "code")]
    : h("p", { class: "soft" }, h("strong", null, name), " no such call"));
  return h("ol", { class: "plain-list calls" }, c.calls.map(({ op, a: x, b: y }) => h("li", { class: "call op-" + op },
    h("div", null, opBadge(op)),
    h("div", { class: "sides" }, cell("A", a, x, op === "removed"), cell("B", b, y, op === "added")),
    op === "changed" && x && y && lineDiff(pretty(x.arguments), pretty(y.arguments), "Changed arguments"),
    op === "same" && x && h("details", null, h("summary", { class: "soft small" }, "Arguments"), long(pretty(x.arguments), "code")))));
}

/** @param {Comparison} c */
function answers({ answer, state }) {
  if (answer.a === null && answer.b === null) return h("p", { class: "soft" }, "Neither has an answer.");
  if (answer.same) return h("div", { class: "stack" }, opBadge("same"), long(answer.a ?? ""));
  const one = (/** @type {string} */ name, /** @type {string | null} */ text, /** @type {string} */ at) => h("div", { class: "stack small-gap" }, h("strong", { class: "soft" }, name), text === null ? h("p", { class: "soft" }, "No answer ", at && badge(at)) : long(text));
  return h("div", { class: "stack" }, opBadge("changed"), h("div", { class: "sides" }, one("A", answer.a, state?.a), one("B", answer.b, state?.b)),
    answer.a !== null && answer.b !== null && h("details", { open: answer.a.includes("\n") || answer.b.includes("\n") }, h("summary", null, "Line by line"), lineDiff(answer.a, answer.b, "Changes of the answer")));
}

/** @type {[string, string, (n: number) => string][]} */
const uses = [["input", "Tokens of input", count], ["output", "Tokens of output", count], ["cached", "Of the input, cached", count], ["cost_usd", "Cost", usd], ["model_calls", "Replies of models", count], ["tool_calls", "Calls of tools", count], ["approvals", "Decisions of people", count], ["duration_ms", "Work of models and tools", duration], ["elapsed_ms", "Time", duration]];

/** @param {Comparison} c */
function usage({ usage: { a, b } }) {
  return h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Use" }, h("table", { class: "plain uses" }, h("thead", null, h("tr", null, h("th", { scope: "col" }, "What"), ["A", "B", "B − A"].map(t => h("th", { scope: "col", class: "number" }, t)))),
    h("tbody", null, uses.map(([key, label, format]) => {
      const x = a[key], y = b[key], by = (y ?? 0) - (x ?? 0);
      return h("tr", null, h("th", { scope: "row" }, label), h("td", { class: "number" }, x === undefined ? "–" : format(x)), h("td", { class: "number" }, y === undefined ? "–" : format(y)),
        h("td", { class: "number" }, x === undefined || y === undefined ? "–" : by ? (by > 0 ? "+" : "−") + format(Math.abs(by)) : "0"));
    }))));
}

/** Both runs at a moment: so many events after the fork point. @param {import("../lib/page.js").Page} page @param {Comparison} c @param {string} a @param {string} b @param {HTMLElement} box */
function play(page, c, a, b, box) {
  const runs = [a, b].map((id, i) => {
    const history = new History(id, page.signal, { states: false }), talk = conversation(history, page.signal);
    talk.el.setAttribute("aria-label", "Messages of " + "AB"[i]);
    return { id, name: "AB"[i], history, talk, start: c.fork_point !== null && c.fork_run === id ? c.fork_point : 1, at: h("p", { class: "row" }) };
  });
  let at = 0, pending = false, end = false;
  const most = () => Math.max(0, ...runs.map(r => r.history.length - r.start));
  const slider = /** @type {HTMLInputElement} */ (h("input", { type: "range", min: 0, value: "0", class: "grow", "aria-label": "Events since the fork point", oninput: () => move(Number(slider.value)) }));
  const label = h("p", { class: "soft small", "aria-hidden": "true" });
  /** @param {number} to */
  const move = to => {
    at = Math.max(0, Math.min(most(), to));
    end = at > 0 && at === most(); // then it goes on with the runs
    if (pending) return;
    pending = true;
    requestAnimationFrame(() => { pending = false; draw(); });
  };
  const draw = () => {
    if (!runs.every(r => r.history.ready)) return;
    slider.max = String(most());
    slider.value = String(at);
    const text = at === 0 ? c.fork_point === null ? "The first event" : "The fork point" : `${plural(at, "event")} later`;
    put(label, text);
    slider.setAttribute("aria-valuetext", text);
    for (const { history, talk, start, name, id, at: line } of runs) {
      const n = Math.min(history.length, start + at), event = history.events[n - 1];
      if (!event) continue;
      put(line, h("strong", null, name), runLink(id, n, `event ${n} of ${history.length}`), badge(event.to), h("span", { class: "soft small" }, start + at > history.length ? "has no more" : event.type));
      talk.update({ n, edge: n === history.length });
    }
  };
  const button = (/** @type {string} */ text, /** @type {string} */ name, /** @type {() => void} */ run) => h("button", { type: "button", "aria-label": name, title: name, onclick: run }, text);
  put(box, h("h2", null, "Side by side"),
    h("div", { class: "sides" }, runs.map(r => h("div", { class: "card player" }, r.at, r.talk.el))),
    h("div", { class: "compare-dvr card" }, h("div", { class: "row nowrap" }, button("⇤", "To the fork point", () => move(0)), button("←", "One event back", () => move(at - 1)), slider, button("→", "One event on", () => move(at + 1)), button("⇥", "To the end", () => move(most()))), label));
  bind(page.signal, {
    ArrowLeft: { help: "One event back", run: () => move(at - 1) }, ArrowRight: { help: "One event on", run: () => move(at + 1) },
    Home: { help: "To the fork point", run: () => move(0) }, End: { help: "To the end", run: () => move(most()) },
  });
  for (const { history } of runs) {
    history.onchange = () => move(end ? most() : at);
    history.onstate = live => { if (!page.signal.aborted) interrupted(live ? "" : "The gateway cannot be reached. The page continues by itself."); };
    history.start().catch(err => { if (!page.signal.aborted) put(box, h("h2", null, "Side by side"), failed(err)); });
  }
}
