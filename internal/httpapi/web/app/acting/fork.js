// Forks: runs that go on from a moment of another one, with another prompt, model or task.
import { randomID, send } from "../lib/api.js";
import { open, toast } from "../lib/dialog.js";
import { h, put } from "../lib/dom.js";
import { field, runLink } from "../lib/widgets.js";
import { lineDiff } from "./linediff.js";

/** The models of an agent for a task type, as a person writes them. @param {any} models @param {string} type */
function modelsOf(models, type) {
  const key = models && Object.hasOwn(models, type) ? type : "default";
  const given = models?.[key];
  const list = given === undefined ? [] : Array.isArray(given) ? given : [given];
  return { key, text: list.map(m => (typeof m === "string" ? m : m.provider ? `${m.provider}/${m.model}` : m.model)).join(", ") };
}

/** Several models are PROVIDER/NAME, and so is one whose provider was named. @param {string} text @param {any} before */
function modelPatch(text, before) {
  const names = text.split(",").map(name => name.trim()).filter(Boolean);
  if (names.length !== 1) return names.length ? names : null;
  const at = names[0].indexOf("/");
  return before && typeof before === "object" && !Array.isArray(before) && at > 0 ? { provider: names[0].slice(0, at), model: names[0].slice(at + 1) } : names[0];
}

/**
 * Opens the dialog that forks a run after event n, whose memory is given.
 * @param {import("../lib/page.js").Page} page @param {string} run @param {any} memory @param {number} n
 */
export function forkDialog(page, run, memory, n) {
  const agent = memory.control?.agent ?? {};
  const model = modelsOf(agent.models, memory.task_type ?? "default");
  const was = { prompt: memory.system_prompt ?? "", model: model.text, task: memory.task ?? "" };
  const list = h("div", { class: "stack" });
  const finished = h("div", { class: "stack", role: "status" });
  /** @typedef {{el: HTMLElement, patch: () => any, name: () => string, key: string, sent: string, fork?: string}} Variant */
  /** @type {Variant[]} */
  const variants = [];
  /** @type {{id: string, name: string}[]} */
  const forks = [];

  const add = () => {
    const prompt = /** @type {HTMLTextAreaElement} */ (h("textarea", { value: was.prompt, rows: 5 }));
    const models = /** @type {HTMLInputElement} */ (h("input", { value: was.model, placeholder: "the provider's own", autocomplete: "off" }));
    const task = /** @type {HTMLTextAreaElement} */ (h("textarea", { value: was.task, class: "two" }));
    const diffs = h("div", { class: "stack" }), title = h("h3");
    const now = () => ({ prompt: prompt.value, model: models.value.trim(), task: task.value });
    const compare = () => {
      const is = now();
      const changed = /** @type {["prompt" | "model" | "task", string][]} */ ([["prompt", "System prompt"], ["model", "Model"], ["task", "Task"]]).filter(([key]) => is[key] !== was[key]);
      put(diffs, changed.length ? changed.map(([key, label]) => h("div", null, h("p", { class: "small soft" }, label), lineDiff(was[key], is[key], "Changes of: " + label))) : h("p", { class: "soft small" }, "Nothing is changed: the fork does the same work again."));
    };
    for (const input of [prompt, models, task]) input.addEventListener("input", compare);
    const remove = h("button", { type: "button", class: "quiet", onclick: () => { variants.splice(variants.indexOf(variant), 1); el.remove(); number(); more.focus(); } }, "Remove");
    const el = h("section", { class: "variant stack" }, h("div", { class: "row" }, title, remove),
      field("System prompt", prompt), field("Model", models, "Several, with commas between them, are asked in turn."), field("Task", task), h("div", null, h("p", { class: "small soft" }, "What changes"), diffs));
    /** @type {Variant} */
    const variant = {
      el, key: randomID(), sent: "",
      name: () => title.textContent ?? "",
      patch: () => {
        const is = now(), patch = /** @type {any} */ ({});
        if (is.prompt !== was.prompt) patch.system_prompt = is.prompt;
        if (is.task !== was.task) patch.task = is.task;
        if (is.model !== was.model) patch.models = { [model.key]: modelPatch(is.model, agent.models?.[model.key]) };
        return patch;
      },
    };
    variants.push(variant);
    list.append(el);
    compare();
    number();
    return prompt;
  };
  const number = () => variants.forEach((v, i) => {
    put(/** @type {HTMLElement} */ (v.el.querySelector("h3")), variants.length > 1 ? `Fork ${i + 1}` : "The fork");
    /** @type {HTMLElement} */ (v.el.querySelector("button.quiet")).hidden = variants.length < 2 || !!v.fork;
  });
  const more = h("button", { type: "button", onclick: () => add().focus() }, "Add another fork");

  const show = () => put(finished, forks.length > 0 && h("ul", { class: "plain-list stack" }, forks.map(({ id, name }, i) => h("li", { class: "row" },
    h("span", { class: "is-good", "aria-hidden": "true" }, "✓"), name, runLink(id), compareLink(run, id, "compare with the origin"), i > 0 && compareLink(forks[0].id, id, `compare with ${forks[0].name.toLowerCase()}`)))));

  const box = open(page, `Fork after event ${n}`, h("div", { class: "stack" },
    h("p", { class: "soft" }, "A fork has everything up to this event, and continues by itself. This run does not change. Work in flight at this event begins again in the fork, and tools may act again."), list, h("div", null, more), finished),
  [{
    label: "Fork", run: async () => {
      for (const v of [...variants]) {
        const patch = v.patch(), text = JSON.stringify(patch);
        if (v.sent && v.sent !== text) v.key = randomID(); // a key is for one fork
        v.sent = text;
        const made = await send("POST", `/v1/runs/${encodeURIComponent(run)}/fork`, { at: n, ...(text === "{}" ? {} : { patch }) }, { headers: { "Idempotency-Key": v.key }, again: true }).catch(err => {
          if (forks.length) toast(`${forks.length} made, one could not be.`, "bad");
          throw err;
        });
        forks.push({ id: made.run_id, name: v.name() });
        variants.splice(variants.indexOf(v), 1);
        v.el.remove();
        show();
      }
      toast(forks.length === 1 ? "The fork runs." : `${forks.length} forks run.`);
      more.hidden = true;
      const submit = /** @type {HTMLElement | null} */ (box.querySelector("button[type=submit]"));
      if (submit) submit.hidden = true;
      put(/** @type {HTMLElement} */ (box.querySelector(".row.end .quiet")), "Close");
      /** @type {HTMLElement | null} */ (finished.querySelector("a"))?.focus();
      return false;
    },
  }]);
  box.classList.add("wide");
  add();
  return box;
}

/** @param {string} a @param {string} b @param {string} text */
const compareLink = (a, b, text) => h("a", { href: `/compare?a=${encodeURIComponent(a)}&b=${encodeURIComponent(b)}` }, text);
