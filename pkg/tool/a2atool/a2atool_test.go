package a2atool

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/moorebus/moorebus/internal/callctx"
	"github.com/moorebus/moorebus/internal/tooltest"
	"github.com/moorebus/moorebus/pkg/tool"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patienceOfTest = time.Minute

// remote is an agent that speaks A2A. What it does is in the words of its messages.
type remote struct {
	url string

	mu sync.Mutex
	// tasks are the words by task, in order of their beginning.
	tasks    map[string]string
	order    []string
	sent     []string // the ids of the messages
	canceled []string
	looks    map[string]int
	answers  map[string][]string
	header   http.Header
	// refuse is how many requests fail with 503 next.
	refuse int
	began  chan struct{}
}

// extensions of the card.
func newRemote(t *testing.T, extensions ...string) *remote {
	t.Helper()
	r := &remote{tasks: map[string]string{}, looks: map[string]int{}, answers: map[string][]string{}, began: make(chan struct{}, 64)}
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+cardPath, func(w http.ResponseWriter, req *http.Request) {
		var all []map[string]string
		for _, e := range extensions {
			all = append(all, map[string]string{"uri": e})
		}
		answer(w, map[string]any{
			"name": "remote", "description": "Does what it is told.", "capabilities": map[string]any{"extensions": all},
			"supportedInterfaces": []map[string]string{
				{"url": "http://" + req.Host + "/rpc", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"},
				{"url": "http://" + req.Host + "/a2a", "protocolBinding": "HTTP+JSON", "protocolVersion": "1.0"},
			},
			"skills": []map[string]string{{"name": "sums", "description": "Adds numbers."}},
		})
	})
	mux.HandleFunc("POST /a2a/message:send", r.send)
	mux.HandleFunc("GET /a2a/tasks/{id}", r.look)
	mux.HandleFunc("POST /a2a/tasks/{id}", r.cancel)
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	r.url = server.URL
	return r
}

func answer(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/a2a+json")
	_ = json.NewEncoder(w).Encode(v)
}

// refuses reports whether this request fails.
func (r *remote) refuses(w http.ResponseWriter) bool {
	if r.refuse == 0 {
		return false
	}
	r.refuse--
	w.WriteHeader(http.StatusServiceUnavailable)
	return true
}

func (r *remote) send(w http.ResponseWriter, req *http.Request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var body struct{ Message message }
	data, _ := io.ReadAll(req.Body)
	_ = json.Unmarshal(data, &body)
	r.sent, r.header = append(r.sent, body.Message.MessageID), req.Header.Clone()
	if r.refuses(w) {
		return
	}
	if id := body.Message.TaskID; id != "" {
		r.answer(w, id, body.Message.Parts[0])
		return
	}
	id, words := "task of "+body.Message.MessageID, ""
	if p := body.Message.Parts[0]; p.Text != nil {
		words = *p.Text
	} else {
		words = string(p.Data)
	}
	switch {
	case words == "wrong":
		w.WriteHeader(http.StatusBadRequest)
		answer(w, map[string]any{"error": map[string]any{"message": "that is wrong"}})
		return
	case words == "say":
		answer(w, map[string]any{"message": map[string]any{"parts": []map[string]string{{"text": "said"}}}})
		return
	case r.tasks[id] == "":
		r.tasks[id], r.order = words, append(r.order, id)
	}
	select {
	case r.began <- struct{}{}:
	default:
	}
	answer(w, map[string]any{"task": r.task(id)})
}

// answer takes the answer to a task that asks. The task shows its question for a while yet.
func (r *remote) answer(w http.ResponseWriter, id string, p part) {
	said := string(p.Data)
	if p.Text != nil {
		said = *p.Text
	}
	if said == "what" {
		w.WriteHeader(http.StatusUnprocessableEntity)
		answer(w, map[string]any{"error": map[string]any{"message": "say a colour"}})
		return
	}
	shown := r.task(id)
	r.answers[id], r.looks[id] = append(r.answers[id], said), 0
	answer(w, map[string]any{"task": shown})
}

// asking is the status of a task that asks two questions with the same words.
func (r *remote) asking(id string, status, t map[string]any) {
	n := len(r.answers[id])
	state := strings.TrimPrefix(r.tasks[id], "ask for ")
	switch {
	case n == 2:
		status["state"] = "TASK_STATE_COMPLETED"
		t["artifacts"] = []map[string]any{{"parts": []map[string]any{{"text": "painted " + strings.Join(r.answers[id], " and ")}}}}
	case n > 0 && r.looks[id] < 2:
		n-- // the answer was not read yet
		fallthrough
	default:
		status["state"] = "TASK_STATE_" + state
		status["message"] = map[string]any{"messageId": fmt.Sprint("question ", n), "parts": []map[string]string{{"text": "Which colour?"}}}
	}
}

func (r *remote) look(w http.ResponseWriter, req *http.Request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.refuses(w) {
		r.looks[req.PathValue("id")]++
		answer(w, r.task(req.PathValue("id")))
	}
}

func (r *remote) cancel(w http.ResponseWriter, req *http.Request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	id, _ := strings.CutSuffix(req.PathValue("id"), ":cancel")
	r.canceled = append(r.canceled, id)
	answer(w, r.task(id))
}

// task is a task as it is now: it works until it was looked at twice.
func (r *remote) task(id string) map[string]any {
	words := r.tasks[id]
	status := map[string]any{"state": "TASK_STATE_WORKING"}
	t := map[string]any{"id": id, "status": status}
	state, ends := strings.CutPrefix(words, "end in ")
	switch {
	case slices.Contains(r.canceled, id):
		status["state"] = "TASK_STATE_CANCELED"
	case strings.HasPrefix(words, "ask for "):
		r.asking(id, status, t)
	case words == "hang", r.looks[id] < 2:
	case ends:
		status["state"] = "TASK_STATE_" + state
		status["message"] = map[string]any{"parts": []map[string]string{{"text": "because"}}}
	case words == "stream":
		status["state"] = "TASK_STATE_COMPLETED"
		chunks := []map[string]any{{"text": "One, "}, {"text": "two"}, {"text": ".\n"}, {"text": "Three."}, {"data": 3}, {"text": "That is"}, {"text": " all."}}
		t["artifacts"] = []map[string]any{{"parts": chunks}, {"parts": []map[string]any{{"text": ""}}}, {"parts": []map[string]any{{"text": "Notes."}}}}
	default:
		status["state"] = "TASK_STATE_COMPLETED"
		t["artifacts"] = []map[string]any{{"parts": []map[string]any{{"text": "did " + words}, {"data": map[string]int{"n": 1}}}}}
	}
	return t
}

// toolOf returns the tool of an agent, once it is there.
func toolOf(t *testing.T, o Options) tool.Tool {
	t.Helper()
	if o.Over.Name == "" {
		o.Over.Name = "ask"
	}
	made, err := New(o)
	require.NoError(t, err)
	ctx, stop := context.WithCancel(context.Background())
	tools := make(chan []tool.Tool, 16)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		made.Run(ctx, slog.New(slog.DiscardHandler), func(now []tool.Tool) { tools <- now })
	}()
	t.Cleanup(func() { stop(); <-ended })
	for {
		select {
		case now := <-tools:
			if len(now) == 1 {
				return now[0]
			}
		case <-time.After(patienceOfTest):
			require.FailNow(t, "there is no tool")
		}
	}
}

func task1(words string) string { return fmt.Sprintf(`{"task": %q}`, words) }

func call(words string) tool.Call {
	return tool.Call{Run: "run-1", ID: "call_1", Name: "ask", Arguments: task1(words)}
}

func TestSuite(t *testing.T) {
	r := newRemote(t)
	made := func(t *testing.T) tool.Tool { return toolOf(t, Options{URL: r.url}) }
	tooltest.Suite{
		Success: func(t *testing.T) tooltest.Case {
			return tooltest.Case{Tool: made(t), Arguments: task1("sums"), Want: "did sums\n{\"n\":1}"}
		},
		Failure: func(t *testing.T) tooltest.Case {
			return tooltest.Case{Tool: made(t), Arguments: task1("wrong"), Code: tool.CodeHTTPStatus, Want: "that is wrong"}
		},
		Hangs: func(t *testing.T) tooltest.Hang {
			hung := newRemote(t)
			return tooltest.Hang{
				Case: tooltest.Case{Tool: toolOf(t, Options{URL: hung.url}), Arguments: task1("hang")},
				Started: func(ctx context.Context) error {
					select {
					case <-hung.began:
						return nil
					case <-ctx.Done():
						return ctx.Err()
					}
				},
				Quiet: func() bool { return true },
			}
		},
	}.Run(t)
}

// The card says what the tool is, and the options what it is instead.
func TestDefinition(t *testing.T) {
	t.Parallel()
	def := toolOf(t, Options{URL: newRemote(t).url}).Definition()
	require.Equal(t, "Does what it is told.\n- sums: Adds numbers.", def.Description)
	require.Equal(t, tool.Once, def.WithDefaults().Effect, "nothing is promised of a message that comes twice")
	require.Equal(t, defaultTimeout, def.Timeout)
	require.JSONEq(t, string(taskSchema), string(def.Schema))
	promising := newRemote(t, idempotentMessages)
	require.Equal(t, tool.Idempotent, toolOf(t, Options{URL: promising.url}).Definition().Effect)
	own := tool.Definition{Name: "own", Description: "Mine.", Effect: tool.Pure, Timeout: time.Second, Schema: json.RawMessage(`{"type":"object"}`)}
	made := toolOf(t, Options{URL: promising.url + cardPath, Over: own})
	require.Equal(t, own, made.Definition())
	result, err := made.Run(t.Context(), tool.Call{Run: "r", ID: "c", Name: "own", Arguments: `{"a": 1}`})
	require.NoError(t, err)
	require.Contains(t, result, `{"a":1}`, "with a schema of its own the arguments are data")
}

func TestLongDescriptions(t *testing.T) {
	t.Parallel()
	def := (&source{}).definition(&card{Description: strings.Repeat("x", maxAnswer)})
	require.Len(t, def.Description, maxDescription)
}

func TestOutcomes(t *testing.T) {
	t.Parallel()
	r := newRemote(t)
	made := toolOf(t, Options{URL: r.url, Headers: map[string]string{"Authorization": "Bearer s3cret"}})
	for words, code := range map[string]string{
		"end in FAILED": "a2a_failed", "end in REJECTED": "a2a_rejected", "end in CANCELED": "a2a_canceled",
	} {
		one := call(words)
		one.ID = code
		_, err := made.Run(t.Context(), one)
		var f *tool.Failure
		require.ErrorAs(t, err, &f, words)
		require.Equal(t, code, f.Code)
		require.Contains(t, f.Message, "because")
	}
	traced := call("say")
	traced.TraceParent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	result, err := made.Run(t.Context(), traced)
	require.NoError(t, err)
	require.Equal(t, "said", result)
	require.Equal(t, traced.TraceParent, r.header.Get("Traceparent"))
	require.Equal(t, "1.0", r.header.Get("A2A-Version"))
	require.Equal(t, "Bearer s3cret", r.header.Get("Authorization"))
	_, err = made.Run(t.Context(), tool.Call{Run: "r", ID: "c", Arguments: `{}`})
	require.ErrorContains(t, err, "task is missing")
}

// Nothing stands between the chunks of a text that was streamed.
func TestChunksOfAnArtifact(t *testing.T) {
	t.Parallel()
	result, err := toolOf(t, Options{URL: newRemote(t).url}).Run(t.Context(), call("stream"))
	require.NoError(t, err)
	require.Equal(t, "One, two.\nThree.\n3\nThat is all.\nNotes.", result)
}

// A server that is away while its task goes on is asked again; a message is sent again only if
// that begins no other task.
func TestAwaySometimes(t *testing.T) {
	t.Parallel()
	for _, promise := range []bool{true, false} {
		var extensions []string
		if promise {
			extensions = append(extensions, idempotentMessages)
		}
		r := newRemote(t, extensions...)
		made := toolOf(t, Options{URL: r.url})
		r.mu.Lock()
		r.refuse = 2
		r.mu.Unlock()
		result, err := made.Run(t.Context(), call("sums"))
		if !promise {
			require.ErrorContains(t, err, "503")
			require.Len(t, r.sent, 1)
			continue
		}
		require.NoError(t, err)
		require.Contains(t, result, "did sums")
		require.Len(t, r.sent, 3)
		again, err := made.Run(t.Context(), call("sums"))
		require.NoError(t, err)
		require.Equal(t, result, again)
		require.Len(t, r.order, 1, "a call that is carried out again finds its task")
	}
}

// A call that nobody wants cancels its task, one whose process ends does not.
func TestUnwanted(t *testing.T) {
	t.Parallel()
	unwanted := errors.New("nobody wants it")
	for cause, want := range map[error]int{unwanted: 1, context.Canceled: 0} {
		r := newRemote(t)
		made := toolOf(t, Options{URL: r.url})
		ctx, cancel := context.WithCancelCause(t.Context())
		ended := make(chan error, 1)
		go func() {
			_, err := made.Run(callctx.WithUnwanted(ctx, unwanted), call("hang"))
			ended <- err
		}()
		<-r.began
		cancel(cause)
		require.Error(t, <-ended)
		r.mu.Lock()
		require.Len(t, r.canceled, want, cause)
		r.mu.Unlock()
	}
}

func TestSettings(t *testing.T) {
	t.Parallel()
	_, err := New(Options{URL: "localhost/x", Headers: map[string]string{"a b": "c"}, Over: tool.Definition{Name: "a b"}})
	require.ErrorContains(t, err, "absolute http or https URL")
	require.ErrorContains(t, err, `header "a b"`)
	require.ErrorContains(t, err, "the name must be")
}

// A card may not name another host: requests go to no place that nobody configured.
func TestCardsThatAreRefused(t *testing.T) {
	t.Parallel()
	for want, interfaces := range map[string]string{
		"may not name another host": `[{"url": "http://elsewhere.invalid/a2a", "protocolBinding": "HTTP+JSON", "protocolVersion": "1.0"}]`,
		"no interface":              `[{"url": "http://localhost/a2a", "protocolBinding": "GRPC", "protocolVersion": "1.0"}]`,
		"no absolute URL":           `[{"url": "/a2a", "protocolBinding": "HTTP+JSON", "protocolVersion": "1.0"}]`,
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, `{"name": "x", "supportedInterfaces": `+interfaces+`}`)
		}))
		made, err := New(Options{URL: server.URL, Over: tool.Definition{Name: "ask"}})
		require.NoError(t, err)
		_, err = made.(*source).read(t.Context())
		require.ErrorContains(t, err, want)
		server.Close()
	}
}

// The files of a status are kept when the task ends, not at every look.
func TestFilesOfAStatus(t *testing.T) {
	t.Parallel()
	kept := 0
	ctx := callctx.WithStore(t.Context(), func(context.Context, string, []byte) (string, error) { kept++; return "kept", nil })
	now := &task{ID: "t"}
	now.Status.State = "TASK_STATE_WORKING"
	now.Status.Message = &message{Parts: []part{{Raw: []byte("x"), MediaType: "image/png"}}}
	_, _, over := (&agentTool{}).outcome(ctx, now)
	require.False(t, over)
	require.Zero(t, kept)
	now.Status.State = "TASK_STATE_FAILED"
	_, _, over = (&agentTool{}).outcome(ctx, now)
	require.True(t, over)
	require.Equal(t, 1, kept)
}
