// What the pages about all runs share.
import { ago } from "../lib/format.js";
import { put, setText } from "../lib/dom.js";
import { ApiError, sleep } from "../lib/api.js";
import { interrupted } from "../lib/page.js";

/** @typedef {{state: string, pool?: string, waiting: number, in_flight: number}} Backlog */
/** @typedef {{role: string, instance: string, pool?: string, tools?: string[], providers?: string[]}} Worker */
/** @typedef {{hour: string, started: number, ended: number, failed: number, events: number, input: number, output: number, cost_usd?: number, agents: {agent: string, runs: number, input: number, output: number, cost_usd?: number, failed: number}[]}} Hour */
/** @typedef {{at: string, runs: {total: number, by_state: Record<string, number>, waiting: Record<string, number>}, hours: Hour[], rates: {events_per_s: number, runs_per_s: number, window_s: number}, backlog?: Backlog[], backlog_reason?: string, workers: Worker[]}} Stats */

/**
 * Calls work now, every so many milliseconds while the tab can be seen, and when it is seen
 * again. The first failure is thrown. A later one is shown below the bar, and work is tried
 * again. The returned function calls work soon.
 * @param {AbortSignal} signal @param {number} ms @param {() => Promise<void>} work
 * @returns {Promise<() => void>}
 */
export async function poll(signal, ms, work) {
  await work();
  let wake = () => {};
  void (async () => {
    let broken = false;
    while (!signal.aborted) {
      const early = new AbortController();
      wake = () => early.abort();
      await sleep(ms, AbortSignal.any([signal, early.signal])).catch(() => {});
      if (signal.aborted || document.hidden) continue;
      try {
        await work();
        if (broken) interrupted("");
        broken = false;
      } catch (err) {
        if (signal.aborted) return;
        broken = true;
        interrupted(err instanceof ApiError && err.status ? `${err.message} (${err.code})` : "The gateway cannot be reached. This page tries again by itself.");
      }
    }
  })();
  document.addEventListener("visibilitychange", () => { if (!document.hidden) wake(); }, { signal });
  return () => wake();
}

/** Keeps the times of an element right. @param {HTMLElement} el @param {AbortSignal} signal */
export function tick(el, signal) {
  const timer = setInterval(() => { for (const time of el.querySelectorAll("time")) setText(time, ago(time.dateTime)); }, 5000);
  signal.addEventListener("abort", () => clearInterval(timer), { once: true });
}

/** @type {WeakMap<HTMLElement, string>} */
const drawn = new WeakMap();

/**
 * Shows in an element what `draw` makes of a value, anew only if the value is another one. What
 * was unfolded stays unfolded, and what had the focus keeps it, by data-key.
 * @param {HTMLElement} el @param {any} value @param {() => import("../lib/dom.js").Child} draw
 */
export function show(el, value, draw) {
  const text = JSON.stringify(value);
  if (drawn.get(el) === text) return;
  drawn.set(el, text);
  const key = (/** @type {Element} */ at) => at.closest("[data-key]")?.getAttribute("data-key") ?? "";
  const open = new Set([...el.querySelectorAll("details[open]")].map(key));
  const focused = document.activeElement && el.contains(document.activeElement) ? [key(document.activeElement), document.activeElement.tagName] : null;
  put(el, draw());
  for (const details of el.querySelectorAll("details")) if (open.has(key(details))) details.open = true;
  if (focused) for (const at of el.querySelectorAll(focused[1])) if (key(at) === focused[0]) return /** @type {HTMLElement} */ (at).focus({ preventScroll: true });
}
