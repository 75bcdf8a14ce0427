// A list of which only what can be seen is in the document.
import { h, put } from "./dom.js";

/**
 * A virtual list of rows of one height. Each row is drawn by `draw`, which returns an element
 * whose first link or button is what the keys move between. ↑ ↓ Home End PageUp PageDown move.
 * @typedef {{label: string, row: number, draw: (i: number) => HTMLElement, near?: () => void, moved?: (i: number) => void}} ListOptions
 */
export class List {
  /** @param {ListOptions} o row is the height in CSS pixels; near is called when the end comes into view; moved when the keys move */
  constructor(o) {
    this.o = o;
    this.length = 0;
    this.current = 0;
    this.top = 0; // where it was scrolled to when it was drawn
    this.spare = 6; // rows drawn above and below those in view
    this.wanted = false; // the current row gets the focus when it is drawn
    /** @type {Map<number, HTMLElement>} */
    this.rows = new Map();
    this.inner = h("div", { class: "list-inner", role: "list", "aria-label": o.label });
    this.el = h("div", { class: "list" }, this.inner);
    this.el.addEventListener("scroll", () => this.later(), { passive: true });
    this.el.addEventListener("keydown", event => this.key(event));
    this.el.addEventListener("focusin", event => {
      const at = /** @type {HTMLElement} */ (event.target).closest("[data-i]");
      if (at) this.mark(Number(/** @type {HTMLElement} */ (at).dataset.i));
    });
    this.observer = new ResizeObserver(() => this.later());
    this.observer.observe(this.el);
    this.pending = false;
  }

  /** Shows so many rows, and draws anew those in view. @param {number} length */
  set(length) {
    this.length = length;
    this.current = Math.max(0, Math.min(this.current, length - 1));
    this.inner.style.setProperty("height", `${length * this.o.row}px`);
    this.rows.clear();
    this.draw(true);
  }

  /** Draws one row anew, if it is in view. @param {number} i */
  redraw(i) {
    const old = this.rows.get(i);
    if (!old) return;
    const focused = old.contains(document.activeElement);
    const made = this.made(i);
    old.replaceWith(made);
    this.rows.set(i, made);
    if (focused) this.target(made)?.focus({ preventScroll: true });
  }

  later() {
    if (this.pending) return;
    this.pending = true;
    requestAnimationFrame(() => { this.pending = false; this.draw(false); });
  }

  /** @param {boolean} anew */
  draw(anew) {
    const height = this.el.clientHeight || 600, top = this.el.scrollTop;
    if (top !== this.top) this.spare = Math.abs(top - this.top) > height ? 0 : 6; // a leap is drawn in one frame, and others often follow it
    this.top = top;
    const first = Math.max(0, Math.floor(top / this.o.row) - this.spare);
    const last = Math.min(this.length, Math.ceil((top + height) / this.o.row) + this.spare);
    const focused = this.inner.contains(document.activeElement);
    if (anew) put(this.inner);
    for (const [i, row] of this.rows) if (i < first || i >= last) { row.remove(); this.rows.delete(i); }
    for (let i = first; i < last; i++) {
      if (this.rows.has(i)) continue;
      const row = this.made(i);
      this.rows.set(i, row);
      const next = this.rows.get(i + 1);
      if (next) this.inner.insertBefore(row, next); else this.inner.append(row);
    }
    const row = this.rows.get(this.current);
    if (row && (this.wanted || anew && focused)) this.target(row)?.focus({ preventScroll: true });
    if (row) this.wanted = false;
    if (last >= this.length && this.length > 0) this.o.near?.();
  }

  /** @param {number} i */
  made(i) {
    const row = h("div", { class: "list-row", role: "listitem", "data-i": i, "aria-setsize": this.length, "aria-posinset": i + 1, vars: { "--y": `${i * this.o.row}px`, "--h": `${this.o.row}px` } }, this.o.draw(i));
    for (const el of /** @type {NodeListOf<HTMLElement>} */ (row.querySelectorAll("a, button"))) el.tabIndex = -1;
    const target = this.target(row);
    if (target && i === this.current) target.tabIndex = 0;
    return row;
  }

  /** @param {HTMLElement} row @returns {HTMLElement | null} */
  target(row) { return row.querySelector("a, button"); }

  /** @param {number} i */
  mark(i) {
    const old = this.rows.get(this.current), row = this.rows.get(i);
    const was = old && this.target(old), is = row && this.target(row);
    if (was) was.tabIndex = -1;
    if (is) is.tabIndex = 0;
    this.current = i;
  }

  /** Scrolls a row into view, and moves there. @param {number} i @param {{focus?: boolean}} [o] */
  go(i, o = {}) {
    if (!this.length) return;
    i = Math.max(0, Math.min(i, this.length - 1));
    this.mark(i);
    const top = i * this.o.row, height = this.el.clientHeight;
    if (top < this.el.scrollTop) this.el.scrollTop = top;
    else if (top + this.o.row > this.el.scrollTop + height) this.el.scrollTop = top + this.o.row - height;
    this.wanted = !!o.focus;
    this.draw(false);
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    const page = Math.max(1, Math.floor(this.el.clientHeight / this.o.row) - 1);
    const by = /** @type {Record<string, number>} */ ({ ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -this.length, End: this.length })[event.key];
    if (by === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    event.stopPropagation();
    this.go(this.current + by, { focus: true });
    this.o.moved?.(this.current);
  }

  close() { this.observer.disconnect(); }
}
