package console

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"
)

// elsewhere is a page of another site, which nobody looks after: what its browser refuses it is no error.
func (g *gateway) elsewhere() *tab {
	g.t.Helper()
	site := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		_, _ = w.Write([]byte("<!doctype html><title>another site</title><body>")) // a browser that is gone needs none
	}))
	g.t.Cleanup(site.Close)
	ctx, cancel := chromedp.NewContext(allocator, chromedp.WithNewBrowserContext())
	g.t.Cleanup(cancel)
	p := &tab{t: g.t, ctx: ctx, g: g}
	require.NoError(g.t, chromedp.Do(ctx, chromedp.EmulateViewport(1400, 900)))
	in(p, "visit another site", chromedp.Navigate(site.URL))
	return p
}

// TestPageOfAnotherSite is a page that knows everything of a gateway without a token and gets nothing from
// it, in a real browser.
func TestPageOfAnotherSite(t *testing.T) {
	t.Parallel()
	g := serve(t)
	id := g.run("cashier", "")
	g.state(id, "waiting_for_human")
	p := g.elsewhere()
	loads := func(element, address, path string) string {
		return value[string](p, fmt.Sprintf(`new Promise(done => {
			const el = document.createElement(%q);
			el.onload = () => done("loads");
			el.onerror = () => done("fails");
			if (el.localName === "link") el.rel = "stylesheet";
			el[%q] = %q;
			document.body.append(el);
		})`, element, address, g.url+path))
	}
	for element, address := range map[string]string{"object": "data", "script": "src", "img": "src", "link": "href"} {
		for _, path := range []string{"/v1/runs/" + id, "/v1/runs/none", "/v1/agents/cashier", "/inbox"} {
			require.Equal(t, "fails", loads(element, address, path), "%s of %s tells what there is", element, path)
		}
	}
	require.Equal(t, "error", value[string](p, `new Promise(done => {
		const events = new EventSource(`+quoted(g.url+"/v1/events")+`);
		events.onopen = () => done("open");
		events.onerror = () => { events.close(); done("error"); };
	})`))
	require.Equal(t, "ended", value[string](p, `fetch(`+quoted(g.url+"/v1/events")+`, {mode: "no-cors"}).then(() => new Promise(done => {
		const ended = () => { if (performance.getEntriesByType("resource").some(r => r.name.endsWith("/v1/events") && r.responseEnd > 0)) done("ended"); else requestAnimationFrame(ended); };
		ended();
	}))`), "an event stream stays open")
	for _, media := range []string{"text/plain", "application/x-www-form-urlencoded", "multipart/form-data"} {
		for path, body := range map[string]string{
			"/v1/runs": `{"agent":"cashier"}`, "/v1/runs/" + id + "/cancel": "", "/v1/runs/" + id + "/decisions": `{"call_id":"call_1_1","decision":"approved","by":"x"}`,
			"/v1/a2a/cashier/rpc": `{"jsonrpc":"2.0","id":1,"method":"CancelTask","params":{"id":"` + id + `"}}`,
		} {
			value[string](p, fmt.Sprintf(`fetch(%q, {method: "POST", mode: "no-cors", body: new Blob([%q], {type: %q})}).then(r => r.type)`, g.url+path, body, media))
			require.True(t, value[bool](p, fmt.Sprintf(`navigator.sendBeacon(%q, %q)`, g.url+path, body)))
		}
	}
	for _, request := range []string{`{method: "PUT", body: "{}"}`, `{method: "DELETE"}`, `{headers: {"Moorebus-Namespace": "x"}}`, `{method: "POST", headers: {"Content-Type": "application/json"}, body: "{}"}`, `{}`} {
		require.Equal(t, "TypeError", value[string](p, `fetch(`+quoted(g.url+"/v1/agents/cashier")+`, `+request+`).then(r => r.type, err => err.name)`), request)
	}
	var runs struct{ Runs []struct{ State string } }
	require.NoError(t, g.ask("GET", "/v1/runs", nil, &runs))
	require.Len(t, runs.Runs, 1, "it started a run")
	require.Equal(t, "waiting_for_human", runs.Runs[0].State, "it changed a run")
}

// TestPressesForAnotherPage shows the console to somebody who was about to press something else: another site
// opened it, or went away from before it. Nothing comes of these presses.
func TestPressesForAnotherPage(t *testing.T) {
	t.Parallel()
	g := serve(t)
	id := g.run("cashier", "")
	g.state(id, "waiting_for_human")
	p := g.open()
	p.visit("/inbox")
	p.shows("Acme")
	p.fill("Your name", "Ada") // the browser keeps it: whoever decided before needs no more than a press
	value[bool](p, `document.activeElement.blur(), true`)
	for _, appears := range []string{`dispatchEvent(new Event("pageshow"))`, `document.dispatchEvent(new Event("visibilitychange"))`} {
		for _, press := range []string{
			`for (const key of "aaaaa") document.body.dispatchEvent(new KeyboardEvent("keydown", {key, bubbles: true}))`,
			finder + `("Approve", "button").click()`,
			`(el => { el.dispatchEvent(new PointerEvent("pointerdown", {bubbles: true})); el.click(); })(` + finder + `("Approve", "button"))`,
		} {
			p.settle() // the page was there for long
			value[bool](p, `document.querySelectorAll("[role=alert]").forEach(el => el.replaceChildren()), true`)
			value[bool](p, `(() => { `+appears+`; `+press+`; return true; })()`)
			p.shows("This page had only just appeared")
			require.Empty(t, g.decisions(id), "%s, %s", appears, press)
		}
	}
	p.settle()
	p.press("Approve")
	g.state(id, "done")
	require.Len(t, g.decisions(id), 1)
}
