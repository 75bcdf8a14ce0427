package actor_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/actor"
	"github.com/moorebus/moorebus/internal/announce"
	"github.com/moorebus/moorebus/internal/callctx"
	"github.com/moorebus/moorebus/internal/kv"
	"github.com/moorebus/moorebus/internal/ports"
	"github.com/moorebus/moorebus/internal/toolset"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/tool"
)

// announceEvery is how often an actor announces changed tools at most.
const announceEvery = time.Second

// spring is a source that a test feeds.
type spring chan []tool.Tool

func (spring) Name() string    { return "spring" }
func (spring) Pools() []string { return []string{"default"} }
func (s spring) Run(ctx context.Context, _ *slog.Logger, put func([]tool.Tool)) {
	for {
		select {
		case tools := <-s:
			put(tools)
		case <-ctx.Done():
			return
		}
	}
}

// fed is a registry of what the sources put, until the test ends.
func fed(t *testing.T, sources ...tool.Source) *toolset.Registry {
	t.Helper()
	registry, err := toolset.NewWith(toolset.Options{Sources: sources})
	require.NoError(t, err)
	t.Cleanup(registry.Start(t.Context(), slog.New(slog.DiscardHandler)))
	return registry
}

// Tools that come and go are announced when they do, not with the next refresh.
func TestChangedToolsAreAnnouncedAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		source := spring(make(chan []tool.Tool))
		registry := fed(t, source)
		p := r.spawn(nil, func(c *actor.Config) { c.Tools = registry })
		names := func() string {
			synctest.Wait() // no time passes in the bubble
			tools, err := announce.NewDirectory(p, nil).Tools(t.Context())
			require.NoError(t, err)
			var names []string
			for _, spec := range tools {
				names = append(names, spec.Name)
			}
			return strings.Join(names, " ")
		}
		require.Empty(t, names())
		source <- []tool.Tool{pure("a", "default", says("a")), pure("b", "default", says("b"))}
		require.Equal(t, "a b", names())
		time.Sleep(announceEvery) // in the bubble
		source <- []tool.Tool{pure("b", "default", says("b"))}
		require.Equal(t, "b", names())
		for range 100 { // no announcement for each
			source <- []tool.Tool{pure("c", "default", says("c"))}
			source <- []tool.Tool{pure("d", "default", says("d"))}
			require.Equal(t, "b", names())
		}
		time.Sleep(announceEvery) // in the bubble
		require.Equal(t, "d", names())
		time.Sleep(announceEvery) // in the bubble
		source <- nil
		require.Empty(t, names())
	})
}

// An actor that was given no pools serves those of tools that appear.
func TestPoolsOfNewTools(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		source := spring(make(chan []tool.Tool))
		registry := fed(t, source)
		r.spawn(nil, func(c *actor.Config) { c.Tools = registry })
		source <- []tool.Tool{pure("a", "web", says("a of web")), pure("b", "default", says("b"))}
		synctest.Wait()
		r.specs = append(actor.Specs(registry, "web"), actor.Specs(registry, "default")...)
		require.Equal(t, "a of web", strings.TrimPrefix(r.outcome(r.plan("a")).Observation, "SUCCESS: "))
		require.Equal(t, "b", strings.TrimPrefix(r.outcome(r.plan("b")).Observation, "SUCCESS: "))
	})
}

// offers are the names that an actor offers now, by pool.
type offers struct {
	ports.Peers
	mu  sync.Mutex
	all map[string]bool
}

func (o *offers) Borrow(pool, name string, _ func(journal.Delivery, ports.Loan) (time.Duration, error)) (func(), error) {
	o.set(pool+" "+name, true)
	return func() { o.set(pool+" "+name, false) }, nil
}

func (o *offers) set(name string, offered bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.all[name] = true; !offered {
		delete(o.all, name)
	}
}

func (o *offers) names() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Sorted(maps.Keys(o.all))
}

// mute is a bus that can be made to refuse announcements.
type mute struct {
	kv.Store
	on atomic.Bool
}

func (m *mute) Put(ctx context.Context, of kv.Bucket, it kv.Item) (uint64, error) {
	if m.on.Load() {
		return 0, errors.New("the bucket is away")
	}
	return m.Store.Put(ctx, of, it)
}

// tardy is a bus whose first announcement takes until on is closed.
type tardy struct {
	kv.Store
	begun atomic.Bool
	on    chan struct{}
}

func (s *tardy) Put(ctx context.Context, of kv.Bucket, it kv.Item) (uint64, error) {
	if s.begun.CompareAndSwap(false, true) {
		<-s.on
	}
	return s.Store.Put(ctx, of, it)
}

// Tools that come while the actor announces those that it had are announced after them.
func TestAnnouncementsAreInOrder(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		source, bus := spring(make(chan []tool.Tool)), &tardy{on: make(chan struct{})}
		registry := fed(t, source)
		p := r.spawn(nil, func(c *actor.Config) {
			bus.Store = c.KV
			c.Tools, c.KV, c.Pools = registry, bus, []string{"default"}
		})
		synctest.Wait()
		source <- []tool.Tool{pure("a", "default", says("a"))}
		synctest.Wait()
		close(bus.on)
		synctest.Wait()
		tools, err := announce.NewDirectory(p, nil).Tools(t.Context())
		require.NoError(t, err)
		require.Len(t, tools, 1)
	})
}

// A tool that is gone is offered in no pool any more, even if that cannot be announced.
func TestOffersOutliveNoTool(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		source, offered, bus := spring(make(chan []tool.Tool)), &offers{all: map[string]bool{}}, &mute{}
		registry := fed(t, source)
		r.spawn(nil, func(c *actor.Config) {
			bus.Store = c.KV
			c.Tools, c.Peers, c.KV, c.Pools = registry, offered, bus, []string{"default", "web"}
		})
		source <- []tool.Tool{pure("a", "default", says("a")), pure("b", "web", says("b"))}
		synctest.Wait()
		require.Equal(t, []string{"default a", "web b"}, offered.names())
		bus.on.Store(true)
		time.Sleep(announceEvery) // in the bubble
		source <- nil
		synctest.Wait()
		require.Empty(t, offered.names())
	})
}

// A call that comes before its tool's source has said what it has waits for that: an
// actor that was restarted gets calls of tools whose server still starts. What the
// source does not have then is not found.
func TestCallsWaitForSourcesThatStart(t *testing.T) {
	for name, want := range map[string]string{"late": "SUCCESS: here at last", "never": `ERROR: tool "never" not found`} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, r *rig) {
				source := spring(make(chan []tool.Tool))
				registry, err := toolset.NewWith(toolset.Options{Sources: []tool.Source{source}}, pure("early", "default", says("at once")))
				require.NoError(t, err)
				defer registry.Start(t.Context(), slog.New(slog.DiscardHandler))()
				r.spawn(nil, func(c *actor.Config) { c.Tools = registry })
				early, late := r.plan("early"), r.plan(name)
				time.Sleep(time.Minute) // in the bubble
				require.Equal(t, "SUCCESS: at once", observation(r, early), "others do not wait")
				require.Empty(t, observation(r, late))
				source <- []tool.Tool{pure("late", "default", says("here at last"))}
				synctest.Wait()
				require.Equal(t, want, observation(r, late))
			})
		})
	}
}

// observation is what a run was told of its one call; empty as long as nothing was.
func observation(r *rig, run events.Run) string {
	for _, e := range r.Events(run) {
		switch p := e.Data.(type) {
		case *events.ToolSuccess:
			return p.Outcome.Observation
		case *events.ToolFailure:
			return p.Outcome.Observation
		}
	}
	return ""
}

// What a tool keeps beside its text is in the object store, and its event says so.
func TestAttachmentsAreInTheEvent(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		p := r.spawn([]tool.Tool{pure("draw", "default", func(ctx context.Context, _ tool.Call) (string, error) {
			keep := callctx.StoreOf(ctx)
			require.NotNil(t, keep)
			first, err := keep(ctx, "image/png", []byte("\x89PNG"))
			require.NoError(t, err)
			again, err := keep(ctx, "image/png", []byte("\x89PNG"))
			require.NoError(t, err)
			require.Equal(t, first, again)
			return "kept as " + first, nil
		})})
		run := r.plan("draw")
		synctest.Wait()
		var outcome *events.ToolOutcome
		for _, e := range r.Events(run) {
			if success, ok := e.Data.(*events.ToolSuccess); ok {
				outcome = success.Outcome
			}
		}
		require.NotNil(t, outcome)
		require.Len(t, outcome.Attachments, 1)
		ref := outcome.Attachments[0]
		require.Equal(t, "SUCCESS: kept as "+ref.Bucket+"/"+ref.Key, outcome.Observation)
		require.Equal(t, "image/png", ref.MediaType)
		data, err := p.Blob(t.Context(), ref.Ref)
		require.NoError(t, err)
		require.Equal(t, "\x89PNG", string(data))
	})
}

// away is a source whose tools come late.
type away struct {
	spring
	there chan struct{}
}

func (away) Claims(name string) bool { return strings.HasPrefix(name, "late") }
func (away) Patience() time.Duration { return 30 * time.Second }
func (a away) Up(ctx context.Context) error {
	select {
	case <-a.there:
		return nil
	case <-ctx.Done():
		return errors.New("it is not up")
	}
}

// A call that an actor gets before its tool's server is there is not lost, and one
// whose server does not come has not begun.
func TestCallsWaitForTheirSource(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		late := once("late", says("there"))
		source := away{spring(make(chan []tool.Tool)), make(chan struct{})}
		registry := fed(t, source)
		r.specs = []events.ToolSpec{{Name: "late", Pool: "default", Effect: "once", Schema: []byte(`{}`)}}
		r.spawn(nil, func(c *actor.Config) { c.Tools = registry })

		run := r.plan("late")
		outcome := r.outcome(run)
		require.Equal(t, tool.CodeUnreachable, outcome.Code)
		require.Contains(t, outcome.Observation, "it is not up")
		require.NotContains(t, r.Types(run), "ToolCallStarted")

		run = r.plan("late")
		time.Sleep(10 * time.Second) // in the bubble
		source.spring <- []tool.Tool{late}
		synctest.Wait()
		close(source.there)
		require.Equal(t, "SUCCESS: there", r.outcome(run).Observation)
	})
}

// A call whose server is away here is done by an actor that has the tool.
func TestCallsLeaveASourceThatIsAway(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		late := once("late", says("there"))
		registry := fed(t, away{spring(make(chan []tool.Tool)), make(chan struct{})})
		r.specs = specsOf(t, late)
		r.spawn(nil, called("away"), func(c *actor.Config) { c.Tools = registry })
		r.spawn([]tool.Tool{late}, called("there"), idly)
		require.Equal(t, "SUCCESS: there", r.outcome(r.plan("late")).Observation)
		require.Equal(t, 1, late.count("c1"))
	})
}

// One server's tools do not keep the others of its pool from being announced.
func TestAnnouncementsAreBounded(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		big := func(name string, size int) tool.Tool {
			made := pure(name, "default", says(""))
			made.def.Description = strings.Repeat("<", size)
			return made
		}
		own := big("own", 20_000) // larger than each of the others
		greedy, modest := spring(make(chan []tool.Tool)), spring(make(chan []tool.Tool))
		var log strings.Builder
		registry, err := toolset.NewWith(toolset.Options{Sources: []tool.Source{named{greedy, "greedy"}, named{modest, "modest"}}}, own)
		require.NoError(t, err)
		defer registry.Start(t.Context(), slog.New(slog.DiscardHandler))()
		modest <- []tool.Tool{big("modest", 15_000)}
		var many []tool.Tool
		for i := range 140 {
			many = append(many, big(fmt.Sprintf("greedy%03d", i), 8<<10))
		}
		greedy <- many
		synctest.Wait()
		p := r.spawn(nil, func(c *actor.Config) {
			c.Tools, c.Logger = registry, slog.New(slog.NewTextHandler(&log, nil))
		})
		synctest.Wait()
		tools, err := announce.NewDirectory(p, nil).Tools(t.Context())
		require.NoError(t, err)
		var data bytes.Buffer
		enc := json.NewEncoder(&data)
		enc.SetEscapeHTML(false)
		require.NoError(t, enc.Encode(tools))
		require.Less(t, data.Len(), journal.MaxBody)
		require.Greater(t, data.Len(), journal.MaxBody-10_000)
		require.Contains(t, data.String(), `"own"`)
		require.Contains(t, data.String(), `"modest"`)
		time.Sleep(time.Minute) // in the bubble
		require.Equal(t, 1, strings.Count(log.String(), "not all tools of a pool fit"))
		require.Contains(t, log.String(), "greedy114")
	})
}

// named is a spring of another name.
type named struct {
	spring
	name string
}

func (n named) Name() string { return n.name }
