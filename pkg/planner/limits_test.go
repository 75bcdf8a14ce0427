package planner_test

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/pkg/approval"
	"github.com/moorebus/moorebus/pkg/embedded"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal/natsbus"
	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/moorebus/moorebus/pkg/llm/openai"
	"github.com/moorebus/moorebus/pkg/planner"
	"github.com/moorebus/moorebus/pkg/reducer"
	"github.com/moorebus/moorebus/pkg/reducer/reducertest"
	"github.com/moorebus/moorebus/pkg/runlog"
	"github.com/moorebus/moorebus/pkg/tool/schema"
)

// limiter is a provider that refuses until a time, and counts.
type limiter struct {
	until time.Time
	asks  time.Duration

	mu                sync.Mutex
	refused, answered int
}

func (l *limiter) Call(context.Context, llm.Request, func(llm.Chunk)) (llm.Response, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if time.Now().Before(l.until) {
		l.refused++
		return nil, &llm.Error{Kind: llm.KindRateLimited, Message: "slow down", RetryAfter: l.asks}
	}
	l.answered++
	return say("It is 42."), nil
}

func (l *limiter) counts() (refused, answered int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.refused, l.answered
}

func TestRateLimitHoldsThePlannerBack(t *testing.T) {
	for name, asks := range map[string]time.Duration{"with Retry-After": 20 * time.Second, "without": 0} {
		t.Run(name, func(t *testing.T) {
			l := &limiter{asks: asks}
			bubbleWith(t, l, func(t *testing.T, r *rig) {
				l.until = time.Now().Add(10 * time.Minute)
				var runs []events.Run
				for range 200 {
					runs = append(runs, r.begin())
				}
				failures := 0
				for _, run := range runs {
					require.Equal(t, events.Done, r.AwaitEnd(run).State)
					failures += r.Count(run, events.TypeLLMAttemptFailed)
				}
				refused, answered := l.counts()
				require.Equal(t, 200, answered)
				require.Equal(t, refused, failures, "each refusal is in a log once")
				// Those that were in flight when the first was refused, and then one
				// for each wait: without the gate it would be thousands.
				require.LessOrEqual(t, refused, 4+40)
			}, func(c *planner.Config) { c.Concurrency = 4 })
		})
	}
}

// A planner that has another provider in use goes on with that one.
func TestRateLimitOfOneProviderOfTwo(t *testing.T) {
	l, free := &limiter{asks: time.Minute}, &limiter{}
	bubbleWith(t, l, func(t *testing.T, r *rig) {
		onFree := func(s *events.Start) { s.Agent.LLM.Provider = "free" }
		l.until = time.Now().Add(time.Hour)
		r.AwaitEnd(r.begin(onFree))
		limited := r.begin()
		r.Await(limited, func(mem *reducer.Memory) bool { return len(mem.Control.Attempts) > 0 })
		began := time.Now()
		for range 10 {
			require.Equal(t, events.Done, r.AwaitEnd(r.begin(onFree)).State)
		}
		require.Less(t, time.Since(began), time.Second)
		require.Equal(t, events.Done, r.AwaitEnd(limited).State)
	}, func(c *planner.Config) { c.Providers["free"] = free })
}

// A provider that nobody asks keeps no gate open.
func TestRateLimitOfTheOneInUse(t *testing.T) {
	l := &limiter{asks: 10 * time.Minute}
	bubbleWith(t, l, func(t *testing.T, r *rig) {
		l.until = time.Now().Add(time.Hour)
		for range 50 {
			r.begin()
		}
		time.Sleep(59 * time.Minute) // in the bubble
		synctest.Wait()
		refused, _ := l.counts()
		require.LessOrEqual(t, refused, 2+6)
		quiet()
	}, func(c *planner.Config) {
		c.Providers["idle"], c.Concurrency = &limiter{}, 2
	})
}

// stormServer is a model server over HTTP that refuses every request for a while
// after the first one.
type stormServer struct {
	lasts  time.Duration
	header http.Header

	mu       sync.Mutex
	until    time.Time
	refused  int
	answered int
}

func (s *stormServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if s.until.IsZero() {
		s.until = now.Add(s.lasts)
	}
	w.Header().Set("Content-Type", "application/json")
	if now.Before(s.until) {
		s.refused++
		for key, values := range s.header {
			w.Header()[key] = values
		}
		w.WriteHeader(http.StatusTooManyRequests)
		_, _ = io.WriteString(w, `{"error":{"message":"Rate limit reached","type":"requests","code":"rate_limit_exceeded"}}`)
		return
	}
	s.answered++
	_, _ = io.WriteString(w, `{"id":"1","object":"chat.completion","model":"m","choices":[{"index":0,"finish_reason":"stop",`+
		`"message":{"role":"assistant","content":"It is 42."}}],"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}}`)
}

// Two planners on a real bus and a real model server that refuses hundreds of
// runs for seconds: none is lost, and few requests are made meanwhile.
func TestRateLimitStorm(t *testing.T) {
	t.Parallel()
	const runs, concurrency = 300, 16
	for name, header := range map[string]http.Header{
		"with Retry-After":    {"Retry-After": {"1"}},
		"with retry-after-ms": {"Retry-After-Ms": {"250"}},
		"without":             {},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			storm := &stormServer{lasts: 4 * time.Second, header: header}
			server := httptest.NewServer(storm)
			defer server.Close()
			bus := stormBus(t)
			store := runlog.New(runlog.Options{Log: bus})
			var ids []events.Run
			for range runs {
				ids = append(ids, startRun(t, store))
			}
			for _, name := range []string{"1", "2"} {
				runPlanner(t, bus, name, server.URL, concurrency)
			}
			failures := 0
			for _, id := range ids {
				mem := awaitEnd(t, store, id)
				require.Equal(t, events.Done, mem.State, "%+v", mem.Error)
				for _, entry := range mem.Trace {
					// A delivery that gets lost on its way when the gate shuts is none.
					if entry.Event == string(events.TypeLLMAttemptFailed) && strings.HasPrefix(entry.Data, string(llm.KindRateLimited)) {
						failures++
					}
				}
			}
			storm.mu.Lock()
			defer storm.mu.Unlock()
			require.Equal(t, runs, storm.answered, "no reply is asked for twice")
			require.Equal(t, storm.refused, failures)
			// What both planners had in flight, and each one's probes.
			require.LessOrEqual(t, storm.refused, 2*concurrency+2*4*4)
			require.Positive(t, storm.refused)
			t.Logf("%d requests were refused", storm.refused)
		})
	}
}

func stormBus(t *testing.T) *natsbus.Bus {
	t.Helper()
	quiet := slog.New(slog.DiscardHandler)
	server, err := embedded.Start(t.Context(), embedded.Options{Dir: t.TempDir(), Logger: quiet})
	require.NoError(t, err)
	t.Cleanup(server.Shutdown)
	conn, err := server.Connect()
	require.NoError(t, err)
	t.Cleanup(conn.Close)
	require.NoError(t, natsbus.Init(t.Context(), conn, natsbus.InitOptions{Memory: true}))
	bus, err := natsbus.Open(t.Context(), conn, natsbus.Options{Logger: quiet})
	require.NoError(t, err)
	return bus
}

// startRun opens a run of reducertest's agent on a provider "model".
func startRun(t *testing.T, store *runlog.Store) events.Run {
	t.Helper()
	start := reducertest.StartOf("find it", events.ModeTask)
	start.Agent.LLM.Provider = "model"
	run := store.Acquire(store.Place(events.DefaultNamespace, store.NewID()))
	defer store.Release(run)
	run.Lock()
	defer run.Unlock()
	_, err := run.Commit(t.Context(), runlog.Stamp{Source: "moorebus/test/1"}, func(*reducer.Memory) ([]runlog.Draft, error) {
		return []runlog.Draft{{Origin: events.Idle, Payload: start}}, nil
	})
	require.NoError(t, err)
	return run.ID
}

// runPlanner runs a planner whose provider "model" is a server that speaks
// OpenAI's protocol, until the test ends.
func runPlanner(t *testing.T, bus *natsbus.Bus, instance, url string, concurrency int, change ...func(*openai.Options, *planner.Config)) {
	t.Helper()
	o := openai.Options{BaseURL: url + "/v1", Model: "m", HTTPClient: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}}
	cfg := planner.Config{
		Instance: instance, Store: runlog.New(runlog.Options{Log: bus}), Queue: bus, Feed: bus, Directory: bus,
		Validator: schema.New(schema.Options{}), Approval: approval.New(), Concurrency: concurrency,
	}
	for _, c := range change {
		c(&o, &cfg)
	}
	caller, err := openai.New(o)
	require.NoError(t, err)
	cfg.Providers = map[string]llm.Caller{"model": caller}
	p, err := planner.New(cfg)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-ended)
		caller.Close()
	})
}

// awaitEnd waits for the end of a run and returns its memory.
func awaitEnd(t *testing.T, store *runlog.Store, id events.Run) *reducer.Memory {
	t.Helper()
	return awaitRun(t, store, id, func(mem *reducer.Memory) bool { return store.Machine().Table().Terminal(mem.State) })
}

// awaitRun waits until a run is as it is wanted and returns its memory.
func awaitRun(t *testing.T, store *runlog.Store, id events.Run, wanted func(*reducer.Memory) bool) *reducer.Memory {
	t.Helper()
	run := store.Acquire(id)
	defer store.Release(run)
	var mem *reducer.Memory
	require.Eventually(t, func() bool {
		run.Lock()
		defer run.Unlock()
		require.NoError(t, run.Refresh(t.Context()))
		mem = run.Memory().Clone()
		return wanted(mem)
	}, time.Minute, 20*time.Millisecond, "the run does not get there")
	return mem
}
