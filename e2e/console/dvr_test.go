package console

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

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
func (g *gateway) events(tb testing.TB, run string) []record {
	tb.Helper()
	req, err := http.NewRequest(http.MethodGet, g.url+"/v1/runs/"+run+"/events", nil)
	require.NoError(tb, err)
	req.Header.Set("Accept", "application/x-ndjson")
	res, err := http.DefaultClient.Do(req)
	require.NoError(tb, err)
	defer res.Body.Close()
	require.Equal(tb, http.StatusOK, res.StatusCode)
	var all []record
	lines := bufio.NewScanner(res.Body)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var e record
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
