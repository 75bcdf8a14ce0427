// JSON Patch (RFC 6902) without changing what was: parts that stay are shared.

/** @typedef {{op: string, path: string, value?: any}} Op */

/** Returns the document after the operations add, replace and remove. @param {any} doc @param {Op[]} ops */
export function patched(doc, ops) {
  const own = new Set(); // copies that this call made, which it may change
  /** @param {any} value */
  const copy = value => {
    if (own.has(value)) return value;
    const made = Array.isArray(value) ? value.slice() : { ...value };
    own.add(made);
    return made;
  };
  for (const { op, path, value } of ops) {
    if (op !== "add" && op !== "replace" && op !== "remove") throw new Error(`the patch has an unknown operation ${op}`);
    if (path === "") {
      doc = op === "remove" ? null : value;
      continue;
    }
    const keys = path.slice(1).split("/").map(key => key.replaceAll("~1", "/").replaceAll("~0", "~"));
    const end = /** @type {string} */ (keys.pop());
    doc = copy(doc);
    let at = doc;
    for (const key of keys) {
      if (typeof at[key] !== "object" || at[key] === null || !Object.hasOwn(at, key)) throw new Error(`the patch names ${path}, which is not there`);
      at = at[key] = copy(at[key]);
    }
    if (Array.isArray(at)) {
      if (op === "remove") at.splice(Number(end), 1);
      else if (op === "replace") at[Number(end)] = value;
      else at.splice(end === "-" ? at.length : Number(end), 0, value);
    } else if (op === "remove") delete at[end];
    else Object.defineProperty(at, end, { value, enumerable: true, configurable: true, writable: true }); // "__proto__" is a key like any other
  }
  return doc;
}
