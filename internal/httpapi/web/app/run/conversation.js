// The conversation as a person reads it. What a moment shows is its last items; those before
// are shown on demand. An item is drawn once for each of its versions.
import { get, object } from "../lib/api.js";
import { failed } from "../lib/dialog.js";
import { h, put, setText } from "../lib/dom.js";
import { count, duration, pretty, usd, when } from "../lib/format.js";
import { long, runLink } from "../lib/widgets.js";
import { History } from "./history.js";
import { Talk } from "./talk.js";

/** @typedef {import("./talk.js").Item} Item */
const most = 14, first = 3000;

/** @param {string} text */
const code = text => long(pretty(text), "code", first);

/** Something that is folded at first. @param {string} name @param {() => import("../lib/dom.js").Child} body */
export function folded(name, body) {
  const box = h("details", { class: "fold", ontoggle: () => { if (box.childElementCount < 2) box.append(h("div", { class: "stack" }, body())); } }, h("summary", null, name));
  return box;
}

const isImage = (/** @type {string | undefined} */ media) => /^image\/(png|jpeg|gif|webp)$/.test(media ?? "");

/** What a reference points to: an image as soon as it is there, text on demand. @param {any} ref @param {string} name @param {string | undefined} media */
function stored(ref, name, media) {
  const box = h("div", { class: "stack" });
  const load = async () => {
    try {
      const data = await object(ref);
      if (!isImage(media)) return put(box, long(await data.text(), "code", first));
      const src = URL.createObjectURL(new Blob([data], { type: media }));
      put(box, h("img", { class: "part-image", src, alt: name, onload: () => URL.revokeObjectURL(src) }));
    } catch (err) {
      put(box, failed(err));
    }
  };
  put(box, h("p", { class: "part soft small" }, "▤ ", name, `, ${count(ref.size)} bytes `, !isImage(media) && h("button", { onclick: load }, "Show")));
  if (isImage(media)) void load();
  return box;
}

/** Parts of a message, and what a tool returned beside text. @param {any[] | undefined} all */
function parts(all) {
  return (all ?? []).filter(p => p.type !== "text").map(p => {
    const name = p.name || p.media_type || p.type || "file";
    if (p.data && isImage(p.media_type)) return h("img", { class: "part-image", src: `data:${p.media_type};base64,${p.data}`, alt: name });
    const ref = p.ref ?? (p.bucket && p);
    if (ref) return stored(ref, name, p.media_type);
    return h("p", { class: "part soft small" }, "▤ ", name, p.url && [" at ", h("span", { class: "mono" }, p.url)]);
  });
}

/** What is shown of an item, in any of the words that providers have for it. @param {any} item */
function described(item) {
  const found = [item.action, item.input, item].flatMap(o => [o?.query, o?.queries?.join?.("; "), o?.url, o?.pattern, o?.code, o?.command]).find(v => typeof v === "string" && v);
  const name = [item.type, item.server_label, item.name].filter(v => typeof v === "string").join(" ");
  return name + (found ? ": " + found : "") + (item.error ? " (failed)" : typeof item.status === "string" ? ` (${item.status})` : "");
}

/** Whether a part is an item of the provider's own, such as a search. @param {any} r */
const isItem = r => r.kind === "opaque" && typeof r.data?.type === "string" && !/^(reasoning|thinking|redacted_thinking|text$)/.test(r.data.type);

/** What the provider's own tools did for a reply, and the words on the way to its answer. @param {any} d */
function items(d) {
  return (d.reasoning ?? []).filter(isItem).map((/** @type {any} */ r) => {
    const item = r.data, said = Array.isArray(item.content) ? item.content.map((/** @type {any} */ c) => c?.text ?? "").join("") : "";
    if (item.type === "message") return item.phase === "commentary" && said && h("div", { class: "text soft", dir: "auto" }, said);
    const image = item.type === "image_generation_call" && typeof item.result === "string" && /^[A-Za-z0-9+/=]+$/.test(item.result);
    return folded("⚙ " + described(item).slice(0, 200), () => [image && h("img", { class: "part-image", src: `data:image/${["png", "jpeg", "webp"].includes(item.output_format) ? item.output_format : "png"};base64,${item.result}`, alt: "The image that was made" }),
      code(JSON.stringify(image ? { ...item, result: `${item.result.length} characters` } : item))]);
  });
}

/** The sources that a text names. Only addresses of the web are links. @param {any[] | undefined} all */
function sources(all) {
  /** @type {Map<string, any>} */
  const unique = new Map((all ?? []).map(c => [`${c.url ?? ""} ${c.title ?? ""}`, c]));
  if (!unique.size) return null;
  return h("div", { class: "sources small" }, h("p", { class: "soft" }, "Sources"), h("ol", null, [...unique.values()].map(c => {
    const name = c.title || c.url || c.type;
    return h("li", { title: c.quote || null }, /^https?:\/\//i.test(c.url ?? "") ? h("a", { href: c.url, target: "_blank", rel: "noopener noreferrer" }, name) : h("bdi", null, name));
  })));
}

/** The reasoning of a reply. @param {any} d */
function reasoning(d) {
  const all = (d.reasoning ?? []).filter((/** @type {any} */ r) => !isItem(r)), shown = all.filter((/** @type {any} */ r) => r.text), opaque = all.length - shown.length;
  if (!shown.length && !opaque && !d.reasoning_ref) return null;
  return folded("Reasoning", () => [shown.map((/** @type {any} */ r) => long(r.text, "text soft", first)), opaque > 0 && h("p", { class: "soft small" }, `${opaque} parts that only the provider can read.`), d.reasoning_ref && parts([d.reasoning_ref])]);
}

/** @param {string} kind @param {string} who @param {import("../lib/dom.js").Child} notes @param {...import("../lib/dom.js").Child} body */
const message = (kind, who, notes, ...body) => h("article", { class: "message is-" + kind }, h("header", { class: "row small" }, h("strong", null, who), h("span", { class: "soft" }, notes)), ...body);

/** @type {Record<string, string>} */
const shapes = { bad: "✗", wait: "‖", off: "·", busy: "→" };

/** What became of a call. @param {import("./talk.js").Mark[]} marks @returns {[string, string]} */
function outcome(marks) {
  const result = marks.findLast(m => m.kind === "result")?.data, asked = marks.findLast(m => m.kind === "asked"), decided = marks.findLast(m => m.kind === "decided");
  if (result) return result.success ? ["✓ answered", "good"] : [`✗ failed${result.code ? ": " + result.code : ""}`, "bad"];
  if (asked && !decided) return [asked.data.asks ? "‖ asks a person" : "‖ waits for approval", "wait"];
  if (decided?.data.decision === "rejected") return ["✗ rejected", "bad"];
  return marks.some(m => m.kind === "sent") ? ["▶ running", "busy"] : ["◇ asked for", "busy"];
}

/** @param {import("./talk.js").Mark} m */
function marked(m) {
  const d = m.data;
  if (m.kind === "asked") return h("p", { class: "small is-wait" }, "‖ ", d.asks ? "A question to a person" : "Needs approval", d.risk && ` · risk ${d.risk}`, d.reason && ` · ${d.reason}`, d.deadline && ` · until ${when(d.deadline)}`);
  const [shape, look] = d.decision === "rejected" ? ["✗", "bad"] : ["✓", "good"];
  return [h("p", { class: "small is-" + look }, shape, " ", d.decision, " by ", h("bdi", null, d.by || "somebody"), ` at ${when(new Date(m.at).toISOString())}`, d.reason && [": ", h("bdi", null, d.reason)]),
    d.arguments && h("div", null, h("p", { class: "small soft" }, "Changed arguments"), code(d.arguments))];
}

/**
 * @param {History} history @param {AbortSignal} signal @param {boolean} [inner] whether it is part of another one
 * @returns {{el: HTMLElement, update: (moment: {n: number, edge: boolean}) => void}}
 */
export function conversation(history, signal, inner) {
  const talk = new Talk();
  const earlier = h("button", { class: "quiet", onclick: () => { extra += 50; draw(false); } });
  const list = h("div", { class: "talk-items" });
  const live = h("div", { class: "talk-live", hidden: true });
  const el = h("div", { class: inner ? "talk is-inner" : "talk", tabindex: inner ? null : 0, role: "region", "aria-label": inner ? "Conversation of the sub-run" : "Messages" }, earlier, list, live);
  /** @type {Map<Item, {version: number, el: HTMLElement}>} */
  const drawn = new Map();
  let extra = 0, shown = { n: 0, edge: true };

  /** @param {Item} item @param {string} run */
  const open = (item, run) => {
    const box = h("div", { class: "nested" }, h("p", { class: "soft small" }, "Reading…"));
    item.nested = { el: box, update: () => {} };
    (async () => {
      if (!run) {
        const find = (/** @type {any} */ node) => node.call_id === item.data.id && node.run_id !== history.id ? node.run_id : (node.children ?? []).reduce((/** @type {string} */ found, /** @type {any} */ child) => found || find(child), "");
        run = find((await get(`/v1/runs/${history.id}/tree`, {}, signal)).root);
      }
      if (!run) return put(box, h("p", { class: "soft" }, "There is no run for this call yet."));
      const sub = new History(run, signal, { live: false, states: false }), part = conversation(sub, signal, true);
      await sub.start();
      put(box, h("p", { class: "small" }, "Sub-run ", runLink(run)), part.el);
      const nested = /** @type {NonNullable<Item["nested"]>} */ (item.nested);
      nested.update = (at, edge) => {
        let n = item.kind === "fork" ? Math.min(item.data.at, sub.length) : sub.length;
        while (item.kind !== "fork" && !edge && n > 1 && sub.events[n - 1].at > at) n--;
        part.update({ n, edge });
      };
      nested.update(history.events[shown.n - 1].at, shown.edge);
    })().catch(err => put(box, failed(err)));
    return item.nested.el;
  };

  /** @param {string} name @param {Item} item @param {string} run */
  const sub = (name, item, run) => {
    if (item.nested) return item.nested.el;
    const box = h("div", null, h("button", { onclick: () => box.replaceWith(open(item, run)) }, "▸ " + name), run && [" ", runLink(run)]);
    return box;
  };

  /** @param {Item} item @param {import("./talk.js").Mark[]} marks */
  const call = (item, marks) => {
    const [word, look] = outcome(marks), result = marks.findLast(m => m.kind === "result"), d = result?.data ?? {};
    const args = pretty(item.data.arguments ?? ""), answer = String(d.observation ?? "").replace(/^(SUCCESS|ERROR): /, "");
    const from = marks.find(m => m.kind === "sent")?.at ?? item.data.at;
    return h("article", { class: "message is-call" },
      h("header", { class: "row small" }, h("strong", { class: "mono" }, item.text), h("span", { class: "badge is-" + look }, word), result && h("span", { class: "soft" }, duration(d.latency_ms ?? result.at - from))),
      args.length > 600 ? folded(`Arguments (${count(args.length)} characters)`, () => code(args)) : args && args !== "{}" && h("div", { class: "code" }, args),
      marks.filter(m => m.kind === "asked" || m.kind === "decided").map(marked).flat(),
      (talk.agents.has(item.text) || d.run) && sub("Open the sub-run", item, d.run ?? ""),
      result && (answer.length > 1500 ? folded(`Result (${count(answer.length)} characters)`, () => code(answer)) : answer && h("div", { class: "code result" }, pretty(answer))),
      d.ref && parts([{ ...d.ref, name: "The complete result" }]), parts(d.attachments));
  };

  /** @param {Item} item @param {import("./talk.js").Mark[]} marks @returns {HTMLElement} */
  const made = (item, marks) => {
    const d = item.data;
    switch (item.kind) {
      case "call": return call(item, marks);
      case "prompt": return h("article", { class: "message is-prompt" }, folded(`System prompt of ${d.name ?? "the agent"}`, () => long(item.text, "text", first)));
      case "user": return message("user", item.look, "", item.text.length > 1500 ? folded(`${item.text.slice(0, 120)}… (${count(item.text.length)} characters)`, () => long(item.text, "text", first)) : h("div", { class: "text", dir: "auto" }, item.text), parts(d.parts));
      case "assistant": return message("assistant", "Assistant", [d.asked?.model || d.model, d.usage?.total ? ` · ${count(d.usage.total)} tokens` : "", d.usage?.cost_usd ? ` · ${usd(d.usage.cost_usd)}` : "", d.incomplete ? " · cut off" : ""],
        reasoning(d), items(d), long(item.text, "text", first), sources(d.annotations));
      case "fork": return h("article", { class: "message is-note" }, h("p", null, "Forked from ", runLink(d.run, d.at), ` after event ${d.at}.`), d.patch && folded("What is different", () => code(JSON.stringify(d.patch))), sub("What was before", item, d.run));
      default: {
        const text = [d.code, d.kind, d.message, d.reason, d.summary, d.value].filter(v => typeof v === "string" && v).join(" · ");
        const more = Object.keys(d).length > 0 && !text;
        return h("article", { class: "message is-note" }, h("p", { class: "small is-" + item.look }, shapes[item.look], " ", item.text, d.by && [" by ", h("bdi", null, d.by)]), text && long(text, "text small", 600), more && folded("Details", () => code(JSON.stringify(d))));
      }
    }
  };

  /** @param {boolean} follow whether the end is scrolled into view */
  const draw = follow => {
    const end = talk.at(shown.n), from = Math.max(0, end - most - extra);
    const items = talk.items.slice(from, end).map(item => {
      let version = 0;
      while (version < item.marks.length && item.marks[version].n <= shown.n) version++;
      let view = drawn.get(item);
      if (view?.version !== version) drawn.set(item, view = { version, el: made(item, item.marks.slice(0, version)) });
      view.el.classList.toggle("is-now", item.n === shown.n || version > 0 && item.marks[version - 1].n === shown.n);
      if (item.nested) item.nested.update(history.events[shown.n - 1].at, shown.edge);
      return view.el;
    });
    if (drawn.size > 2000) for (const item of drawn.keys()) if (!item.nested && !list.contains(/** @type {any} */ (drawn.get(item)).el)) drawn.delete(item);
    if (items.length !== list.children.length || items.some((item, i) => list.children[i] !== item)) put(list, items);
    earlier.hidden = from === 0;
    setText(earlier, `Show earlier (${from.toLocaleString("en-US")})`);
    if (follow && !inner) el.scrollTop = el.scrollHeight;
  };

  if (!inner) new ResizeObserver(() => { if (shown.edge) el.scrollTop = el.scrollHeight; }).observe(el);
  if (!inner) el.addEventListener("scroll", () => {
    if (el.scrollTop > 100 || earlier.hidden || el.scrollHeight < el.clientHeight + 200) return;
    const below = el.scrollHeight - el.scrollTop;
    extra += 20;
    draw(false);
    el.scrollTop = el.scrollHeight - below;
  }, { passive: true });
  if (!inner) writing(history, live, () => shown.edge, () => { if (near()) el.scrollTop = el.scrollHeight; });
  const near = () => el.scrollHeight - el.scrollTop - el.clientHeight < 80;
  return {
    el,
    update(moment) {
      const moved = moment.n !== shown.n, follow = moved && (!moment.edge || !shown.edge || near());
      if (moved && !moment.edge) extra = 0;
      shown = { n: moment.n, edge: moment.edge };
      talk.follow(history.events, history.length);
      if (moved || !moment.edge) live.hidden = true;
      draw(follow);
    },
  };
}

/** Shows what a model is writing. @param {History} history @param {HTMLElement} box @param {() => boolean} edge @param {() => void} grown */
function writing(history, box, edge, grown) {
  let id = "", drawing = false;
  /** @type {Record<string, string>} */
  let texts = {};
  history.onchunk = chunk => {
    if (chunk.message_id !== id) {
      texts = {};
      id = chunk.message_id;
    }
    const kind = chunk.kind ?? "text";
    texts[kind] = (chunk.offset === 0 ? "" : texts[kind] ?? "") + (chunk.text ?? "");
    if (drawing) return;
    drawing = true;
    requestAnimationFrame(() => {
      drawing = false;
      const done = history.events.slice(-20).some(e => e.data.message_id === id);
      box.hidden = done || !edge();
      if (box.hidden) return put(box);
      put(box, message("assistant", "Assistant", "▍ is writing", texts.reasoning && h("div", { class: "text soft small" }, texts.reasoning.slice(-2000)), texts.text && h("div", { class: "text", dir: "auto" }, texts.text.slice(-20_000)), texts.tool_call && h("div", { class: "code" }, texts.tool_call.slice(-2000))));
      grown();
    });
  };
}
