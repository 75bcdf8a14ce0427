// How two texts differ, line by line.
import { h } from "../lib/dom.js";

const most = 2000; // lines of a text that are compared; the table of n by m stays small

/**
 * The steps from one list of lines to another by their longest common subsequence: " " same,
 * "-" only in a, "+" only in b.
 * @param {string[]} a @param {string[]} b @returns {["-" | "+" | " ", string][]}
 */
export function steps(a, b) {
  let head = 0, tail = 0;
  while (head < a.length && head < b.length && a[head] === b[head]) head++;
  while (tail < a.length - head && tail < b.length - head && a[a.length - 1 - tail] === b[b.length - 1 - tail]) tail++;
  const left = a.slice(head, a.length - tail), right = b.slice(head, b.length - tail), width = right.length + 1;
  /** @type {["-" | "+" | " ", string][]} */
  const made = a.slice(0, head).map(line => [" ", line]);
  let i = 0, j = 0;
  if (left.length <= most && right.length <= most) {
    const table = new Uint16Array((left.length + 1) * width);
    for (let x = left.length - 1; x >= 0; x--) for (let y = right.length - 1; y >= 0; y--) {
      table[x * width + y] = left[x] === right[y] ? table[(x + 1) * width + y + 1] + 1 : Math.max(table[(x + 1) * width + y], table[x * width + y + 1]);
    }
    while (i < left.length && j < right.length) {
      if (left[i] === right[j]) { made.push([" ", left[i++]]); j++; }
      else if (table[(i + 1) * width + j] >= table[i * width + j + 1]) made.push(["-", left[i++]]);
      else made.push(["+", right[j++]]);
    }
  }
  while (i < left.length) made.push(["-", left[i++]]);
  while (j < right.length) made.push(["+", right[j++]]);
  for (const line of a.slice(a.length - tail)) made.push([" ", line]);
  return made;
}

/**
 * Shows the steps from a text to another; of what is the same, only some lines around changes.
 * @param {string} a @param {string} b @param {string} [label]
 */
export function lineDiff(a, b, label = "Changes") {
  const all = a === b ? [] : steps(a.split("\n"), b.split("\n"));
  const near = (/** @type {number} */ i) => all.slice(Math.max(0, i - 2), i + 3).some(([op]) => op !== " ");
  const shown = /** @type {Node[]} */ ([]);
  let left = 0;
  const skipped = () => { if (left) shown.push(h("div", { class: "soft diff-gap" }, `⋯ ${left} equal ${left === 1 ? "line" : "lines"}`)); left = 0; };
  all.forEach(([op, line], i) => {
    if (!near(i)) { left++; return; }
    skipped();
    if (shown.length > 2000) return;
    shown.push(h("div", { class: op === "+" ? "diff-new" : op === "-" ? "diff-old" : "" }, h("span", { class: "diff-op" }, op === "-" ? "−" : op, op !== " " && h("span", { class: "visually-hidden" }, op === "+" ? " new: " : " old: ")), h("span", { class: "diff-line" }, line.slice(0, 4000))));
  });
  skipped();
  return h("div", { class: "code diff", role: "group", "aria-label": label, tabindex: shown.length > 12 && 0 }, shown.length ? shown : h("span", { class: "soft" }, "No changes."));
}
