// Package workertest runs workers and roles on a simulated journal for tests: a
// [Bench] starts runs, appends requests of people and programs, waits until a run
// reaches a state, and checks what its log holds by folding it anew. It is for tests
// only, and made for use inside testing/synctest.
package workertest

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/codes"
	"github.com/moorebus/moorebus/internal/journaltest/simtest"
	"github.com/moorebus/moorebus/internal/reducertest"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// Patience is how long a test waits for something, in the bubble's time.
const Patience = 24 * time.Hour

// Bench is a simulated journal with the test's own process on it.
type Bench struct {
	T       testing.TB
	Journal *simtest.Journal
	Machine *reducer.Machine
	// Store is the test's own, as a gateway has one: nothing is shared with the
	// workers under test but the log.
	Store *runlog.Store
}

// New returns a bench. The machine is nil for the default one.
func New(t testing.TB, o simtest.Options, machine *reducer.Machine) *Bench {
	t.Helper()
	if machine == nil {
		machine = reducer.NewMachine(reducer.MachineOptions{})
	}
	b := &Bench{T: t, Journal: simtest.New(o), Machine: machine}
	b.Store = b.NewStore(b.Journal)
	return b
}

// NewStore returns another process's store on a log.
func (b *Bench) NewStore(log journal.Log) *runlog.Store {
	return runlog.New(runlog.Options{Log: log, Machine: b.Machine})
}

// Start opens a new run in the default namespace.
func (b *Bench) Start(start *events.Start) events.Run {
	b.T.Helper()
	reducertest.Pin(b.Store.Machine(), start)
	run := b.Store.Place(events.DefaultNamespace, b.Store.NewID())
	b.Append(run, events.Idle, start)
	return run
}

// Append appends payloads in one batch, whatever races it loses.
func (b *Bench) Append(run events.Run, origin events.State, payloads ...events.Payload) {
	b.T.Helper()
	require.NoError(b.T, b.TryAppend(run, origin, payloads...))
}

// TryAppend is Append that returns the error, such as that of an event which
// is not legal any more.
func (b *Bench) TryAppend(run events.Run, origin events.State, payloads ...events.Payload) error {
	held := b.Store.Acquire(run)
	defer b.Store.Release(held)
	held.Lock()
	defer held.Unlock()
	if err := held.Refresh(b.T.Context()); err != nil {
		return err
	}
	_, err := held.Commit(b.T.Context(), runlog.Stamp{Source: "moorebus/test/1"}, func(*reducer.Memory) ([]runlog.Draft, error) {
		drafts := make([]runlog.Draft, len(payloads))
		for i, p := range payloads {
			drafts[i] = runlog.Draft{Origin: origin, Payload: p}
		}
		return drafts, nil
	})
	return err
}

// Records returns the run's records.
func (b *Bench) Records(run events.Run) []journal.Record {
	b.T.Helper()
	var recs []journal.Record
	for rec, err := range b.Journal.Read(context.Background(), run, 0) {
		require.NoError(b.T, err)
		recs = append(recs, rec)
	}
	return recs
}

// Events returns the run's events; all of them must be readable.
func (b *Bench) Events(run events.Run) []*events.Event {
	b.T.Helper()
	var all []*events.Event
	for _, rec := range b.Records(run) {
		e, err := b.Machine.Codec().Decode(rec.Body)
		require.NoError(b.T, err)
		all = append(all, e)
	}
	return all
}

// Types returns the types of the run's events.
func (b *Bench) Types(run events.Run) []string {
	b.T.Helper()
	var types []string
	for _, e := range b.Events(run) {
		types = append(types, string(e.Type()))
	}
	return types
}

// Count returns how many of the run's events have the type.
func (b *Bench) Count(run events.Run, t events.Type) int {
	b.T.Helper()
	n := 0
	for _, typ := range b.Types(run) {
		if typ == string(t) {
			n++
		}
	}
	return n
}

// Fold folds the run's log anew, and returns the first illegal record as an
// error.
func (b *Bench) Fold(run events.Run) (*reducer.Memory, error) {
	b.T.Helper()
	fold := runlog.NewFold(b.Journal, b.Machine, run)
	var all error
	for _, rec := range b.Records(run) {
		if _, err := fold.Apply(context.Background(), rec); err != nil {
			all = errors.Join(all, err)
		}
	}
	return fold.Memory(), all
}

// Memory folds the run's log anew; every record must be legal.
func (b *Bench) Memory(run events.Run) *reducer.Memory {
	b.T.Helper()
	mem, err := b.Fold(run)
	require.NoError(b.T, err)
	return mem
}

// Await waits until the log leads to a memory that is as wanted, and returns it.
func (b *Bench) Await(run events.Run, wanted func(*reducer.Memory) bool) *reducer.Memory {
	b.T.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	fold := runlog.NewFold(b.Journal, b.Machine, run)
	mem := fold.Memory()
	filter := journal.Filter{Namespace: run.Namespace, Run: run.ID}
	for rec, err := range b.Journal.Follow(ctx, run.Shard, filter, 0) {
		if err != nil {
			require.NoError(b.T, err, "the run does not get there; it is in %s after %v", mem.State, b.trace(run))
		}
		_, _ = fold.Apply(ctx, rec) // poison is in the memory
		if wanted(mem) {
			return mem
		}
	}
	return mem
}

// trace is what the log holds, as far as it can be read.
func (b *Bench) trace(run events.Run) []string {
	var lines []string
	for _, rec := range b.Records(run) {
		lines = append(lines, fmt.Sprintf("%d %s", rec.Seq, rec.Subject))
	}
	return lines
}

// AwaitState waits until the run has been in one of the states.
func (b *Bench) AwaitState(run events.Run, states ...events.State) *reducer.Memory {
	b.T.Helper()
	return b.Await(run, func(mem *reducer.Memory) bool { return slices.Contains(states, mem.State) })
}

// AwaitEnd waits until the run has ended.
func (b *Bench) AwaitEnd(run events.Run) *reducer.Memory {
	b.T.Helper()
	return b.Await(run, func(mem *reducer.Memory) bool { return b.Machine.Table().Terminal(mem.State) })
}

// AwaitType waits until the log holds an event of the type.
func (b *Bench) AwaitType(run events.Run, t events.Type) *reducer.Memory {
	b.T.Helper()
	return b.Await(run, func(mem *reducer.Memory) bool {
		return len(mem.Trace) > 0 && mem.Trace[len(mem.Trace)-1].Event == string(t)
	})
}

// Go runs a role until the returned function is called or the test ends. Its
// error must be nil.
func (b *Bench) Go(run func(context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		require.NoError(b.T, <-done)
	})
	b.T.Cleanup(stop)
	return stop
}

// GoOn is Go for a role on a process that the test may kill; then its error does not
// matter.
func (b *Bench) GoOn(p *simtest.Process, run func(context.Context) error) (stop func()) {
	return b.Go(func(ctx context.Context) error {
		err := run(ctx)
		select {
		case <-p.Dead():
			return nil
		default:
			return err
		}
	})
}

// Act appends the success of a call, as an actor does.
func (b *Bench) Act(run events.Run, callID, text string) {
	b.T.Helper()
	b.Append(run, events.Acting, &events.ToolSuccess{Outcome: OK(callID, text)})
}

// OK is the outcome of a call that succeeded.
func OK(callID, text string) *events.ToolOutcome {
	return &events.ToolOutcome{CallID: callID, Success: true, Observation: codes.SuccessPrefix + text, Code: "ok"}
}

// Quiet waits until nothing moves any more, for longer than any delay and any ack wait.
// It is for tests inside testing/synctest.
func Quiet() {
	time.Sleep(time.Hour) // in the bubble
	synctest.Wait()
}

// Log is a log whose appends and reads a test can observe and change. A
// hook that is nil does nothing.
type Log struct {
	journal.Log
	// OnAppend is called instead of the append, which it may do by itself.
	OnAppend func(ctx context.Context, run events.Run, last uint64, entries []journal.Entry) (uint64, error)
	// OnRead is called before a read; its error is what the read yields.
	OnRead func(run events.Run) error

	appends, reads atomic.Int64
}

// Appends counts the appends that were tried.
func (l *Log) Appends() int { return int(l.appends.Load()) }

// Reads counts the reads.
func (l *Log) Reads() int { return int(l.reads.Load()) }

// Append calls the hook, or appends.
func (l *Log) Append(ctx context.Context, run events.Run, last uint64, entries ...journal.Entry) (uint64, error) {
	l.appends.Add(1)
	if l.OnAppend != nil {
		return l.OnAppend(ctx, run, last, entries)
	}
	return l.Log.Append(ctx, run, last, entries...)
}

// Read calls the hook and reads.
func (l *Log) Read(ctx context.Context, run events.Run, after uint64) iter.Seq2[journal.Record, error] {
	l.reads.Add(1)
	if l.OnRead != nil {
		if err := l.OnRead(run); err != nil {
			return func(yield func(journal.Record, error) bool) { yield(journal.Record{}, err) }
		}
	}
	return l.Log.Read(ctx, run, after)
}
