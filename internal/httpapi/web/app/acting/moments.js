// A run's memory after each of its events, and what a person reads of it.
import { lines } from "../lib/api.js";
import { h } from "../lib/dom.js";
import { cut, ended } from "../lib/format.js";
import { patched } from "../lib/patch.js";
import { long } from "../lib/widgets.js";
import { pretty } from "./exact.js";

export class Moments {
  /** @param {string} id @param {AbortSignal} signal */
  constructor(id, signal) {
    this.id = id;
    this.signal = signal;
    /** @type {any[]} by number, from 1; they share what is the same */
    this.memories = [];
    this.reading = false;
  }

  get length() { return Math.max(0, this.memories.length - 1); }

  /** @param {number} n */
  memoryAt(n) { return this.memories[n]; }

  /** Reads what came since. */
  async read() {
    const last = this.memories[this.length];
    if (this.reading || last && ended(last.state)) return;
    this.reading = true;
    try {
      for await (const { n, memory, delta } of lines(`/v1/runs/${encodeURIComponent(this.id)}/states`, { from: this.length || 1 }, this.signal)) {
        if (n > this.length) this.memories[n] = memory ?? patched(this.memories[n - 1], delta);
      }
    } finally {
      this.reading = false;
    }
  }
}

const most = 60; // messages and calls that are shown

/** A conversation at a moment: its last messages and calls. @param {any} memory */
export function moment(memory) {
  /** @type {{at: string, el: () => HTMLElement}[]} */
  const all = [
    ...(memory.messages ?? []).map((/** @type {any} */ m) => ({ at: m.timestamp, el: () => h("div", { class: "said by-" + m.role }, h("p", { class: "small soft" }, m.role), long(m.content)) })),
    ...Object.values(memory.tool_calls ?? {}).map((/** @type {any} */ c) => ({
      at: c.timestamp,
      el: () => h("div", { class: "said" }, h("p", null, h("span", { class: "mono" }, c.name), " ", !c.result ? h("span", { class: "badge is-busy" }, "… no result yet") : c.result.failed ? h("span", { class: "badge is-bad" }, "✗ failed") : h("span", { class: "badge is-good" }, "✓ result")),
        h("p", { class: "code" }, cut(pretty(c.parameters ?? ""), 2000)), c.result && long(c.result.success?.content ?? c.result.failed?.error ?? "", "code")),
    })),
  ].sort((a, b) => a.at < b.at ? -1 : a.at > b.at ? 1 : 0);
  return [
    all.length > most && h("p", { class: "soft small" }, `${all.length - most} earlier ones are not shown.`), all.slice(-most).map(one => one.el()),
    memory.error && h("p", { class: "failed" }, h("span", { "aria-hidden": "true" }, "✗ "), memory.error.message, " ", h("code", null, memory.error.code)),
    memory.final_answer !== null && memory.final_answer !== undefined && h("div", { class: "said by-assistant" }, h("p", { class: "small soft" }, "answer"), long(memory.final_answer)),
  ];
}
