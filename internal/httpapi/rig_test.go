package httpapi_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/moorebus/moorebus/internal/control"
	"github.com/moorebus/moorebus/internal/httpapi"
	"github.com/moorebus/moorebus/internal/natsbus"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/internal/schema"
	"github.com/moorebus/moorebus/internal/simulated"
	"github.com/moorebus/moorebus/internal/wire"
	"github.com/moorebus/moorebus/pkg/embedded"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds what a test waits for; nothing takes that long.
const patience = time.Minute

type bus interface {
	journal.Log
	journal.Feed
	journal.Queue
	journal.Timers
	journal.Directory
	journal.Agents
}

func natsBus(t *testing.T, shards int) bus {
	quiet := slog.New(slog.DiscardHandler)
	server, err := embedded.Start(t.Context(), embedded.Options{Dir: t.TempDir(), Logger: quiet})
	require.NoError(t, err)
	t.Cleanup(server.Shutdown)
	conn, err := server.Connect()
	require.NoError(t, err)
	t.Cleanup(conn.Close)
	require.NoError(t, natsbus.Init(t.Context(), conn, natsbus.InitOptions{Shards: shards, Memory: true}))
	b, err := natsbus.Open(t.Context(), conn, natsbus.Options{Logger: quiet, RequestTimeout: patience})
	require.NoError(t, err)
	return b
}

// onEveryBus runs a test on the simulated journal and on a real one.
func onEveryBus(t *testing.T, shards int, test func(t *testing.T, r *rig)) {
	t.Run("simulated", func(t *testing.T) { test(t, newRig(t, simulated.New(simulated.Options{Shards: shards}), nil)) })
	t.Run("NATS", func(t *testing.T) { test(t, newRig(t, natsBus(t, shards), nil)) })
}

// config configures a rig.
type config struct {
	control.Config
	http httpapi.Config
}

func simulatedRig(t *testing.T, tweak func(*config)) *rig {
	return newRig(t, simulated.New(simulated.Options{}), tweak)
}

// rig is a gateway that runs, its HTTP, and the rest of the world.
type rig struct {
	t       *testing.T
	bus     bus
	control *control.Controller
	url     string
	// stop ends the gateway and returns what Run returned.
	stop func() error
	// others is the store of the other roles.
	others *runlog.Store
}

var searchTool = events.ToolSpec{
	Name: "search", Description: "Searches.", Schema: json.RawMessage(`{"type":"object"}`), Effect: "pure", Pool: "default", Risk: "low",
}

func newRig(t *testing.T, b bus, tweak func(*config)) *rig {
	r := &rig{t: t, bus: b, others: runlog.New(runlog.Options{Log: b})}
	r.announce("a", searchTool)
	require.NoError(t, b.AnnounceProviders(t.Context(), "p", []string{"openai", "scripted"}))
	cfg := config{Config: control.Config{
		Store: runlog.New(runlog.Options{Log: b}), Queue: b, Feed: b, Timers: b, Directory: b, Agents: b, Instance: "test",
		Validator: schema.New(schema.Options{}),
		CheckScript: func(script json.RawMessage) error {
			if !bytes.HasPrefix(script, []byte("[")) {
				return fmt.Errorf("script: is no list")
			}
			return nil
		},
	}}
	if tweak != nil {
		tweak(&cfg)
	}
	c, err := control.New(cfg.Config)
	require.NoError(t, err)
	r.control = c
	cfg.http.Control, cfg.http.Feed, cfg.http.Drain, cfg.http.Logger = c, b, cfg.Drain, cfg.Logger
	s, err := httpapi.New(cfg.http)
	require.NoError(t, err)
	server := httptest.NewServer(s.Handler())
	r.url = server.URL
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- wire.RunAll(ctx, c.Run, s.Run) }()
	var result error
	stopped := false
	r.stop = func() error {
		if !stopped {
			stopped = true
			cancel()
			result = <-done
		}
		return result
	}
	t.Cleanup(func() {
		require.NoError(t, r.stop())
		server.Close()
		http.DefaultClient.CloseIdleConnections()
	})
	return r
}

func (r *rig) announce(instance string, tools ...events.ToolSpec) {
	require.NoError(r.t, r.bus.Announce(r.t.Context(), tools[0].Pool, instance, tools))
}

// answer is what came back over HTTP.
type answer struct {
	status int
	header http.Header
	body   string
}

func (a answer) field(t *testing.T, key string) any {
	t.Helper()
	var m map[string]any
	require.NoError(t, json.Unmarshal([]byte(a.body), &m), a.body)
	return m[key]
}

func (a answer) text(t *testing.T, key string) string {
	t.Helper()
	s, ok := a.field(t, key).(string)
	require.True(t, ok, "%s in %s", key, a.body)
	return s
}

// request sends a request; header are pairs.
func (r *rig) request(method, path, body string, header ...string) *http.Response {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	r.t.Cleanup(cancel)
	req, err := http.NewRequestWithContext(ctx, method, r.url+path, strings.NewReader(body))
	require.NoError(r.t, err)
	for i := 0; i < len(header); i += 2 {
		if header[i] == "Host" {
			req.Host = header[i+1]
		}
		req.Header.Set(header[i], header[i+1])
	}
	res, err := http.DefaultClient.Do(req)
	require.NoError(r.t, err)
	r.t.Cleanup(func() { _ = res.Body.Close() })
	return res
}

func (r *rig) do(method, path, body string, header ...string) answer {
	r.t.Helper()
	res := r.request(method, path, body, header...)
	data, err := io.ReadAll(res.Body)
	require.NoError(r.t, err)
	return answer{res.StatusCode, res.Header, string(data)}
}

// fails expects an error of a status and code, and returns it.
func (r *rig) fails(status int, code string, a answer) answer {
	r.t.Helper()
	require.Equal(r.t, status, a.status, a.body)
	require.Equal(r.t, code, a.field(r.t, "code"), a.body)
	require.NotEmpty(r.t, a.text(r.t, "message"))
	require.Equal(r.t, "application/json", a.header.Get("Content-Type"))
	return a
}

const inline = `{"name":"tester","llm":{"provider":"openai"},"tools":["search"]}`

func startBody(mode string) string {
	return `{"agent":` + inline + `,"task":"What is 1+1?","mode":"` + mode + `"}`
}

// start starts a run and returns its id.
func (r *rig) start(mode string) string {
	r.t.Helper()
	a := r.do("POST", "/v1/runs", startBody(mode))
	require.Equal(r.t, http.StatusCreated, a.status, a.body)
	return a.text(r.t, "run_id")
}

// happens appends events as another role would.
func (r *rig) happens(id string, origin events.State, payloads ...events.Payload) {
	r.t.Helper()
	run := r.others.Acquire(r.others.Place("default", id))
	defer r.others.Release(run)
	run.Lock()
	defer run.Unlock()
	require.NoError(r.t, run.Refresh(r.t.Context()))
	for _, p := range payloads {
		done, err := run.Commit(r.t.Context(), runlog.Stamp{Source: "moorebus/test/1"}, func(*reducer.Memory) ([]runlog.Draft, error) {
			return []runlog.Draft{{Origin: origin, Payload: p}}, nil
		})
		require.NoError(r.t, err)
		require.True(r.t, done)
	}
}

func answered(text string) *events.LLMFinalAnswer {
	return &events.LLMFinalAnswer{MessageID: "m-" + text, Reply: events.Reply{Content: text}}
}

func turnDone(text string) *events.LLMMessageComplete {
	return &events.LLMMessageComplete{MessageID: "m-" + text, Reply: events.Reply{Content: text}}
}

func called(ids ...string) events.ToolCallReply {
	reply := events.ToolCallReply{Confidence: 1}
	for _, id := range ids {
		reply.Calls = append(reply.Calls, events.Call{ID: id, Name: "search", Arguments: "{}"})
	}
	return reply
}

// records returns the run's stored records.
func (r *rig) records(id string) []journal.Record {
	r.t.Helper()
	var all []journal.Record
	for rec, err := range r.bus.Read(r.t.Context(), r.others.Place("default", id), 0) {
		require.NoError(r.t, err)
		all = append(all, rec)
	}
	return all
}

func (r *rig) types(id string) []string {
	r.t.Helper()
	var types []string
	for _, rec := range r.records(id) {
		types = append(types, typeOf(r.t, rec))
	}
	return types
}

func typeOf(t *testing.T, rec journal.Record) string {
	t.Helper()
	e, err := events.DefaultCodec().Decode(rec.Body)
	require.NoError(t, err)
	return string(e.Type())
}

// inject stores anything on the run's subjects.
func (r *rig) inject(id string, to events.State, body string) {
	j, ok := r.bus.(*simulated.Journal)
	require.True(r.t, ok)
	run := r.others.Place("default", id)
	j.Inject(run.Shard, events.Subject{Run: run, From: events.Planning, To: to, Pool: "default"}.String(), []byte(body))
}

// sse is one event of a stream; a comment has only that.
type sse struct{ event, id, data, comment string }

// stream reads server-sent events one after another.
type stream struct {
	t   *testing.T
	res *http.Response
	r   *bufio.Reader
}

func (r *rig) stream(path string, header ...string) *stream {
	r.t.Helper()
	res := r.request("GET", path, "", append([]string{"Accept", "text/event-stream"}, header...)...)
	require.Equal(r.t, http.StatusOK, res.StatusCode)
	require.Equal(r.t, "text/event-stream", res.Header.Get("Content-Type"))
	return &stream{r.t, res, bufio.NewReader(res.Body)}
}

// any returns the next event or comment; false at the end of the stream.
func (s *stream) any() (sse, bool) {
	s.t.Helper()
	var e sse
	for {
		line, err := s.r.ReadString('\n')
		if err == io.EOF && line == "" {
			return e, false
		}
		require.NoError(s.t, err)
		line = strings.TrimSuffix(line, "\n")
		key, value, _ := strings.Cut(line, ": ")
		switch {
		case line == "":
			return e, true
		case key == "event":
			e.event = value
		case key == "id":
			e.id = value
		case key == "data":
			e.data = value
		case strings.HasPrefix(line, ":"):
			e.comment = line
		default:
			require.Fail(s.t, "not a line of a stream", line)
		}
	}
}

// next returns the next event that is no comment.
func (s *stream) next() sse {
	s.t.Helper()
	for {
		e, ok := s.any()
		require.True(s.t, ok, "the stream has ended")
		if e.data != "" {
			return e
		}
	}
}

func (s *stream) ends() {
	s.t.Helper()
	for {
		e, ok := s.any()
		if !ok {
			return
		}
		require.Empty(s.t, e.data)
	}
}

func journalEntry(at events.Run) journal.Entry {
	return journal.Entry{Subject: events.Subject{Run: at, From: events.Idle, To: events.Planning, Pool: "default"}, Body: []byte("{}")}
}

// forkOfNothing stores the first event of a fork of a run's first event, with a hash
// that is not that event's.
func (r *rig) forkOfNothing(parent string) string {
	r.t.Helper()
	run := r.others.Place("default", r.others.NewID())
	body, err := events.DefaultCodec().Encode(&events.Event{
		ID: r.others.NewID(), Source: "moorebus/test/1", Run: run.ID, Time: time.Now().UTC(), N: 1,
		From: events.Idle, To: events.Planning, Data: &events.Forked{Run: parent, At: 1, Hash: "h"},
	})
	require.NoError(r.t, err)
	entry := journal.Entry{Subject: events.Subject{Run: run, From: events.Idle, To: events.Planning, Pool: "default"}, Body: body}
	_, err = r.bus.Append(r.t.Context(), run, 0, entry)
	require.NoError(r.t, err)
	return run.ID
}
