// Package access reads and changes single runs as the log has them: it finds a run in
// its namespace, locks it, brings it up to the head of its log, and appends events under
// the run's own condition.
//
// Every request that cannot be carried out is a *refusal.Error. Other errors are those
// of the log and the bus.
package access

import (
	"context"
	"encoding/json"
	"errors"
	"iter"
	"sync/atomic"
	"time"

	"github.com/moorebus/moorebus/internal/launch"
	"github.com/moorebus/moorebus/internal/refusal"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// Access reads and changes runs. It is safe for concurrent use.
type Access struct {
	Store *runlog.Store
	Log   journal.Log
	Table *reducer.Table
	// Launcher opens runs and knows which were purged.
	Launcher *launch.Launcher
	// Source signs the events that are appended.
	Source string
	// Namespace is used where a request names none.
	Namespace string
	// Started and Appended count runs and events that were appended here.
	Started, Appended atomic.Int64
}

// Result is where a run stands after a request: its state and the number of its events.
type Result struct {
	State events.State `json:"state"`
	N     uint64       `json:"n"`
}

// CheckNamespace returns the namespace to use for the one given.
func (a *Access) CheckNamespace(ns string) (string, error) {
	if ns == "" {
		return a.Namespace, nil
	}
	if !events.ValidToken(ns) {
		return "", refusal.New(refusal.Invalid, refusal.CodeBadNamespace, "namespace %q is not [a-z0-9][a-z0-9_-]{0,62}", ns)
	}
	return ns, nil
}

// Place returns where a run's log is. An id that no run can have is not found.
func (a *Access) Place(ns, id string) (events.Run, error) {
	ns, err := a.CheckNamespace(ns)
	if err != nil {
		return events.Run{}, err
	}
	if events.CheckID(id) != nil {
		return events.Run{}, notFound(id)
	}
	return a.Store.Place(ns, id), nil
}

// View calls fn with the run at the head of its log, under the run's lock. A run that is
// not there is a CodeRunNotFound or a CodeRunPurged.
func (a *Access) View(ctx context.Context, ns, id string, fn func(run *runlog.Run) error) error {
	at, err := a.Place(ns, id)
	if err != nil {
		return err
	}
	return a.atHead(ctx, at, func(run *runlog.Run) error {
		if run.Memory().N == 0 {
			return a.Missing(ctx, at)
		}
		return fn(run)
	})
}

// lockWait is how long a request waits for another append to its run.
const lockWait = 4 * time.Second

// atHead calls fn with the run at the head of its log, which may be empty.
func (a *Access) atHead(ctx context.Context, at events.Run, fn func(run *runlog.Run) error) error {
	run := a.Store.Acquire(at)
	defer a.Store.Release(run)
	locking, stop := context.WithTimeout(ctx, lockWait)
	defer stop()
	if err := run.LockContext(locking); err != nil {
		return refusal.Wrap(err, refusal.Unavailable, refusal.CodeUnavailable,
			"an append to the run is under way and the log does not answer it: it takes no writes; try again, and look at /readyz")
	}
	defer run.Unlock()
	if err := run.Refresh(ctx); err != nil {
		return err
	}
	return fn(run)
}

// Change appends to a run what decide returns, all or nothing, and returns where the run
// stands then. A run that has ended is a conflict. A poisoned run is ended first, since
// its log takes nothing else.
func (a *Access) Change(ctx context.Context, ns, id string, decide runlog.Decide) (Result, error) {
	var result Result
	err := a.View(ctx, ns, id, func(run *runlog.Run) error {
		poisoned := false
		err := a.Commit(ctx, run, func(mem *reducer.Memory) ([]runlog.Draft, error) {
			if a.Table.Terminal(mem.State) {
				return nil, ended(mem)
			}
			drafts, err := decide(mem)
			if poisoned = mem.Control.Poison != nil && !isCancel(drafts); poisoned {
				return []runlog.Draft{{Origin: events.Control, Payload: reducer.End(mem)}}, nil
			}
			return drafts, err
		})
		mem := run.Memory()
		if err == nil && poisoned {
			err = ended(mem)
		}
		if err == nil {
			result = Result{State: mem.State, N: mem.N}
		}
		return err
	})
	return result, err
}

func isCancel(drafts []runlog.Draft) bool {
	if len(drafts) != 1 {
		return false
	}
	_, cancel := drafts[0].Payload.(*events.CancelledRun)
	return cancel
}

// One is the decision for a single event.
func One(origin events.State, p events.Payload) ([]runlog.Draft, error) {
	return []runlog.Draft{{Origin: origin, Payload: p}}, nil
}

// Commit appends to a run whose lock is held.
func (a *Access) Commit(ctx context.Context, run *runlog.Run, decide runlog.Decide) error {
	count := 0
	appended, err := run.Commit(ctx, runlog.Stamp{Source: a.Source}, func(mem *reducer.Memory) ([]runlog.Draft, error) {
		drafts, err := decide(mem)
		count = len(drafts)
		return drafts, err
	})
	if appended {
		a.Appended.Add(int64(count))
	}
	return err
}

// Open begins a run that must not exist and returns where it stands then.
func (a *Access) Open(ctx context.Context, at events.Run, o launch.Opening) (Result, error) {
	check := o.Check
	o.Check = func(mem *reducer.Memory) error {
		err := exists(mem)
		if err == nil && check != nil {
			err = check(mem)
		}
		return err
	}
	state, n, err := a.Launcher.Open(ctx, at, o)
	if err != nil {
		return Result{}, err
	}
	a.Appended.Add(1)
	a.Started.Add(1)
	return Result{State: state, N: n}, nil
}

// NewRun returns where a run begins: under the id, which no run may have or have had, or
// under a new one if it is empty.
func (a *Access) NewRun(ctx context.Context, ns, id string) (events.Run, error) {
	if id == "" {
		return a.Store.Place(ns, a.Store.NewID()), nil
	}
	at := a.Store.Place(ns, id)
	if err := a.CheckPurged(ctx, at, refusal.Conflict); err != nil {
		return at, err
	}
	return at, a.atHead(ctx, at, func(run *runlog.Run) error { return exists(run.Memory()) })
}

// CheckPurged refuses a run that was purged, with that kind. A purge leaves its
// tombstone long before it removes the first event.
func (a *Access) CheckPurged(ctx context.Context, at events.Run, kind refusal.Kind) error {
	stone, err := a.Launcher.Tombstone(ctx, at)
	if stone == nil || err != nil {
		return err
	}
	return refusal.New(kind, refusal.CodeRunPurged, "run %s was purged; its archive can be imported again", at.ID).
		With(map[string]any{"run": at.ID, "purged_at": stone.PurgedAt, "n": stone.Events})
}

// Missing says why a run is not in the log: it was purged, or never there.
func (a *Access) Missing(ctx context.Context, at events.Run) error {
	if err := a.CheckPurged(ctx, at, refusal.NotFound); err != nil {
		return err
	}
	return notFound(at.ID)
}

// IsMissing reports whether err says that a run is not in the log.
func IsMissing(err error) bool {
	return refusal.Is(err, refusal.CodeRunNotFound, refusal.CodeRunPurged)
}

func notFound(id string) error {
	return refusal.New(refusal.NotFound, refusal.CodeRunNotFound, "there is no run %q in this namespace", id)
}

// Conflict is a refusal that the state of a run does not allow a request. Its fields say
// where the run stands.
func Conflict(mem *reducer.Memory, code, format string, args ...any) *refusal.Error {
	return refusal.New(refusal.Conflict, code, format, args...).
		With(map[string]any{"run": mem.RunID, "state": mem.State, "n": mem.N})
}

func ended(mem *reducer.Memory) error {
	return Conflict(mem, refusal.CodeRunEnded, "the run has ended in state %s and takes nothing more", mem.State)
}

func exists(mem *reducer.Memory) error {
	if mem.N == 0 {
		return nil
	}
	return Conflict(mem, refusal.CodeRunExists, "run %s exists already", mem.RunID)
}

// RunState is a run as the fold of its first N events has it. Memory is
// [reducer.Memory] as JSON.
type RunState struct {
	RunID string       `json:"run_id"`
	State events.State `json:"state"`
	N     uint64       `json:"n"`
	Mode  events.Mode  `json:"mode"`
	Agent string       `json:"agent"`
	// Started and Updated are left out before the first event.
	Started time.Time       `json:"started,omitzero"`
	Updated time.Time       `json:"updated,omitzero"`
	Memory  json.RawMessage `json:"memory"`
}

// State returns a run after its first n events; 0 for all of them. An n beyond the
// run's head is a CodeBadParameter.
func (a *Access) State(ctx context.Context, ns, id string, n uint64) (RunState, error) {
	var state RunState
	var at events.Run
	err := a.View(ctx, ns, id, func(run *runlog.Run) (err error) {
		at = run.ID
		head := run.Memory().N
		switch {
		case n > head:
			return refusal.New(refusal.Invalid, refusal.CodeBadParameter, "at: the run has %d events, so at is 1 to %d", head, head)
		case n == 0 || n == head:
			state, err = NewRunState(run.Memory())
		}
		return err
	})
	if err != nil || state.RunID != "" {
		return state, err
	}
	fold, err := runlog.FoldAt(ctx, a.Log, a.Store.Machine(), at, n)
	if err != nil {
		return RunState{}, err
	}
	return NewRunState(fold.Memory())
}

// NewRunState is a run as its memory has it.
func NewRunState(mem *reducer.Memory) (RunState, error) {
	data, err := json.Marshal(mem)
	if err != nil {
		return RunState{}, refusal.Fault("memory of run %s: %w", mem.RunID, err)
	}
	return RunState{
		RunID: mem.RunID, State: mem.State, N: mem.N, Mode: mem.Mode, Agent: mem.Control.Agent.Name,
		Started: mem.Started, Updated: mem.Updated, Memory: data,
	}, nil
}

// Events yields the run's records from its n-th on (from 1), in order, to the head. A
// run that is not there is an error that is returned at once.
func (a *Access) Events(ctx context.Context, ns, id string, from uint64) (iter.Seq2[journal.Record, error], error) {
	at, err := a.Place(ns, id)
	if err != nil {
		return nil, err
	}
	if _, err := a.Log.Head(ctx, at); err != nil {
		if errors.Is(err, journal.ErrNotFound) {
			return nil, a.Missing(ctx, at)
		}
		return nil, err
	}
	return func(yield func(journal.Record, error) bool) {
		n := uint64(0)
		for rec, err := range a.Log.Read(ctx, at, 0) {
			if err == nil && NotOfLog(rec) {
				continue
			}
			// Every other record counts, whatever it holds: n is its place.
			if n++; err == nil && n < from {
				continue
			}
			if !yield(rec, err) {
				return
			}
		}
	}, nil
}

// NotOfLog reports whether a record belongs to no run although a run's filter matches
// it: its subject is none of the log's. It counts nowhere.
func NotOfLog(rec journal.Record) bool {
	_, err := events.ParseSubject(rec.Subject)
	return err != nil
}

// Decode returns a record's event, nil if it cannot be read or is legal in no run on its
// subject.
func (a *Access) Decode(rec journal.Record) *events.Event {
	s, err := events.ParseSubject(rec.Subject)
	if err != nil {
		return nil
	}
	e, err := a.Store.Machine().Codec().Decode(rec.Body)
	if err != nil || reducer.CheckEdge(a.Table, s, e) != nil {
		return nil
	}
	return e
}
