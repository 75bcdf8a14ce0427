// The state machine: the graph of the gateway's table, laid out in layers, with the way that the
// run took up to the moment.
import { get } from "../lib/api.js";
import { failed } from "../lib/dialog.js";
import { h, put, setText, svg } from "../lib/dom.js";
import { plural, stateKind, stateShape, stateWord } from "../lib/format.js";

const wide = 132, high = 34, gapX = 42, gapY = 28, edge = 52;

/** @typedef {{state: string, x: number, y: number, layer: number, el: SVGElement, note: SVGElement}} Place */
/** @typedef {{from: string, to: string, events: string[], el: SVGElement, note: SVGElement, count: number}} Way */

/**
 * Places states: a layer for each distance from the initial one, those that end at last, and in
 * a layer by where their neighbours stand.
 * @param {string} initial @param {{state: string, terminal?: boolean}[]} states @param {[string, string][]} ways
 */
function layers(initial, states, ways) {
  /** @type {Map<string, number>} */
  const layer = new Map([[initial, 0]]);
  for (const queue = [initial]; queue.length;) {
    const from = /** @type {string} */ (queue.shift());
    for (const [a, b] of ways) if (a === from && !layer.has(b)) {
      layer.set(b, /** @type {number} */ (layer.get(from)) + 1);
      queue.push(b);
    }
  }
  const last = Math.max(...layer.values());
  const terminal = new Set(states.filter(s => s.terminal).map(s => s.state));
  const open = Math.max(0, ...[...layer].filter(([s]) => !terminal.has(s)).map(([, n]) => n));
  /** @type {string[][]} */
  const rows = [];
  for (const { state } of states) {
    const at = terminal.has(state) ? Math.max(2, open) : layer.get(state) ?? Math.min(last, 1);
    (rows[at] ??= []).push(state);
  }
  const all = rows.filter(Boolean);
  for (let round = 0; round < 4; round++) for (const row of all) {
    const place = (/** @type {string} */ s) => { const r = all.find(x => x.includes(s)) ?? [s]; return (r.indexOf(s) + 0.5) / r.length; };
    const mean = new Map(row.map(s => {
      const near = ways.filter(([a, b]) => a === s !== (b === s)).map(([a, b]) => place(a === s ? b : a));
      return [s, near.length ? near.reduce((x, y) => x + y) / near.length : 0.5];
    }));
    row.sort((a, b) => /** @type {number} */ (mean.get(a)) - /** @type {number} */ (mean.get(b)));
  }
  return all;
}

/** The line of a way: straight on to the next layer, else above or below what lies between. @param {Place} a @param {Place} b @param {number} height */
function line(a, b, height) {
  const by = b.layer - a.layer;
  if (by === 1) return { d: `M${a.x + wide},${a.y} C${a.x + wide + gapX / 2},${a.y} ${b.x - gapX / 2},${b.y} ${b.x - 3},${b.y}`, x: (a.x + wide + b.x) / 2, y: (a.y + b.y) / 2 };
  if (by === 0) {
    const down = b.y > a.y ? 1 : -1, x = a.x + wide;
    return { d: `M${x},${a.y + 6 * down} C${x + 34},${a.y + 6 * down} ${x + 34},${b.y - 6 * down} ${x + 3},${b.y - 6 * down}`, x: x + 26, y: (a.y + b.y) / 2 };
  }
  if (by === -1) return { d: `M${a.x},${a.y + 9} C${a.x - gapX / 2},${a.y + 9} ${b.x + wide + gapX / 2},${b.y + 9} ${b.x + wide + 3},${b.y + 9}`, x: (b.x + wide + a.x) / 2, y: (a.y + b.y) / 2 + 9 };
  const above = by > 0, off = above ? 20 : -20, from = a.x + wide / 2 + off, to = b.x + wide / 2 - off;
  const start = a.y + (above ? -high / 2 : high / 2), end = b.y + (above ? -high / 2 - 3 : high / 2 + 3);
  const room = Math.max(10, edge - 6 - 8 * Math.abs(by)), bend = ((above ? room : height - room) - (start + end) / 8) / 0.75;
  return { d: `M${from},${start} C${from},${bend} ${to},${bend} ${to},${end}`, x: (from + to) / 2, y: above ? room : height - room };
}

/** @param {import("../lib/page.js").Page} page @param {import("./history.js").History} history @returns {import("./page.js").Part} */
export function machine(page, history) {
  const box = h("div", { class: "scroll machine", tabindex: 0, role: "region", "aria-label": "State machine" }), now = h("p"), words = h("tbody");
  const note = h("p", { class: "soft small" });
  const el = h("div", { class: "stack" }, now, box, note, h("details", null, h("summary", null, "The way as a table"), h("div", { class: "scroll" }, h("table", { class: "plain" }, h("thead", null, h("tr", null, h("th", null, "From"), h("th", null, "To"), h("th", null, "By"), h("th", { class: "number" }, "Times"))), words))));
  /** @type {Map<string, Place>} */
  const places = new Map();
  /** @type {Map<string, Way>} */
  const ways = new Map();
  /** @type {any} */
  let table, latest = /** @type {import("./dvr.js").Moment | undefined} */ (undefined), seen = 0;
  get("/v1/table", {}, page.signal).then(answer => { table = answer; if (latest) update(latest); }, err => { if (!page.signal.aborted) put(box, failed(err)); });

  /** @param {{from: string, to: string}} e */
  const key = e => e.from + ">" + e.to;
  const build = () => {
    /** @type {Map<string, {from: string, to: string, events: Set<string>}>} */
    const all = new Map();
    const states = table.states.slice(), any = table.rows.filter((/** @type {any} */ r) => !r.from);
    /** @param {string} from @param {string} to @param {string} event */
    const way = (from, to, event) => {
      if (from === to) return;
      const found = all.get(key({ from, to })) ?? { from, to, events: new Set() };
      found.events.add(event);
      all.set(key({ from, to }), found);
      for (const state of [from, to]) if (!states.some((/** @type {any} */ s) => s.state === state)) states.push({ state });
    };
    for (const row of table.rows) if (row.from) way(row.from, row.to, row.event);
    const plain = [...all.values()].map(w => /** @type {[string, string]} */ ([w.from, w.to]));
    for (const e of history.events.slice(0, history.length)) way(e.from, e.to, e.type);
    const rows = layers(table.initial, states, plain), most = Math.max(...rows.map(r => r.length));
    const width = rows.length * (wide + gapX) - gapX + 20, height = most * (high + gapY) - gapY + 2 * edge;
    places.clear();
    ways.clear();
    rows.forEach((row, layer) => row.forEach((state, i) => {
      const x = 6 + layer * (wide + gapX), y = edge + high / 2 + (i + (most - row.length) / 2) * (high + gapY);
      const count = svg("text", { x: x + wide - 8, y: y + high / 2 + 12, class: "machine-count", "text-anchor": "end" });
      places.set(state, { state, x, y, layer, note: count, el: svg("g", { class: "machine-state is-" + stateKind(state) },
        svg("rect", { x, y: y - high / 2, width: wide, height: high, rx: 8 }), svg("text", { x: x + wide / 2, y: y + 4, "text-anchor": "middle" }, stateShape(state) + " " + stateWord(state)), count) });
    }));
    for (const w of all.values()) {
      const { d, x, y } = line(/** @type {Place} */ (places.get(w.from)), /** @type {Place} */ (places.get(w.to)), height);
      const count = svg("text", { x, y: y + 4, class: "machine-count", "text-anchor": "middle" });
      ways.set(key(w), { ...w, events: [...w.events], count: 0, note: count, el: svg("g", { class: "machine-way" }, svg("path", { d, "marker-end": "url(#machine-arrow)" }, svg("title", null, `${stateWord(w.from)} to ${stateWord(w.to)}: ${[...w.events].join(", ")}`)), count) });
    }
    put(box, svg("svg", { viewBox: `0 0 ${width} ${height}`, vars: { "--w": `${width}px` }, "aria-hidden": "true" },
      svg("defs", null, svg("marker", { id: "machine-arrow", viewBox: "0 0 8 8", refX: 6, refY: 4, markerWidth: 7, markerHeight: 7, markerUnits: "userSpaceOnUse", orient: "auto" }, svg("path", { d: "M0,0 L8,4 L0,8 z", class: "machine-head" }))),
      [...ways.values()].map(w => w.el), [...places.values()].map(p => p.el)));
    const ends = [...new Set(any.map((/** @type {any} */ r) => stateWord(r.to)))].join(" and ");
    put(note, ends && `Every state may also lead to ${ends}. Those ways are drawn where the run took them.`);
  };

  /** @param {import("./dvr.js").Moment} moment */
  const update = moment => {
    latest = moment;
    if (!table) return;
    if (!places.size || history.events.slice(seen, history.length).some(e => e.from !== e.to && !ways.has(key(e)))) build();
    seen = history.length;
    /** @type {Map<string, number>} */
    const taken = new Map(), been = new Map([[history.events[0].from, 0]]);
    for (let i = 0; i < moment.n; i++) {
      const e = history.events[i];
      been.set(e.to, (been.get(e.to) ?? 0) + 1);
      if (e.from !== e.to) taken.set(key(e), (taken.get(key(e)) ?? 0) + 1);
    }
    for (const [k, way] of ways) {
      const times = taken.get(k) ?? 0;
      way.el.classList.toggle("is-taken", times > 0);
      way.el.classList.toggle("is-last", key(moment.event) === k);
      setText(way.note, times > 1 ? `×${times}` : "");
    }
    for (const [state, p] of places) {
      p.el.classList.toggle("is-taken", been.has(state));
      p.el.classList.toggle("is-now", state === moment.event.to);
      setText(p.note, state === moment.event.to ? `now · ${plural(been.get(state) ?? 0, "event")}` : been.get(state) ? plural(been.get(state) ?? 0, "event") : "");
    }
    const { from, to, type } = moment.event;
    setText(now, `${stateWord(to)}: ${from === to ? `${type} did not change the state` : `${type} led here from ${stateWord(from)}`}.`);
    put(words, [...taken].map(([k, times]) => { const way = /** @type {Way} */ (ways.get(k)); return h("tr", null, h("td", null, stateWord(way.from)), h("td", null, stateWord(way.to)), h("td", null, way.events.join(", ")), h("td", { class: "number" }, times)); }));
  };
  return { el, update };
}
