package agui_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/agentfile"
	"github.com/moorebus/moorebus/internal/agui"
	"github.com/moorebus/moorebus/internal/buckets"
	"github.com/moorebus/moorebus/internal/control"
	"github.com/moorebus/moorebus/internal/host"
	"github.com/moorebus/moorebus/internal/journaltest/simtest"
	"github.com/moorebus/moorebus/internal/kv"
	"github.com/moorebus/moorebus/internal/subagent"
	"github.com/moorebus/moorebus/internal/toolset"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/moorebus/moorebus/pkg/llm/scripted"
	"github.com/moorebus/moorebus/pkg/tool"
	"github.com/moorebus/moorebus/pkg/tool/builtin"
)

const chat = `{"name":"chat","mode":"chat","llm":{"provider":"scripted","script":[{"text":"One."},{"calls":[{"name":"locate","arguments":{},"id":"c1"}]},{"text":"Two."}]}}`

const careful = `{"name":"careful","mode":"chat","approval":{"policy":"tools","tools":["locate"]},"llm":{"provider":"scripted","script":[{"calls":[{"name":"locate","arguments":{"near":"x"},"id":"c1"}]},{"text":"Done."}]}}`

// agents are those of the tests. The boss calls the worker, and the clerk through another agent.
var agents = map[string]string{
	"chat": chat, "careful": careful,
	"boss": `{"name":"boss","mode":"chat","tools":["worker","middle"],"llm":{"provider":"scripted","script":[` +
		`{"calls":[{"name":"worker","arguments":{"task":"x"},"id":"a1"},{"name":"middle","arguments":{"task":"x"},"id":"a2"}]},{"text":"They say {{observation -2}} and {{observation -1}}."}]}}`,
	"worker": `{"name":"worker","tools":["ask_human"],"llm":{"provider":"scripted","script":[{"calls":[{"name":"ask_human","arguments":{"question":"Which colour?"},"id":"q"}]},{"text":"It is {{observation -1}}"}]}}`,
	"middle": `{"name":"middle","tools":["clerk"],"llm":{"provider":"scripted","script":[{"calls":[{"name":"clerk","arguments":{"task":"x"},"id":"m"}]},{"text":"{{observation -1}}"}]}}`,
	"clerk": `{"name":"clerk","tools":["calculator"],"approval":{"policy":"tools","tools":["calculator"]},"llm":{"provider":"scripted","script":[` +
		`{"calls":[{"name":"calculator","arguments":{"expression":"1+2"},"id":"c"},{"name":"calculator","arguments":{"expression":"2+5"},"id":"d"}]},{"text":"{{observation -2}}, {{observation -1}}"}]}}`,
}

// world is a host with HTTP on a simulated bus.
type world struct {
	t   *testing.T
	bus *simtest.Journal
	url string // of the protocol
	api string
	// gateway is that of the host.
	gateway *control.Controller
}

func newWorld(t *testing.T) *world {
	bus := simtest.New(simtest.Options{})
	var tools []tool.Tool
	for _, name := range []string{builtin.AskHuman, builtin.Calculator} {
		made, err := builtin.New(name, builtin.Options{})
		require.NoError(t, err)
		tools = append(tools, made)
	}
	registry, err := toolset.New(tools...)
	require.NoError(t, err)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	h, err := host.New(host.Options{Bus: bus, Tools: registry, Providers: map[string]llm.Caller{"scripted": scripted.New()}, Listener: listener,
		Subagents: []subagent.Tool{{Agent: "worker"}, {Agent: "middle"}, {Agent: "clerk"}}})
	require.NoError(t, err)
	// Before the gateway runs: what it reads of the directory it uses for a second.
	require.NoError(t, h.Announce(t.Context()))
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- h.Run(ctx) }()
	t.Cleanup(func() { cancel(); require.NoError(t, <-ended) })
	for name, definition := range agents {
		_, err = h.Gateway().PutAgent(t.Context(), "", name, []byte(definition), agentfile.JSON)
		require.NoError(t, err)
	}
	api := "http://" + listener.Addr().String() + "/v1/"
	return &world{t, bus, api + "ag-ui/", api, h.Gateway()}
}

// trace is the trace context of every post.
const trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

// post returns status, run, and the body.
func (w *world) post(agent, body string) (int, string, string) {
	request, err := http.NewRequestWithContext(w.t.Context(), http.MethodPost, w.url+agent, strings.NewReader(body))
	require.NoError(w.t, err)
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Traceparent", trace)
	response, err := http.DefaultClient.Do(request)
	require.NoError(w.t, err)
	defer func() { _ = response.Body.Close() }()
	data, err := io.ReadAll(response.Body)
	require.NoError(w.t, err)
	return response.StatusCode, response.Header.Get(agui.RunHeader), string(data)
}

func (w *world) refused(agent, body string, status int, code string) {
	got, _, text := w.post(agent, body)
	require.Equal(w.t, status, got, text)
	require.Contains(w.t, text, `"code":"`+code+`"`)
}

// run returns an answer of the API about a run.
func (w *world) run(path string) string {
	response, err := http.Get(w.api + "runs/" + path)
	require.NoError(w.t, err)
	defer func() { _ = response.Body.Close() }()
	data, err := io.ReadAll(response.Body)
	require.NoError(w.t, err)
	return string(data)
}

func said(thread, run, message string) string {
	return fmt.Sprintf(`{"threadId":%q,"runId":%q,"messages":[{"id":"m-%s","role":"user","content":%q}],"tools":[{"name":"locate","description":""}],"surprise":1}`, thread, run, run, message)
}

// types returns the types of the events in a stream.
func types(t *testing.T, stream string) (all []string) {
	for line := range strings.SplitSeq(stream, "\n") {
		if data, ok := strings.CutPrefix(line, "data: "); ok {
			var e struct{ Type string }
			require.NoError(t, json.Unmarshal([]byte(data), &e))
			all = append(all, e.Type)
		}
	}
	return all
}

func TestThreads(t *testing.T) {
	w := newWorld(t)
	t.Run("bad requests", func(t *testing.T) {
		for body, code := range map[string]string{
			`{`:                              "bad_request",
			`{"threadId":"t","messages":[]}`: "bad_request",
			`{"runId":"r","messages":[]}`:    "bad_request",
			`{"threadId":"t","runId":"r"}`:   "bad_request",
			`{"threadId":"t","runId":"r","messages":[{"role":"user","content":"x"}]}`:                                                        "bad_request",
			`{"threadId":"t","runId":"r","messages":[{"id":"1","role":"user","content":[{"type":"odd"}]}]}`:                                  "bad_request",
			`{"threadId":"t","runId":"r","messages":[],"resume":[{"interruptId":"c","status":"odd"}]}`:                                       "bad_decision",
			`{"threadId":"t","runId":"r","messages":[],"resume":[{"interruptId":"c","status":"resolved"}]}`:                                  "bad_decision",
			`{"threadId":"t","runId":"r","messages":[],"resume":[{"interruptId":"c","status":"resolved","payload":{"decision":"a","x":1}}]}`: "bad_decision",
			`{"threadId":"t","runId":"r","messages":[]}`:                                                                                     "empty_task",
		} {
			w.refused("chat", body, http.StatusBadRequest, code)
		}
		w.refused("nobody", said("t", "r", "x"), http.StatusNotFound, "agent_not_found")
		response, err := http.Get(w.url + "chat/unknown")
		require.NoError(t, err)
		require.NoError(t, response.Body.Close())
		require.Equal(t, http.StatusNotFound, response.StatusCode)
	})
	t.Run("several at once make one run", func(t *testing.T) {
		runs := make([]string, 8)
		var all sync.WaitGroup
		for i := range runs {
			all.Go(func() {
				status, run, text := w.post("chat", said("same", "r", "x"))
				require.Equal(t, http.StatusOK, status, text)
				runs[i] = run
			})
		}
		all.Wait()
		require.Len(t, slices.Compact(runs), 1)
	})
	t.Run("a gateway died before it started the run", func(t *testing.T) {
		const run = "01932c07-0000-7000-8000-00000000abcd"
		key := "default.chat." + events.Hash([]byte("dead"))
		_, err := w.bus.Put(t.Context(), buckets.Threads, kv.Item{Key: key, Value: []byte(`{"runs":["` + run + `"]}`)})
		require.NoError(t, err)
		_, got, text := w.post("chat", said("dead", "r", "x"))
		require.Equal(t, run, got)
		require.Contains(t, text, "One.")
	})
	t.Run("turns", func(t *testing.T) {
		_, run, first := w.post("chat", said("turns", "r1", "x"))
		require.Equal(t, []string{
			"RUN_STARTED", "STATE_SNAPSHOT", "STEP_STARTED", "TEXT_MESSAGE_START", "TEXT_MESSAGE_CONTENT", "TEXT_MESSAGE_END", "STEP_FINISHED", "STATE_DELTA", "RUN_FINISHED",
		}, types(t, first))
		_, again, repeated := w.post("chat", said("turns", "r1", "x"))
		require.Equal(t, run, again)
		require.Equal(t, types(t, first), types(t, repeated))
		_, other, second := w.post("chat", said("turns", "r2", "y"))
		require.Equal(t, run, other)
		require.Contains(t, second, `"pendingToolCallIds":["c1"]`)
		for _, hidden := range []string{"system_prompt", "blacklist", "control", "config"} {
			require.NotContains(t, second, `"`+hidden+`":`)
			require.NotContains(t, second, "/"+hidden)
		}
		w.refused("chat", strings.Replace(said("turns", "r3", "z"), "locate", "other", 1), http.StatusConflict, "tools_changed")
		result := `{"threadId":"turns","runId":"r3","messages":[{"id":"t1","role":"tool","toolCallId":"c1","content":"Oslo"}],"tools":[{"name":"locate","description":""}]}`
		_, _, third := w.post("chat", result)
		require.Contains(t, third, `"delta":"Two."`)
		require.NotContains(t, types(t, third), "TOOL_CALL_RESULT", "the client has it")
		_, _, repeated = w.post("chat", result)
		require.Contains(t, repeated, `"delta":"Two."`)
	})
	t.Run("a result and a message in one request", func(t *testing.T) {
		w.post("chat", said("both", "r1", "x"))
		w.post("chat", said("both", "r2", "y"))
		_, run, text := w.post("chat", `{"threadId":"both","runId":"r3","messages":[{"id":"t1","role":"tool","toolCallId":"c1","content":"Oslo"},`+
			`{"id":"m1","role":"user","content":"and the weather there"}],"tools":[{"name":"locate","description":""}]}`)
		require.Contains(t, text, `"delta":"Two."`)
		require.Contains(t, text, "RUN_FINISHED")
		require.Contains(t, w.run(run+"/events"), "and the weather there")
	})
	t.Run("the next run of a thread has the same tools", func(t *testing.T) {
		_, run, _ := w.post("chat", said("next", "r1", "x"))
		response, err := http.Post(w.api+"runs/"+run+"/cancel", "application/json", nil)
		require.NoError(t, err)
		require.NoError(t, response.Body.Close())
		w.refused("chat", strings.Replace(said("next", "r2", "y"), "locate", "other", 1), http.StatusConflict, "tools_changed")
		_, other, text := w.post("chat", said("next", "r2", "y"))
		require.NotEqual(t, run, other)
		require.Contains(t, text, "One.")
		kept, err := w.bus.Get(t.Context(), buckets.Threads, "default.chat."+events.Hash([]byte("next")))
		require.NoError(t, err)
		require.JSONEq(t, fmt.Sprintf(`{"runs":[%q,%q],"turns":{%[1]q:{"r1":1}}}`, run, other), string(kept.Value), "the log of a run that ended need not be read")
		_, again, text := w.post("chat", said("next", "r1", "x"))
		require.Equal(t, run, again)
		require.Contains(t, text, "RUN_FINISHED")
	})
	t.Run("a run begins with all messages or not at all", func(t *testing.T) {
		body := `{"threadId":"all","runId":"r","messages":[{"id":"1","role":"user","content":"a"},{"id":"2","role":"user","content":[{"type":"image","source":{"type":"url","value":"http://localhost/x","mimeType":"image/%s"}}]}]}`
		w.refused("chat", fmt.Sprintf(body, "tiff"), http.StatusBadRequest, "bad_request")
		_, run, _ := w.post("chat", fmt.Sprintf(body, "png"))
		lines := slices.Collect(strings.Lines(w.run(run + "/events")))
		require.Contains(t, lines[1], `"type":"UserMessage"`)
	})
	t.Run("images", func(t *testing.T) {
		body := `{"threadId":"images","runId":"r","messages":[{"id":"m","role":"user","content":[{"type":"text","text":"See"},{"type":"image","source":{"type":"data","value":"iVBORw0KGgo=","mimeType":"image/png"}}]}]}`
		_, _, text := w.post("chat", body)
		require.Contains(t, text, `"media_type":"image/png"`)
	})
}

// A request whose decision is refused appends nothing, so no turn is left without an end.
func TestRefusedDecision(t *testing.T) {
	w := newWorld(t)
	body := func(run, message, resume string) string {
		return fmt.Sprintf(`{"threadId":"t","runId":%q,"messages":[{"id":%q,"role":"user","content":"x"}],"resume":[%s],`+
			`"tools":[{"name":"locate","description":"","parameters":{"type":"object","required":["near"]}}]}`, run, message, resume)
	}
	_, run, text := w.post("careful", body("r1", "m1", ""))
	require.Contains(t, text, `"interrupts":`)
	before := w.run(run)
	w.refused("careful", body("r2", "m2", `{"interruptId":"c1","status":"resolved","payload":{"decision":"modified","arguments":{}}}`), http.StatusUnprocessableEntity, "invalid_arguments")
	w.refused("careful", body("r2", "m2", `{"interruptId":"c1","status":"resolved","payload":{"decision":"modified"}}`), http.StatusBadRequest, "bad_decision")
	require.Equal(t, before, w.run(run))
	_, _, text = w.post("careful", body("r2", "m2", `{"interruptId":"c1","status":"resolved","payload":{"decision":"approved"}}`))
	require.Contains(t, text, `"pendingToolCallIds":["c1"]`)
}

// A client that sends back what it was shown does not make its state grow.
func TestStateDoesNotGrow(t *testing.T) {
	w := newWorld(t)
	post := func(run string, state json.RawMessage) json.RawMessage {
		var body map[string]any
		require.NoError(t, json.Unmarshal([]byte(said("state", run, "x")), &body))
		body["state"] = state
		text, err := json.Marshal(body)
		require.NoError(t, err)
		_, _, stream := w.post("chat", string(text))
		for line := range strings.SplitSeq(stream, "\n") {
			if bytes.Contains([]byte(line), []byte(`"STATE_SNAPSHOT"`)) {
				var e struct{ Snapshot json.RawMessage }
				require.NoError(t, json.Unmarshal([]byte(strings.TrimPrefix(line, "data: ")), &e))
				return e.Snapshot
			}
		}
		require.Fail(t, "no snapshot", stream)
		return nil
	}
	kept := func(shown json.RawMessage) string {
		var s struct {
			Custom struct {
				AGUI struct{ State json.RawMessage } `json:"ag_ui"`
			}
		}
		require.NoError(t, json.Unmarshal(shown, &s))
		return string(s.Custom.AGUI.State)
	}
	shown := post("r1", json.RawMessage(`{"a":1,"b":{"c":2}}`))
	require.JSONEq(t, `{"a":1,"b":{"c":2}}`, kept(shown))
	var changed map[string]any
	require.NoError(t, json.Unmarshal(shown, &changed))
	changed["a"] = 3
	text, err := json.Marshal(changed)
	require.NoError(t, err)
	require.JSONEq(t, `{"a":3,"b":{"c":2}}`, kept(post("r2", text)))
}

// What a client has kept with its run can be shown again: it is no deeper than other bodies of the API.
func TestDeepState(t *testing.T) {
	w := newWorld(t)
	body := func(key string, depth int) string {
		return fmt.Sprintf(`{"threadId":"deep","runId":"r","messages":[{"id":"m","role":"user","content":"x"}],%q:%s%s}`, key, strings.Repeat("[", depth), strings.Repeat("]", depth))
	}
	for _, key := range []string{"state", "context", "forwardedProps"} {
		w.refused("chat", body(key, 9990), http.StatusBadRequest, "bad_request")
		w.refused("chat", body(key, 100), http.StatusBadRequest, "bad_request")
	}
	status, run, text := w.post("chat", body("state", 99))
	require.Equal(t, http.StatusOK, status, text)
	require.Contains(t, w.run(run), strings.Repeat("[", 99))
}

// A run has the trace context of the request that started it.
func TestTraceContext(t *testing.T) {
	w := newWorld(t)
	status, run, text := w.post("chat", said("thread", "r1", "Hi"))
	require.Equal(t, http.StatusOK, status, text)
	first, _, _ := strings.Cut(w.run(run+"/events"), "\n")
	require.Contains(t, first, `"traceparent":"`+trace+`"`)
}

// forwardedProps.labels are those of the run that a request starts.
func TestLabels(t *testing.T) {
	w := newWorld(t)
	body := func(props string) string {
		return `{"threadId":"labels","runId":"r","messages":[{"id":"m","role":"user","content":"x"}],"forwardedProps":` + props + `}`
	}
	w.refused("chat", body(`{"labels":{"A":"x"}}`), http.StatusBadRequest, "bad_request")
	w.refused("chat", body(`{"labels":{"a":1}}`), http.StatusBadRequest, "bad_request")
	status, run, text := w.post("chat", body(`{"labels":{"env":"prod"},"other":3}`))
	require.Equal(t, http.StatusOK, status, text)
	require.Contains(t, w.run(run), `"labels":{"env":"prod"}`)
}
