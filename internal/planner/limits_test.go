package planner_test

import (
	"cmp"
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/approval"
	"github.com/moorebus/moorebus/internal/natsbus"
	"github.com/moorebus/moorebus/internal/planner"
	"github.com/moorebus/moorebus/internal/reducertest"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/internal/schema"
	"github.com/moorebus/moorebus/pkg/embedded"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/moorebus/moorebus/pkg/llm/openai"
	"github.com/moorebus/moorebus/pkg/reducer"
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
					failures += refusedAsks(r.Memory(run))
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

// A provider that nobody asks keeps the gate open, and the limited one is asked no
// oftener for that.
func TestRateLimitBesideAnIdleProvider(t *testing.T) {
	l := &limiter{asks: 10 * time.Minute}
	bubbleWith(t, l, func(t *testing.T, r *rig) {
		l.until = time.Now().Add(time.Hour)
		var runs []events.Run
		for range 50 {
			runs = append(runs, r.begin())
		}
		time.Sleep(59 * time.Minute) // in the bubble
		synctest.Wait()
		refused, _ := l.counts()
		require.LessOrEqual(t, refused, 2+6)
		began := time.Now()
		onIdle := func(s *events.Start) { s.Agent.LLM.Provider = "idle" }
		require.Equal(t, events.Done, r.AwaitEnd(r.begin(onIdle)).State)
		require.Less(t, time.Since(began), time.Second)
		for _, run := range runs {
			require.Equal(t, events.Done, r.AwaitEnd(run).State)
		}
	}, func(c *planner.Config) {
		c.Providers["idle"], c.Concurrency = &limiter{}, 2
	})
}

// While a provider is limited a run of it is not asked for, and its log says so.
func TestLimitedProviderIsNotAsked(t *testing.T) {
	l := &limiter{asks: time.Minute}
	bubbleWith(t, l, func(t *testing.T, r *rig) {
		l.until = time.Now().Add(30 * time.Second)
		first := r.begin()
		r.Await(first, func(mem *reducer.Memory) bool { return len(mem.Control.Attempts) > 0 })
		second := r.begin()
		mem := r.AwaitEnd(second)
		require.Equal(t, events.Done, mem.State)
		failed := r.Events(second)[1].Data.(*events.LLMAttemptFailed)
		require.True(t, failed.NotAsked)
		require.Equal(t, events.KindRateLimited, failed.Kind)
		require.Contains(t, failed.Message, "was not asked")
		require.GreaterOrEqual(t, failed.RetryAfterMS, time.Minute.Milliseconds())
		require.LessOrEqual(t, failed.RetryAfterMS, (75 * time.Second).Milliseconds())
		require.Zero(t, r.Count(second, events.TypeLLMAttemptFailed)-1, "no delivery was taken for lost")
		r.AwaitEnd(first)
		refused, answered := l.counts()
		require.Equal(t, []int{1, 2}, []int{refused, answered})
	}, func(c *planner.Config) { c.Providers["idle"] = &limiter{} })
}

// slowModel refuses at first, and then streams a word and takes its time.
type slowModel struct {
	limiter
	mute bool
	let  chan struct{}

	serving atomic.Int64
}

func (s *slowModel) Call(ctx context.Context, req llm.Request, stream func(llm.Chunk)) (llm.Response, error) {
	reply, err := s.limiter.Call(ctx, req, stream)
	if err != nil {
		return nil, err
	}
	if s.serving.Add(1); stream != nil && !s.mute {
		stream(llm.Chunk{Kind: llm.ChunkText, Text: "It"})
	}
	<-s.let
	return reply, nil
}

// The planner opens when the provider begins to serve, not when a slow reply ends;
// where nothing shows that, probes follow each other.
func TestSlowReplyAfterARateLimit(t *testing.T) {
	for name, mute := range map[string]bool{"a stream": false, "a plain call": true} {
		t.Run(name, func(t *testing.T) {
			s := &slowModel{limiter: limiter{asks: 10 * time.Second}, mute: mute}
			bubbleWith(t, s, func(t *testing.T, r *rig) {
				s.until, s.let = time.Now().Add(5*time.Second), make(chan struct{})
				var runs []events.Run
				for range 8 {
					runs = append(runs, r.begin())
				}
				time.Sleep(15 * time.Second) // in the bubble
				synctest.Wait()
				if mute {
					require.InDelta(t, 2, s.serving.Load(), 1, "one, and one more each few seconds")
					time.Sleep(30 * time.Second) // in the bubble
					synctest.Wait()
				}
				require.EqualValues(t, 8, s.serving.Load())
				close(s.let)
				for _, run := range runs {
					require.Equal(t, events.Done, r.AwaitEnd(run).State)
				}
			}, func(c *planner.Config) { c.NoStream = mute })
		})
	}
}

// refusedAsks counts the requests that a run's log says were refused. A delivery that
// gets lost on its way when the gate shuts is none.
func refusedAsks(mem *reducer.Memory) (n int) {
	for _, entry := range mem.Trace {
		if entry.Event == string(events.TypeLLMAttemptFailed) && strings.HasPrefix(entry.Data, string(llm.KindRateLimited)) &&
			!strings.Contains(entry.Data, "was not asked") {
			n++
		}
	}
	return n
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
				failures += refusedAsks(mem)
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

// Runs of a provider that refuses for seconds leave those of another one alone, and
// it is asked no oftener than it says, over real HTTP.
func TestRateLimitStormBesideAnotherProvider(t *testing.T) {
	t.Parallel()
	const runs, concurrency = 60, 8
	storm := &stormServer{lasts: time.Hour, header: http.Header{"Retry-After": {"2"}}}
	raging := time.Now()
	limited, healthy := httptest.NewServer(storm), httptest.NewServer(&stormServer{until: time.Now()})
	defer limited.Close()
	defer healthy.Close()
	free, err := openai.New(openai.Options{BaseURL: healthy.URL + "/v1", Model: "m"})
	require.NoError(t, err)
	defer free.Close()
	bus := stormBus(t)
	store := runlog.New(runlog.Options{Log: bus})
	var ids []events.Run
	for range runs {
		ids = append(ids, startRun(t, store))
	}
	runPlanner(t, bus, "1", limited.URL, concurrency, func(_ *openai.Options, c *planner.Config) {
		c.Providers = map[string]llm.Caller{"free": free}
	})
	awaitRun(t, store, ids[0], func(mem *reducer.Memory) bool { return len(mem.Control.Attempts) > 0 })
	began := time.Now()
	for range 10 {
		require.Equal(t, events.Done, awaitEnd(t, store, startRun(t, store, "free")).State)
	}
	require.Less(t, time.Since(began), 15*time.Second, "the other provider's runs wait for nothing: with a wait each they took 20 s")
	storm.mu.Lock()
	storm.until = time.Now().Add(2 * time.Second)
	storm.mu.Unlock()
	failures := 0
	for _, id := range ids {
		mem := awaitEnd(t, store, id)
		require.Equal(t, events.Done, mem.State, "%+v", mem.Error)
		failures += refusedAsks(mem)
		for _, entry := range mem.Trace {
			require.NotContains(t, entry.Data, events.KindWorkerLost)
		}
	}
	storm.mu.Lock()
	defer storm.mu.Unlock()
	require.Equal(t, storm.refused, failures)
	// What was in flight at first, and a probe for each wait.
	require.LessOrEqual(t, storm.refused, concurrency+3+int(storm.until.Sub(raging)/(2*time.Second)))
	require.Equal(t, runs, storm.answered)
	t.Logf("%d requests were refused", storm.refused)
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
	bus, err := natsbus.Open(t.Context(), conn, natsbus.Options{Logger: quiet, RequestTimeout: time.Minute})
	require.NoError(t, err)
	return bus
}

// startRun opens a run of reducertest's agent on a provider, "model" if none is
// named.
func startRun(t *testing.T, store *runlog.Store, provider ...string) events.Run {
	t.Helper()
	start := reducertest.StartOf("find it", events.ModeTask)
	start.Agent.LLM.Provider = cmp.Or(append(provider, "model")...)
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
	runPlannerOf(t, caller, cfg)
}

// runPlannerOf runs a planner whose provider "model" is the caller.
func runPlannerOf(t *testing.T, caller interface {
	llm.Caller
	Close()
}, cfg planner.Config) {
	t.Helper()
	if cfg.Providers == nil {
		cfg.Providers = map[string]llm.Caller{}
	}
	cfg.Providers["model"] = caller
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

// While a provider is probed for long its runs wait ever longer, and not much
// longer than two minutes once it serves.
func TestSlowProbesDoNotFillTheLogs(t *testing.T) {
	s := &slowModel{limiter: limiter{asks: 10 * time.Second}, mute: true}
	bubbleWith(t, s, func(t *testing.T, r *rig) {
		s.until, s.let = time.Now().Add(5*time.Second), make(chan struct{})
		letGo := sync.OnceFunc(func() { close(s.let) })
		defer letGo()
		var runs []events.Run
		for range 40 {
			runs = append(runs, r.begin())
		}
		time.Sleep(70 * time.Second) // in the bubble
		synctest.Wait()
		require.Less(t, s.serving.Load(), int64(len(runs)), "some still wait")
		for _, run := range runs {
			waits := r.Memory(run).Control.Attempts
			if len(waits) > 0 {
				require.LessOrEqual(t, waits[0].NotAsked, 6)
			}
		}
		began := time.Now()
		letGo()
		for _, run := range runs {
			require.Equal(t, events.Done, r.AwaitEnd(run).State)
		}
		require.LessOrEqual(t, time.Since(began), 2*time.Minute)
	}, func(c *planner.Config) { c.Providers["idle"] = &limiter{} })
}

// Ten minutes of probes that are refused or slow leave few events in each log.
func TestLongLimitLeavesFewEvents(t *testing.T) {
	for name, asks := range map[string]time.Duration{"slow probes": 10 * time.Second, "refused probes": 2 * time.Second} {
		t.Run(name, func(t *testing.T) {
			s := &slowModel{limiter: limiter{asks: asks}, mute: true}
			bubbleWith(t, s, func(t *testing.T, r *rig) {
				lasts := 5 * time.Second
				if name == "refused probes" {
					lasts = 11 * time.Minute
				}
				s.until, s.let = time.Now().Add(lasts), make(chan struct{})
				letGo := sync.OnceFunc(func() { close(s.let) })
				defer letGo()
				var runs []events.Run
				for range 300 {
					runs = append(runs, r.begin())
				}
				time.Sleep(10 * time.Minute) // in the bubble
				synctest.Wait()
				most := 0
				for _, run := range runs {
					n := 0
					for _, e := range r.Events(run) {
						if f, ok := e.Data.(*events.LLMAttemptFailed); ok && f.NotAsked {
							n++
						}
					}
					most = max(most, n)
				}
				require.LessOrEqual(t, most, 12)
				require.Greater(t, most, 4, "they wait")
			}, func(c *planner.Config) { c.Providers["idle"] = &limiter{} })
		})
	}
}
