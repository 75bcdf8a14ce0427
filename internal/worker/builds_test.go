package worker_test

import (
	"context"
	"encoding/json"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/codes"
	"github.com/moorebus/moorebus/internal/effects"
	"github.com/moorebus/moorebus/internal/natsbus"
	"github.com/moorebus/moorebus/internal/reducertest"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/internal/worker"
	"github.com/moorebus/moorebus/pkg/embedded"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// build is a worker of one revision of Moorebus, on a connection of its own to a real
// server.
type build struct {
	t       *testing.T
	machine *reducer.Machine
	store   *runlog.Store
	bus     *natsbus.Bus
	said    logged
}

// logged is a logger's output.
type logged struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logged) count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.text.String(), text)
}

// newBuild connects a build that has the table to the server.
func newBuild(t *testing.T, server *embedded.Server, table *reducer.Table) *build {
	conn, err := server.Connect()
	require.NoError(t, err)
	t.Cleanup(conn.Close)
	bus, err := natsbus.Open(t.Context(), conn, natsbus.Options{})
	require.NoError(t, err)
	b := &build{t: t, machine: reducer.NewMachine(reducer.MachineOptions{Table: table}), bus: bus}
	b.store = runlog.New(runlog.Options{Log: bus, Machine: b.machine})
	return b
}

// work runs the build's worker, which does its runs' work by the handlers, until the
// test ends or stop is called.
func (b *build) work(h handlers) (stop func()) {
	w, err := worker.New(worker.Config{
		Role: "test", Base: worker.Base{Instance: b.machine.Table().Hash()[:8], Store: b.store, Queue: b.bus, Feed: b.bus, Logger: slog.New(slog.NewTextHandler(&b.said, &slog.HandlerOptions{Level: slog.LevelDebug}))},
		Inboxes: inboxes(), Handlers: h,
	})
	require.NoError(b.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		require.NoError(b.t, <-done)
	})
	b.t.Cleanup(stop)
	return stop
}

// append appends to a run, as a gateway of the build does.
func (b *build) append(run events.Run, origin events.State, p events.Payload) error {
	held := b.store.Acquire(run)
	defer b.store.Release(held)
	held.Lock()
	defer held.Unlock()
	if err := held.Refresh(b.t.Context()); err != nil {
		return err
	}
	_, err := held.Commit(b.t.Context(), runlog.Stamp{Source: "moorebus/test/1"}, func(*reducer.Memory) ([]runlog.Draft, error) {
		return []runlog.Draft{{Origin: origin, Payload: p}}, nil
	})
	return err
}

// start starts a run, which pins what the build can read.
func (b *build) start(change ...func(*events.Start)) events.Run {
	start := reducertest.StartOf("find it", events.ModeTask)
	for _, c := range change {
		c(start)
	}
	start.TableHash = b.machine.Table().Hash()
	run := b.store.Place(events.DefaultNamespace, b.store.NewID())
	require.NoError(b.t, b.append(run, events.Idle, start))
	return run
}

// end waits for the run's end, and returns its memory and the types of its events.
func (b *build) end(run events.Run) (*reducer.Memory, []string) {
	ctx, cancel := context.WithTimeout(b.t.Context(), time.Minute)
	defer cancel()
	fold := runlog.NewFold(b.bus, b.machine, run)
	var types []string
	for rec, err := range b.bus.Follow(ctx, 0, journal.Filter{Run: run.ID}, 0) {
		require.NoError(b.t, err)
		e, err := fold.Apply(ctx, rec)
		require.NoError(b.t, err)
		if e.Type() != events.TypeLLMAttemptFailed { // a delivery that the old build gave back
			types = append(types, string(e.Type()))
		}
		if b.machine.Table().Terminal(fold.Memory().State) {
			return fold.Memory(), types
		}
	}
	b.t.Fatal("the run did not end")
	return nil, nil
}

// TestTwoBuildsOnOneBus: builds of this revision and of the one before it are at work
// side by side. Each run is finished, none is poisoned, and an old build leaves alone
// what pins more than it knows.
func TestTwoBuildsOnOneBus(t *testing.T) {
	if testing.Short() {
		t.Skip("reason: needs a server")
	}
	server, err := embedded.Start(t.Context(), embedded.Options{Dir: t.TempDir(), Logger: discard()})
	require.NoError(t, err)
	t.Cleanup(server.Shutdown)
	before, err := reducer.DefaultTable().At(reducer.Revision - 1)
	require.NoError(t, err)
	conn, err := server.Connect()
	require.NoError(t, err)
	t.Cleanup(conn.Close)
	require.NoError(t, natsbus.Init(t.Context(), conn, natsbus.InitOptions{Pools: []string{"web", "math"}, Memory: true}))
	older, newer := newBuild(t, server, before), newBuild(t, server, reducer.DefaultTable())

	t.Run("runs of the newer one", func(t *testing.T) {
		stopOlder := older.work(handlers{effects.KindPlan: work(func(context.Context) worker.Result {
			t.Error("the older build did the work")
			return worker.Done(answer("not its own"))
		})})
		runs := []events.Run{newer.start(), newer.start(), newer.start()}
		for _, run := range runs {
			left := func() bool { return older.said.count("run="+run.ID) > 0 }
			require.Eventually(t, left, time.Minute, 10*time.Millisecond, "the older build never met the run")
		}
		defer newer.work(three())()
		stopOlder() // else each delivery that it takes comes back later
		for _, run := range runs {
			mem, types := newer.end(run)
			require.Equal(t, events.Done, mem.State)
			require.Nil(t, mem.Control.Poison)
			require.Equal(t, threeTypes, types, "nothing is lost, and nothing is there twice")
		}
		require.Equal(t, 1, older.said.count("level=ERROR"), "the table is named once")
		require.Equal(t, len(runs)-1, older.said.count("level=WARN"), "and so is each further run")
	})
	t.Run("a run of the older one", func(t *testing.T) {
		defer older.work(three())()
		defer newer.work(three())()
		for range 3 {
			mem, types := older.end(older.start())
			require.Equal(t, events.Done, mem.State)
			require.Equal(t, threeTypes, types)
		}
	})
	t.Run("a newer event in a run of the older one", func(t *testing.T) {
		brought, queued := &events.Admitted{}, func(s *events.Start) { s.Queued = true }
		without, err := reducer.DefaultTable().At(events.Since(events.TypeAdmitted) - 1)
		require.NoError(t, err)
		require.ErrorIs(t, newer.append(newBuild(t, server, without).start(), events.Control, brought), reducer.ErrRevision, "the older build would end the run")
		require.NoError(t, newer.append(newer.start(queued), events.Control, brought))
	})
}

// A worker without the run's graph does nothing to it, and leaves it to one that
// has it.
func TestRunOfAnotherTableIsLeftAlone(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		spec := reducer.DefaultTable().Spec()
		spec.Rows = append(spec.Rows, reducer.Row{From: events.Planning, Event: events.TypeContinue, To: events.Acting})
		table, err := reducer.NewTable(spec)
		require.NoError(t, err)
		r.leftAlone(reducer.MachineOptions{Table: table}, "Start")
	})
}

// A worker does the same that meets a version of a payload which it does not know.
func TestRunWithANewerVersionIsLeftAlone(t *testing.T) {
	same := func(old json.RawMessage) (json.RawMessage, error) { return old, nil }
	codec, err := events.NewCodec(events.TypeSpec{Type: events.TypeLLMThought, Upcasters: []events.Upcaster{same}})
	require.NoError(t, err)
	bubble(t, func(t *testing.T, r *rig) {
		r.leftAlone(reducer.MachineOptions{Codec: codec}, "Start", "LlmThought")
	})
}

// Deliveries that an older build gave back do not use up a run's attempts while it waits
// for a provider that is limited.
func TestDeliveriesGivenBackEndNoRun(t *testing.T) {
	before, err := reducer.DefaultTable().At(reducer.Revision - 1)
	require.NoError(t, err)
	bubble(t, func(t *testing.T, r *rig) {
		older := reducer.NewMachine(reducer.MachineOptions{Table: before})
		run := r.start()
		for range 2 * reducer.MaxWorkersLost {
			asked := make(chan struct{}, 1)
			_, stop := r.spawn(handlers{effects.KindPlan: work(func(context.Context) worker.Result {
				asked <- struct{}{}
				return worker.Retry(events.LLMAttemptFailed{Kind: codes.KindRateLimited, NotAsked: true, Message: "wait"}, time.Second)
			})})
			select {
			case <-asked:
			case <-time.After(time.Hour):
				require.FailNow(t, "nobody asks any more", "%v", r.Memory(run).Error)
			}
			synctest.Wait()
			stop()
			met := &logged{}
			p := r.Journal.NewProcess()
			stop = r.Go(r.worker(p, nil, func(c *worker.Config) {
				c.Store = runlog.New(runlog.Options{Log: p, Machine: older})
				c.Logger = slog.New(slog.NewTextHandler(met, nil))
			}).Run)
			for met.count("run="+run.ID) == 0 {
				time.Sleep(100 * time.Millisecond) // in the bubble
			}
			stop()
		}
		require.Greater(t, r.Count(run, events.TypeLLMAttemptFailed), 3*reducer.MaxWorkersLost, "they alternate")
		r.spawn(handlers{effects.KindPlan: always(answer("It is done."))})
		require.Equal(t, events.Done, r.AwaitEnd(run).State)
	})
}

// leftAlone has a run by a machine of the options, which a worker with the machine as
// it comes leaves to one that has theirs.
func (r *rig) leftAlone(o reducer.MachineOptions, types ...string) {
	own := r.Machine
	r.Machine = reducer.NewMachine(o)
	r.Store = r.NewStore(r.Journal)
	run := r.start()
	if len(types) > 1 {
		r.Append(run, events.Planning, &events.LLMThought{Reply: events.Reply{Content: "Let me see."}})
	}

	p := r.Journal.NewProcess()
	stranger := r.worker(p, handlers{effects.KindPlan: work(func(context.Context) worker.Result {
		// What it did under the delivery of an event that it knows cannot be appended.
		require.Greater(r.T, len(types), 1, "the stranger did the work")
		return worker.Done(answer("not its own"))
	})}, func(c *worker.Config) { c.Store = runlog.New(runlog.Options{Log: p, Machine: own}) })
	stop := r.Go(stranger.Run)
	settled()
	require.Equal(r.T, types, r.Types(run))
	stop()

	r.spawn(handlers{effects.KindPlan: always(answer("its own"))})
	mem := r.AwaitEnd(run)
	require.Equal(r.T, "its own", *mem.FinalAnswer)
	require.Nil(r.T, mem.Control.Poison)
}
