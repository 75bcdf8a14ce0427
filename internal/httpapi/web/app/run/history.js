// A run's events and its memory after each of them, which any part of the page looks up.
//
// There is one stream, that of events, since it also has the text that a model is still writing.
// What it tells is completed by the patches of the same events, which are asked for when they
// came. Both begin where they stood after an interruption.
import { follow, lines, stream, texts } from "../lib/api.js";
import { patched } from "../lib/patch.js";
import { ended } from "../lib/format.js";

/**
 * An event: its number, its time in ms, and its body, as text byte for byte and parsed.
 * @typedef {{n: number, at: number, type: string, from: string, to: string, step: number, text: string, data: any, body: any}} RunEvent
 */
/** @typedef {{message_id: string, offset: number, text: string, kind: string, name?: string}} Chunk */

const every = 50; // events between two memories that are kept

export class History {
  /**
   * Nothing is read before start.
   * @param {string} id @param {AbortSignal} signal
   * @param {{live?: boolean, states?: boolean}} [o] live: false reads the events up to now; states: false reads no memories
   */
  constructor(id, signal, o = {}) {
    this.id = id;
    this.signal = signal;
    this.o = o;
    /** @type {RunEvent[]} events[i] has the number i + 1 */
    this.events = [];
    /** @type {(import("../lib/patch.js").Op[] | undefined)[]} by number */
    this.deltas = [];
    /** @type {any[]} memories after events 1, 51, 101, … */
    this.kept = [];
    this.told = 0; // the last event whose memory is known
    this.ready = false; // what was stored at the beginning is read
    this.live = false;
    /** @type {any} why no memories are read any more */
    this.trouble = undefined;
    this.last = { n: 0, memory: /** @type {any} */ (undefined) };
    this.asking = false;
    /** Called after more came, at most once a frame, and four times a second until ready. */
    this.onchange = () => {};
    /** @type {(chunk: Chunk) => void} Called for text that a model is writing. */
    this.onchunk = () => {};
    /** @type {(live: boolean, reason: string) => void} Called when the stream is there or interrupted. */
    this.onstate = () => {};
    this.changing = false;
    this.drawn = false;
  }

  /** The number of the last event to show. Once ready, its memory is known. */
  get length() { return !this.ready || this.o.states === false || this.trouble ? this.events.length : Math.min(this.events.length, this.told); }

  /** Whether the run has ended with the last event. */
  get over() { return this.length > 0 && this.length === this.events.length && ended(this.events[this.length - 1].to); }

  /** Reads what is stored, and follows the run. An error says that there is no such run. */
  async start() {
    const states = this.o.states === false ? undefined : this.first();
    for await (const text of texts(`/v1/runs/${this.id}/events`, {}, this.signal)) this.add(text);
    await states;
    this.ready = true;
    this.changed();
    if (this.o.live === false) return;
    this.ask();
    await follow(`/v1/runs/${this.id}/events`, {
      last: String(this.events.length), signal: this.signal,
      onEvent: e => {
        if (e.type === "chunk" || e.type === "tool_call_delta") this.onchunk(e.data);
        else if (e.id && Number(e.id) > this.events.length) {
          this.add(e.text, e.data);
          this.ask();
        }
      },
      onState: (live, reason) => { this.live = live; this.onstate(live, reason); },
    });
    this.live = false;
    this.changed();
  }

  /** @param {string} text @param {any} [body] */
  add(text, body = JSON.parse(text)) {
    const before = this.events.at(-1);
    this.events.push({ n: this.events.length + 1, at: Math.max(Date.parse(body.time), before?.at ?? 0), type: body.type, from: body.from, to: body.to, step: body.step, text, data: body.data ?? {}, body });
    this.changed();
  }

  /** Reads the memories of what is stored. */
  async first() {
    try {
      for await (const line of lines(`/v1/runs/${this.id}/states`, {}, this.signal)) {
        if (line.memory) this.keep(line.n, line.memory);
        else this.tell(line);
      }
    } catch (err) {
      if (this.signal.aborted) throw err;
      this.trouble = err;
    }
  }

  /** Asks for the patches of events that came, until none is missing. */
  async ask() {
    if (this.asking || this.o.states === false || this.trouble) return;
    this.asking = true;
    for (let wait = 50; this.told < this.events.length && !this.signal.aborted;) {
      const began = performance.now();
      try {
        for await (const e of stream(`/v1/runs/${this.id}/states`, { to: this.events.length }, String(this.told), this.signal)) {
          if (e.type === "delta" && e.data.n === this.told + 1) this.tell(e.data);
        }
        wait = Math.min(2000, Math.max(50, 2 * (performance.now() - began)));
      } catch {
        wait = Math.min(5000, wait * 2);
      }
      await new Promise(done => { setTimeout(done, wait); });
    }
    this.asking = false;
  }

  /** @param {{n: number, delta: import("../lib/patch.js").Op[]}} line */
  tell(line) {
    this.deltas[line.n] = line.delta;
    if ((line.n - 1) % every === 0) this.keep(line.n, this.from(line.n - every, this.kept[(line.n - 1) / every - 1], line.n));
    else this.told = line.n;
    this.changed();
  }

  /** @param {number} n @param {any} memory */
  keep(n, memory) {
    this.kept[Math.floor((n - 1) / every)] = memory;
    this.told = n;
  }

  /** The memory after event `to`, made of that after event n. @param {number} n @param {any} memory @param {number} to */
  from(n, memory, to) {
    /** @type {import("../lib/patch.js").Op[]} */
    const ops = [];
    while (++n <= to) ops.push(.../** @type {import("../lib/patch.js").Op[]} */ (this.deltas[n]));
    return ops.length ? patched(memory, ops) : memory;
  }

  /** The memory after event n, undefined where it is not known. Not to be changed. @param {number} n */
  memoryAt(n) {
    if (n < 1 || n > this.told) return undefined;
    if (this.last.n === n) return this.last.memory;
    const slot = Math.floor((n - 1) / every), base = slot * every + 1;
    const near = this.last.n >= base && this.last.n < n;
    this.last = { n, memory: this.from(near ? this.last.n : base, near ? this.last.memory : this.kept[slot], n) };
    return this.last.memory;
  }

  /** What event n changed. @param {number} n */
  deltaAt(n) { return this.deltas[n] ?? []; }

  changed() {
    if (this.changing) return;
    this.changing = true;
    const soon = () => requestAnimationFrame(() => {
      this.changing = false;
      if (!this.signal.aborted) this.onchange();
    });
    if (this.drawn && !this.ready) setTimeout(soon, 250); else soon();
    this.drawn ||= this.length > 0;
  }
}
