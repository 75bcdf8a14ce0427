package planner_test

import (
	"context"
	"io"
	"iter"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/announce"
	"github.com/moorebus/moorebus/internal/buckets"
	"github.com/moorebus/moorebus/internal/codes"
	"github.com/moorebus/moorebus/internal/kv"
	"github.com/moorebus/moorebus/internal/planner"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/moorebus/moorebus/pkg/llm/openai"
	"github.com/moorebus/moorebus/pkg/llm/scripted"
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
	l := &limiter{asks: time.Minute}
	bubbleWith(t, l, func(t *testing.T, r *rig) {
		l.until = time.Now().Add(time.Hour)
		r.AwaitEnd(r.begin(needs("free")))
		limited := r.begin()
		r.Await(limited, func(mem *reducer.Memory) bool { return len(mem.Control.Attempts) > 0 })
		began := time.Now()
		for range 10 {
			require.Equal(t, events.Done, r.AwaitEnd(r.begin(needs("free"))).State)
		}
		require.Less(t, time.Since(began), time.Second)
		require.Equal(t, events.Done, r.AwaitEnd(limited).State)
	}, func(c *planner.Config) { c.Providers["free"] = &limiter{} })
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
		require.Equal(t, codes.KindRateLimited, failed.Kind)
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

// Two planners over real HTTP, and a model server that refuses hundreds of runs for
// seconds. No run is lost, no worker counts as lost, and few requests are made meanwhile.
// Runs of another provider do not wait.
func TestRateLimitStorm(t *testing.T) {
	if testing.Short() {
		t.Skip("-short") // reason: a storm of hundreds of calls
	}
	t.Parallel()
	for header, value := range map[string]string{"Retry-After": "1", "Retry-After-Ms": "900"} {
		t.Run(header, func(t *testing.T) {
			t.Parallel()
			storm(t, http.Header{header: {value}})
		})
	}
}

func storm(t *testing.T, header http.Header) {
	const runs, concurrency = 200, 16
	storm := &stormServer{lasts: 4 * time.Second, header: header}
	limited, healthy := httptest.NewServer(storm), httptest.NewServer(&stormServer{until: time.Now()})
	defer limited.Close()
	defer healthy.Close()
	r := newBenchRig(t)
	var ids []events.Run
	for range runs {
		ids = append(ids, r.begin())
	}
	for _, name := range []string{"1", "2"} {
		cfg := r.config(r.openAI(openai.Options{BaseURL: limited.URL + "/v1"}))
		cfg.Instance, cfg.Concurrency, cfg.Providers["free"] = name, concurrency, r.openAI(openai.Options{BaseURL: healthy.URL + "/v1"})
		r.run(cfg)
	}
	r.Await(ids[0], func(mem *reducer.Memory) bool { return len(mem.Control.Attempts) > 0 })
	for range 10 {
		mem := r.AwaitEnd(r.begin(needs("free")))
		require.Equal(t, events.Done, mem.State)
		require.Empty(t, refusedAsks(mem))
	}
	failures := 0
	for _, id := range ids {
		mem := r.AwaitEnd(id)
		require.Equal(t, events.Done, mem.State, "%+v", mem.Error)
		failures += refusedAsks(mem)
		for _, entry := range mem.Trace {
			require.NotContains(t, entry.Data, codes.KindWorkerLost, "a run that waits for its provider loses no worker")
		}
	}
	storm.mu.Lock()
	defer storm.mu.Unlock()
	require.Equal(t, runs, storm.answered, "no reply is asked for twice")
	require.Equal(t, storm.refused, failures)
	// What both planners had in flight, and each one's probes.
	require.LessOrEqual(t, storm.refused, 2*concurrency+2*4*4)
	require.Positive(t, storm.refused)
}

// openAI is a provider over HTTP.
func (r *rig) openAI(o openai.Options) llm.Caller {
	r.T.Helper()
	o.Model, o.HTTPClient = "m", &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}
	caller, err := openai.New(o)
	require.NoError(r.T, err)
	r.T.Cleanup(caller.Close)
	return caller
}

// run runs a planner until the test ends.
func (r *rig) run(cfg planner.Config) {
	r.T.Helper()
	p, err := planner.New(cfg)
	require.NoError(r.T, err)
	r.Go(p.Run)
}

// Ten minutes of probes that are refused or slow leave few events in each log, and the
// runs wait not much longer than two minutes once the provider serves.
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
				for range 100 {
					runs = append(runs, r.begin())
				}
				mostNotAsked := func() (most int) {
					synctest.Wait()
					for _, run := range runs {
						n := 0
						for _, e := range r.Events(run) {
							if f, ok := e.Data.(*events.LLMAttemptFailed); ok && f.NotAsked {
								n++
							}
						}
						most = max(most, n)
					}
					return most
				}
				time.Sleep(70 * time.Second) // in the bubble
				require.LessOrEqual(t, mostNotAsked(), 6)
				time.Sleep(9 * time.Minute) // in the bubble
				most := mostNotAsked()
				require.LessOrEqual(t, most, 12)
				require.Greater(t, most, 4, "they wait")
				began := time.Now()
				letGo()
				for _, run := range runs {
					require.Equal(t, events.Done, r.AwaitEnd(run).State)
				}
				require.LessOrEqual(t, time.Since(began), lasts+2*time.Minute)
			}, func(c *planner.Config) { c.Providers["idle"] = &limiter{} })
		})
	}
}

// A planner that does not have a run's provider leaves the run to one that has it,
// however often that takes.
func TestProvidersOfOtherPlanners(t *testing.T) {
	bubble(t, nil, func(t *testing.T, r *rig) {
		const runs = 20
		r.special()
		for range runs {
			require.Equal(t, events.Done, r.AwaitEnd(r.begin(needs("special"))).State)
		}
	})
}

// needs is a run of the provider.
func needs(provider string) func(*events.Start) {
	return func(s *events.Start) { s.Agent.LLM.Provider = provider }
}

// special starts a planner that has the provider of that name.
func (r *rig) special() {
	r.T.Helper()
	o := r.config(llm.CallerFunc(func(context.Context, llm.Request, func(llm.Chunk)) (llm.Response, error) {
		return say("It is 42, says the special one."), nil
	}))
	o.Instance, o.Providers = "special", map[string]llm.Caller{"special": o.Providers["scripted"]}
	made, err := planner.New(o)
	require.NoError(r.T, err)
	require.NoError(r.T, made.Announce(r.T.Context()))
	r.Go(made.Run)
}

// Where no planner announces it for as long as a restart may take, the run ends.
func TestProviderThatNobodyHas(t *testing.T) {
	bubble(t, nil, func(t *testing.T, r *rig) {
		began := time.Now()
		mem := r.AwaitEnd(r.begin(needs("nobody")))
		require.Equal(t, events.Errored, mem.State)
		require.Contains(t, mem.Error.Message, `no provider "nobody"`)
		require.Contains(t, mem.Error.Message, "this one has [scripted]")
		require.GreaterOrEqual(t, time.Since(began), 30*time.Second)
		require.Less(t, time.Since(began), time.Minute)
	})
}

// A planner that has the provider takes its announcement back when it is stopped. A run
// waits for its return.
func TestProviderWhosePlannerRestarts(t *testing.T) {
	bubble(t, nil, func(t *testing.T, r *rig) {
		p := announce.NewDirectory(r.Journal.NewProcess(), nil)
		require.NoError(t, p.AnnounceProviders(t.Context(), "old", []string{"special"}))
		run := r.begin(needs("special"))
		time.Sleep(10 * time.Second) // in the bubble
		require.NoError(t, p.WithdrawProviders(t.Context(), "old"))
		time.Sleep(20 * time.Second) // in the bubble
		r.special()
		require.Equal(t, events.Done, r.AwaitEnd(run).State)
	})
}

// Misses before an announcement do not count, even if no run saw it.
func TestProviderThatWasThereMeanwhile(t *testing.T) {
	bubble(t, nil, func(t *testing.T, r *rig) {
		first := r.begin(needs("special"))
		r.event(first, 2) // nobody was found
		r.Append(first, events.Control, &events.CancelledRun{})
		p := announce.NewDirectory(r.Journal.NewProcess(), nil)
		require.NoError(t, p.AnnounceProviders(t.Context(), "old", []string{"special"}))
		time.Sleep(20 * time.Second) // in the bubble
		require.NoError(t, p.WithdrawProviders(t.Context(), "old"))
		time.Sleep(20 * time.Second) // in the bubble
		run := r.begin(needs("special"))
		time.Sleep(10 * time.Second) // in the bubble
		r.special()
		require.Equal(t, events.Done, r.AwaitEnd(run).State)
	})
}

// blind is a bus whose announcements of providers cannot be read while it is shut.
type blind struct {
	kv.Store
	shut atomic.Bool
}

func (b *blind) Each(ctx context.Context, of kv.Bucket, pattern string) iter.Seq2[kv.Item, error] {
	if b.shut.Load() && of.Name == buckets.Providers.Name {
		return func(yield func(kv.Item, error) bool) { yield(kv.Item{}, journal.ErrNotReady) }
	}
	return b.Store.Each(ctx, of, pattern)
}

// A planner that cannot see which planner has the provider does not take it for nobody's.
func TestProviderThatCannotBeLookedFor(t *testing.T) {
	var dir blind
	bubbleWith(t, scripted.NewMock(), func(t *testing.T, r *rig) {
		dir.shut.Store(true)
		run := r.begin(needs("special"))
		time.Sleep(time.Minute) // in the bubble
		dir.shut.Store(false)
		time.Sleep(10 * time.Second) // in the bubble
		r.special()
		require.Equal(t, events.Done, r.AwaitEnd(run).State)
	}, func(c *planner.Config) { dir.Store, c.KV = c.KV, &dir })
}

// While the planner that has the provider takes nothing, since it is rate limited, a run's
// log does not fill.
func TestProviderWhosePlannerTakesNothing(t *testing.T) {
	bubble(t, nil, func(t *testing.T, r *rig) {
		p := r.Journal.NewProcess()
		run := r.begin(needs("special"))
		for range 360 {
			require.NoError(t, announce.NewDirectory(p, nil).AnnounceProviders(t.Context(), "special", []string{"special"}))
			time.Sleep(buckets.AnnouncementRefresh) // in the bubble
		}
		mem := r.Memory(run)
		require.Equal(t, events.Planning, mem.State)
		require.Less(t, mem.N, uint64(60))
	})
}
