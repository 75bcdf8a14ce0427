// The console: which page is shown, and what stands around it.
import { ApiError, get, session } from "./lib/api.js";
import { dialog, failed } from "./lib/dialog.js";
import { h, put } from "./lib/dom.js";
import { bind, showKeys } from "./lib/keys.js";
import { go, interrupted, moved } from "./lib/page.js";
import { field } from "./lib/widgets.js";
import { pages } from "./pages.js";

const addresses = pages.map(({ path }) => new RegExp(`^${path.replace(/\{(\w+)\}/g, "(?<$1>[^/]+)")}$`));

const main = /** @type {HTMLElement} */ (document.getElementById("page"));
const nav = /** @type {HTMLElement} */ (document.getElementById("nav"));
let left = new AbortController(), shown = "";

/** @param {boolean} [focus] whether the focus goes to the page */
async function show(focus) {
  const url = new URL(location.href);
  left.abort();
  left = new AbortController();
  shown = url.pathname + url.search;
  const at = addresses.findIndex(address => address.test(url.pathname)), found = pages[at];
  put(nav, pages.filter(({ path, place }) => path === place).map(({ path, name }) => h("a", { href: path, "aria-current": found?.place === path && "page" }, name)));
  interrupted("");
  const signal = left.signal;
  bind(signal, { "?": { help: "Show the keys of this page", run: showKeys } });
  main.className = "";
  put(main);
  if (!found) {
    document.title = "Moorebus";
    put(main, h("h1", null, "There is no such page"), h("p", null, h("a", { href: "/" }, "Show all runs")));
    return;
  }
  const { name, load } = found;
  document.title = name + " · Moorebus";
  try {
    const page = await load();
    if (signal.aborted) return;
    /** @type {import("./lib/page.js").Page} */
    const given = {
      root: main, params: addresses[at].exec(url.pathname)?.groups ?? {}, query: url.searchParams, signal,
      title: text => { document.title = text + " · Moorebus"; },
      set: values => {
        for (const [key, value] of Object.entries(values)) if (value) url.searchParams.set(key, value); else url.searchParams.delete(key);
        history.replaceState(null, "", url.pathname + url.search + location.hash);
        shown = url.pathname + url.search;
      },
    };
    await page.default(given);
  } catch (err) {
    if (signal.aborted) return;
    put(main, h("h1", null, name), failed(err));
    if (err instanceof ApiError && err.status === 401) connection();
  }
  if (focus && !signal.aborted) main.focus({ preventScroll: true });
}

function connection() {
  dialog("Connection", h("div", { class: "stack" },
    field("Namespace", h("input", { name: "namespace", value: session.namespace, placeholder: "default", autocomplete: "off", pattern: "[a-z0-9][a-z0-9_\\-]{0,62}" }), "Small letters, digits, _ and -."),
    field("Token", h("input", { name: "token", type: "password", value: session.token, placeholder: "none", autocomplete: "off" }), "What the gateway was started with. It is forgotten with this tab."),
  ), [{
    label: "Connect", run: async fields => {
      const before = [session.namespace, session.token];
      session.set(String(fields.get("namespace")), String(fields.get("token")));
      try {
        await get("/v1/runs", { limit: 1 });
      } catch (err) {
        session.set(before[0], before[1]);
        throw err;
      }
      void show(true);
    },
  }]);
}

document.addEventListener("click", event => {
  const link = /** @type {Element} */ (event.target).closest?.("a[href]");
  if (!(link instanceof HTMLAnchorElement) || event.defaultPrevented || event.button || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey || link.target || link.download) return;
  const href = link.getAttribute("href") ?? "";
  if (!href.startsWith("/")) return;
  event.preventDefault();
  go(href);
});
addEventListener(moved, () => void show(true));
addEventListener("popstate", () => { if (location.pathname + location.search !== shown) void show(true); });
document.getElementById("keys-button")?.addEventListener("click", showKeys);
document.getElementById("connection-button")?.addEventListener("click", connection);
void show();
