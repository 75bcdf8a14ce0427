// What a run's events say as a conversation: messages, calls with all that happened to them, and
// notes. It is read once, event by event; an item is as it was at a moment by its marks.

/**
 * An item of the conversation. n is the event that it begins with. marks are what happened to a
 * call, in order. nested is the conversation that was opened in it.
 * @typedef {{n: number, kind: "prompt" | "user" | "assistant" | "call" | "note" | "fork", text: string, data: any, marks: Mark[], look: string, nested?: {el: HTMLElement, update: (at: number, edge: boolean) => void}}} Item
 */
/** @typedef {{n: number, at: number, kind: "asked" | "decided" | "sent" | "result", data: any}} Mark */
/** @typedef {import("./history.js").RunEvent} RunEvent */

const silent = new Set(["Continue", "NeedsReflection", "NeedsPaging", "PageDone", "HumanApprovedParallel", "ToolSuccess", "ToolFailure", "ToolCallDispatched"]);
/** @type {Record<string, [string, string]>} what a note says, and its look */
const notes = {
  HandedOff: ["Handed over to", "busy"], FatalError: ["The run failed", "bad"], MaxSteps: ["The run used up its steps", "bad"], BudgetExceeded: ["The run used up its budget", "bad"],
  Cancelled: ["Cancelled", "off"], Closed: ["Closed", "off"], Paused: ["Paused", "wait"], Resumed: ["Resumed", "busy"], BudgetRaised: ["The budget was raised", "busy"],
  ApprovalExpired: ["Nobody decided before the deadline", "bad"], ReflectDone: ["The history was replaced by a summary", "off"], LlmAttemptFailed: ["An attempt failed", "bad"],
  AnswerTooShort: ["The answer was too short, so the model is asked again", "wait"], ReplyInvalid: ["Nothing in this reply can be acted on", "bad"], ToolBlacklisted: ["Every call of this reply is forbidden", "bad"],
  LowConfidence: ["The model doubts its own reply", "wait"], ContextWindowExpanded: ["The model sees more of the conversation", "off"], WorkingMemoryAdded: ["Put into working memory", "off"],
  WorkingMemoryRemoved: ["Taken out of working memory", "off"], StorageSaved: ["Written to storage", "off"], StorageLoaded: ["Read from storage", "off"], CustomMemorySet: ["Custom memory set", "off"],
};

export class Talk {
  constructor() {
    /** @type {Item[]} */
    this.items = [];
    /** @type {Map<string, Item>} */
    this.calls = new Map();
    /** Tools whose calls other runs answer. @type {Set<string>} */
    this.agents = new Set();
    this.read = 0;
  }

  /** Reads the events that came since. @param {RunEvent[]} events @param {number} length */
  follow(events, length) {
    while (this.read < length) this.add(events[this.read++]);
  }

  /** How many items there are at a moment. @param {number} n */
  at(n) {
    let low = 0, high = this.items.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.items[middle].n <= n) low = middle + 1; else high = middle;
    }
    return low;
  }

  /** @param {RunEvent} e @param {Item["kind"]} kind @param {string} text @param {any} data @param {string} [look] */
  item(e, kind, text, data, look = "") {
    /** @type {Item} */
    const made = { n: e.n, kind, text: String(text ?? ""), data, marks: [], look };
    this.items.push(made);
    return made;
  }

  /** @param {RunEvent} e @param {string} id @param {Mark["kind"]} kind @param {any} data */
  mark(e, id, kind, data) { this.calls.get(id)?.marks.push({ n: e.n, at: e.at, kind, data }); }

  /** @param {RunEvent} e */
  add(e) {
    const d = e.data;
    for (const tool of Array.isArray(d.tools) ? d.tools : []) if (tool.pool === "agents") this.agents.add(tool.name);
    if (e.type === "Forked") this.item(e, "fork", "", d);
    if ((e.type === "Start" || e.type === "Forked") && d.agent) this.item(e, "prompt", d.agent.system_prompt, d.agent);
    if (e.type === "Start" || e.type === "Forked") {
      if (d.task || d.parts) this.item(e, "user", d.task, d, "Task");
      return;
    }
    if (e.type === "UserMessage") return void this.item(e, "user", d.content, d, "User");
    if (d.decision && this.calls.has(d.call_id)) return this.mark(e, d.call_id, "decided", d);
    if (e.type === "ToolCallStarted") return this.mark(e, d.call_id, "sent", d);
    if (d.observation !== undefined && this.calls.has(d.call_id)) return this.mark(e, d.call_id, "result", d);
    if (d.content || d.reasoning?.length || d.reasoning_ref) this.item(e, "assistant", d.content, d);
    for (const call of [...(d.calls ?? []), ...(d.queued ?? [])]) if (!this.calls.has(call.id)) this.calls.set(call.id, this.item(e, "call", call.name, { ...call, at: e.at }));
    for (const { call, ...rest } of d.refused ?? []) {
      if (!call) continue;
      if (!this.calls.has(call.id)) this.calls.set(call.id, this.item(e, "call", call.name, { ...call, at: e.at }));
      this.mark(e, call.id, "result", { success: false, ...rest });
    }
    for (const ask of d.requests ?? []) this.mark(e, ask.call_id, "asked", { ...ask, deadline: d.deadline });
    for (const answer of d.results ?? []) this.mark(e, answer.call_id, "result", answer);
    if (e.type === "HandedOff") this.agentNote(e);
    else if (notes[e.type] || !known(e)) this.note(e);
  }

  /** @param {RunEvent} e */
  agentNote(e) {
    this.item(e, "note", `Handed over to ${e.data.agent?.name ?? "another agent"}`, { reason: e.data.reason }, "busy");
    this.item(e, "prompt", e.data.agent?.system_prompt, e.data.agent);
  }

  /** @param {RunEvent} e */
  note(e) {
    const { content, calls, results, usage, reasoning, ...rest } = e.data;
    const [text, look] = notes[e.type] ?? [e.type, "off"];
    this.item(e, "note", text, rest, look);
  }
}

/** Whether an event's parts are told by other items, or need no telling. @param {RunEvent} e */
const known = e => silent.has(e.type) || !!(e.data.calls || e.data.content || e.data.requests || e.data.observation !== undefined || e.type.startsWith("Llm"));
