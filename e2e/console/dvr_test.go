package console

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/require"
)

// sums starts a run of at least so many events. With rests it takes some seconds for every thousand.
func (g *gateway) sums(tb testing.TB, events int, rests bool) string {
	tb.Helper()
	script := make([]any, 0, events/3+1)
	for i := range (events + 2) / 3 {
		call := map[string]any{"name": "calculator", "arguments": map[string]string{"expression": fmt.Sprintf("%d + 1", i)}}
		if rests && i%6 == 5 {
			call = map[string]any{"name": "rest", "arguments": map[string]string{}}
		}
		script = append(script, map[string]any{"content": fmt.Sprintf("Sum %d.", i), "calls": []any{call}, "usage": map[string]any{"input": 80, "output": 20, "cost_usd": 0.001}})
	}
	script = append(script, map[string]string{"text": "All sums are done."})
	agent := map[string]any{
		"name": "sums", "system_prompt": "You do sums.", "task": "Do many sums.", "tools": []string{"calculator", "rest"},
		"llm": map[string]any{"provider": "scripted", "script": script}, "config": map[string]int{"max_steps": len(script)},
	}
	require.NoError(tb, g.ask("PUT", "/v1/agents/sums", agent, &struct{}{}))
	var run struct {
		ID string `json:"run_id"`
	}
	require.NoError(tb, g.ask("POST", "/v1/runs", starts("sums", ""), &run))
	return run.ID
}

// record is an event as the API tells it.
type record struct {
	N        int
	Type, To string
	Data     map[string]any
}

// events reads all events of a run.
func (g *gateway) events(tb testing.TB, run string) []record { return eventsOf[record](tb, g, run) }

func eventsOf[E any](tb testing.TB, g *gateway, run string) []E {
	tb.Helper()
	req, err := http.NewRequest(http.MethodGet, g.url+"/v1/runs/"+run+"/events", nil)
	require.NoError(tb, err)
	req.Header.Set("Accept", "application/x-ndjson")
	res, err := http.DefaultClient.Do(req)
	require.NoError(tb, err)
	defer res.Body.Close()
	require.Equal(tb, http.StatusOK, res.StatusCode)
	var all []E
	lines := bufio.NewScanner(res.Body)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var e E
		require.NoError(tb, json.Unmarshal(lines.Bytes(), &e))
		all = append(all, e)
	}
	require.NoError(tb, lines.Err())
	return all
}

const (
	moment = `Number(document.querySelector(".dvr-slider")?.value)`
	latest = `Number(document.querySelector(".dvr-slider")?.max)`
	edge   = `document.querySelector(".dvr-edge")?.textContent`
)

// tells waits until an element that can be seen has a text.
func (p *tab) tells(selector, text string) {
	p.t.Helper()
	p.until(selector+" shows "+text, fmt.Sprintf(`[...document.querySelectorAll(%s)].some(el => el.checkVisibility() && el.textContent.replace(/\s+/g, " ").includes(%s))`, quoted(selector), quoted(text)))
}

// TestWatchRewindPlayReturn watches a run of 2,000 events while it goes on, goes back in it, plays
// it, and returns to what happens now. Every part of the page shows the chosen moment.
func TestWatchRewindPlayReturn(t *testing.T) {
	t.Parallel()
	g := serve(t)
	run := g.sums(t, 2000, true)
	p := g.open()
	p.visit("/runs/" + run)
	p.until("the page is live", edge+` === "● Live"`)
	seen := value[int](p, moment)
	require.Less(t, seen, 1900, "the run was over before the page was there")
	p.until("the live edge is followed", fmt.Sprintf("%s > %d && %s === %s", moment, seen+30, moment, latest))

	p.key(kb.Home)
	p.until("the first event is shown", moment+" === 1")
	p.key(kb.ArrowRight, kb.ArrowRight, kb.ArrowRight, kb.ArrowLeft)
	p.until("the third event is shown", moment+" === 3")
	place := value[[]float64](p, `(el => { const r = el.getBoundingClientRect(); return [r.x + r.width * 100 / el.max, r.y + r.height / 2]; })(document.querySelector(".dvr-slider"))`)
	in(p, "press on the slider", chromedp.MouseClickXY(place[0], place[1]))
	p.until("a place near event 100 is shown", "Math.abs("+moment+" - 100) < 40")
	for range 80 {
		n := value[int](p, moment)
		if n == 100 {
			break
		}
		p.key(map[bool]string{true: kb.ArrowRight, false: kb.ArrowLeft}[n < 100])
		p.until("the next moment is shown", fmt.Sprintf("%s !== %d", moment, n))
	}
	g.shows100(p, run)

	grown := value[int](p, latest)
	p.fill("Speed", "16")
	value[bool](p, "document.activeElement.blur(), true")
	p.key(" ")
	p.until("it plays", moment+" > 150")
	p.key(" ")
	p.until("it stands", `document.querySelector(".dvr-play").textContent.includes("Play")`)
	require.Less(t, value[int](p, moment), 2000)
	require.GreaterOrEqual(t, value[int](p, latest), grown)

	p.key("l")
	p.until("the newest event is shown", moment+" === "+latest+` && /Live|Ended/.test(`+edge+`)`)
	g.state(run, "done")
	p.until("the end is shown", edge+` === "■ Ended"`)
	all := g.events(t, run)
	require.GreaterOrEqual(t, len(all), 2000)
	require.Equal(t, len(all), value[int](p, latest))
	require.Equal(t, len(all), value[int](p, moment))
	p.tells(".event.is-now .event-type", all[len(all)-1].Type)

	linked := g.open()
	linked.visit("/runs/" + run + "#n=37")
	linked.until("event 37 is shown", moment+" === 37 && "+latest+fmt.Sprintf(" === %d", len(all)))
	linked.tells(".event.is-now .event-n", "37")
	linked.tells(".past-sign", fmt.Sprintf("event 37 of %d", len(all)))
}

// shows100 holds every part of the page to what the API says about event 100.
func (g *gateway) shows100(p *tab, run string) {
	p.t.Helper()
	var then struct {
		State  string
		Memory struct {
			N        int
			Step     int
			Messages []struct{ Content string }
		}
	}
	require.NoError(p.t, g.ask("GET", "/v1/runs/"+run+"?at=100", nil, &then))
	require.Equal(p.t, 100, then.Memory.N)
	event := g.events(p.t, run)[99]
	said := then.Memory.Messages[len(then.Memory.Messages)-1].Content
	state := strings.ReplaceAll(then.State, "_", " ")
	p.tells(".event.is-now .event-n", "100")
	p.tells(".event.is-now .event-type", event.Type)
	p.tells(".run-head .badge", state)
	p.tells(".run-facts", fmt.Sprintf("Step%d", then.Memory.Step))
	p.until("the conversation ends with "+said, fmt.Sprintf(`[...document.querySelectorAll(".message.is-assistant .text")].pop()?.textContent === %s`, quoted(said)))
	p.key("2")
	p.tells(".machine-state.is-now", state)
	p.key("3")
	p.tells("#panel-memory", "What event 100 changed")
	p.until("the memory is that of event 100", `[...document.querySelectorAll(".tree > details > .node-children > .node.is-leaf")].some(el => el.querySelector(".node-key").textContent === "n" && el.querySelector(".node-value").textContent === "100")`)
	p.key("4")
	p.tells("#panel-request", "What the model was asked for the reply")
	p.key("5")
	p.tells("#panel-raw", event.Type)
	p.tells("#panel-raw", "✓ prev is the hash of event 99")
	p.key("6")
	p.tells("#panel-usage", "Up to event 100")
	p.key("1")
	p.until("it is still event 100", moment+" === 100")
}

// harmless holds what the page has drawn to be text alone: no element was made of what a run says,
// no script ran, and no character changes how the text around it is read.
const harmless = `(() => {
	const wrong = [];
	if (/owned/.test(document.title) || window.owned || ({}).polluted) wrong.push("a script ran");
	for (const el of document.querySelectorAll("img, iframe, object, embed, base, meta[http-equiv], b, [onload], [onerror], a[href^='javascript' i], a[target]")) wrong.push(el.outerHTML.slice(0, 200));
	for (const el of document.querySelectorAll("script, link, svg *")) if (el.matches("script:not([src='/app/main.js']), link:not([href^='/app/']), foreignObject, a, animate, set, image")) wrong.push(el.outerHTML.slice(0, 200));
	const raw = /[\u001b\u202a-\u202e\u2066-\u2069]/;
	for (const el of document.querySelectorAll("*")) for (const a of el.attributes) if (raw.test(a.value)) wrong.push(a.name + "=" + a.value.slice(0, 100));
	if (raw.test(document.body.textContent)) wrong.push("a control character: " + document.body.textContent.match(/.{0,40}[\u001b\u202a-\u202e\u2066-\u2069].{0,40}/)[0]);
	return wrong.join("\n");
})()`

// unfold opens whatever is folded, three levels deep, and shows the rest of long texts.
const unfold = `(async () => {
	for (let i = 0; i < 3; i++) {
		for (const el of document.querySelectorAll("main details:not([open])")) if (el.checkVisibility()) el.open = true;
		for (const el of document.querySelectorAll("main button")) if (el.checkVisibility() && /^Show (more|earlier|the first)/.test(el.textContent)) el.click();
		await new Promise(done => setTimeout(done, 60));
	}
	return true;
})()`

// harms fails the test where the page is more than text.
func (p *tab) harms(where string) {
	p.t.Helper()
	value[bool](p, unfold)
	require.Empty(p.t, value[string](p, harmless), where)
}

// TestHostileContent shows runs whose every string is an attack, on every page.
func TestHostileContent(t *testing.T) {
	t.Parallel()
	g := serve(t)
	script, bidi := `<script>window.owned=1;document.title='owned'</script>`, "\u202Egpj.exe\u2066 \x1b[31mred\x1b[0m"
	attack := bidi + `<img src=x onerror="window.owned=1"> ` + script
	var pending struct {
		ID string `json:"run_id"`
	}
	require.NoError(t, g.ask("PUT", "/v1/agents/payer", map[string]any{
		"name": "payer", "description": attack, "system_prompt": attack, "tools": []string{"pay"}, "approval": map[string]string{"policy": "always"},
		"llm": map[string]any{"provider": "scripted", "script": []any{
			map[string]any{"content": attack, "calls": []any{map[string]any{"name": "pay", "arguments": map[string]any{"crowns": 1, "to": attack}}}},
			map[string]any{"text": attack},
		}},
	}, &struct{}{}))
	require.NoError(t, g.ask("POST", "/v1/runs", starts("payer", attack), &pending))
	first, second := g.run("hostile", ""), g.run("hostile", attack)
	g.state(pending.ID, "waiting_for_human")
	g.state(first, "done")
	g.state(second, "done")
	failed := g.run("hostile", strings.Repeat(`"><svg onload=window.owned=1>`, 1000))
	g.state(failed, "done")

	p := g.open()
	for _, page := range []struct{ name, path, shows string }{
		{"fleet", "/", `<img src=x onerror="`},
		{"text search", "/?q=" + url.QueryEscape(script), `\u202egpj.exe\u2066 \u001b[31mred`},
		{"inbox", "/inbox", `\u202egpj.exe\u2066 \u001b[31mred`},
		{"agents", "/agents", `<script>window.owned=1`},
		{"workers", "/workers", "hostile"},
		{"dead", "/dead", ""},
		{"compare", "/compare?a=" + first + "&b=" + second, `<iframe src="javascript:`},
		{"long task", "/runs/" + failed, `"><svg onload=window.owned=1>`},
	} {
		p.visit(page.path)
		p.until(page.name+" is there", `document.querySelector("main h1")`)
		if page.shows != "" {
			p.shows(page.shows)
		}
		value[bool](p, still)
		p.harms(page.name)
	}
	p.visit("/agents")
	p.press("Definition of payer")
	p.until("the definition is read", `document.querySelector("dialog[open] .code")?.textContent.includes("system_prompt")`)
	p.harms("definition")
	p.visit("/runs/" + first)
	for n := range g.events(t, first) {
		value[bool](p, fmt.Sprintf(`location.hash = "#n=%d", true`, n+1))
		p.until("the event is shown", fmt.Sprintf("%s === %d", moment, n+1))
		for tab := range 6 {
			p.key(fmt.Sprint(tab + 1))
			p.harms(fmt.Sprintf("event %d, tab %d", n+1, tab+1))
		}
	}
	value[bool](p, `document.body.insertAdjacentHTML("beforeend", "<b title='\\u202e'></b>"), true`)
	require.NotEmpty(t, value[string](p, harmless), "the check finds nothing")
	p.visit("/runs/" + pending.ID)
	for _, action := range []string{"Decide…", "Fork from here…", "Message…"} {
		p.press(action)
		p.until("the dialog is open", `document.querySelector("dialog[open]")`)
		p.harms(action)
		p.key(kb.Escape)
		p.until("the dialog is closed", `!document.querySelector("dialog")`)
	}
}

// TestFiveMegabytes shows a run that holds six strings of 900 kB, the largest that a request may
// have. Every key is answered within seconds, on a busy machine too.
func TestFiveMegabytes(t *testing.T) {
	t.Parallel()
	g := serve(t)
	require.NoError(t, g.ask("PUT", "/v1/agents/listener", map[string]any{
		"name": "listener", "mode": "chat", "system_prompt": "You listen.", "llm": map[string]any{"provider": "scripted", "script": slices.Repeat([]any{map[string]string{"text": "I see."}}, 6)},
	}, &struct{}{}))
	long := "<img src=x onerror=window.owned=1> \u202e " + strings.Repeat("0123456789 abcdef ", 50_000)
	run := g.run("listener", long)
	g.state(run, "waiting_for_user")
	for i := range 5 {
		require.NoError(t, g.ask("POST", "/v1/runs/"+run+"/inputs", []any{map[string]any{"type": "user-message", "content": long, "message_id": fmt.Sprint("m", i)}}, &struct{}{}))
		g.state(run, "waiting_for_user")
	}
	p := g.open()
	p.visit("/runs/" + run)
	p.until("the newest event is shown", moment+" === "+latest+" && "+edge+` === "● Live"`)
	for i, name := range []string{"Conversation", "States", "Memory", "Request", "Raw event", "Usage and runs"} {
		began := time.Now()
		p.key(fmt.Sprint(i + 1))
		p.until("the tab is shown", fmt.Sprintf(`document.querySelector("[role=tab][aria-selected=true]").textContent === %q && document.querySelector("[role=tabpanel]:not([hidden])").innerText.trim() !== ""`, name))
		took := []time.Duration{time.Since(began)}
		for range 4 {
			n := value[int](p, moment)
			began = time.Now()
			p.key(kb.ArrowLeft)
			p.until("the key is answered", fmt.Sprintf("%s === %d", moment, n-1))
			value[bool](p, `new Promise(done => requestAnimationFrame(() => setTimeout(() => done(true))))`)
			took = append(took, time.Since(began))
		}
		t.Logf("%s: %v", name, took)
		require.Less(t, slices.Max(took), 5*time.Second, name)
		p.key("l")
	}
}

// TestRestartIsNotNoticed kills the gateway while a run is shown. A banner says so until the
// gateway is back, and no event is missing or there twice.
func TestRestartIsNotNoticed(t *testing.T) {
	t.Parallel()
	g := serve(t)
	run := g.sums(t, 900, true)
	p, fleet := g.open(), g.open()
	fleet.visit("/")
	fleet.tells(".list-row .cell-agent", "sums")
	p.visit("/runs/" + run)
	p.until("the page is live", edge+` === "● Live" && `+moment+" > 50")
	before := value[int](p, latest)
	g.kill()
	require.Less(t, before, 900, "the run was over before the gateway was killed")
	p.until("a banner says so", `document.querySelector("#banner .banner")?.textContent.includes("Not connected")`)
	fleet.until("a banner says so in the list", `document.querySelector("#banner .banner")?.textContent.includes("No connection")`)
	p.key(kb.Home)
	p.until("the past can still be seen", moment+" === 1")
	p.key("l")
	g.start()
	p.until("the banner is gone", `!document.querySelector("#banner .banner")`)
	fleet.until("the banner is gone in the list", `!document.querySelector("#banner .banner")`)
	p.until("the page goes on", fmt.Sprintf("%s > %d && %s === %s", latest, before, moment, latest))
	g.state(run, "done")
	p.until("the end is shown", edge+` === "■ Ended"`)

	all := g.events(t, run)
	// A page that shows the newest event scrolls back to it by itself, so one pass may miss rows.
	shown := value[[]string](p, fmt.Sprintf(`(async () => {
		const list = document.querySelector(".timeline .list"), seen = Array(%d).fill("");
		for (let pass = 0; pass < 10 && seen.includes(""); pass++) for (list.scrollTop = 0; ; list.scrollTop += list.clientHeight) {
			await new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)));
			for (const row of list.querySelectorAll(".list-row")) seen[row.dataset.i] = row.querySelector(".event-n").textContent + " " + row.querySelector(".event-type").textContent + " " + row.querySelector(".event-text").textContent;
			if (list.scrollTop + list.clientHeight >= list.scrollHeight - 1) break;
		}
		return seen;
	})()`, len(all)))
	require.Len(t, shown, len(all))
	for i, e := range all {
		require.Equal(t, i+1, e.N)
		require.Contains(t, shown[i], fmt.Sprintf("%d %s ", e.N, e.Type))
		if text, ok := e.Data["observation"].(string); ok {
			require.Contains(t, shown[i], text)
		}
	}
	later := g.run("counter", "")
	g.state(later, "done")
	fleet.tells(".list-row .cell-agent", "counter")
	fleet.until("the list shows the end", fmt.Sprintf(`[...document.querySelectorAll(".list-row")].some(row => row.textContent.includes("done") && row.querySelector(".cell-n").textContent.includes(%q))`, fmt.Sprint(len(all))))
	require.Equal(t, 2, value[int](fleet, `document.querySelectorAll(".list-row").length`), "a run is missing or there twice")
}
