// Elements. Every string becomes a text node, so nothing that a run holds can be markup.
import { visible } from "./format.js";

/** @typedef {Node | string | number | null | undefined | false} One */
/** @typedef {One | One[] | (One | One[])[]} Child */
/** @typedef {Record<string, any>} Props */

/**
 * Makes an element. Props: on… are listeners, vars are CSS variables, html attributes are set as
 * they are; null, undefined and false are left out, true is an empty attribute. `value`,
 * `checked`, `disabled` and `hidden` are properties.
 * @param {string} tag
 * @param {Props | null} [props]
 * @param {...Child} children
 * @returns {HTMLElement}
 */
export function h(tag, props, ...children) {
  const el = document.createElement(tag);
  fill(el, props, children);
  return el;
}

/** Makes an element of SVG. @param {string} tag @param {Props | null} [props] @param {...Child} children @returns {SVGElement} */
export function svg(tag, props, ...children) {
  const el = document.createElementNS("http://www.w3.org/2000/svg", tag);
  fill(el, props, children);
  return el;
}

const properties = new Set(["value", "checked", "disabled", "hidden", "selected", "open", "indeterminate", "tabIndex", "scrollTop"]);

/** @param {any} el @param {Props | null | undefined} props @param {Child[]} children */
function fill(el, props, children) {
  for (const [key, value] of Object.entries(props ?? {})) {
    if (key.startsWith("on") && typeof value === "function") el.addEventListener(key.slice(2).toLowerCase(), value);
    else if (key === "vars") for (const [name, v] of Object.entries(value)) el.style.setProperty(name, String(v));
    else if (properties.has(key)) el[key] = value;
    else if (value === null || value === undefined || value === false) continue;
    else if (key === "href") el.setAttribute("href", safe(String(value)));
    else el.setAttribute(key, value === true ? "" : visible(String(value)));
  }
  add(el, children);
}

/** A link leads into this page, or to an object that this page made. @param {string} href */
function safe(href) {
  return /^(\/(?!\/)|#|blob:)/.test(href) ? href : "#";
}

/** @param {Node} el @param {Child[]} children */
function add(el, children) {
  for (const child of children) {
    if (child === null || child === undefined || child === false) continue;
    if (Array.isArray(child)) add(el, child);
    else el.appendChild(child instanceof Node ? child : document.createTextNode(visible(String(child))));
  }
}

/** Replaces what an element holds. @param {Element} el @param {...Child} children */
export function put(el, ...children) {
  const all = document.createDocumentFragment();
  add(all, children);
  el.replaceChildren(all);
}

/** Sets the text of an element, if it is another one. @param {Element} el @param {string} text */
export function setText(el, text) {
  const shown = visible(text);
  if (el.textContent !== shown) el.textContent = shown;
}

let names = 0;
/** A new id for labels. @param {string} [prefix] */
export const newID = (prefix = "x") => `${prefix}-${++names}`;
