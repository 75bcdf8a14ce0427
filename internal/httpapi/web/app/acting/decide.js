// Decisions of a person on calls that wait, and answers to questions.
import { ApiError, lines, send } from "../lib/api.js";
import { failed, toast } from "../lib/dialog.js";
import { h, newID, put } from "../lib/dom.js";
import { duration, when } from "../lib/format.js";
import { field, long } from "../lib/widgets.js";
import { parse, pretty, write } from "./exact.js";
import { lineDiff } from "./linediff.js";
import { editor } from "./schema.js";

/**
 * A call that waits, as GET /v1/waiting shows it.
 * @typedef {{call_id: string, name: string, arguments: string, kind: "approval" | "question", risk?: string, reason?: string, deadline?: string, schema?: any}} Call
 * @typedef {{call_id: string, decision: string, arguments?: string, reason?: string, by: string}} Decision
 * @typedef {{el: HTMLElement, call: Call, busy: () => boolean, done: () => boolean, approve: () => void, reject: () => void, edit: () => void, decided: (d: Decision, first?: boolean) => void, gone: () => void}} Form busy: a person is at work in it; decided shows a decision, and first that it came before this person's; gone is called when the call waits no more
 */

const whose = "moorebus-by";

/** The calls that wait in a run's memory. @param {any} memory @returns {Call[]} */
export function waiting(memory) {
  const pending = memory.state === "waiting_for_human" ? memory.pending_approval : null;
  return (pending?.requests ?? []).filter((/** @type {any} */ r) => !(pending.decisions ?? []).some((/** @type {any} */ d) => d.call_id === r.call_id)).map((/** @type {any} */ r) => {
    let schema;
    try { schema = JSON.parse(memory.tools[r.tool].schema); } catch { /* edited as JSON */ }
    return { call_id: r.call_id, name: r.tool, arguments: r.arguments, kind: r.asks ? "question" : "approval", risk: r.risk, reason: r.reason, deadline: pending.deadline, schema };
  });
}

/** A field for the name under which this person decides. */
export function nameField() {
  const input = h("input", { name: "by", value: localStorage.getItem(whose) ?? "", autocomplete: "name", class: "by", oninput: (/** @type {Event} */ e) => localStorage.setItem(whose, /** @type {HTMLInputElement} */ (e.target).value.trim()), onkeydown: noSubmit });
  return field("Your name", input, "The log keeps it with what you decide.");
}

/** The name of this person. Without one it moves to the field for it, and throws. */
export function who() {
  const name = localStorage.getItem(whose) ?? "";
  if (name) return name;
  [.../** @type {NodeListOf<HTMLElement>} */ (document.querySelectorAll("input.by"))].pop()?.focus();
  throw new Error("Say who you are first: write your name");
}

/** Enter in a field sends nothing. @param {KeyboardEvent} event */
function noSubmit(event) {
  if (event.key === "Enter" && event.target instanceof HTMLInputElement) event.preventDefault();
}

/**
 * Sends a decision, again if the gateway restarts meanwhile. It returns the decision that
 * counts, which is another one if somebody else was first.
 * @param {string} run @param {Decision} mine @param {AbortSignal} [signal] @returns {Promise<Decision>}
 */
async function decide(run, mine, signal) {
  try {
    await send("POST", `/v1/runs/${encodeURIComponent(run)}/decisions`, mine, { again: true, signal });
  } catch (err) {
    if (!(err instanceof ApiError) || !err.body.decision) throw err;
    return err.body.decision;
  }
  return mine;
}

/** The decision on a call as the log has it. @param {string} run @param {string} call @param {AbortSignal} signal @returns {Promise<{decision: Decision, time: string} | undefined>} */
async function logged(run, call, signal) {
  for await (const e of lines(`/v1/runs/${encodeURIComponent(run)}/events`, {}, signal)) {
    if (e.data?.call_id === call && e.data.decision && e.data.by) return { decision: e.data, time: e.time };
  }
}

const risks = /** @type {Record<string, [string, string]>} */ ({ low: ["▽", "off"], medium: ["◆", "wait"], high: ["▲", "bad"] });
/** A risk by shape, word and colour. @param {string | undefined} risk */
const riskBadge = risk => risk && h("span", { class: "badge is-" + (risks[risk]?.[1] ?? "wait") }, h("span", { "aria-hidden": "true" }, risks[risk]?.[0] ?? "◆"), ` ${risk} risk`);

/** Counts down to a deadline until the signal is aborted. @param {string} at @param {AbortSignal} signal */
function countdown(at, signal) {
  const el = h("time", { datetime: at, title: when(at), class: "small deadline" });
  const tick = () => {
    const left = Date.parse(at) - Date.now();
    put(el, left > 0 ? `Refused in ${duration(left < 3600_000 ? Math.ceil(left / 1000) * 1000 : left)} if nobody decides` : "The deadline has passed");
    el.classList.toggle("is-bad", left < 300_000);
  };
  const timer = setInterval(tick, 1000);
  signal.addEventListener("abort", () => clearInterval(timer), { once: true });
  tick();
  return el;
}

/** The choices that a question offers. @param {Call} call @returns {string[]} */
function choices(call) {
  try {
    const given = JSON.parse(call.arguments);
    const found = given.choices ?? given.options;
    return Array.isArray(found) ? found.filter(c => typeof c === "string" && c.trim()).slice(0, 12) : [];
  } catch {
    return [];
  }
}

const words = /** @type {Record<string, string>} */ ({ approved: "approved it", modified: "approved it with changed arguments", rejected: "rejected it" });

/**
 * The form for one call.
 * @param {string} run @param {Call} call @param {AbortSignal} signal @param {(decision: Decision) => void} [ended] called when it is decided, by whomever
 * @returns {Form}
 */
export function decisionForm(run, call, signal, ended = () => {}) {
  const question = call.kind === "question";
  const trouble = h("div", { role: "alert" }), result = h("div", { role: "status" });
  const args = h("div", { role: "group", "aria-label": "Arguments" });
  const reason = /** @type {HTMLTextAreaElement} */ (h("textarea", { class: "two" }));
  const why = h("div", { hidden: true }, field("Why you reject it (optional)", reason, "The model sees it."));
  const answer = /** @type {HTMLTextAreaElement} */ (h("textarea", { class: "two" }));
  /** @type {{el: HTMLElement, value: () => string} | undefined} */
  let changing;
  let over = false;
  const approve = h("button", { type: "button", class: "main", onclick: () => run_(question ? reply : agree) });
  const edit = h("button", { type: "button", "aria-pressed": "false", onclick: () => form.edit() }, "Change arguments");
  const reject = h("button", { type: "button", class: "danger", onclick: () => { if (why.hidden) form.reject(); else void run_(refuse); } });
  const back = h("button", { type: "button", class: "quiet", hidden: true, onclick: () => { why.hidden = true; label(); reject.focus(); } }, "Do not reject");
  const buttons = h("div", { class: "row" }, approve, !question && edit, reject, back);

  const label = () => {
    put(approve, question ? "Answer" : changing ? "Approve with changes" : "Approve");
    put(reject, why.hidden ? "Reject…" : "Reject");
    approve.hidden = edit.hidden = !why.hidden;
    back.hidden = why.hidden;
    edit.setAttribute("aria-pressed", String(!!changing));
  };
  /** @param {string} decision @param {Record<string, string>} [more] @returns {Decision} */
  const mine = (decision, more) => ({ call_id: call.call_id, decision, by: who(), ...more });
  const agree = () => {
    if (!changing) return mine("approved");
    for (const el of /** @type {NodeListOf<HTMLInputElement>} */ (changing.el.querySelectorAll("input, select, textarea"))) if (!el.reportValidity()) return null;
    const text = changing.value();
    return text === compact(call.arguments) ? mine("approved") : mine("modified", { arguments: text });
  };
  const refuse = () => mine("rejected", reason.value.trim() ? { reason: reason.value.trim() } : {});
  const reply = () => {
    if (!answer.value.trim()) {
      answer.focus();
      throw new Error("Write the answer first");
    }
    return mine("modified", { arguments: write({ ...asked(call), answer: answer.value.trim() }) });
  };

  /** @param {() => Decision | null} make */
  const run_ = async make => {
    if (over) return;
    const all = /** @type {HTMLButtonElement[]} */ ([approve, edit, reject, back]);
    put(trouble);
    try {
      const wanted = make();
      if (!wanted) return;
      all.forEach(b => { b.disabled = true; });
      put(result, h("p", { class: "soft" }, "Sending. It is sent again if the gateway restarts."));
      const counts = await decide(run, wanted, signal);
      form.decided(counts, !same(wanted, counts));
      if (same(wanted, counts)) toast(`${call.name}: you ${question ? wanted.decision === "rejected" ? "rejected the question" : "answered" : words[counts.decision]}.`);
    } catch (err) {
      if (signal.aborted) return;
      put(result);
      put(trouble, failed(err));
    } finally {
      all.forEach(b => { b.disabled = false; });
    }
  };

  const name = newID("call"), until = call.deadline ? countdown(call.deadline, signal) : null;
  const el = h("div", { class: "decision stack", role: "group", "aria-labelledby": name, onkeydown: noSubmit },
    h("div", { class: "row" }, h("h3", { id: name, class: "mono" }, question ? "Question" : call.name), !question && riskBadge(call.risk), until),
    call.reason && h("div", { class: question ? "asked" : "" }, long(call.reason)),
    question ? null : args,
    question ? h("div", { class: "stack" },
      choices(call).length > 0 && h("div", { class: "row", role: "group", "aria-label": "Choices" }, choices(call).map(c => h("button", { type: "button", onclick: () => { answer.value = c; void run_(reply); } }, c))),
      field("Your answer", answer)) : null,
    why, trouble, result, buttons);
  const show = () => {
    args.className = changing ? "" : "args";
    if (changing) args.removeAttribute("tabindex"); else args.tabIndex = 0; // it may scroll
    put(args, changing ? changing.el : long(pretty(call.arguments), "code"));
  };

  /** @type {Form} */
  const form = {
    el, call,
    done: () => over,
    busy: () => !over && (!!changing || !why.hidden || answer.value !== "" || el.contains(document.activeElement) && document.activeElement instanceof HTMLTextAreaElement),
    approve: () => { if (question) answer.focus(); else void run_(agree); },
    reject: () => { if (over) return; why.hidden = false; label(); reason.focus(); },
    edit: () => {
      if (over) return;
      if (question) return answer.focus();
      changing = changing ? undefined : editor(call.schema, call.arguments);
      show();
      label();
      if (changing) /** @type {HTMLElement | null} */ (args.querySelector("input, textarea, select"))?.focus();
    },
    decided: (counts, first) => {
      if (over) return;
      over = true;
      const verdict = question && counts.decision === "modified" ? "answered" : words[counts.decision] ?? counts.decision;
      const at = h("span");
      until?.remove();
      put(result, h("div", { class: "decided stack" },
        first && h("p", { class: "is-wait" }, "Somebody else decided first. Their decision counts, and yours was not taken."),
        h("p", null, h("span", { class: "badge is-" + (counts.decision === "rejected" ? "bad" : "good") }, counts.decision === "rejected" ? "✗ rejected" : "✓ " + (question ? "answered" : "approved")), " ", h("strong", null, counts.by || "Somebody"), ` ${verdict}`, at, "."),
        counts.reason && long(counts.reason), question && counts.decision === "modified" && long(answerOf(counts), "text"),
        !question && counts.decision === "modified" && lineDiff(pretty(call.arguments), pretty(counts.arguments ?? ""), "Changed arguments")));
      why.hidden = true;
      buttons.hidden = true;
      changing = undefined;
      show();
      put(trouble);
      if (el.contains(document.activeElement) || document.activeElement === document.body) { el.tabIndex = -1; el.focus(); }
      logged(run, call.call_id, signal).then(found => { if (found) put(at, " at " + when(found.time)); }).catch(() => { /* the decision is shown without its time */ });
      ended(counts);
    },
    gone: () => {
      if (over || form.busy()) return;
      logged(run, call.call_id, signal).then(found => {
        if (found) return form.decided(found.decision);
        over = buttons.hidden = true;
        until?.remove();
        put(result, h("p", { class: "decided" }, "This call waits no more: the run has ended, or the deadline has passed."));
      }).catch(() => { /* it is shown as it was */ });
    },
  };
  show();
  label();
  return form;
}

/** @param {Decision} a @param {Decision} b */
const same = (a, b) => a.decision === b.decision && a.by === b.by && (a.arguments ?? "") === (b.arguments ?? "") && (a.reason ?? "") === (b.reason ?? "");

/** @param {Decision} d */
function answerOf(d) {
  try { return String(JSON.parse(d.arguments ?? "").answer); } catch { return d.arguments ?? ""; }
}

/** @param {string} text */
function compact(text) {
  try { return write(parse(text)); } catch { return text; }
}

/** @param {Call} call */
function asked(call) {
  try { return parse(call.arguments); } catch { return { question: call.reason ?? "" }; }
}
