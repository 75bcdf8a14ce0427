package actor_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/actor"
	"github.com/moorebus/moorebus/internal/journaltest/simtest"
	"github.com/moorebus/moorebus/internal/ports"
	"github.com/moorebus/moorebus/internal/toolset"
	"github.com/moorebus/moorebus/internal/worker/workertest"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/tool"
)

// split runs one actor for each set of tools, all of pool default. Runs pin all of them.
func (r *rig) split(sets ...[]tool.Tool) []*simtest.Process {
	r.T.Helper()
	seen := map[string]bool{}
	for _, set := range sets {
		registry, err := toolset.New(set...)
		require.NoError(r.T, err)
		for _, spec := range actor.Specs(registry, events.DefaultPool) {
			if !seen[spec.Name] {
				r.specs = append(r.specs, spec)
			}
			seen[spec.Name] = true
		}
	}
	var all []*simtest.Process
	for i, set := range sets {
		all = append(all, r.spawn(set, called(fmt.Sprint("actor-", i))))
	}
	return all
}

func called(instance string) func(*actor.Config) {
	return func(cfg *actor.Config) { cfg.Instance, cfg.Pools = instance, []string{events.DefaultPool} }
}

// TestToolsOfOtherActors: three actors of one pool have one of two tools each. Every call
// is run, once, by an actor that has its tool, and the log is as if all had both.
func TestToolsOfOtherActors(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		stock, price := pure("stock", "", says("7 left")), once("price", says("3 EUR"))
		r.split([]tool.Tool{stock}, []tool.Tool{price}, []tool.Tool{stock})
		var single, batches []events.Run
		for i := range 12 {
			single = append(single, r.plan([]string{"stock", "price"}[i%2]))
			batches = append(batches, r.plan("stock", "price", "stock"))
		}
		for i, run := range single {
			require.Equal(t, "SUCCESS: "+[]string{"7 left", "3 EUR"}[i%2], r.outcome(run).Observation)
			require.Zero(t, r.Count(run, events.TypeLLMAttemptFailed))
			require.Len(t, r.Events(run), 3+i%2, "passing a call on leaves no event")
		}
		for _, run := range batches {
			results := r.results(run)
			require.Len(t, results, 3)
			for _, result := range results {
				require.True(t, result.Success, result.Observation)
			}
			require.Zero(t, r.Count(run, events.TypeLLMAttemptFailed))
		}
		require.Equal(t, 6+12, stock.count("c1"))
		require.Equal(t, 12, stock.count("c3"))
		require.Equal(t, 6, price.count("c1"))
		require.Equal(t, 12, price.count("c2"))
		quiet()
		require.Zero(t, r.Journal.Outstanding())
	})
}

// TestActorsFullOfEachOthersCalls: what is borrowed has slots of its own.
func TestActorsFullOfEachOthersCalls(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		slow := func(context.Context, tool.Call) (string, error) { time.Sleep(time.Second); return "done", nil } // in the bubble
		a, b := pure("a", "", slow), pure("b", "", slow)
		r.specs = specsOf(t, a, b)
		tight := func(cfg *actor.Config) { cfg.Concurrency = 1 }
		r.spawn([]tool.Tool{a}, called("one"), tight)
		r.spawn([]tool.Tool{b}, called("two"), tight)
		var runs []events.Run
		for i := range 40 {
			runs = append(runs, r.plan([]string{"a", "b"}[i%2]))
		}
		for _, run := range runs {
			require.True(t, r.outcome(run).Success)
			require.Zero(t, r.Count(run, events.TypeLLMAttemptFailed))
		}
	})
}

// busy are peers that have no room for the first asks, each a reading of the clock.
type busy struct {
	ports.Peers
	room  time.Time
	asked []time.Time
}

func (b *busy) Lend(ctx context.Context, d journal.Delivery, l ports.Loan) (time.Duration, error) {
	b.asked = append(b.asked, time.Now())
	if time.Now().Before(b.room) {
		return 0, ports.ErrPeersBusy
	}
	return b.Peers.Lend(ctx, d, l)
}

// TestBusyPeersAreLeftAlone for longer each time, and nothing is read meanwhile.
func TestBusyPeersAreLeftAlone(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		work := pure("work", "", says("done"))
		r.specs = specsOf(t, work)
		peers, log := &busy{room: time.Now().Add(time.Minute)}, &workertest.Log{}
		r.spawn(nil, called("lender"), func(cfg *actor.Config) {
			log.Log = cfg.Queue.(journal.Log)
			peers.Peers = cfg.Queue.(ports.Peers)
			cfg.Peers, cfg.Store = peers, r.NewStore(log)
		})
		r.spawn([]tool.Tool{work}, called("borrower"), idly)
		require.Equal(t, "SUCCESS: done", r.outcome(r.plan("work")).Observation)
		require.GreaterOrEqual(t, len(peers.asked), 60/2)
		require.LessOrEqual(t, len(peers.asked), 70)
		for i := 5; i < len(peers.asked); i++ {
			pause := peers.asked[i].Sub(peers.asked[i-1])
			require.GreaterOrEqual(t, pause, time.Second)
			require.LessOrEqual(t, pause, 2*time.Second)
		}
		require.Less(t, log.Reads(), 10)
	})
}

// idly has an actor do nothing but what it borrows.
func idly(cfg *actor.Config) {
	cfg.Peers = cfg.Queue.(ports.Peers)
	cfg.Queue = idle{cfg.Queue}
}

func specsOf(t *testing.T, tools ...tool.Tool) []events.ToolSpec {
	t.Helper()
	registry, err := toolset.New(tools...)
	require.NoError(t, err)
	return actor.Specs(registry, events.DefaultPool)
}

// TestBorrowerDies: a worker that took another one's call and died counts as one lost
// worker, and its once call is concluded, not repeated.
func TestBorrowerDies(t *testing.T) {
	for name, effect := range map[string]tool.Effect{"pure": tool.Pure, "once": tool.Once} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, r *rig) {
				began := make(chan struct{}, 2)
				var runs atomic.Int64
				work := &fn{def: tool.Definition{Name: "work", Effect: effect}, run: func(ctx context.Context, _ tool.Call) (string, error) {
					began <- struct{}{}
					if runs.Add(1) == 1 {
						<-ctx.Done() // with its process
					}
					return "done", nil
				}}
				r.specs = specsOf(t, work)
				r.spawn(nil, called("lender"))
				borrower := r.spawn([]tool.Tool{work}, called("borrower"), idly)
				run := r.plan("work")
				<-began
				killed := time.Now()
				borrower.Kill()
				r.spawn([]tool.Tool{work}, called("other"))
				outcome := r.outcome(run)
				require.LessOrEqual(t, time.Since(killed), 20*time.Second)
				require.Equal(t, 1, r.Count(run, events.TypeLLMAttemptFailed))
				if effect == tool.Pure {
					require.Equal(t, "SUCCESS: done", outcome.Observation)
				} else {
					require.Equal(t, "outcome_unknown", outcome.Code)
					require.Equal(t, 1, work.count("c1"))
				}
			})
		})
	}
}

// TestLenderDies: the borrower goes on, and nobody takes its call for lost.
func TestLenderDies(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		began, finish := make(chan struct{}), make(chan struct{})
		pay := once("pay", func(context.Context, tool.Call) (string, error) { close(began); <-finish; return "paid", nil })
		pay.def.Timeout = time.Hour
		r.specs = specsOf(t, pay)
		lender := r.spawn(nil, called("lender"))
		r.spawn([]tool.Tool{pay}, called("borrower"), idly)
		run := r.plan("pay")
		<-began
		lender.Kill()
		r.spawn([]tool.Tool{pay}, called("other"))
		time.Sleep(5 * time.Minute) // in the bubble: many ack waits
		close(finish)
		require.Equal(t, "SUCCESS: paid", r.outcome(run).Observation)
		require.Zero(t, r.Count(run, events.TypeLLMAttemptFailed))
		quiet()
		require.Zero(t, r.Journal.Outstanding())
	})
}

// TestToolThatComesBack: a tool that nobody has is waited for, and a call of one that
// does not come is answered as one that was not found, without a lost worker.
func TestToolThatComesBack(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		work := pure("work", "", says("done"))
		r.specs = specsOf(t, work)
		r.spawn(nil, called("one"))
		began := time.Now()
		gone := r.plan("work")
		require.Equal(t, "not_found", r.outcome(gone).Code)
		require.GreaterOrEqual(t, time.Since(began), 30*time.Second)
		require.Len(t, r.Events(gone), 3)
		time.Sleep(time.Minute) // in the bubble

		run := r.plan("work")
		time.Sleep(20 * time.Second) // in the bubble
		r.spawn([]tool.Tool{work}, called("two"))
		require.Equal(t, "SUCCESS: done", r.outcome(run).Observation)
		require.Len(t, r.Events(run), 3)
	})
}

// idle is a queue that delivers nothing; it lends as before.
type idle struct{ journal.Queue }

func (q idle) Consume(ctx context.Context, _ journal.Inbox, _ int, _ func(journal.Delivery)) error {
	<-ctx.Done()
	return nil
}
