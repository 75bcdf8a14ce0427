// What a person can do with a run, from the head of its page.
import { ApiError, randomID, send } from "../lib/api.js";
import { open, toast } from "../lib/dialog.js";
import { h, put } from "../lib/dom.js";
import { count, ended, usd } from "../lib/format.js";
import { field } from "../lib/widgets.js";
import { decisionForm, nameField, waiting, who } from "./decide.js";
import { forkDialog } from "./fork.js";
import { number } from "./exact.js";

/** @typedef {import("../lib/page.js").Page} Page */

/** Sends what must not be sent twice. @param {string} path @param {any} body */
async function once(path, body) {
  try {
    return await send("POST", path, body);
  } catch (err) {
    if (err instanceof ApiError && err.status === 0) throw new ApiError("no_answer", "The gateway did not answer, so nobody knows whether it happened. Look at the run before you repeat it.", 0);
    throw err;
  }
}

/**
 * The buttons of a run. update is called with the memory after event n, if it is known, whenever another moment is
 * shown; live says that this is the newest one.
 * @param {Page} page @param {string} run
 * @returns {{el: HTMLElement, update: (memory: any, n: number, live: boolean) => void}}
 */
export function actions(page, run) {
  const path = `/v1/runs/${encodeURIComponent(run)}`;
  const el = h("div", { class: "row actions", role: "group", "aria-label": "Actions" });
  let memory = /** @type {any} */ (null), n = 0, newest = /** @type {any} */ (null), shown = "";
  /** @type {{forms: import("./decide.js").Form[], add: () => void, closed: boolean} | undefined} */
  let deciding;

  /** @param {string} verb @param {string} done @param {Record<string, any>} [more] */
  const command = async (verb, done, more) => {
    await once(`${path}/${verb}`, { by: who(), ...more });
    toast(done);
  };
  /** @param {string} title @param {string} text @param {string} verb @param {string} done @param {"main" | "danger"} [kind] */
  const ask = (title, text, verb, done, kind) => open(page, title, h("div", { class: "stack" },
    h("p", null, text), nameField(), field("Why (optional)", h("textarea", { name: "reason", class: "two" }))),
  [{ label: title, kind, run: fields => command(verb, done, reasonOf(fields)) }]);

  const all = {
    decide: () => {
      const ended = new AbortController();
      const list = h("div", { class: "stack" });
      const mine = deciding = {
        forms: /** @type {import("./decide.js").Form[]} */ ([]), closed: /** @type {boolean} */ (false),
        add: () => {
          for (const call of waiting(newest)) if (!mine.forms.some(f => f.call.call_id === call.call_id)) {
            const form = decisionForm(run, call, ended.signal);
            mine.forms.push(form);
            list.append(form.el);
          }
        },
      };
      mine.add();
      const box = open(page, mine.forms.length === 1 ? "Decide on a call" : `Decide on ${mine.forms.length} calls`, h("div", { class: "stack" }, nameField(), list));
      box.addEventListener("close", () => { mine.closed = true; ended.abort(); });
    },
    message: () => {
      const message_id = randomID(); // the same message again is no second one
      open(page, "Send a message", field("Message", h("textarea", { name: "text", required: true }), newest.state === "waiting_for_user" ? "The run waits for it." : "The model reads it before its next reply."), [{
        label: "Send", run: async fields => {
          await send("POST", `${path}/inputs`, [{ type: "user-message", content: String(fields.get("text")), message_id }], { again: true });
          toast("The message is sent.");
        },
      }]);
    },
    pause: () => ask("Pause", "No new work begins until somebody resumes the run. Calls in flight finish.", "pause", "The run is paused."),
    resume: () => ask("Resume", "The run continues where it was paused.", "resume", "The run continues."),
    close: () => ask("Close", "The conversation ends. It cannot be opened again, but it can be forked.", "close", "The conversation is closed."),
    cancel: () => ask("Cancel the run", "The run ends now, and its sub-runs with it. It cannot continue afterwards, but it can be forked.", "cancel", "The run is cancelled.", "danger"),
    budget: () => open(page, "Change the budget", budgetForm(newest.budget ?? {}, newest.total_usage), [{
      label: "Change", run: async fields => {
        const changes = budgetChanges(newest.budget ?? {}, fields);
        if (!Object.keys(changes).length) throw new Error("Change a limit first");
        await command("budget", "The budget is changed.", { ...changes, ...reasonOf(fields) });
      },
    }]),
    fork: () => forkDialog(page, run, memory, ended(memory.state) ? Math.max(1, n - 1) : n),
  };

  const draw = () => {
    if (!memory) return;
    const live = memory === newest, over = !newest || ended(newest.state), state = newest?.state, calls = newest ? waiting(newest).length : 0;
    const paused = newest?.control?.paused, origin = memory.control?.forked_from?.run;
    const key = JSON.stringify([live, over, state === "waiting_for_user", calls, paused, origin]);
    if (key === shown) return;
    shown = key;
    const had = /** @type {HTMLElement | null} */ (el.contains(document.activeElement) ? document.activeElement : null)?.dataset.do;
    /** @param {keyof typeof all} name @param {string} label @param {boolean} there @param {string} [kind] */
    const button = (name, label, there, kind) => there && h("button", { type: "button", class: kind, "data-do": name, disabled: !live && name !== "fork", title: !live && name !== "fork" && "This shows the past. Go to the newest moment first.", onclick: all[name] }, label);
    put(el,
      button("decide", calls > 1 ? `Decide (${calls})…` : "Decide…", calls > 0, "main"),
      button("message", "Message…", !over, state === "waiting_for_user" ? "main" : undefined),
      button("pause", "Pause…", !over && !paused), button("resume", "Resume…", !over && !!paused, "main"),
      button("budget", "Budget…", !over), button("close", "Close…", state === "waiting_for_user"), button("cancel", "Cancel…", !over, "danger"),
      button("fork", "Fork from here…", true),
      h("a", { href: "/compare?a=" + (origin ? encodeURIComponent(origin) + "&b=" : "") + encodeURIComponent(run), "data-do": "compare" }, origin ? "Compare with its origin" : "Compare…"));
    if (had) /** @type {HTMLElement | null} */ (el.querySelector(`[data-do="${had}"]`))?.focus();
  };

  return {
    el,
    update: (now, at, live) => {
      if (!now) return;
      memory = now;
      n = at;
      if (live) newest = now;
      draw();
      if (!live || !deciding || deciding.closed) return;
      const still = waiting(now);
      for (const form of deciding.forms) if (!still.some(call => call.call_id === form.call.call_id)) form.gone();
      deciding.add();
    },
  };
}

/** @param {FormData} fields */
const reasonOf = fields => (String(fields.get("reason") ?? "").trim() ? { reason: String(fields.get("reason")).trim() } : {});

const limits = /** @type {[string, string][]} */ ([["max_total_tokens", "Most tokens in all"], ["max_input_tokens", "Most tokens of input"], ["max_output_tokens", "Most tokens of output"], ["max_cost_usd", "Highest cost in US dollars"], ["max_wall_time", "Longest time from the start, such as 30m or 24h"]]);

/** @param {Record<string, any>} budget @param {any} used */
function budgetForm(budget, used) {
  return h("div", { class: "stack" }, h("p", { class: "soft" }, `Used so far: ${count(used?.total ?? 0)} tokens, ${usd(used?.cost)}. An empty field changes nothing.`),
    limits.map(([key, label]) => field(label, h("input", { name: key, value: budget[key] === undefined ? "" : String(budget[key]), autocomplete: "off", inputmode: key === "max_wall_time" ? "text" : "decimal", pattern: key === "max_wall_time" ? "([0-9.]+(ms|s|m|h))+" : key === "max_cost_usd" ? "[0-9]+([.][0-9]+)?" : "[0-9]+" }))),
    nameField(), field("Why (optional)", h("textarea", { name: "reason", class: "two" })));
}

/** @param {Record<string, any>} budget @param {FormData} fields */
const budgetChanges = (budget, fields) => Object.fromEntries(limits.map(([key]) => [key, String(fields.get(key) ?? "").trim()])
  .filter(([key, text]) => text && text !== String(budget[key] ?? "")).map(([key, text]) => [key, key === "max_wall_time" ? text : number(text)]));
