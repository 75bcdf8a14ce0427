// JSON in which every number stays as it was written: a number that JavaScript would round is
// kept by its text.

const raw = /** @type {any} */ (JSON);

/** Reads JSON. An error says where it is wrong. @param {string} text @returns {any} */
export function parse(text) {
  return JSON.parse(text, /** @type {any} */ ((/** @type {string} */ _, /** @type {any} */ value, /** @type {{source?: string}} */ context) =>
    typeof value === "number" && context?.source !== undefined && String(value) !== context.source ? number(context.source) : value));
}

/** A number from its text. @param {string} text @returns {any} */
export const number = text => (raw.rawJSON && String(Number(text)) !== text ? raw.rawJSON(text) : Number(text));

/** @param {any} value */
export const isNumber = value => typeof value === "number" || (raw.isRawJSON?.(value) ?? false);

/** @param {any} value @param {number} [indent] */
export const write = (value, indent) => JSON.stringify(value, null, indent) ?? "";

/** A JSON text as it is shown: indented, or as it is. @param {string} text */
export function pretty(text) {
  try {
    return write(parse(text), 2);
  } catch {
    return text;
  }
}
