package control_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/announce"
	"github.com/moorebus/moorebus/internal/codes"
	"github.com/moorebus/moorebus/internal/control"
	"github.com/moorebus/moorebus/internal/control/forking"
	"github.com/moorebus/moorebus/internal/refusal"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/internal/worker/workertest"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

func TestApprovalExpires(t *testing.T) {
	inTime(t, func(t *testing.T, r *timed) {
		g, _ := r.serve(nil)
		for _, calls := range [][]string{{"a"}, {"a", "b"}} {
			run := r.start(g, nil)
			deadline := r.ask(run, 10*time.Minute, calls...)
			sleep(10*time.Minute - time.Second)
			require.Equal(t, events.WaitingForHuman, r.Memory(run).State)
			if len(calls) > 1 {
				_, err := g.Decide(t.Context(), "", run.ID, events.Decision{CallID: "a", Decision: events.DecisionApproved, By: "ann"})
				require.NoError(t, err)
			}
			sleep(2 * time.Second)
			mem := r.Memory(run)
			require.Equal(t, events.Observing, mem.State)
			for _, call := range calls {
				require.Equal(t, "REJECTED: expired", mem.ToolCalls[call].Result.Text())
			}
			require.True(t, r.at(run, events.TypeApprovalExpired).Equal(deadline))
			_, err := g.Decide(t.Context(), "", run.ID, events.Decision{CallID: calls[len(calls)-1], Decision: events.DecisionApproved, By: "ann"})
			var refused *refusal.Error
			require.ErrorAs(t, err, &refused)
			require.Equal(t, refusal.CodeApprovalExpired, refused.Code)
		}
	})
}

// An approval that is decided in time does not expire. The next one has its own deadline.
func TestDecidedApprovalDoesNotExpire(t *testing.T) {
	t.Parallel()
	inTime(t, func(t *testing.T, r *timed) {
		g, _ := r.serve(nil)
		run := r.start(g, nil)
		r.ask(run, 10*time.Minute, "a")
		sleep(9 * time.Minute)
		_, err := g.Decide(t.Context(), "", run.ID, events.Decision{CallID: "a", Decision: events.DecisionRejected, By: "ann"})
		require.NoError(t, err)
		r.Append(run, events.Observing, &events.Continue{})
		second := r.ask(run, 10*time.Minute, "b")
		sleep(5 * time.Minute)
		require.Equal(t, events.WaitingForHuman, r.Memory(run).State, "only the first one's time has come")
		sleep(10 * time.Minute)
		require.True(t, r.at(run, events.TypeApprovalExpired).Equal(second))

		forever := r.start(g, nil)
		r.ask(forever, 0, "a")
		r.ask(r.start(g, nil), 0, "x", "y")
		sleep(30 * 24 * time.Hour)
		require.Equal(t, []string{"Start", "HumanApprovalRequired"}, r.Types(forever))
	})
}

// A batch with all its decisions continues, even if its deadline passes before they are
// joined.
func TestDecidedBatchDoesNotExpire(t *testing.T) {
	inTime(t, func(t *testing.T, r *timed) {
		g, p := r.serve(nil)
		run := r.start(g, nil)
		r.ask(run, 10*time.Minute, "a", "b")
		sleep(time.Minute)
		p.Kill()
		for _, call := range []string{"a", "b"} {
			r.Append(run, events.WaitingForHuman, &events.HumanDecision{Decision: events.Decision{CallID: call, Decision: events.DecisionApproved, By: "ann"}})
		}
		sleep(time.Hour)
		r.serve(nil)
		sleep(time.Minute)
		require.Zero(t, r.Count(run, events.TypeApprovalExpired))
		require.Equal(t, events.ParallelActing, r.Memory(run).State)
	})
}

// brokenTimers fail to be set while fail is true.
type brokenTimers struct {
	journal.Timers
	fail  atomic.Bool
	tried atomic.Int32
}

func (b *brokenTimers) SetTimer(ctx context.Context, run events.Run, kind string, at time.Time, data []byte) error {
	if b.fail.Load() {
		b.tried.Add(1)
		return errors.New("out of order")
	}
	return b.Timers.SetTimer(ctx, run, kind, at, data)
}

// The delivery of a request for approval is acknowledged only after its timer is set.
func TestApprovalWaitsForItsTimer(t *testing.T) {
	inTime(t, func(t *testing.T, r *timed) {
		var broken *brokenTimers
		g, _ := r.serve(func(cfg *control.Config) {
			broken = &brokenTimers{Timers: cfg.Timers}
			cfg.Timers = broken
		})
		run := r.start(g, nil)
		broken.fail.Store(true)
		_, err := r.tryStart(g, nil)
		require.Error(t, err, "nor is a run started without one")
		deadline := r.ask(run, 10*time.Minute, "a")
		sleep(5 * time.Minute)
		require.Greater(t, broken.tried.Load(), int32(10))
		broken.fail.Store(false)
		sleep(time.Hour)
		require.True(t, r.at(run, events.TypeApprovalExpired).Equal(deadline))
	})
}

// into brings a run to a state in which it can stay for long.
var into = map[string]func(r *timed, run events.Run){
	"planning":          func(*timed, events.Run) {},
	"planning, paused":  func(r *timed, run events.Run) { r.Append(run, events.Control, &events.Paused{}) },
	"waiting_for_human": func(r *timed, run events.Run) { r.ask(run, 0, "a") },
	"waiting_for_user":  func(r *timed, run events.Run) { r.Append(run, events.Planning, turnDone("hello")) },
	"acting": func(r *timed, run events.Run) {
		r.Append(run, events.Planning, &events.LLMToolCall{ToolCallReply: called("a")})
	},
	"parallel_acting": func(r *timed, run events.Run) {
		r.Append(run, events.Planning, &events.LLMParallelToolCalls{ToolCallReply: called("a", "b")})
	},
	"observing": func(r *timed, run events.Run) {
		r.Append(run, events.Planning, &events.LLMToolCall{ToolCallReply: called("a")})
		r.Append(run, events.Acting, &events.ToolSuccess{Outcome: &events.ToolOutcome{CallID: "a", Success: true, Observation: "SUCCESS: x"}})
	},
}

func TestDeadlineInEveryState(t *testing.T) {
	for name, bring := range into {
		for _, wall := range []time.Duration{20 * time.Minute, 50*time.Hour + 7*time.Minute} {
			t.Run(fmt.Sprint(name, " ", wall), func(t *testing.T) {
				inTime(t, func(t *testing.T, r *timed) {
					// This test is not about stalls.
					g, _ := r.serve(func(cfg *control.Config) { cfg.StallAfter = 60 * time.Hour })
					run := r.start(g, func(a *events.Agent) { wallTime(wall)(a); a.Mode = events.ModeChat })
					sleep(time.Minute)
					bring(r, run)
					sleep(wall - time.Minute - time.Second)
					require.Zero(t, r.Count(run, events.TypeBudgetExceeded))
					sleep(2 * time.Second)
					mem := r.Memory(run)
					require.Equal(t, events.Errored, mem.State)
					require.Equal(t, &reducer.RunError{Code: "budget_wall_time", Message: "the run took longer than its " + wall.String()}, mem.Error)
					require.True(t, r.at(run, events.TypeBudgetExceeded).Equal(mem.Started.Add(wall)))
					recs := r.Records(run)
					subject, err := events.ParseSubject(recs[len(recs)-1].Subject)
					require.NoError(t, err)
					require.Equal(t, events.Control, subject.From, "so that whoever works on it sees it at once")
					sleep(100 * time.Hour)
					require.Zero(t, r.Journal.Timers(), "a run that has ended has no timers")
				})
			})
		}
	}
}

func TestDeadlineMovesWithTheBudget(t *testing.T) {
	inTime(t, func(t *testing.T, r *timed) {
		g, _ := r.serve(nil)
		raise := func(run events.Run, wall time.Duration) {
			t.Helper()
			_, err := g.RaiseBudget(t.Context(), "", run.ID, events.Budget{MaxWallTime: events.Duration(wall)}, events.By{})
			require.NoError(t, err)
		}
		longer, shorter, first := r.start(g, wallTime(2*time.Hour)), r.start(g, wallTime(30*time.Hour)), r.start(g, nil)
		for _, run := range []events.Run{longer, shorter, first} {
			r.ask(run, 0, "a")
		}
		sleep(80 * time.Minute)
		raise(longer, 50*time.Hour)
		raise(shorter, 90*time.Minute)
		raise(first, 95*time.Minute)
		sleep(16 * time.Minute)
		for run, wall := range map[events.Run]time.Duration{shorter: 90 * time.Minute, first: 95 * time.Minute} {
			require.True(t, r.at(run, events.TypeBudgetExceeded).Equal(r.Memory(run).Started.Add(wall)))
		}
		sleep(48 * time.Hour)
		require.Equal(t, events.WaitingForHuman, r.Memory(longer).State)
		sleep(time.Hour)
		require.True(t, r.at(longer, events.TypeBudgetExceeded).Equal(r.Memory(longer).Started.Add(50*time.Hour)))
	})
}

// A start that failed after it set its timer leaves nothing. A start that takes long is not
// forgotten.
func TestTimerOfARunThatWasNotStarted(t *testing.T) {
	inTime(t, func(t *testing.T, r *timed) {
		r.serve(nil)
		never, late := r.Store.Place("default", r.Store.NewID()), r.Store.Place("default", r.Store.NewID())
		for _, run := range []events.Run{never, late} {
			require.NoError(t, r.Journal.SetTimer(t.Context(), run, "run", time.Now(), nil))
		}
		sleep(20 * time.Second)
		g, _ := r.serve(nil)
		model := r.start(g, wallTime(5*time.Minute))
		start := r.Events(model)[0].Data.(*events.Start)
		r.Append(late, events.Idle, start)
		sleep(10 * time.Minute)
		require.Empty(t, r.Records(never))
		require.Equal(t, []string{"Start", "BudgetExceeded"}, r.Types(late))
		sleep(2 * stall)
		require.Zero(t, r.Journal.Timers())
	})
}

// A second attempt to start a run does not change its timer.
func TestStartAgainKeepsTheTimer(t *testing.T) {
	inTime(t, func(t *testing.T, r *timed) {
		g, _ := r.serve(nil)
		run := r.start(g, wallTime(30*time.Minute))
		for range 3 {
			sleep(9 * time.Minute)
			a := events.DefaultAgent()
			a.Name, a.LLM.Provider = "tester", "openai"
			require.NoError(t, announce.NewDirectory(r.Journal, nil).AnnounceProviders(t.Context(), "p", []string{"openai"}))
			_, err := g.Start(t.Context(), "", control.StartRequest{Agent: &a, Task: "Again.", RunID: run.ID})
			var refused *refusal.Error
			require.ErrorAs(t, err, &refused)
			require.Equal(t, refusal.CodeRunExists, refused.Code)
		}
		sleep(4 * time.Minute)
		require.True(t, r.at(run, events.TypeBudgetExceeded).Equal(r.Memory(run).Started.Add(30*time.Minute)))
	})
}

// A run that waits for weeks is read once, not every hour.
func TestWaitingRunIsNotReadAgain(t *testing.T) {
	t.Parallel()
	inTime(t, func(t *testing.T, r *timed) {
		log := &workertest.Log{Log: r.Journal}
		g, _ := r.serve(func(cfg *control.Config) { cfg.Store = runlog.New(runlog.Options{Log: log}) })
		run := r.start(g, wallTime(30*24*time.Hour))
		r.ask(run, 0, "a")
		sleep(2 * stall)
		read := log.Reads()
		sleep(20 * 24 * time.Hour)
		require.Equal(t, read, log.Reads())
		require.Equal(t, 1, r.Journal.Timers(), "one timer for a run that lives")
		sleep(10 * 24 * time.Hour)
		require.Equal(t, 1, r.Count(run, events.TypeBudgetExceeded))
	})
}

// The timers of a run that has ended are removed, even if they are far in the future.
func TestEndedRunLeavesNoTimers(t *testing.T) {
	inTime(t, func(t *testing.T, r *timed) {
		g, _ := r.serve(nil)
		run := r.start(g, wallTime(60*24*time.Hour))
		r.ask(run, 30*24*time.Hour, "a")
		sleep(time.Minute)
		require.Equal(t, 2, r.Journal.Timers())
		_, err := g.Cancel(t.Context(), "", run.ID, events.By{})
		require.NoError(t, err)
		sleep(2 * stall)
		require.Zero(t, r.Journal.Timers())
	})
}

// Poison that wakes no worker ends its run at the next check, even if the run waits.
func TestPoisonIsFoundInTime(t *testing.T) {
	inTime(t, func(t *testing.T, r *timed) {
		g, _ := r.serve(nil)
		for _, body := range []string{"?", `{"type":"moorebus.NoSuchEvent"}`} {
			run := r.start(g, nil)
			r.ask(run, 30*time.Minute, "a")
			sleep(time.Minute)
			r.Journal.Inject(run.Shard, events.Subject{Run: run, From: events.Planning, To: events.Nobody, Pool: "default"}.String(), []byte(body))
			sleep(2 * stall)
			mem, err := r.Fold(run)
			require.Error(t, err)
			require.Equal(t, events.Errored, mem.State)
			require.Equal(t, codes.Poison, mem.Error.Code)
		}
	})
}

// hiding is a log without one of its runs, while hidden is true.
type hiding struct {
	journal.Log
	run    string
	hidden atomic.Bool
}

func (h *hiding) Read(ctx context.Context, run events.Run, after uint64) iter.Seq2[journal.Record, error] {
	if run.ID == h.run && h.hidden.Load() {
		return func(func(journal.Record, error) bool) {}
	}
	return h.Log.Read(ctx, run, after)
}

// A fork whose parent is not in the log keeps its timers until the parent is restored.
func TestTimersOfAForkWhoseParentIsAway(t *testing.T) {
	t.Parallel()
	inTime(t, func(t *testing.T, r *timed) {
		g, p := r.serve(nil)
		parent := r.start(g, wallTime(90*time.Minute))
		r.ask(parent, 0, "a")
		started, err := g.Fork(t.Context(), "", parent.ID, forking.Request{At: 2})
		require.NoError(t, err)
		fork := r.Store.Place(events.DefaultNamespace, started.RunID)
		p.Kill()
		log := &hiding{run: parent.ID}
		log.hidden.Store(true)
		r.serve(func(cfg *control.Config) {
			log.Log = cfg.Store.Log()
			cfg.Store = r.NewStore(log)
		})
		sleep(20 * stall)
		require.Equal(t, []string{"Forked"}, r.Types(fork))
		log.hidden.Store(false)
		sleep(stall + time.Minute)
		require.Equal(t, []string{"Forked", "BudgetExceeded"}, r.Types(fork))
		require.Zero(t, r.Journal.Timers())
	})
}
