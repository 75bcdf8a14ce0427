package webhooks_test

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/moorebus/moorebus/internal/announce"
	"github.com/moorebus/moorebus/internal/control"
	"github.com/moorebus/moorebus/internal/control/controltest"
	"github.com/moorebus/moorebus/internal/feature/webhooks"
	"github.com/moorebus/moorebus/internal/natsbus"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/internal/worker"
	"github.com/moorebus/moorebus/pkg/events"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = controltest.Patience

var loopback = webhooks.Loopback()

// quick tries again at once, and then for longer than any test.
var quick = []time.Duration{50 * time.Millisecond, 50 * time.Millisecond}

// rig is a bus with gateways.
type rig struct {
	controltest.World
	bus *natsbus.Bus
	*control.Controller
	*webhooks.Hooks
	// lines are what the gateways log.
	lines *lines
	// stop ends the gateway.
	stop func()
}

func newRig(t *testing.T, settings webhooks.Settings, tweak ...func(*webhooks.Hooks)) *rig {
	bus := controltest.NATS(t, natsbus.InitOptions{})
	require.NoError(t, announce.NewDirectory(bus, nil).AnnounceProviders(t.Context(), "p", []string{"openai"}))
	r := &rig{World: controltest.NewWorld(t, bus), bus: bus, lines: &lines{}}
	r.Controller, r.Hooks, r.stop = r.gateway(t, settings, tweak...)
	return r
}

// gateway starts one more gateway, until stop or the end of the test.
func (r *rig) gateway(t *testing.T, settings webhooks.Settings, tweak ...func(*webhooks.Hooks)) (c *control.Controller, h *webhooks.Hooks, stop func()) {
	c, err := control.New(control.Config{
		Base:   worker.Base{Store: runlog.New(runlog.Options{Log: r.bus}), Queue: r.bus, Feed: r.bus, Instance: "test", Logger: slog.New(slog.NewTextHandler(r.lines, nil))},
		Timers: r.bus, KV: r.bus, Leases: r.bus,
	})
	require.NoError(t, err)
	c.Admission = control.Unbounded{}
	h = webhooks.New(c, settings)
	for _, tweak := range tweak {
		tweak(h)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- worker.RunAll(ctx, c.Run, h.Run) }()
	stop = sync.OnceFunc(func() {
		cancel()
		require.NoError(t, <-done)
	})
	t.Cleanup(stop)
	return c, h, stop
}

// lines are lines of a log.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

// all returns the log.
func (l *lines) all() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// count returns how many lines have the text.
func (l *lines) count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.text.String(), text)
}

// start starts a run of an agent.
func (r *rig) start(agent string, tweak ...func(*control.StartRequest)) string {
	r.T.Helper()
	a := events.DefaultAgent()
	a.Name, a.LLM.Provider = agent, "openai"
	req := control.StartRequest{Agent: &a, Task: "Do it."}
	for _, t := range tweak {
		t(&req)
	}
	started, err := r.Start(r.T.Context(), "", req)
	require.NoError(r.T, err)
	return started.RunID
}

// ends starts a run and ends it.
func (r *rig) ends(agent string) string {
	r.T.Helper()
	id := r.start(agent)
	r.Happens(id, events.Planning, controltest.Answered("42"))
	return id
}

func (r *rig) put(name string, c webhooks.Change) webhooks.Info {
	r.T.Helper()
	info, err := r.PutWebhook(r.T.Context(), "", name, c)
	require.NoError(r.T, err)
	return info
}

// until waits until what is known of a webhook is so.
func (r *rig) until(name string, is func(webhooks.Info) bool) webhooks.Info {
	r.T.Helper()
	var info webhooks.Info
	require.Eventually(r.T, func() bool {
		var err error
		info, err = r.Webhook(r.T.Context(), "", name)
		return err == nil && is(info)
	}, patience, 20*time.Millisecond)
	return info
}

// post is a request that a receiver got.
type post struct {
	id, body string
	header   http.Header
	webhooks.Notice
}

// receiver is a real HTTP server that gets notices.
type receiver struct {
	t *testing.T
	*httptest.Server
	posts chan post

	mu     sync.Mutex
	answer func(p post, w http.ResponseWriter)
}

func newReceiver(t *testing.T) *receiver {
	r := &receiver{t: t, posts: make(chan post, 10_000)}
	r.Server = httptest.NewServer(r)
	t.Cleanup(r.Close)
	return r
}

func (r *receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body, _ := io.ReadAll(req.Body)
	p := post{id: req.Header.Get("webhook-id"), body: string(body), header: req.Header}
	_ = json.Unmarshal(body, &p.Notice)
	r.mu.Lock()
	answer := r.answer
	r.mu.Unlock()
	if answer != nil {
		answer(p, w)
	}
	r.posts <- p
}

// answers sets how the receiver answers from now on.
func (r *receiver) answers(answer func(p post, w http.ResponseWriter)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.answer = answer
}

func status(code int) func(post, http.ResponseWriter) {
	return func(_ post, w http.ResponseWriter) { w.WriteHeader(code) }
}

// next waits for a notice.
func (r *receiver) next() post {
	r.t.Helper()
	select {
	case p := <-r.posts:
		return p
	case <-time.After(patience):
		require.Fail(r.t, "no notice came")
		return post{}
	}
}
