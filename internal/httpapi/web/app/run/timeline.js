// The timeline: a lane for each state, and every event as a line.
import { h, put } from "../lib/dom.js";
import { cut, duration, stateKind, stateShape, stateWord } from "../lib/format.js";
import { List } from "../lib/list.js";

const row = 30, lane = 18, waits = /^waiting_/;

/** One line about an event. @param {import("./history.js").RunEvent} e */
export function told(e) {
  const d = e.data;
  const calls = (/** @type {any[]} */ all) => all.map(c => `${c.name}(${cut(String(c.arguments ?? ""), 80)})`).join(", ");
  const text = d.calls?.length ? calls(d.calls) : d.requests?.length ? calls(d.requests) : d.observation ?? d.content ?? d.summary ?? d.message ?? d.task ?? d.reason ?? d.agent?.name ?? d.call_id ?? "";
  return [d.decision, d.code && d.code !== "ok" && d.code, cut(String(text), 200), d.by && "by " + d.by].filter(Boolean).join(" · ");
}

/** @param {import("./dvr.js").DVR} dvr @param {import("./history.js").History} history */
export function timeline(dvr, history) {
  let shown = 0, length = 0;
  const list = new List({
    label: "Events", row, moved: i => dvr.go(i + 1),
    draw: i => {
      const e = history.events[i];
      return h("button", { class: "event" + (i + 1 === shown ? " is-now" : ""), "aria-current": i + 1 === shown && "step", onclick: () => { dvr.stop(); dvr.go(i + 1); } },
        h("span", { class: "event-n" }, e.n), h("span", { class: "event-state is-" + stateKind(e.to), title: stateWord(e.to), "aria-hidden": "true" }, stateShape(e.to)),
        h("span", { class: "event-type" }, e.type), h("span", { class: "event-text soft" }, told(e)), h("span", { class: "event-at soft small" }, "+" + duration(e.at - history.events[0].at)));
    },
  });
  const canvas = /** @type {HTMLCanvasElement} */ (h("canvas", { role: "img" }));
  const cursor = h("div", { class: "lanes-cursor", "aria-hidden": "true" });
  const names = h("div", { class: "lanes-names small", "aria-hidden": "true" });
  const plot = h("div", { class: "lanes-plot" }, canvas, cursor);
  const caption = h("p", { class: "soft small lanes-note" });
  const lanes = h("div", { class: "lanes" }, names, plot);
  const el = h("section", { class: "timeline", "aria-label": "Timeline" }, lanes, caption, list.el);

  /** Where each event is, from 0 to 1. A wait for people takes little room, however long it was. @type {Float64Array} */
  let places = new Float64Array(0);
  const place = () => {
    const { events } = history;
    let active = 0, waited = 0;
    for (let i = 1; i < length; i++) if (waits.test(events[i - 1].to)) waited++; else active += events[i].at - events[i - 1].at;
    const last = events[length - 1], open = !history.over && Date.now() > last.at, waiting = waits.test(last.to);
    if (open && waiting) waited++;
    const most = waited ? Math.max(1, active) / Math.max(4, waited) : 0;
    places = new Float64Array(length);
    let x = 0, cutShort = false;
    for (let i = 1; i < length; i++) {
      const took = events[i].at - events[i - 1].at, wait = waits.test(events[i - 1].to);
      cutShort ||= wait && took > most;
      x += wait ? Math.min(took, most) : took;
      places[i] = x;
    }
    if (open) {
      const took = Date.now() - last.at, tail = Math.min(took, waiting ? most : active / 4 || took);
      cutShort ||= waiting && took > tail;
      x += tail;
    }
    for (let i = 0; i < length; i++) places[i] = x ? places[i] / x : length > 1 ? i / (length - 1) : 0;
    return cutShort;
  };

  const paint = () => {
    const { events } = history, width = plot.clientWidth;
    if (!length || !width) return;
    const cutShort = place();
    /** @type {Map<string, number>} */
    const rows = new Map();
    /** @type {Map<string, number>} */
    const times = new Map();
    for (let i = 0; i < length; i++) {
      if (!rows.has(events[i].to)) rows.set(events[i].to, rows.size);
      if (i + 1 < length) times.set(events[i].to, (times.get(events[i].to) ?? 0) + events[i + 1].at - events[i].at);
    }
    const height = rows.size * lane, scale = devicePixelRatio || 1;
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
    plot.style.setProperty("--h", `${height}px`);
    const pen = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
    pen.scale(scale, scale);
    const probe = h("i");
    plot.append(probe);
    /** @type {Record<string, string>} */
    const colours = {};
    for (const state of rows.keys()) {
      probe.className = "fill-" + stateKind(state);
      colours[state] = getComputedStyle(probe).backgroundColor;
    }
    probe.remove();
    for (let i = 0; i < length;) {
      let end = i + 1;
      while (end < length && events[end].to === events[i].to) end++;
      const from = places[i] * (width - 3), to = end < length ? places[end] * (width - 3) : width;
      const y = /** @type {number} */ (rows.get(events[i].to)) * lane + 3;
      pen.fillStyle = colours[events[i].to];
      if (waits.test(events[i].to) && to - from > 4) {
        pen.strokeStyle = pen.fillStyle; // a wait is an empty box
        pen.strokeRect(from + 0.5, y + 0.5, to - from - 1, lane - 7);
      } else pen.fillRect(from, y, Math.max(2, to - from), lane - 6);
      i = end;
    }
    put(names, [...rows.keys()].map(state => h("div", { class: "is-" + stateKind(state) }, stateShape(state) + " " + stateWord(state))));
    canvas.setAttribute("aria-label", "Time in each state: " + [...times].map(([state, ms]) => `${stateWord(state)} ${duration(ms)}`).join(", "));
    put(caption, `${duration(events[length - 1].at - events[0].at)} in all.`, cutShort && " Long waits for people (empty boxes) are drawn shorter.");
  };
  plot.addEventListener("click", event => {
    const at = event.offsetX / plot.clientWidth;
    let low = 0, high = length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (places[middle] <= at) low = middle; else high = middle - 1;
    }
    dvr.stop();
    dvr.go(low + 1);
  });
  let painting = 0;
  const later = () => { painting ||= requestAnimationFrame(() => { painting = 0; paint(); move(); list.go(shown - 1); }); };
  const move = () => plot.style.setProperty("--x", String(places[shown - 1] ?? 0));
  const sizes = new ResizeObserver(later);
  sizes.observe(plot);
  sizes.observe(list.el);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", later, { signal: history.signal });
  history.signal.addEventListener("abort", () => list.close());

  return {
    el,
    /** @param {import("./dvr.js").Moment} moment */
    update(moment) {
      const before = shown;
      shown = moment.n;
      if (history.length !== length) {
        length = history.length;
        list.set(length);
        later();
      }
      if (before !== shown) {
        list.go(shown - 1);
        list.redraw(before - 1);
        list.redraw(shown - 1);
      }
      move();
    },
  };
}
