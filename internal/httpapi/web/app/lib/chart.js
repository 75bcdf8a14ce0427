// Charts: bars over time, and bars beside each other. Each has its numbers as a table, too.
import { h, svg } from "./dom.js";

/**
 * @typedef {{label: string, values: {name: string, value: number, kind: string}[]}} Bar kind is a class: good, bad, busy, wait, off, accent
 */

/**
 * Bars from left to right, whose values stand on each other.
 * @param {string} title @param {Bar[]} bars @param {{format?: (n: number) => string, empty?: string}} [o]
 */
export function bars(title, bars, o = {}) {
  const format = o.format ?? (n => n.toLocaleString("en-US"));
  const most = Math.max(0, ...bars.map(b => b.values.reduce((sum, v) => sum + v.value, 0)));
  const total = bars.reduce((sum, b) => sum + b.values.reduce((s, v) => s + v.value, 0), 0);
  const width = 6, gap = 2, height = 64;
  const drawn = bars.flatMap((bar, i) => {
    let top = height;
    return bar.values.filter(v => v.value > 0).map(v => {
      const size = Math.max(1, v.value / most * (height - 2));
      top -= size;
      return svg("rect", { x: i * (width + gap), y: top, width, height: size, class: "fill-" + v.kind }, svg("title", null, `${bar.label}: ${format(v.value)} ${v.name}`));
    });
  });
  const picture = svg("svg", { viewBox: `0 0 ${Math.max(1, bars.length * (width + gap) - gap)} ${height}`, preserveAspectRatio: "none", role: "img", "aria-label": `${title}: ${format(total)} in all, at most ${format(most)}` },
    svg("line", { x1: 0, x2: bars.length * (width + gap), y1: height, y2: height, class: "axis" }), drawn);
  return figure(title, total ? picture : h("p", { class: "soft chart-none" }, o.empty ?? "Nothing yet."), [
    format(total), bars.length ? `${bars[0].label} to ${bars[bars.length - 1].label}` : "",
  ], bars.filter(b => b.values.some(v => v.value)).flatMap(b => b.values.filter(v => v.value).map(v => [b.label, v.name, format(v.value)])));
}

/**
 * Bars below each other, each with its name and number.
 * @param {string} title @param {{name: import("./dom.js").Child, value: number, kind?: string}[]} rows @param {{format?: (n: number) => string, empty?: string}} [o]
 */
export function ranks(title, rows, o = {}) {
  const format = o.format ?? (n => n.toLocaleString("en-US"));
  const most = Math.max(...rows.map(r => r.value), 0);
  const list = h("ul", { class: "ranks" }, rows.map(r => h("li", null,
    h("span", { class: "rank-name" }, r.name), h("span", { class: "rank-value" }, format(r.value)),
    h("span", { class: "rank-bar fill-" + (r.kind ?? "accent"), "aria-hidden": "true", vars: { "--part": most ? r.value / most : 0 } }))));
  return h("figure", { class: "chart" }, h("figcaption", null, title), rows.length ? list : h("p", { class: "soft chart-none" }, o.empty ?? "Nothing yet."));
}

/** @param {string} title @param {Node} picture @param {string[]} notes @param {string[][]} rows */
function figure(title, picture, notes, rows) {
  return h("figure", { class: "chart" }, h("figcaption", null, title, " ", h("strong", null, notes[0])), picture, h("p", { class: "soft small" }, notes[1]),
    rows.length > 0 && h("details", null, h("summary", null, "Numbers"), h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": title + ", numbers" },
      h("table", { class: "plain" }, h("tbody", null, rows.map(cells => h("tr", null, cells.map(c => h("td", null, c)))))))));
}
