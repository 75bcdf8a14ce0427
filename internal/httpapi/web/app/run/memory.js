// The run's memory as a tree. What the moment's event changed is marked. Only what is open is
// drawn, and only what is another value than before is drawn anew.
import { h, put, setText } from "../lib/dom.js";
import { cut, visible } from "../lib/format.js";
import { field, long } from "../lib/widgets.js";

const most = 100; // children of a list that are shown at first

/** @param {any} value */
const inside = value => typeof value === "object" && value !== null;
/** @param {string} path @param {string | number} key */
const below = (path, key) => path + "/" + String(key).replaceAll("~", "~0").replaceAll("/", "~1");
/** A value in one line. @param {any} value @param {number} [limit] */
const brief = (value, limit = 80) => {
  if (Array.isArray(value)) return `[${value.length.toLocaleString("en-US")}]`;
  if (inside(value)) return `{${Object.keys(value).length}}`;
  return cut(typeof value === "string" ? JSON.stringify(value.slice(0, limit + 1)) : String(value), limit);
};

/** The value at a path. @param {any} doc @param {string} path */
function at(doc, path) {
  for (const key of path.split("/").slice(1)) {
    const name = key.replaceAll("~1", "/").replaceAll("~0", "~");
    if (!inside(doc) || !Object.hasOwn(doc, name)) return undefined;
    doc = doc[name];
  }
  return doc;
}

/** The patch with places in lists as numbers: "-" is the end. @param {import("../lib/patch.js").Op[]} delta @param {any} memory */
function placed(delta, memory) {
  /** @type {Map<string, number>} */
  const ends = new Map();
  return delta.toReversed().map(op => {
    if (!op.path.endsWith("/-")) return op;
    const list = op.path.slice(0, -2), i = ends.get(list) ?? (at(memory, list)?.length ?? 0) - 1;
    ends.set(list, i - 1);
    return { ...op, path: `${list}/${i}` };
  }).reverse();
}

/** A part of the tree. */
class Branch {
  /** @param {string} key @param {string} path */
  constructor(key, path) {
    this.key = key;
    this.path = path;
    this.value = /** @type {any} */ (undefined);
    this.marked = false;
    this.all = false;
    /** @type {Map<string, Branch>} */
    this.children = new Map();
    this.el = h("div");
    this.kind = "";
  }

  /** @param {any} value @param {Set<string>} changed */
  update(value, changed) {
    const mark = changed.has(this.path);
    const same = this.kind !== "" && this.value === value;
    if (same && !mark && !this.marked) return;
    const kind = inside(value) ? "branch" : "leaf";
    if (kind !== this.kind) this.make(kind);
    this.value = value;
    this.marked = mark;
    this.el.classList.toggle("is-changed", mark);
    /** @type {HTMLElement} */ (this.el.querySelector(".node-mark")).hidden = !mark;
    if (kind === "leaf") {
      if (!same) put(/** @type {Element} */ (this.el.querySelector(".node-value")), typeof value === "string" ? long(value, "text", 400) : String(value));
    } else {
      setText(/** @type {Element} */ (this.el.querySelector(".node-size")), brief(value));
      if (this.open) this.draw(changed);
    }
  }

  get open() { return this.el instanceof HTMLDetailsElement && this.el.open; }

  /** @param {string} kind */
  make(kind) {
    const name = h("span", { class: "node-key mono" }, this.key), mark = h("span", { class: "node-mark small", hidden: true }, "● changed");
    const made = kind === "leaf" ? h("div", { class: "node is-leaf" }, name, mark, h("div", { class: "node-value" }))
      : h("details", { class: "node", ontoggle: () => { if (this.open) this.draw(this.changed); } }, h("summary", null, name, h("span", { class: "node-size soft small" }), mark), h("div", { class: "node-children" }));
    this.el.replaceWith(made);
    this.el = made;
    this.kind = kind;
    this.children.clear();
  }

  /** @param {Set<string>} changed */
  draw(changed) {
    this.changed = changed;
    const keys = Object.keys(this.value), hidden = this.all ? 0 : Math.max(0, keys.length - most);
    const wanted = keys.slice(hidden), box = /** @type {Element} */ (this.el.querySelector(".node-children"));
    const gone = new Set(this.children.keys()), added = [];
    for (const key of wanted) {
      gone.delete(key);
      let child = this.children.get(key);
      if (!child) {
        child = new Branch(key, below(this.path, key));
        this.children.set(key, child);
        added.push(child);
      }
      child.update(this.value[key], changed);
    }
    for (const key of gone) this.children.delete(key);
    if (added.length || gone.size || !box.childElementCount) {
      put(box, hidden > 0 && h("button", { class: "quiet", onclick: () => { this.all = true; this.draw(this.changed); } }, `Show the first ${hidden.toLocaleString("en-US")}`),
        wanted.map(key => /** @type {Branch} */ (this.children.get(key)).el), !wanted.length && h("span", { class: "soft" }, "empty"));
    }
  }

  /** @type {Set<string>} */
  changed = new Set();

  /** Opens the way to a path, and returns its element. @param {string[]} keys @returns {HTMLElement} */
  reveal(keys) {
    if (!keys.length || !inside(this.value)) return this.el;
    /** @type {HTMLDetailsElement} */ (this.el).open = true;
    if (!this.all && !this.children.has(keys[0])) this.all = Object.keys(this.value).indexOf(keys[0]) < Object.keys(this.value).length - most;
    this.draw(this.changed);
    return this.children.get(keys[0])?.reveal(keys.slice(1)) ?? this.el;
  }
}

/** Paths of what has a text in its key or value. @param {any} doc @param {string} text @param {number} limit */
function found(doc, text, limit) {
  /** @type {{path: string, value: any}[]} */
  const hits = [];
  const wanted = text.toLowerCase();
  /** @param {any} value @param {string} path */
  const walk = (value, path) => {
    for (const [key, inner] of Object.entries(value)) {
      if (hits.length >= limit) return;
      const to = below(path, key);
      if (key.toLowerCase().includes(wanted) || !inside(inner) && String(inner).toLowerCase().includes(wanted)) hits.push({ path: to, value: inner });
      if (inside(inner)) walk(inner, to);
    }
  };
  walk(doc, "");
  return hits;
}

/** @returns {import("./page.js").Part} */
export function memory() {
  const root = new Branch("memory", "");
  const changes = h("ul", { class: "changes mono small" }), title = h("h2");
  const hits = h("ul", { class: "changes mono small", "aria-label": "Found" }), said = h("p", { class: "soft small", role: "status" });
  const input = /** @type {HTMLInputElement} */ (h("input", { type: "search", placeholder: "Key or text", oninput: () => { clearTimeout(typing); typing = setTimeout(search, 150); } }));
  const tree = h("div", { class: "tree" }, root.el);
  let began = false, typing = /** @type {any} */ (0), now = /** @type {any} */ (undefined), searched = /** @type {any} */ (undefined);
  /** @param {string} path @param {...import("../lib/dom.js").Child} text */
  const link = (path, ...text) => h("li", null, h("button", { class: "quiet", onclick: () => {
    const target = root.reveal(path.split("/").slice(1).map(key => key.replaceAll("~1", "/").replaceAll("~0", "~")));
    target.scrollIntoView({ block: "center" });
    (target.querySelector("summary") ?? target).classList.add("is-found");
    setTimeout(() => (target.querySelector("summary") ?? target).classList.remove("is-found"), 2000);
  } }, path.slice(1)), " ", h("span", { class: "soft" }, ...text));
  const search = () => {
    searched = now;
    const all = input.value && now ? found(now, input.value, 50) : [];
    put(hits, all.map(({ path, value }) => link(path, brief(value))));
    setText(said, input.value ? (all.length === 50 ? "The first 50 are shown." : `${all.length} found.`) : "");
  };
  const el = h("div", { class: "stack" }, field("Search in the memory", input), said, hits, h("section", { class: "stack" }, title, changes), tree);
  return {
    el,
    update(moment) {
      if (!moment.memory) return void (began || setText(title, moment.history.trouble ? "The memory of this run cannot be shown" : "Reading…"));
      now = moment.memory;
      const delta = placed(moment.history.deltaAt(moment.n), now), before = moment.n > 1 ? moment.history.memoryAt(moment.n - 1) : undefined;
      const marks = new Set([""]);
      if (!delta.length) marks.clear();
      for (const { path } of delta) for (let to = path; to; to = to.slice(0, to.lastIndexOf("/"))) marks.add(to);
      setText(title, delta.length ? `What event ${moment.n} changed` : moment.n === 1 ? "The memory that the run began with" : `Event ${moment.n} changed nothing`);
      put(changes, delta.slice(0, 12).map(op => link(op.path, { add: "+ ", remove: "− ", replace: "~ " }[op.op] ?? "", op.op === "replace" && before ? visible(brief(at(before, op.path), 40)) + " → " : "", op.op === "remove" ? "removed" : brief(op.value))),
        delta.length > 12 && h("li", { class: "soft" }, `and ${delta.length - 12} more, marked below`));
      root.changed = marks;
      root.update(now, marks);
      if (!root.open && !began) /** @type {HTMLDetailsElement} */ (root.el).open = began = true;
      if (input.value && searched !== now) { clearTimeout(typing); typing = setTimeout(search, 300); }
    },
  };
}

