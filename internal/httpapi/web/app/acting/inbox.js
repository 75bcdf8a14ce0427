// The inbox: what waits for people, soonest deadline first.
import { follow, get, randomID, send } from "../lib/api.js";
import { empty, failed, toast } from "../lib/dialog.js";
import { h, put } from "../lib/dom.js";
import { plural } from "../lib/format.js";
import { bind } from "../lib/keys.js";
import { badge, field, long, runLink, since } from "../lib/widgets.js";
import { interrupted } from "../lib/page.js";
import { decisionForm, nameField } from "./decide.js";

/** @typedef {{run_id: string, agent: string, task: string, state: string, n: number, since: string, parent?: string, calls: import("./decide.js").Call[], message?: boolean, problem?: string}} Waiting */
/** @typedef {{el: HTMLElement, run: Waiting, forms: import("./decide.js").Form[], busy: () => boolean, update: (run: Waiting | null) => void, ended: AbortController, gone: number}} Card */

/** @param {import("../lib/page.js").Page} page */
export default async function inbox(page) {
  const list = h("div", { class: "inbox stack" }), summary = h("p", { class: "soft", role: "status" }), nothing = h("div"), trouble = h("div", { role: "alert" });
  const more = h("button", { type: "button", hidden: true, onclick: () => { limit += 50; void read(); } }, "Show more");
  /** @type {Map<string, Card>} */
  const cards = new Map();
  const told = /** @type {Set<string>} */ (new Set());
  let limit = 50, soon = 0, ticks = 0, reading = false, again = false, first = true;

  const read = async () => {
    if (reading) { again = true; return; }
    reading = true;
    do {
      again = false;
      try {
        const got = await get("/v1/waiting", { limit }, page.signal);
        put(trouble);
        show(got.runs, !!got.next);
      } catch (err) {
        if (page.signal.aborted) return;
        if (first) { reading = false; throw err; }
        if (/** @type {any} */ (err).status) put(trouble, failed(err));
      }
    } while (again && !page.signal.aborted);
    reading = false;
  };

  /** @param {Waiting[]} runs @param {boolean} next */
  const show = (runs, next) => {
    const there = new Set(runs.map(r => r.run_id));
    for (const [id, card] of cards) if (!there.has(id)) {
      card.update(null);
      if (!card.busy() && !card.el.contains(document.activeElement) && Date.now() - card.gone > 10_000) remove(id); // until then it says who decided
    }
    for (const run of runs) {
      const card = cards.get(run.run_id);
      if (card) card.update(run);
      else cards.set(run.run_id, make(run));
    }
    const busy = [...cards.values()].some(c => c.el.contains(document.activeElement) || c.busy());
    const order = busy ? [...cards.keys()] : [...runs.map(r => r.run_id), ...[...cards.keys()].filter(id => !there.has(id))];
    order.forEach((id, i) => {
      const el = /** @type {Card} */ (cards.get(id)).el;
      if (list.children[i] !== el && (!busy || !el.isConnected)) list.insertBefore(el, list.children[i] ?? null);
    });
    const calls = runs.reduce((sum, r) => sum + r.calls.length, 0), messages = runs.filter(r => r.message).length;
    const what = [calls && plural(calls, "decision"), messages && plural(messages, "conversation")].filter(Boolean).join(" and ");
    put(summary, runs.length ? next ? `${what} shown. There are more.` : `${what} ${calls + messages === 1 ? "waits" : "wait"}.` : "Nothing waits.");
    put(nothing, cards.size === 0 && empty("Nothing waits for you", "Calls that need an approval, questions and conversations come here by themselves. An agent asks for approvals if its definition has ", h("code", null, "approval: {policy: always}"), "."));
    more.hidden = !next;
    notify(runs);
    first = false;
  };

  /** @param {string} id */
  const remove = id => {
    const card = cards.get(id);
    card?.ended.abort();
    card?.el.remove();
    cards.delete(id);
  };

  /** @param {Waiting} run @returns {Card} */
  const make = run => {
    const ended = new AbortController();
    page.signal.addEventListener("abort", () => ended.abort(), { once: true, signal: ended.signal });
    const state = h("span"), age = h("span", { class: "soft small" }), body = h("div", { class: "stack" }), finished = h("div");
    /** @type {HTMLElement | undefined} */
    let message;
    const say = () => {
      const text = /** @type {HTMLTextAreaElement} */ (h("textarea", { class: "two" })), wrong = h("div", { role: "alert" });
      let message_id = randomID(), sent = "";
      const button = /** @type {HTMLButtonElement} */ (h("button", {
        type: "button", class: "main", onclick: async () => {
          if (!text.value.trim()) return text.focus();
          if (sent && sent !== text.value) message_id = randomID();
          sent = text.value;
          button.disabled = true;
          put(wrong);
          try {
            await send("POST", `/v1/runs/${encodeURIComponent(run.run_id)}/inputs`, [{ type: "user-message", content: text.value, message_id }], { again: true, signal: page.signal });
            toast("The message is sent.");
            text.value = "";
            void read();
          } catch (err) {
            put(wrong, failed(err));
          }
          button.disabled = false;
        },
      }, "Send"));
      return h("div", { class: "stack" }, field("Your next message", text), wrong, h("div", { class: "row" }, button));
    };
    const el = h("article", { class: "card stack", tabindex: 0, "aria-label": `${run.agent}: ${run.task}`.slice(0, 120) },
      h("div", { class: "row" }, h("h2", null, run.agent), state, runLink(run.run_id), run.parent && h("span", { class: "small soft" }, "for ", runLink(run.parent)), h("span", { class: "grow" }), age),
      h("div", { class: "task", tabindex: 0, role: "group", "aria-label": "Task" }, long(run.task)), body, finished);
    /** @type {Card} */
    const card = {
      el, run, forms: [], ended, gone: 0,
      busy: () => card.forms.some(f => f.busy()) || [.../** @type {NodeListOf<HTMLTextAreaElement>} */ (el.querySelectorAll("textarea"))].some(t => t === document.activeElement || t.value && !t.closest(".decision")),
      update: now => {
        put(state, badge(now?.state ?? "planning"));
        if (!now) {
          put(state, h("span", { class: "soft small" }, "waits no more"));
          card.forms.forEach(f => f.gone());
          card.gone ||= Date.now();
          put(finished, h("button", { type: "button", onclick: () => { step(1); remove(run.run_id); void read(); } }, "Remove from the list"));
          return;
        }
        card.gone = 0;
        for (const f of card.forms) if (!now.calls.some(c => c.call_id === f.call.call_id)) f.gone();
        card.run = now;
        put(age, since(now.since));
        put(finished, now.problem && h("p", { class: "failed" }, "✗ ", now.problem));
        for (const call of now.calls) if (!card.forms.some(f => f.call.call_id === call.call_id)) {
          const form = decisionForm(run.run_id, call, ended.signal, () => void read());
          card.forms.push(form);
          body.append(form.el);
        }
        if (now.message && !message) body.append(message = say());
        if (!now.message && message) { message.remove(); message = undefined; }
      },
    };
    card.update(run);
    return card;
  };

  // A card that has the focus takes the keys; without one they go to the first card.
  const current = () => [...cards.values()].find(c => c.el.contains(document.activeElement));
  /** @param {number} by */
  const step = by => {
    const all = /** @type {HTMLElement[]} */ ([...list.children]);
    const at = all.findIndex(el => el.contains(document.activeElement));
    const next = all[at < 0 ? (by > 0 ? 0 : all.length - 1) : Math.max(0, Math.min(all.length - 1, at + by))];
    next?.focus();
    next?.scrollIntoView({ block: "nearest" });
  };
  /** @param {"approve" | "reject" | "edit"} what */
  const act = what => {
    const card = current();
    if (!card) return step(1);
    const form = card.forms.find(f => f.el.contains(document.activeElement) && !f.done()) ?? card.forms.find(f => !f.done());
    if (form) form[what]();
    else card.el.querySelector("textarea")?.focus();
  };
  const next = () => step(1), before = () => step(-1);
  bind(page.signal, {
    j: { help: "Next", run: next }, k: { help: "Previous", run: before }, ArrowDown: { help: "Next", run: next }, ArrowUp: { help: "Previous", run: before },
    a: { help: "Approve the selected call, or go to its answer", run: () => act("approve") }, r: { help: "Reject it, with a reason", run: () => act("reject") }, e: { help: "Change its arguments", run: () => act("edit") },
  });

  // Notifications name the agent and the tool, and nothing else.
  const able = "Notification" in window && isSecureContext;
  const bell = h("button", {
    type: "button", onclick: async () => {
      if (localStorage.getItem("moorebus-notify")) localStorage.removeItem("moorebus-notify");
      else if (await Notification.requestPermission() === "granted") localStorage.setItem("moorebus-notify", "1");
      else toast("The browser does not allow notifications of this page.", "bad");
      ring();
    },
  });
  const ring = () => {
    const on = able && Notification.permission === "granted" && !!localStorage.getItem("moorebus-notify");
    bell.setAttribute("aria-pressed", String(on));
    put(bell, on ? "Notifications are on" : "Notify me");
    return on;
  };
  /** @param {Waiting[]} runs */
  const notify = runs => {
    for (const run of runs) for (const [id, what] of /** @type {[string, string][]} */ ([...run.calls.map(c => [c.call_id, c.name]), ...(run.message ? [["message" + run.n, "its user"]] : [])])) {
      const key = run.run_id + " " + id;
      if (!first && !told.has(key) && document.hidden && ring()) new Notification("Moorebus", { body: `${run.agent} waits: ${what}`, tag: key });
      told.add(key);
    }
  };
  if (able) ring();

  put(page.root, h("div", { class: "row" }, h("h1", null, "Inbox"), summary, h("span", { class: "grow" }), able && bell), h("div", { class: "stack" }, nameField(), trouble), list, nothing, h("div", null, more));
  await read();
  page.title("Inbox");
  // Others decide, too: what is shown is looked at more often than what is not.
  const timer = setInterval(() => { if ((++ticks % 3 === 0 || cards.size > 0) && (!document.hidden || ring())) void read(); }, 5000);
  const awake = () => { if (!document.hidden) void read(); };
  document.addEventListener("visibilitychange", awake);
  page.signal.addEventListener("abort", () => { clearInterval(timer); document.removeEventListener("visibilitychange", awake); cards.forEach(c => c.ended.abort()); }, { once: true });
  follow("/v1/events", {
    signal: page.signal,
    query: { state: "waiting_for_human" },
    always: ring, // who wants notifications
    onEvent: () => {
      clearTimeout(soon);
      soon = setTimeout(() => void read(), 150);
    },
    onState: live => { interrupted(live ? "" : "The gateway cannot be reached. The inbox continues by itself; a decision in flight is sent again."); if (live) void read(); },
  }).catch(err => { if (!page.signal.aborted) put(trouble, failed(err)); });
}
