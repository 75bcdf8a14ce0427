// Who serves what, and the work that waits for them.
import { get } from "../lib/api.js";
import { empty } from "../lib/dialog.js";
import { h, put } from "../lib/dom.js";
import { count, plural, pretty } from "../lib/format.js";
import { badge } from "../lib/widgets.js";
import { poll, show } from "./parts.js";

/** @typedef {{name: string, description: string, schema: any, effect: string, pool: string, risk: string, asks?: boolean, client?: boolean, services?: string[]}} Tool */

const effects = /** @type {Record<string, string>} */ ({
  pure: "It changes nothing, so a call can be repeated.",
  idempotent: "It can be repeated with the same key without a second effect.",
  once: "It must not happen twice, so a call whose outcome is unknown is not repeated.",
});
const riskKind = /** @type {Record<string, string>} */ ({ high: "is-bad", critical: "is-bad", medium: "is-wait" });

/** @param {string} name @param {Tool | undefined} tool */
const toolLine = (name, tool) => h("li", null, h("details", { "data-key": (tool?.pool ?? "") + "/" + name },
  h("summary", null, h("code", null, name), " ", tool?.risk && h("span", { class: "tag " + (riskKind[tool.risk] ?? "") }, tool.risk + " risk"), " ", tool?.effect && h("span", { class: "tag" }, tool.effect)),
  !tool ? h("p", { class: "soft" }, "Nothing else is announced of it.") : h("div", { class: "stack" },
    h("p", { class: "text", dir: "auto" }, tool.description), h("p", { class: "soft" }, effects[tool.effect] ?? "", tool.asks ? " It puts a question to a person." : "", tool.services?.length ? ` NATS service: ${tool.services.join(", ")}.` : ""),
    h("h3", null, "Schema of its arguments"), h("div", { class: "code" }, pretty(tool.schema)))));

/** @param {[string, import("./parts.js").Worker[]]} pool @param {Tool[]} tools */
function poolCard([name, workers], tools) {
  const names = [...new Set(workers.flatMap(worker => worker.tools ?? []))].sort();
  return h("div", { class: "card pool" }, h("h3", null, "Pool ", h("code", null, name)),
    h("p", { class: "soft" }, plural(workers.length, "actor"), ": ", workers.map(worker => worker.instance).join(", ")),
    h("ul", { class: "tools" }, names.map(tool => toolLine(tool, tools.find(one => one.name === tool && one.pool === name)))));
}

/** What a backlog means, and its colour. @param {import("./parts.js").Backlog} one @param {import("./parts.js").Worker[]} workers @returns {[string, string]} */
function meaning(one, workers) {
  const doing = one.in_flight ? "It is being done." : "Nothing waits.";
  if (one.state === "planning" || one.state === "acting") {
    const planning = one.state === "planning";
    const able = workers.filter(worker => (planning ? worker.role === "planner" : worker.role === "actor" && worker.pool === one.pool));
    if (!able.length) return [planning ? "No planner is alive, so no model is asked." : `No actor serves pool ${one.pool}.` + (one.waiting ? " Its calls wait for one. They are answered with no_actor after the gateway's --pool-wait (10 min, 0: never)." : ""), one.waiting ? "is-bad" : ""];
    return one.waiting ? [`More work than ${plural(able.length, planning ? "planner" : "actor")} began. Start more if it stays so.`, "is-wait"] : [doing, ""];
  }
  return one.waiting ? ["It waits for a worker of this state. If it stays, none is alive.", "is-wait"] : [doing, ""];
}

/** @param {import("./parts.js").Stats} stats */
function backlog({ backlog, backlog_reason, workers }) {
  if (!backlog) return h("p", null, `The backlog is not known: ${backlog_reason ?? "the bus does not report it"}.`);
  if (!backlog.length) return h("p", { class: "soft" }, "No state has work.");
  return h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Work that waits" }, h("table", { class: "narrow backlog" },
    h("thead", null, h("tr", null, ["State", "Pool"].map(text => h("th", { scope: "col" }, text)), ["Waits", "In flight"].map(text => h("th", { scope: "col", class: "number" }, text)), h("th", { scope: "col" }, "Meaning"))),
    h("tbody", null, backlog.map(one => {
      const [text, kind] = meaning(one, workers);
      return h("tr", null, h("td", null, badge(one.state)), h("td", null, one.pool ? h("code", null, one.pool) : "–"), h("td", { class: "number", "data-label": "waits" }, count(one.waiting)), h("td", { class: "number", "data-label": "in flight" }, count(one.in_flight)), h("td", { class: kind }, text));
    }))));
}

/** @param {import("./parts.js").Stats} stats @param {Tool[]} tools */
function workers(stats, tools) {
  const planners = stats.workers.filter(worker => worker.role === "planner"), actors = stats.workers.filter(worker => worker.role === "actor");
  const pools = Object.entries(Object.groupBy(actors, worker => worker.pool ?? "default")).map(([name, all]) => /** @type {[string, import("./parts.js").Worker[]]} */ ([name, all ?? []]));
  return [
    h("section", null, h("h2", null, plural(planners.length, "planner")),
      planners.length ? h("div", { class: "grid" }, planners.map(one => h("div", { class: "card pool" }, h("h3", null, h("code", null, one.instance)),
        h("p", null, one.providers?.length ? ["Asks ", one.providers.map((provider, i) => [i ? ", " : "", h("code", null, provider)])].flat(2) : "It announces no model provider."))))
        : empty("No planner is alive", "Runs stay in planning until one starts: ", h("code", null, "moorebus planner"))),
    h("section", null, h("h2", null, plural(actors.length, "actor"), " in ", plural(pools.length, "pool")),
      pools.length ? h("div", { class: "grid" }, pools.map(pool => poolCard(pool, tools))) : empty("No actor is alive", "Calls of tools wait for one: ", h("code", null, "moorebus actor"))),
  ];
}

/** @param {import("../lib/page.js").Page} page */
export default async function page(page) {
  const waiting = h("div", null), serving = h("div", { class: "stack" });
  put(page.root, h("h1", null, "Workers"), h("section", null, h("h2", null, "Work that waits"), waiting), serving,
    h("p", { class: "soft" }, "Observers, gateways and workers of custom states announce nothing, so they cannot be listed. The state acting stands for parallel acting as well. The workers and their work are those of all namespaces. A worker that dies is listed until its announcement expires."));
  await poll(page.signal, 5000, async () => {
    const [stats, tools] = await Promise.all([get("/v1/stats", {}, page.signal), get("/v1/tools", {}, page.signal)]);
    show(waiting, [stats.backlog, stats.backlog_reason, stats.workers], () => backlog(stats));
    show(serving, [stats.workers, tools], () => workers(stats, tools));
  });
}
