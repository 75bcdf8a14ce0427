// Runs that could not go on, and messages that belong to no run.
import { get, send } from "../lib/api.js";
import { dialog, empty, failed, toast } from "../lib/dialog.js";
import { h, put } from "../lib/dom.js";
import { plural } from "../lib/format.js";
import { bind } from "../lib/keys.js";
import { runLink, since } from "../lib/widgets.js";
import { go } from "../lib/page.js";
import { poll, show, tick } from "./parts.js";

/** @typedef {{run?: string, stray?: string, namespace?: string, n?: number, code: string, message: string, time: string, dropped?: boolean}} Dead */
const drawn = 200;
const name = (/** @type {Dead} */ one) => one.run ?? one.stray ?? "";

/** @param {import("../lib/page.js").Page} page */
export default async function page(page) {
  const { signal } = page;
  /** @type {Dead[]} */
  let dead = [];
  /** @type {Set<string>} */
  const chosen = new Set();
  let limit = drawn;
  const list = h("div", null), tally = h("span", { class: "soft", role: "status" });
  const retry = /** @type {HTMLButtonElement} */ (h("button", { class: "main", onclick: () => { void again([...chosen]); } }, "Retry"));
  const drop = /** @type {HTMLButtonElement} */ (h("button", { class: "danger", onclick: () => confirmDrop([...chosen]) }, "Drop…"));
  const flag = (/** @type {string} */ key, /** @type {string} */ text) => h("label", { class: "row" }, h("input", {
    type: "checkbox", checked: page.query.get(key) === "true",
    onchange: (/** @type {Event} */ event) => { page.set({ [key]: /** @type {HTMLInputElement} */ (event.target).checked ? "true" : "" }); void read().catch(err => put(list, failed(err))); },
  }), text);

  const tell = () => {
    const runs = [...chosen].filter(one => !one.includes(":"));
    retry.disabled = runs.length === 0;
    drop.disabled = chosen.size === 0;
    put(tally, chosen.size ? `${chosen.size} chosen` : dead.length ? plural(dead.length, "entry", "entries") : "");
  };
  /** @param {Dead[]} all @param {boolean} on */
  const choose = (all, on) => {
    for (const one of all) if (on) chosen.add(name(one)); else chosen.delete(name(one));
    for (const box of /** @type {NodeListOf<HTMLInputElement>} */ (list.querySelectorAll("tbody input"))) box.checked = chosen.has(box.value);
    tell();
  };

  /** @param {Dead} one */
  const row = one => h("tr", null,
    h("td", null, h("input", { type: "checkbox", "data-key": name(one), value: name(one), checked: chosen.has(name(one)), "aria-label": "Choose " + name(one), onchange: (/** @type {Event} */ event) => choose([one], /** @type {HTMLInputElement} */ (event.target).checked) })),
    h("td", null, one.run ? runLink(one.run, one.n) : h("span", { class: "mono" }, "message " + one.stray)),
    h("td", null, h("code", { class: "is-bad" }, one.code), one.dropped && [" ", h("span", { class: "tag" }, "dropped")]),
    h("td", { class: "reason text", dir: "auto" }, one.message.length > 400 ? h("details", { "data-key": "message " + name(one) }, h("summary", null, one.message.slice(0, 200) + "…"), one.message.slice(0, 20_000)) : one.message),
    h("td", null, since(one.time)),
    h("td", null, h("div", { class: "row" }, one.run && h("button", { "data-key": "retry " + name(one), "aria-label": "Retry " + name(one), onclick: () => { void again([name(one)]); } }, "Retry"), !one.dropped && h("button", { class: "quiet", "data-key": "drop " + name(one), "aria-label": "Drop " + name(one), onclick: () => confirmDrop([name(one)]) }, "Drop…"))));

  const table = () => [h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Dead letters" }, h("table", { class: "narrow dead" },
    h("thead", null, h("tr", null, h("th", { scope: "col" }, h("input", { type: "checkbox", "data-key": "all", "aria-label": "Choose all", onchange: (/** @type {Event} */ event) => choose(dead, /** @type {HTMLInputElement} */ (event.target).checked) })),
      ["Run", "Code", "Why", "When"].map(text => h("th", { scope: "col" }, text)), h("th", null, h("span", { class: "visually-hidden" }, "Actions")))),
    h("tbody", null, dead.slice(0, limit).map(row)))),
  dead.length > limit && h("button", { onclick: () => { limit += drawn; draw(); } }, `Show more (${dead.length - limit})`)];
  const draw = () => show(list, [dead, limit], () => dead.length ? table()
    : empty("Nothing is dead", "Runs that end by a fault of the system, and messages that belong to no run, are listed here."));

  const read = async () => {
    const answer = await get("/v1/dead", { all: page.query.get("all") ?? "", dropped: page.query.get("dropped") ?? "" }, signal);
    dead = answer.dead.toReversed(); // newest first
    const there = new Set(dead.map(name));
    for (const one of chosen) if (!there.has(one)) chosen.delete(one);
    draw();
    tell();
  };

  /** Retries runs. One leads to its fork. @param {string[]} names */
  const again = async names => {
    const runs = names.filter(one => !one.includes(":"));
    retry.disabled = true;
    const key = Date.now();
    /** @type {{run: string, fork: string, err?: any}[]} */
    const done = [];
    for (const run of runs) {
      try {
        const fork = await send("POST", `/v1/runs/${encodeURIComponent(run)}/retry`, undefined, { headers: { "Idempotency-Key": `retry-${run}-${key}` }, again: true, signal });
        done.push({ run, fork: fork.run_id });
      } catch (err) {
        if (signal.aborted) return;
        done.push({ run, fork: "", err });
      }
    }
    tell();
    if (done.length === 1 && done[0].fork) return go("/runs/" + done[0].fork);
    choose(dead, false);
    dialog("Retried", h("ul", null, done.map(one => h("li", null, runLink(one.run), one.fork ? [" continues as ", runLink(one.fork)] : failed(one.err)))))
      .addEventListener("click", event => { if (/** @type {Element} */ (event.target).closest("a")) /** @type {HTMLDialogElement} */ (event.currentTarget).close(); });
    await read().catch(() => {});
  };

  /** @param {string[]} names */
  const confirmDrop = names => dialog(`Drop ${plural(names.length, "entry", "entries")}?`, h("p", null, "They are hidden from this list. They stay in the log, and the switch “Dropped, too” shows them."), [{
    label: "Drop", kind: "danger", run: async () => {
      await send("POST", "/v1/dead/drop", { names }, { again: true });
      names.forEach(one => chosen.delete(one));
      toast(`${plural(names.length, "entry", "entries")} dropped.`);
      await read();
    },
  }]);

  put(page.root, h("h1", null, "Dead letters"),
    h("div", { class: "row" }, flag("all", "Every run that ended by an error"), flag("dropped", "Dropped, too"), h("span", { class: "grow" }), tally, retry, drop), list);
  bind(signal, { a: { help: "Choose all, or none", run: () => choose(dead, chosen.size < dead.length) } });
  tick(list, signal);
  tell();
  await poll(signal, 10_000, read);
}
