// Package runs reads and changes single runs. It finds a run in its namespace, locks it, reads
// it to the head of its log, and appends events under the run's own condition.
//
// The error of a request that cannot be carried out is a *refusal.Error. Other errors are
// those of the log and the bus.
package runs

import (
	"context"
	"encoding/json"
	"errors"
	"iter"
	"time"

	"github.com/moorebus/moorebus/internal/effects"
	"github.com/moorebus/moorebus/internal/meter"
	"github.com/moorebus/moorebus/internal/refusal"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/internal/runstart"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// Editor reads and changes single runs. It is safe for concurrent use.
type Editor struct {
	Store *runlog.Store
	Log   journal.Log
	Table *reducer.Table
	// Launcher opens runs and finds tombstones.
	Launcher *runstart.Launcher
	// Source is the source of appended events.
	Source string
	// Namespace is for requests that name none.
	Namespace string
	// Quorum returns nil if the log has a quorum, see [ports.Fleet]. Nil: it is not known.
	Quorum func(ctx context.Context) error
}

// Result is a run's state and number of events after a request.
type Result struct {
	State events.State `json:"state"`
	N     uint64       `json:"n"`
}

// CheckNamespace returns ns, or the default if it is empty.
func (a *Editor) CheckNamespace(ns string) (string, error) {
	if ns == "" {
		return a.Namespace, nil
	}
	if !events.ValidToken(ns) {
		return "", refusal.New(refusal.Invalid, refusal.CodeBadNamespace, "namespace %q is not [a-z0-9][a-z0-9_-]{0,62}", ns)
	}
	return ns, nil
}

// Place returns a run's place in the log. An id that no run can have is a CodeRunNotFound.
func (a *Editor) Place(ns, id string) (events.Run, error) {
	ns, err := a.CheckNamespace(ns)
	if err != nil {
		return events.Run{}, err
	}
	if events.CheckID(id) != nil {
		return events.Run{}, notFound(id)
	}
	return a.Store.Place(ns, id), nil
}

// View calls fn with the run at the head of its log, under the run's lock. A run that does not
// exist is a CodeRunNotFound or a CodeRunPurged.
func (a *Editor) View(ctx context.Context, ns, id string, fn func(run *runlog.Run) error) error {
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
func (a *Editor) atHead(ctx context.Context, at events.Run, fn func(run *runlog.Run) error) error {
	run := a.Store.Acquire(at)
	defer a.Store.Release(run)
	locking, stop := context.WithTimeout(ctx, lockWait)
	defer stop()
	if err := run.LockContext(locking); err != nil {
		return refusal.Wrap(err, refusal.Unavailable, refusal.CodeUnavailable,
			"the log does not answer an append to the run, so it takes no writes now; try again, and see /readyz")
	}
	defer run.Unlock()
	if err := run.Refresh(ctx); err != nil {
		return err
	}
	return fn(run)
}

// Change appends to a run what decide returns, all or nothing. A run that has ended is a
// conflict. A poisoned run is ended instead, because its log takes nothing else.
func (a *Editor) Change(ctx context.Context, ns, id string, decide runlog.Decide) (Result, error) {
	var result Result
	err := a.View(ctx, ns, id, func(run *runlog.Run) error {
		poisoned := false
		err := a.Commit(ctx, run, func(mem *reducer.Memory) ([]runlog.Draft, error) {
			if a.Table.Terminal(mem.State) {
				return nil, ended(mem)
			}
			drafts, err := decide(mem)
			if poisoned = mem.Control.Poison != nil && !isCancel(drafts); poisoned {
				return []runlog.Draft{{Origin: events.Control, Payload: effects.End(mem)}}, nil
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

// One returns one draft.
func One(origin events.State, p events.Payload) ([]runlog.Draft, error) {
	return []runlog.Draft{{Origin: origin, Payload: p}}, nil
}

// Commit appends to a run. The caller holds its lock.
func (a *Editor) Commit(ctx context.Context, run *runlog.Run, decide runlog.Decide) error {
	count := 0
	appended, err := run.Commit(ctx, runlog.Stamp{Source: a.Source}, func(mem *reducer.Memory) ([]runlog.Draft, error) {
		drafts, err := decide(mem)
		count = len(drafts)
		return drafts, err
	})
	if appended {
		meter.Add(a.Store.Meter(), meter.GatewayAdded, float64(count))
	}
	return err
}

// Open begins a run that must not exist.
func (a *Editor) Open(ctx context.Context, at events.Run, o runstart.Opening) (Result, error) {
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
	meter.Add(a.Store.Meter(), meter.GatewayAdded, 1)
	meter.Add(a.Store.Meter(), meter.GatewayRuns, 1)
	return Result{State: state, N: n}, nil
}

// NewRun returns the place of a new run. An empty id stands for a new one; another id must
// belong to no run, not even a purged one.
func (a *Editor) NewRun(ctx context.Context, ns, id string) (events.Run, error) {
	if id == "" {
		return a.Store.Place(ns, a.Store.NewID()), nil
	}
	at := a.Store.Place(ns, id)
	if err := a.CheckPurged(ctx, at, refusal.Conflict); err != nil {
		return at, err
	}
	return at, a.atHead(ctx, at, func(run *runlog.Run) error { return exists(run.Memory()) })
}

// CheckPurged refuses a purged run with a refusal of the kind. A purge writes the tombstone long
// before it removes the first event.
func (a *Editor) CheckPurged(ctx context.Context, at events.Run, kind refusal.Kind) error {
	stone, err := a.Launcher.Tombstone(ctx, at)
	if stone == nil || err != nil {
		return err
	}
	return refusal.New(kind, refusal.CodeRunPurged, "run %s was purged; import its archive to restore it", at.ID).
		With(map[string]any{"run": at.ID, "purged_at": stone.PurgedAt, "n": stone.Events})
}

// Missing returns why a run is not in the log: it was purged, or it never existed.
func (a *Editor) Missing(ctx context.Context, at events.Run) error {
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

// Conflict returns a refusal because of the run's state. Its fields are the run, its state and
// n.
func Conflict(mem *reducer.Memory, code, format string, args ...any) *refusal.Error {
	return refusal.New(refusal.Conflict, code, format, args...).
		With(map[string]any{"run": mem.RunID, "state": mem.State, "n": mem.N})
}

func ended(mem *reducer.Memory) error {
	return Conflict(mem, refusal.CodeRunEnded, "the run has ended in state %s and accepts nothing more", mem.State)
}

func exists(mem *reducer.Memory) error {
	if mem.N == 0 {
		return nil
	}
	return Conflict(mem, refusal.CodeRunExists, "run %s already exists", mem.RunID)
}

// RunState is a run after its first N events. Memory is [reducer.Memory] as JSON.
type RunState struct {
	RunID string       `json:"run_id"`
	State events.State `json:"state"`
	N     uint64       `json:"n" jsonschema:"The number of the last event that counts."`
	Mode  events.Mode  `json:"mode"`
	Agent string       `json:"agent" jsonschema:"The agent's name."`
	// Started and Updated are omitted before the first event.
	Started time.Time `json:"started,omitzero"`
	Updated time.Time `json:"updated,omitzero"`
	Queued  bool      `json:"queued,omitempty" jsonschema:"The run waits until its quotas admit it."`
	Paused  bool      `json:"paused,omitempty" jsonschema:"No new work of the run starts until it is resumed."`
	// PauseReason is what was said when the run was paused; "restored" by a restore.
	PauseReason string `json:"pause_reason,omitempty" jsonschema:"Why the run is paused. restored: a restore paused it."`
	// WaitsFor is the pool whose actors are missing; nil: none is, as far as is known.
	WaitsFor *WaitsFor `json:"waits_for,omitempty" jsonschema:"A call of the run waits until an actor of this pool comes."`
	// Labels are those that the run began with.
	Labels events.Labels   `json:"labels,omitempty"`
	Memory json.RawMessage `json:"memory"`
}

// WaitsFor is a pool without actors that a call of a run waits for.
type WaitsFor struct {
	Pool string `json:"pool"`
	// Since is when the wait began, as far as the gateway knows.
	Since time.Time `json:"since" jsonschema:"When the wait began, as far as the gateway knows."`
}

// NewWaitsFor returns that a run waits for a pool. unserved is when the pool lost its last actor,
// updated the time of the run's last event: the wait began with the later of them.
func NewWaitsFor(pool string, unserved, updated time.Time) *WaitsFor {
	if updated.After(unserved) {
		unserved = updated
	}
	return &WaitsFor{Pool: pool, Since: unserved.UTC()}
}

// State returns a run after its first n events, or all events if n is 0. An n beyond the head is
// a CodeBadParameter.
func (a *Editor) State(ctx context.Context, ns, id string, n uint64) (RunState, error) {
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

// NewRunState returns the RunState of a memory.
func NewRunState(mem *reducer.Memory) (RunState, error) {
	data, err := json.Marshal(mem)
	if err != nil {
		return RunState{}, refusal.Fault("memory of run %s: %w", mem.RunID, err)
	}
	return RunState{
		RunID: mem.RunID, State: mem.State, N: mem.N, Mode: mem.Mode, Agent: mem.Control.Agent.Name,
		Started: mem.Started, Updated: mem.Updated, Queued: mem.Queued(), Memory: data,
		Paused: mem.Control.Paused, PauseReason: mem.Control.PauseReason, Labels: mem.Control.Labels,
	}, nil
}

// Events yields the run's records from number from on (the first is 1) to the head, in order.
// The error is for a run that does not exist.
func (a *Editor) Events(ctx context.Context, ns, id string, from uint64) (iter.Seq2[journal.Record, error], error) {
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
			// Every other record counts, legal or not.
			if n++; err == nil && n < from {
				continue
			}
			if !yield(rec, err) {
				return
			}
		}
	}, nil
}

// NotOfLog reports whether a record belongs to no run although a run's filter matches it: its
// subject is not a subject of the log. It does not count as an event.
func NotOfLog(rec journal.Record) bool {
	_, err := events.ParseSubject(rec.Subject)
	return err != nil
}

// Decode returns a record's event, or nil if it cannot be decoded or no run allows it on its
// subject.
func (a *Editor) Decode(rec journal.Record) *events.Event {
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
