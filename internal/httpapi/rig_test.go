package httpapi_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/moorebus/moorebus/internal/commandtest"
	"github.com/moorebus/moorebus/internal/control"
	"github.com/moorebus/moorebus/internal/control/controltest"
	"github.com/moorebus/moorebus/internal/feature"
	"github.com/moorebus/moorebus/internal/feature/all"
	"github.com/moorebus/moorebus/internal/httpapi"
	"github.com/moorebus/moorebus/internal/journaltest/simtest"
	"github.com/moorebus/moorebus/internal/metrics"
	"github.com/moorebus/moorebus/internal/natsbus"
	"github.com/moorebus/moorebus/internal/openapitest"
	"github.com/moorebus/moorebus/internal/ports"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/internal/schema"
	"github.com/moorebus/moorebus/internal/worker"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

func TestMain(m *testing.M) {
	commandtest.FilesInMemory()
	// Half of their time these tests wait. A crowd of them would take longer than a stall.
	if err := flag.Set("test.parallel", "4"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

// patience bounds what a test waits for; nothing takes that long.
const patience = controltest.Patience

var (
	searchTool                          = controltest.SearchTool
	answered, turnDone, called, waiting = controltest.Answered, controltest.TurnDone, controltest.Called, controltest.Waiting
)

func natsBus(t *testing.T, shards int) *natsbus.Bus {
	return controltest.NATS(t, natsbus.InitOptions{Shards: shards})
}

// onEveryBus runs a test on the simulated journal and on a real one.
func onEveryBus(t *testing.T, shards int, test func(t *testing.T, r *rig)) {
	t.Run("simulated", func(t *testing.T) { test(t, newRig(t, simtest.New(simtest.Options{Shards: shards}), nil)) })
	t.Run("NATS", func(t *testing.T) { test(t, newRig(t, natsBus(t, shards), nil)) })
}

// config configures a rig.
type config struct {
	control.Config
	http     httpapi.Config
	features feature.Set
}

func simulatedRig(t *testing.T, tweak func(*config)) *rig {
	return newRig(t, simtest.New(simtest.Options{}), tweak)
}

// rig is a gateway that runs, its HTTP, and the rest of the world.
type rig struct {
	controltest.World
	control *control.Controller
	url     string
	// client checks each answer against the description of the API.
	client *http.Client
	// stop ends the gateway and returns what Run returned.
	stop func() error
}

func newRig(t testing.TB, b journal.Bus, tweak func(*config)) *rig {
	r := &rig{World: controltest.NewWorld(t, b)}
	r.announce("a", searchTool)
	require.NoError(t, r.Directory.AnnounceProviders(t.Context(), "p", []string{"openai", "scripted"}))
	registry := metrics.New()
	cfg := config{http: httpapi.Config{Metrics: registry.Handler()}, Config: control.Config{
		Base: worker.Base{Store: runlog.New(runlog.Options{Log: b, Meter: registry}), Queue: b, Feed: b, Instance: "test"}, Timers: b, KV: b, Blobs: b,
		Validator: schema.New(schema.Options{}),
		CheckScript: func(script json.RawMessage) error {
			if !bytes.HasPrefix(script, []byte("[")) {
				return fmt.Errorf("script: is no list")
			}
			return nil
		},
	}}
	cfg.Fleet, _ = b.(ports.Fleet)
	if tweak != nil {
		tweak(&cfg)
	}
	c, err := control.New(cfg.Config)
	require.NoError(t, err)
	r.control = c
	if cfg.features == nil {
		cfg.features = all.Features()
	}
	parts := cfg.features.On(c)
	cfg.http.Rows, cfg.http.Pages = parts.Rows(), cfg.features.Pages()
	cfg.http.Control, cfg.http.Feed, cfg.http.Drain, cfg.http.Logger = c, b, cfg.Drain, cfg.Logger
	s, err := httpapi.New(cfg.http)
	require.NoError(t, err)
	server := httptest.NewServer(s.Handler())
	r.url = server.URL
	r.client = &http.Client{Transport: &openapitest.Transport{Base: http.DefaultTransport, Fail: t.Errorf}}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- worker.RunAll(ctx, c.Run, parts.Run, s.Run) }()
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
	require.NoError(r.T, r.Directory.Announce(r.T.Context(), tools[0].Pool, instance, tools))
}

// answer is an HTTP response.
type answer struct {
	status int
	header http.Header
	body   string
}

func (a answer) field(t testing.TB, key string) any {
	t.Helper()
	var m map[string]any
	require.NoError(t, json.Unmarshal([]byte(a.body), &m), a.body)
	return m[key]
}

func (a answer) text(t testing.TB, key string) string {
	t.Helper()
	s, ok := a.field(t, key).(string)
	require.True(t, ok, "%s in %s", key, a.body)
	return s
}

// request sends a request; header are pairs.
func (r *rig) request(method, path, body string, header ...string) *http.Response {
	r.T.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	r.T.Cleanup(cancel)
	req, err := http.NewRequestWithContext(ctx, method, r.url+path, strings.NewReader(body))
	require.NoError(r.T, err)
	for i := 0; i < len(header); i += 2 {
		if header[i] == "Host" {
			req.Host = header[i+1]
		}
		req.Header.Set(header[i], header[i+1])
	}
	res, err := r.client.Do(req)
	require.NoError(r.T, err)
	r.T.Cleanup(func() { _ = res.Body.Close() })
	return res
}

func (r *rig) do(method, path, body string, header ...string) answer {
	r.T.Helper()
	res := r.request(method, path, body, header...)
	data, err := io.ReadAll(res.Body)
	require.NoError(r.T, err)
	return answer{res.StatusCode, res.Header, string(data)}
}

// fails expects an error of a status and code, and returns it.
func (r *rig) fails(status int, code string, a answer) answer {
	r.T.Helper()
	require.Equal(r.T, status, a.status, a.body)
	require.Equal(r.T, code, a.field(r.T, "code"), a.body)
	require.NotEmpty(r.T, a.text(r.T, "message"))
	require.Equal(r.T, "application/json", a.header.Get("Content-Type"))
	return a
}

const inline = `{"name":"tester","llm":{"provider":"openai"},"tools":["search"]}`

func startBody(mode string) string {
	return `{"agent":` + inline + `,"task":"What is 1+1?","mode":"` + mode + `"}`
}

// start starts a run and returns its id.
func (r *rig) start(mode string) string {
	r.T.Helper()
	a := r.do("POST", "/v1/runs", startBody(mode))
	require.Equal(r.T, http.StatusCreated, a.status, a.body)
	return a.text(r.T, "run_id")
}

// inject stores a body on a subject of the run.
func (r *rig) inject(id string, to events.State, body string) {
	j, ok := r.Bus.(*simtest.Journal)
	require.True(r.T, ok)
	run := r.At(id)
	j.Inject(run.Shard, events.Subject{Run: run, From: events.Planning, To: to, Pool: "default"}.String(), []byte(body))
}

// sse is one event of a stream; a comment has only that.
type sse struct{ event, id, data, comment string }

// stream reads server-sent events one after another.
type stream struct {
	t   testing.TB
	res *http.Response
	r   *bufio.Reader
}

func (r *rig) stream(path string, header ...string) *stream {
	r.T.Helper()
	res := r.request("GET", path, "", append([]string{"Accept", "text/event-stream"}, header...)...)
	require.Equal(r.T, http.StatusOK, res.StatusCode)
	require.Equal(r.T, "text/event-stream", res.Header.Get("Content-Type"))
	return &stream{r.T, res, bufio.NewReader(res.Body)}
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
	r.T.Helper()
	run := r.Store.Place("default", r.Store.NewID())
	body, err := new(events.Codec).Encode(&events.Event{
		ID: r.Store.NewID(), Source: "moorebus/test/1", Run: run.ID, Time: time.Now().UTC(), N: 1,
		From: events.Idle, To: events.Planning, Data: &events.Forked{Run: parent, At: 1, Hash: "h"},
	})
	require.NoError(r.T, err)
	entry := journal.Entry{Subject: events.Subject{Run: run, From: events.Idle, To: events.Planning, Pool: "default"}, Body: body}
	_, err = r.Bus.Append(r.T.Context(), run, 0, entry)
	require.NoError(r.T, err)
	return run.ID
}
