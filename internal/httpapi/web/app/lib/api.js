// The HTTP API. Errors are ApiError. A request carries the namespace and the token that the
// user gave, which live as long as the browser's tab.

import { meant } from "./meant.js";

/** An answer that says no, or none. code and message are the gateway's. */
export class ApiError extends Error {
  /** @param {string} code @param {string} message @param {number} status @param {any} [body] */
  constructor(code, message, status, body) {
    super(message);
    this.code = code;
    this.status = status;
    this.body = body ?? {};
  }
}

export const session = {
  get namespace() { return sessionStorage.getItem("namespace") ?? ""; },
  get token() { return sessionStorage.getItem("token") ?? ""; },
  /** @param {string} namespace @param {string} token */
  set(namespace, token) {
    sessionStorage.setItem("namespace", namespace);
    sessionStorage.setItem("token", token);
  },
};

/** A new id, also where the page is not served by https. */
export const randomID = () => Array.from(crypto.getRandomValues(new Uint8Array(16)), b => b.toString(16).padStart(2, "0")).join("");

/** @param {Record<string, string>} [more] */
function headers(more) {
  const all = { ...more };
  if (session.namespace) all["Moorebus-Namespace"] = session.namespace;
  if (session.token) all.Authorization = "Bearer " + session.token;
  return all;
}

/** @param {string} path @param {Record<string, any>} [query] */
export function address(path, query) {
  const params = new URLSearchParams();
  for (const [key, value] of Object.entries(query ?? {})) if (value !== undefined && value !== null && value !== "") params.set(key, String(value));
  const text = params.toString();
  return text ? path + "?" + text : path;
}

/** @param {Response} answer */
async function failure(answer) {
  const text = await answer.text().catch(() => "");
  let body = /** @type {any} */ ({});
  try { body = JSON.parse(text); } catch { /* not the gateway's own answer */ }
  return new ApiError(body.code ?? "http_" + answer.status, body.message ?? `the gateway answered ${answer.status} ${answer.statusText}`, answer.status, body);
}

/** @param {string} url @param {RequestInit} init */
async function ask(url, init) {
  let answer;
  try {
    answer = await fetch(url, init);
  } catch (err) {
    if (init.signal?.aborted) throw err;
    throw new ApiError("unreachable", "the gateway cannot be reached; it may be restarting", 0);
  }
  if (!answer.ok) throw await failure(answer);
  return answer;
}

/** @param {string} path @param {Record<string, any>} [query] @param {AbortSignal} [signal] @returns {Promise<any>} */
export async function get(path, query, signal) {
  return (await ask(address(path, query), { headers: headers(), signal })).json();
}

/** What an event's reference points to. @param {{bucket: string, key: string, size: number}} ref */
export async function object(ref) {
  return (await ask(address(`/v1/blobs/${encodeURIComponent(ref.bucket)}/${encodeURIComponent(ref.key)}`, { size: ref.size }), { headers: headers() })).blob();
}

/**
 * Sends a body. An answer that did not come because the gateway restarts is asked for again
 * where that is safe: `again` says so.
 * @param {string} method @param {string} path @param {any} [body] @param {{headers?: Record<string, string>, again?: boolean, signal?: AbortSignal}} [o]
 * @returns {Promise<any>}
 */
export async function send(method, path, body, o = {}) {
  if (!meant()) throw new Error("This page had only just appeared, so the press may have been meant for another one. Press again.");
  const init = { method, headers: headers({ "Content-Type": "application/json", ...o.headers }), body: body === undefined ? undefined : JSON.stringify(body), signal: o.signal };
  for (let left = o.again ? 120 : 0; ; left--) {
    try {
      return await (await ask(path, init)).json();
    } catch (err) {
      if (!(err instanceof ApiError) || left <= 0 || (err.status !== 0 && err.status !== 503)) throw err;
      await sleep(500, o.signal);
    }
  }
}

/** JSON lines as they came, one text after another. @param {string} path @param {Record<string, any>} [query] @param {AbortSignal} [signal] @returns {AsyncGenerator<string>} */
export async function* texts(path, query, signal) {
  const answer = await ask(address(path, query), { headers: headers({ Accept: "application/x-ndjson" }), signal });
  for await (const line of split(answer, "\n")) if (line) yield line;
}

/** JSON lines, one value after another. @param {string} path @param {Record<string, any>} [query] @param {AbortSignal} [signal] @returns {AsyncGenerator<any>} */
export async function* lines(path, query, signal) {
  for await (const line of texts(path, query, signal)) yield JSON.parse(line);
}

/** The parts of a body between separators. @param {Response} answer @param {string} by @returns {AsyncGenerator<string>} */
async function* split(answer, by) {
  const reader = /** @type {ReadableStream<Uint8Array>} */ (answer.body).getReader();
  const decoder = new TextDecoder();
  let parts = /** @type {string[]} */ ([]);
  try {
    for (;;) {
      const { done, value } = await reader.read();
      const all = (done ? "" : decoder.decode(value, { stream: true })).split(by);
      for (let i = 0; i < all.length - 1; i++) {
        yield parts.join("") + all[i];
        parts = [];
      }
      parts.push(all[all.length - 1]);
      if (done) break;
    }
    if (parts.join("")) yield parts.join("");
  } finally {
    reader.cancel().catch(() => {});
  }
}

/** text is the data as it came. @typedef {{type: string, id: string, text: string, data: any}} StreamEvent */

/** How long a page that nobody sees keeps its stream: a browser opens few connections to a gateway over HTTP/1.1, for all its tabs together. */
const unseen = 60_000;

/**
 * A signal that ends with another one, and when nobody has seen the page for a while. `away` says
 * that it was that, and `seen` waits until the page is seen.
 * @param {AbortSignal} signal @param {() => boolean} [always] holds when the stream is needed in any case
 */
function whileSeen(signal, always) {
  const hidden = new AbortController(), off = new AbortController();
  let timer = 0;
  const turned = () => {
    clearTimeout(timer);
    if (document.hidden) timer = window.setTimeout(() => { if (!always?.()) hidden.abort(); }, unseen);
  };
  document.addEventListener("visibilitychange", turned, { signal: off.signal });
  turned();
  return {
    signal: AbortSignal.any([signal, hidden.signal]),
    get away() { return hidden.signal.aborted; },
    end() { clearTimeout(timer); off.abort(); },
    /** @returns {Promise<void>} */
    seen: () => new Promise(done => {
      const look = () => { if (!document.hidden || signal.aborted) done(); };
      document.addEventListener("visibilitychange", look, { signal: off.signal });
      signal.addEventListener("abort", look, { signal: off.signal });
      look();
    }),
  };
}

/** The server-sent events of one answer, after the one with the id last. @param {string} path @param {Record<string, any>} query @param {string} last @param {AbortSignal} signal @param {() => void} [began] @returns {AsyncGenerator<StreamEvent>} */
export async function* stream(path, query, last, signal, began) {
  const answer = await ask(address(path, query), { headers: headers({ Accept: "text/event-stream", ...(last ? { "Last-Event-ID": last } : {}) }), signal });
  if (answer.status === 204) return;
  began?.();
  for await (const block of split(answer, "\n\n")) {
    const event = parse(block);
    yield { ...event, data: event.text ? JSON.parse(event.text) : undefined };
  }
}

/**
 * Follows server-sent events until they end or the signal is aborted, and comes back after an
 * interruption where it was, so that none is missing. It does not use EventSource, which can
 * send no token. An error that trying again does not help is thrown. It pauses while nobody sees
 * the page, unless `always` holds.
 * @param {string} path
 * @param {{query?: Record<string, any>, last?: string, signal: AbortSignal, always?: () => boolean, onEvent: (e: StreamEvent) => void, onState?: (live: boolean, reason: string) => void}} o
 */
export async function follow(path, o) {
  let last = o.last ?? "", wait = 250;
  while (!o.signal.aborted) {
    let reason = "the stream was interrupted";
    const page = whileSeen(o.signal, o.always);
    try {
      let began = false;
      for await (const event of stream(path, o.query ?? {}, last, page.signal, () => { began = true; o.onState?.(true, ""); })) {
        wait = 250;
        if (!event.text) continue; // a comment, or the beginning of an event that broke off
        if (event.id) last = event.id;
        o.onEvent(event);
      }
      if (!began) return;
    } catch (err) {
      if (o.signal.aborted) return;
      if (page.away) {
        await page.seen();
        if (o.last === undefined) last = ""; // much may have happened: what follows all runs begins anew
        continue;
      }
      if (err instanceof ApiError && err.status >= 400 && err.status < 500 && err.status !== 429) throw err;
      reason = err instanceof Error ? err.message : String(err);
    } finally {
      page.end();
    }
    if (o.signal.aborted) return;
    o.onState?.(false, reason);
    await sleep(wait, o.signal).catch(() => {});
    wait = Math.min(wait * 2, 5000);
  }
}

/** @param {string} block */
function parse(block) {
  const event = { type: "message", id: "", text: "" };
  for (const line of block.split("\n")) {
    const at = line.indexOf(":");
    if (at < 1) continue;
    const value = line.slice(line[at + 1] === " " ? at + 2 : at + 1);
    const key = line.slice(0, at);
    if (key === "event") event.type = value;
    else if (key === "id") event.id = value;
    else if (key === "data") event.text += (event.text ? "\n" : "") + value;
  }
  return event;
}

/** @param {number} ms @param {AbortSignal} [signal] @returns {Promise<void>} */
export function sleep(ms, signal) {
  return new Promise((done, failed) => {
    const timer = setTimeout(done, ms);
    signal?.addEventListener("abort", () => { clearTimeout(timer); failed(new DOMException("left", "AbortError")); }, { once: true });
  });
}
