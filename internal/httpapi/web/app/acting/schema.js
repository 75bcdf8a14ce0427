// A form for arguments, made of a tool's JSON Schema. What has no form is JSON text.
import { h, put } from "../lib/dom.js";
import { field } from "../lib/widgets.js";
import { isNumber, number, parse, write } from "./exact.js";

/** @typedef {{el: HTMLElement, value: () => any}} Input value is undefined where nothing is given; it throws an Error that says what is wrong */
/** @typedef {Record<string, any>} Schema */

const numbers = { number: "-?(0|[1-9][0-9]*)([.][0-9]+)?([eE][+\\-]?[0-9]+)?", integer: "-?(0|[1-9][0-9]*)" };

/** What a field says below itself. @param {Schema} s */
function hint(s) {
  const bounds = [s.minimum !== undefined && `at least ${s.minimum}`, s.maximum !== undefined && `at most ${s.maximum}`, s.minLength > 1 && `at least ${s.minLength} characters`, s.maxLength !== undefined && `at most ${s.maxLength} characters`].filter(Boolean).join(", ");
  return [s.description, bounds && bounds[0].toUpperCase() + bounds.slice(1) + "."].filter(Boolean).join(" ");
}

/** @param {Schema} s @param {any} value whether a simple field can hold the value */
function simple(s, value) {
  if (!s || typeof s !== "object" || s.$ref || s.anyOf || s.oneOf || s.allOf) return false;
  if (Array.isArray(s.enum)) return value === undefined || s.enum.some((/** @type {any} */ v) => write(v) === write(value));
  switch (s.type) {
    case "string": return value === undefined || typeof value === "string";
    case "number": case "integer": return value === undefined || isNumber(value);
    case "boolean": return value === undefined || typeof value === "boolean";
  }
  return false;
}

/** The field of one value. @param {string} name @param {Schema} s @param {any} value @param {boolean} required @returns {Input} */
function input(name, s, value, required) {
  const label = name + (required ? "" : " (optional)");
  if (simple(s, value)) return scalar(label, s, value, required);
  if (s?.type === "object" && s.properties && (value === undefined || isObject(value)) && !s.$ref && !s.anyOf && !s.oneOf && !s.allOf) return object(label, s, value, required);
  if (s?.type === "array" && s.items && (value === undefined || Array.isArray(value)) && simple(s.items, undefined) && (value ?? []).every((/** @type {any} */ v) => simple(s.items, v))) return list(label, s, value, required);
  return json(label, value, required, hint(s ?? {}));
}

/** @param {any} value */
const isObject = value => typeof value === "object" && value !== null && !Array.isArray(value) && !isNumber(value);

/** @param {string} label @param {Schema} s @param {any} value @param {boolean} required @returns {Input} */
function scalar(label, s, value, required) {
  if (s.enum || s.type === "boolean") {
    const choices = s.enum ?? [true, false];
    const given = choices.findIndex((/** @type {any} */ v) => value !== undefined && write(v) === write(value));
    const el = /** @type {HTMLSelectElement} */ (h("select", { required }, (!required || given < 0) && h("option", { value: "" }, "not set"),
      choices.map((/** @type {any} */ v, /** @type {number} */ i) => h("option", { value: String(i), selected: i === given }, typeof v === "string" ? v : write(v)))));
    return { el: field(label, el, hint(s)), value: () => (el.value === "" ? undefined : choices[Number(el.value)]) };
  }
  if (s.type !== "string") {
    const el = /** @type {HTMLInputElement} */ (h("input", { value: value === undefined ? "" : write(value), required, inputmode: "decimal", autocomplete: "off", pattern: numbers[/** @type {"number"} */ (s.type)], title: s.type === "integer" ? "A whole number." : "A number." }));
    return { el: field(label, el, hint(s)), value: () => (el.value === "" ? undefined : number(el.value)) };
  }
  const el = /** @type {HTMLTextAreaElement} */ (h("textarea", { value: value ?? "", rows: (value ?? "").length > 60 || value?.includes("\n") ? 5 : 1, class: "one" }));
  return { el: field(label, el, hint(s)), value: () => (el.value === "" && value === undefined && !required ? undefined : el.value) };
}

/** @param {string} label @param {Schema} s @param {any} value @param {boolean} required @returns {Input} */
function object(label, s, value, required) {
  const fields = properties(s, value ?? {});
  return {
    el: h("fieldset", { class: "stack" }, h("legend", null, label), hint(s) && h("p", { class: "soft small" }, hint(s)), fields.el),
    value: () => {
      const got = fields.value();
      return value === undefined && !required && !Object.keys(got).length ? undefined : got;
    },
  };
}

/** The fields of an object: those of its schema, and what else it has. @param {Schema} s @param {any} value @returns {Input} */
function properties(s, value) {
  const names = [...Object.keys(s.properties ?? {}), ...Object.keys(value).filter(name => !Object.hasOwn(s.properties ?? {}, name))];
  const fields = names.map(name => /** @type {[string, Input]} */ ([name, input(name, s.properties?.[name] ?? {}, Object.hasOwn(value, name) ? value[name] : undefined, (s.required ?? []).includes(name))]));
  const order = [...new Set([...Object.keys(value), ...names])]; // what was there keeps its place
  return {
    el: h("div", { class: "stack" }, fields.map(([, f]) => f.el), fields.length === 0 && h("p", { class: "soft" }, "This tool takes no arguments.")),
    value: () => {
      const got = new Map(fields.map(([name, f]) => [name, f.value()]));
      return Object.fromEntries(order.map(name => [name, got.get(name)]).filter(([, v]) => v !== undefined));
    },
  };
}

/** @param {string} label @param {Schema} s @param {any[] | undefined} value @param {boolean} required @returns {Input} */
function list(label, s, value, required) {
  const rows = h("div", { class: "stack" });
  /** @type {Map<HTMLElement, Input>} */
  const inputs = new Map();
  const add = (/** @type {any} */ v) => {
    const one = scalar("Entry", s.items, v, true);
    const row = h("div", { class: "entry" }, one.el, h("button", { type: "button", class: "quiet", "aria-label": "Remove this entry", onclick: () => { inputs.delete(row); row.remove(); more.focus(); } }, "Remove"));
    inputs.set(row, one);
    rows.append(row);
    return row;
  };
  const more = h("button", { type: "button", onclick: () => /** @type {HTMLElement} */ (add(undefined).querySelector("input, textarea, select")).focus() }, "Add an entry");
  (value ?? []).forEach(add);
  return {
    el: h("fieldset", { class: "stack" }, h("legend", null, label), hint(s) && h("p", { class: "soft small" }, hint(s)), rows, h("div", null, more)),
    value: () => (inputs.size === 0 && value === undefined && !required ? undefined : [...inputs.values()].map(one => one.value())),
  };
}

/** A field for JSON text. @param {string} label @param {any} value @param {boolean} required @param {string} [text] what it says below itself @param {number} [lines] @returns {Input} */
function json(label, value, required, text, lines = 4) {
  const el = /** @type {HTMLTextAreaElement} */ (h("textarea", { value: write(value, 2), rows: lines, class: "mono", spellcheck: "false" }));
  const trouble = h("span", { class: "is-bad small", role: "alert" });
  const read = () => {
    if (el.value.trim() === "") {
      if (required) throw new Error(`${label}: is missing`);
      return undefined;
    }
    try {
      return parse(el.value);
    } catch (err) {
      throw new Error(`${label}: is no JSON (${/** @type {Error} */ (err).message})`);
    }
  };
  el.addEventListener("input", () => {
    let wrong = "";
    try { read(); } catch (err) { wrong = "✗ " + /** @type {Error} */ (err).message; }
    put(trouble, wrong);
  });
  return { el: h("div", null, field(label, el, text || "JSON."), trouble), value: read };
}

/**
 * An editor of arguments, as a form or as JSON; a person can go from one to the other. text is
 * what the arguments are. value throws an Error that says what is wrong.
 * @param {Schema | undefined} schema @param {string} text
 * @returns {{el: HTMLElement, value: () => string}} value is JSON text
 */
export function editor(schema, text) {
  const box = h("div");
  /** @type {Input} */
  let shown;
  let given = /** @type {any} */ (undefined), readable = true;
  try { given = parse(text); } catch { readable = false; }
  const able = schema?.type === "object" && schema.properties && !schema.$ref;
  const buttons = ["Form", "JSON"].map((name, i) => h("button", { type: "button", "aria-pressed": "false", onclick: () => change(!i) }, name));
  const trouble = h("div", { role: "alert", class: "is-bad small" });
  const show = (/** @type {boolean} */ form, /** @type {any} */ value) => {
    shown = form ? properties(/** @type {Schema} */ (schema), value) : json("Arguments", value, true, "JSON.", 10);
    buttons.forEach((b, i) => b.setAttribute("aria-pressed", String(form === !i)));
    put(box, shown.el);
  };
  const change = (/** @type {boolean} */ form) => {
    put(trouble);
    try {
      const value = shown.value();
      if (form && !isObject(value)) throw new Error("The form can show an object only.");
      show(form, value);
    } catch (err) {
      put(trouble, "✗ " + /** @type {Error} */ (err).message);
    }
  };
  show(able && isObject(given), given);
  if (!readable) /** @type {HTMLTextAreaElement} */ (box.querySelector("textarea")).value = text;
  return {
    el: h("div", { class: "stack" }, able && h("div", { class: "row", role: "group", "aria-label": "How to edit" }, buttons), trouble, box),
    value: () => write(shown.value()),
  };
}
