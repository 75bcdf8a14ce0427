// The recorder: which moment of a run is shown. Its slider goes by events, each the same way
// long, so that a step is a step; the times stand below it.
import { h, put, setText } from "../lib/dom.js";
import { duration, stateKind, stateWord } from "../lib/format.js";
import { bind } from "../lib/keys.js";

const speeds = [0.5, 1, 2, 4, 8, 16];
const longest = 2000; // ms that a wait takes at most when it is played

/**
 * @typedef {{n: number, event: import("./history.js").RunEvent, memory: any, history: import("./history.js").History, edge: boolean}} Moment
 * What every part of the page shows. n counts from 1; edge says that it is the newest one, and stays so.
 */

/** The number in #n=37, 0 without one. */
export const linked = () => Number(/^#n=(\d+)$/.exec(location.hash)?.[1] ?? 0);

export class DVR {
  /** @param {import("./history.js").History} history @param {(moment: Moment) => void} show called in a frame for every moment */
  constructor(history, show) {
    this.history = history;
    this.show = show;
    this.n = linked(); // 0 is the newest event
    this.drawn = false;
    this.marked = 0;
    this.playing = 0;
    this.slider = /** @type {HTMLInputElement} */ (h("input", { type: "range", min: 1, max: 1, step: 1, class: "dvr-slider", "aria-label": "Moment of the run", oninput: () => { this.stop(); this.go(Number(this.slider.value)); } }));
    this.strip = h("div", { class: "dvr-strip", "aria-hidden": "true" });
    this.marks = h("div", { class: "dvr-marks small soft", "aria-hidden": "true" });
    this.place = h("span", { class: "dvr-place" });
    this.button = h("button", { class: "dvr-play", "aria-keyshortcuts": "Space", onclick: () => this.toggle() });
    this.speed = /** @type {HTMLSelectElement} */ (h("select", { "aria-label": "Speed", title: "Waits over 2 s are shortened to 2 s" }, speeds.map(s => h("option", { value: s, selected: s === 1 }, `${s}×`))));
    this.edge = h("button", { class: "dvr-edge", "aria-keyshortcuts": "l", onclick: () => { this.stop(); this.go(0); } });
    /** @param {string} label @param {string} text @param {() => void} run */
    const step = (label, text, run) => h("button", { "aria-label": label, title: label, onclick: () => { this.stop(); run(); } }, text);
    this.el = h("section", { class: "dvr", "aria-label": "Recorder" },
      h("div", { class: "dvr-track" }, this.strip, this.slider, this.marks),
      h("div", { class: "row dvr-controls" },
        h("div", { class: "row dvr-steps" }, step("First event", "⇤", () => this.go(1)), step("Event before", "←", () => this.by(-1)), this.button, step("Next event", "→", () => this.by(1)), step("Last event", "⇥", () => this.go(history.length))),
        this.speed, h("span", { class: "soft small dvr-note" }, "waits over 2 s are played in 2 s"), this.place, this.edge));
    bind(history.signal, {
      ArrowLeft: { help: "The event before", run: () => { this.stop(); this.by(-1); } },
      ArrowRight: { help: "The next event", run: () => { this.stop(); this.by(1); } },
      Home: { help: "The first event", run: () => { this.stop(); this.go(1); } },
      End: { help: "The last event", run: () => { this.stop(); this.go(history.length); } },
      " ": { help: "Play or stop", run: () => this.toggle() },
      "+": { help: "Play faster", run: () => this.faster(1) },
      "-": { help: "Play slower", run: () => this.faster(-1) },
      l: { help: "Follow the live edge", run: () => { this.stop(); this.go(0); } },
    });
    addEventListener("hashchange", () => { this.stop(); this.n = linked(); this.draw(); }, { signal: history.signal });
    new ResizeObserver(() => { this.marked = 0; this.mark(); }).observe(this.strip);
  }

  /** The number of the event shown. */
  get now() { return Math.min(this.n || Infinity, this.history.length); }

  /** Whether the newest event is shown, and the next one will be. */
  get following() { return this.n === 0; }

  /** Shows the moment after event n; 0 is the newest one. @param {number} n */
  go(n) {
    const last = this.history.length;
    this.n = n >= last && this.history.over ? 0 : Math.max(0, Math.min(n, last));
    this.draw();
    this.link();
  }

  /** @param {number} by */
  by(by) { this.go(Math.max(1, Math.min(this.now + by, this.history.length))); }

  /** Keeps the address up to date, some times a second. */
  link() {
    if (this.linking) return;
    this.linking = setTimeout(() => {
      this.linking = undefined;
      if (!this.history.signal.aborted && linked() !== this.n) window.history.replaceState(null, "", location.pathname + location.search + (this.n ? "#n=" + this.n : ""));
    }, 250);
  }

  toggle() {
    if (this.playing) return this.stop();
    if (this.now >= this.history.length) this.n = 1;
    let last = performance.now(), gone = 0;
    /** @param {number} at */
    const frame = at => {
      const { events, length } = this.history;
      gone += (at - last) * Number(this.speed.value);
      last = at;
      let n = this.now;
      for (; n < length; n++) {
        const wait = Math.min(longest, events[n].at - events[n - 1].at);
        if (wait > gone) break;
        gone -= wait;
      }
      if (n >= length) {
        this.stop();
        return this.go(0);
      }
      if (n !== this.now) this.go(n);
      this.playing = requestAnimationFrame(frame);
    };
    this.playing = requestAnimationFrame(frame);
    this.draw();
  }

  stop() {
    cancelAnimationFrame(this.playing);
    this.playing = 0;
    this.draw();
  }

  /** @param {number} by */
  faster(by) {
    const i = speeds.indexOf(Number(this.speed.value)) + by;
    if (speeds[i]) this.speed.value = String(speeds[i]);
  }

  /** Draws the moment in the next frame. */
  draw() {
    if (this.drawn) return;
    this.drawn = true;
    requestAnimationFrame(() => {
      this.drawn = false;
      this.paint();
      this.mark();
    });
  }

  paint() {
    const { history, now } = this;
    const event = history.events[now - 1];
    if (!event || history.signal.aborted) return;
    const { length, over } = history, edge = this.following || over && now === length;
    this.show({ n: now, event, memory: history.memoryAt(now), history, edge });
    this.slider.max = String(length);
    this.slider.value = String(now);
    this.slider.style.setProperty("--at", String(length > 1 ? (now - 1) / (length - 1) : 0));
    this.slider.setAttribute("aria-valuetext", `event ${now} of ${length}, ${event.type}, ${duration(event.at - history.events[0].at)} after the start, ${stateWord(event.to)}`);
    setText(this.place, `${now.toLocaleString("en-US")} of ${length.toLocaleString("en-US")} · +${duration(event.at - history.events[0].at)}`);
    setText(this.button, this.playing ? "❚❚ Stop" : "▶ Play");
    this.edge.setAttribute("aria-pressed", String(edge));
    setText(this.edge, !history.ready ? "… Reading" : over ? (edge ? "■ Ended" : "⇥ To the end") : edge ? (history.live ? "● Live" : "○ Not connected") : "⇥ To live");
  }

  /** Draws the states along the slider and the times below it, when events came. */
  mark() {
    const { events, length } = this.history;
    if (!length || length === this.marked) return;
    this.marked = length;
    const pieces = Math.min(length, Math.max(20, Math.floor(this.strip.clientWidth / 3)));
    const drawn = [];
    for (let i = 0, from = 0; i < pieces; i++) {
      const kind = stateKind(events[Math.floor(i * length / pieces)].to);
      const next = i + 1 < pieces ? stateKind(events[Math.floor((i + 1) * length / pieces)].to) : "";
      if (next === kind) continue;
      drawn.push(h("i", { class: "fill-" + kind, vars: { "--w": i + 1 - from } }));
      from = i + 1;
    }
    put(this.strip, drawn);
    const marks = [...new Set([0, 0.25, 0.5, 0.75, 1].map(part => Math.round(part * (length - 1))))];
    put(this.marks, marks.map(i => h("span", null, "+" + duration(events[i].at - events[0].at))));
  }
}
