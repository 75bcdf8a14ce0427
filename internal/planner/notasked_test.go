package planner_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/planner"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/moorebus/moorebus/pkg/llm/scripted"
)

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
		p := r.Journal.NewProcess()
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
		p := r.Journal.NewProcess()
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

// blind is a directory that cannot be read while it is shut.
type blind struct {
	journal.Directory
	shut atomic.Bool
}

func (b *blind) Providers(ctx context.Context) ([]string, error) {
	if b.shut.Load() {
		return nil, journal.ErrNotReady
	}
	return b.Directory.Providers(ctx)
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
	}, func(c *planner.Config) { dir.Directory, c.Directory = c.Directory, &dir })
}

// While the planner that has the provider takes nothing, since it is rate limited, a run's
// log does not fill.
func TestProviderWhosePlannerTakesNothing(t *testing.T) {
	bubble(t, nil, func(t *testing.T, r *rig) {
		p := r.Journal.NewProcess()
		run := r.begin(needs("special"))
		for range 360 {
			require.NoError(t, p.AnnounceProviders(t.Context(), "special", []string{"special"}))
			time.Sleep(journal.AnnouncementRefresh) // in the bubble
		}
		mem := r.Memory(run)
		require.Equal(t, events.Planning, mem.State)
		require.Less(t, mem.N, uint64(60))
	})
}
