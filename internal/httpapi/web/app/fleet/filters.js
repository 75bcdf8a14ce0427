// Which runs are wanted. The page's address has it, under the names that GET /v1/runs gives.
import { get } from "../lib/api.js";
import { h, newID, put } from "../lib/dom.js";
import { stateWord } from "../lib/format.js";
import { field } from "../lib/widgets.js";
import { known } from "../filters.js";

// The text and the state are always shown. Times are the last, before their shortcuts.
const rank = (/** @type {{kind: string}} */ { kind }) => kind === "search" ? 0 : kind === "state" ? 1 : kind === "time" ? 3 : 2;
const ordered = known.toSorted((a, b) => rank(a) - rank(b)), names = ordered.map(({ name }) => name);
const day = 86_400_000;

/** @param {URLSearchParams} query @returns {Record<string, string>} */
export const wanted = query => Object.fromEntries(names.map(name => [name, query.get(name) ?? ""]).filter(([, value]) => value));

/** A time as a field of the page has it, in the browser's time zone. @param {string} at */
function local(at) {
  const d = new Date(at);
  return Number.isNaN(d.getTime()) ? "" : new Date(d.getTime() - d.getTimezoneOffset() * 60_000).toISOString().slice(0, 16);
}

/** @type {Record<string, () => [Date, Date?]>} */
const spans = {
  "last hour": () => [new Date(Date.now() - 3_600_000)],
  today: () => [new Date(new Date().setHours(0, 0, 0, 0))],
  yesterday: () => [new Date(new Date(Date.now() - day).setHours(0, 0, 0, 0)), new Date(new Date().setHours(0, 0, 0, 0))],
  "last 7 days": () => [new Date(Date.now() - 7 * day)],
};

/**
 * The form of the filters. `changed` is called a moment after the last change.
 * @param {import("../lib/page.js").Page} page @param {() => void} changed
 */
export function filters(page, changed) {
  const now = wanted(page.query);
  const agents = h("datalist", { id: newID("agents") });
  /** @param {string} name @param {[string, string][]} options */
  const choice = (name, options) => /** @type {HTMLSelectElement} */ (h("select", { name }, options.map(([value, text]) => h("option", { value, selected: (now[name] ?? "") === value }, text))));
  const input = (/** @type {string} */ name, /** @type {import("../lib/dom.js").Props} */ props) => h("input", { name, placeholder: "any", ...props, value: props.value ?? now[name] ?? "" });
  /** @type {Record<string, (name: string, choices: [string, string][]) => HTMLElement>} */
  const kinds = {
    search: name => input(name, { type: "search", placeholder: "id, agent, task, answer or error", "aria-keyshortcuts": "/", autocomplete: "off" }),
    state: name => choice(name, [["", "any"], ...(now[name] ? [/** @type {[string, string]} */ ([now[name], stateWord(now[name])])] : [])]),
    text: name => input(name, { autocomplete: "off" }),
    agent: name => input(name, { list: agents.id, autocomplete: "off" }),
    choice: (name, choices) => choice(name, [["", "–"], ...choices.toSorted(([a], [b]) => Number(b === "any") - Number(a === "any"))]),
    dollars: name => input(name, { type: "number", min: 0, step: "any" }),
    time: name => input(name, { type: "datetime-local", value: now[name] ? local(now[name]) : "", placeholder: null }),
  };
  const fields = /** @type {(HTMLInputElement | HTMLSelectElement)[]} */ (ordered.map(({ name, kind, choices }) => (kinds[kind] ?? kinds.text)(name, choices)));
  const [text, states] = fields, shown = ordered.map(({ label }, i) => field(label, fields[i]));
  const of = (/** @type {string} */ name) => fields[names.indexOf(name)], since = of("since"), until = of("until");
  const clear = h("button", { type: "button", class: "quiet", hidden: true, onclick: () => { fields.forEach(one => { one.value = ""; }); read(); text.focus(); } }, "Clear filters");
  const quick = Object.entries(spans).map(([name, span]) => h("button", { type: "button", class: "chip", onclick: () => {
    const [from, to] = span();
    since.value = local(from.toISOString());
    until.value = to ? local(to.toISOString()) : "";
    read();
  } }, name));

  const values = () => Object.fromEntries(fields.map(one => [one.name, one.type === "datetime-local" && one.value ? new Date(one.value).toISOString() : one.validity.valid ? one.value.trim() : ""]));
  const tell = () => { clear.hidden = Object.values(values()).every(value => !value); };
  let timer = 0;
  const read = () => {
    clearTimeout(timer);
    page.set(values());
    tell();
    changed();
  };
  page.signal.addEventListener("abort", () => clearTimeout(timer), { once: true });
  const more = h("details", { class: "more", open: names.slice(2).some(name => now[name]) }, h("summary", null, "More filters"),
    h("div", { class: "filter-row" }, shown.slice(2), agents,
      h("div", { class: "row quick", role: "group", "aria-label": "Started" }, quick)));
  const el = h("form", {
    class: "filters", role: "search", "aria-label": "Filters",
    onsubmit: (/** @type {Event} */ event) => { event.preventDefault(); read(); },
    oninput: () => { clearTimeout(timer); timer = window.setTimeout(read, 250); },
  }, h("div", { class: "filter-row" }, shown.slice(0, 2), clear, more));
  tell();

  get("/v1/table", {}, page.signal).then(table => {
    const chosen = states.value;
    put(states, h("option", { value: "" }, "any"), table.states.map((/** @type {{state: string}} */ { state }) => h("option", { value: state }, stateWord(state))));
    states.value = chosen;
  }).catch(() => {}); // the list itself says what is wrong
  get("/v1/agents", {}, page.signal).then(all => put(agents, all.map((/** @type {{name: string}} */ { name }) => h("option", { value: name })))).catch(() => {});
  return { el, text: /** @type {HTMLInputElement} */ (text), clear };
}
