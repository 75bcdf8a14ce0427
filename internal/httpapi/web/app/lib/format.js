// How values are written.

// Characters that would change how the text around them is read, or that cannot be seen:
// controls but tab and line feed, and those that set the direction of text.
const hidden = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]/g;

/** Shows what cannot be seen as its code, such as \u202e. @param {string} text */
export function visible(text) {
  return text.replace(/\r\n/g, "\n").replace(hidden, c => "\\u" + c.charCodeAt(0).toString(16).padStart(4, "0"));
}

/** What is shown of a long text at first, in characters. */
export const longText = 20_000;

/** @param {string} text @param {number} limit */
export function cut(text, limit) {
  return text.length > limit ? text.slice(0, limit) + "…" : text;
}

/** @param {string | undefined} id */
export const shortID = id => (id && id.length > 14 ? id.slice(0, 8) + "…" + id.slice(-4) : id ?? "");

/** @param {number | undefined | null} ms */
export function duration(ms) {
  if (ms === undefined || ms === null || !Number.isFinite(ms)) return "–";
  if (ms < 0) ms = 0;
  if (ms < 1000) return `${Math.round(ms)} ms`;
  const s = ms / 1000;
  if (s < 60) return `${s < 10 ? s.toFixed(1) : Math.round(s)} s`;
  const m = Math.floor(s / 60);
  if (m < 60) return `${m} min ${Math.floor(s % 60)} s`;
  const hours = Math.floor(m / 60);
  if (hours < 48) return `${hours} h ${m % 60} min`;
  return `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

/** How long ago a time was, in one unit. @param {string | undefined} at @param {number} [now] */
export function ago(at, now = Date.now()) {
  if (!at) return "–";
  const s = Math.max(0, (now - Date.parse(at)) / 1000);
  if (s < 60) return `${Math.floor(s)} s ago`;
  if (s < 3600) return `${Math.floor(s / 60)} min ago`;
  if (s < 172800) return `${Math.floor(s / 3600)} h ago`;
  return `${Math.floor(s / 86400)} days ago`;
}

/** @param {number | undefined | null} dollars */
export function usd(dollars) {
  if (dollars === undefined || dollars === null) return "–";
  if (dollars === 0) return "$0";
  if (dollars < 0.01) return "$" + dollars.toFixed(4);
  return "$" + dollars.toLocaleString("en-US", { minimumFractionDigits: 2, maximumFractionDigits: 2 });
}

/** @param {number | undefined | null} n */
export function count(n) {
  if (n === undefined || n === null) return "–";
  if (n >= 10_000_000) return `${(n / 1_000_000).toFixed(0)} M`;
  if (n >= 1_000_000) return `${(n / 1_000_000).toFixed(1)} M`;
  if (n >= 10_000) return `${(n / 1000).toFixed(0)} k`;
  return n.toLocaleString("en-US");
}

/** Date and time of day, in the browser's time zone. @param {string | undefined} at */
export function when(at) {
  if (!at) return "–";
  const d = new Date(at);
  const pad = (/** @type {number} */ n) => String(n).padStart(2, "0");
  return `${d.getFullYear()}-${pad(d.getMonth() + 1)}-${pad(d.getDate())} ${pad(d.getHours())}:${pad(d.getMinutes())}:${pad(d.getSeconds())}`;
}

/** @param {number} n @param {string} one @param {string} [many] */
export const plural = (n, one, many = one + "s") => `${count(n)} ${n === 1 ? one : many}`;

/** JSON as it is shown: indented, or the text itself. @param {any} value */
export function pretty(value) {
  if (typeof value !== "string") return JSON.stringify(value, null, 2) ?? "";
  try {
    return JSON.stringify(JSON.parse(value), null, 2);
  } catch {
    return value;
  }
}

// States by shape, word and colour.
/** @type {Record<string, [string, string]>} */
const states = {
  queued: ["⋯", "wait"], idle: ["○", "off"], planning: ["◇", "busy"], acting: ["▶", "busy"], parallel_acting: ["⊪", "busy"], observing: ["◎", "busy"], reflecting: ["↻", "busy"],
  waiting_for_human: ["‖", "wait"], waiting_for_user: ["‖", "wait"], done: ["✓", "good"], error: ["✗", "bad"], cancelled: ["⊘", "off"],
};

/** The word of a state. @param {string} state */
export const stateWord = state => state.replaceAll("_", " ");
/** Its shape. @param {string} state */
export const stateShape = state => states[state]?.[0] ?? "□";
/** Its colour: off, busy, wait, good or bad. @param {string} state */
export const stateKind = state => states[state]?.[1] ?? "busy";
/** Whether a run in this state has ended. @param {string} state */
export const ended = state => state === "done" || state === "error" || state === "cancelled";
