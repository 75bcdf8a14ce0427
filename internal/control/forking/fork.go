// Package forking starts runs that continue from an event of another run, with or without a
// patch.
package forking

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"reflect"
	"strings"

	"github.com/moorebus/moorebus/internal/codec"
	"github.com/moorebus/moorebus/internal/control/runs"
	"github.com/moorebus/moorebus/internal/refusal"
	"github.com/moorebus/moorebus/internal/runid"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/internal/runstart"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// KeyHeader is the HTTP header of [Request.Key]. MaxKey is the longest key, in bytes.
const (
	KeyHeader = "Idempotency-Key"
	MaxKey    = 255
)

// Request says where to fork a run and what to change. It is the body of POST
// /v1/runs/{id}/fork.
type Request struct {
	// At is the last event of the parent that the fork has, from 1.
	At uint64 `json:"at" jsonschema:"The last event of the parent that the fork has."`
	// Patch is a JSON merge patch (RFC 7396) over the agent's definition and the run's
	// task, task_type and mode. May be empty.
	Patch json.RawMessage `json:"patch,omitempty" jsonschema:"A JSON merge patch over the agent's definition, task, task_type and mode."`
	// RunID is the id of the fork, an unused lower-case UUIDv7. Empty: a new one.
	RunID string `json:"run_id,omitempty" jsonschema:"The fork's id, an unused lower-case UUIDv7. Default: a new one."`
	// Key, if not empty, makes the request safe to repeat: a repeated request returns the
	// fork of the first one. It has 1 to 255 visible ASCII characters; over HTTP it is the
	// header Idempotency-Key. A request has a Key or a RunID, not both.
	Key string `json:"-"`
}

// Result is the fork and its state.
type Result struct {
	RunID string `json:"run_id"`
	runs.Result
}

// Forker forks runs. It is safe for concurrent use.
type Forker struct {
	a *runs.Editor
	// checkScript checks scripts of patched agents; may be nil.
	checkScript func(json.RawMessage) error
}

// New returns a Forker of the runs that a accesses. checkScript is that of
// agentfile.Options.
func New(a *runs.Editor, checkScript func(json.RawMessage) error) *Forker {
	return &Forker{a, checkScript}
}

// Fork starts a run that continues from an event of another run, the parent. The parent does not
// change; it may have ended. The parent's work in flight at that event starts again in the
// fork, under the fork's own keys.
//
// Refusals are:
//
//   - Invalid: bad_parameter if at is no event of the run, bad_patch, bad_run_id,
//     bad_idempotency_key.
//   - NotFound: run_not_found; run_purged, during a purge too.
//   - Conflict: run_purged if an ancestor is being purged; run_ended
//     if the run has ended at that event, run_poisoned if it was poisoned there;
//     approval_open if a human approved a call by that event that has no result there, and
//     that must not run twice; too_many_forks; parent_gone if what the run was forked from is not in the log;
//     run_exists if a run has the id that the request names; idempotency_key_reused if
//     the key's fork, which the field run names, has another at or patch.
//   - TooLarge: too_large.
//   - Unprocessable: as for the start of a run with the patched agent.
func (f *Forker) Fork(ctx context.Context, ns, id string, req Request) (Result, error) {
	at, err := f.a.Place(ns, id)
	if err != nil {
		return Result{}, err
	}
	if err := req.validate(); err != nil {
		return Result{}, err
	}
	if req.Key == "" {
		return f.create(ctx, at, req)
	}
	req.RunID = runid.Fork(id, req.Key)
	fork, err := f.create(ctx, at, req)
	if refusal.Is(err, refusal.CodeRunExists) {
		return f.firstFork(ctx, at.Namespace, req)
	}
	return fork, err
}

func (r *Request) validate() error {
	switch {
	case r.RunID != "" && r.Key != "":
		return invalid(refusal.CodeBadRunID, "run_id: cannot be combined with the header %s, which determines the fork's id", KeyHeader)
	case r.RunID != "" && events.CheckID(r.RunID) != nil:
		return invalid(refusal.CodeBadRunID, "run_id: %.100q is not a lower-case UUIDv7", r.RunID)
	case len(r.Key) > MaxKey || strings.ContainsFunc(r.Key, func(c rune) bool { return c <= ' ' || c > '~' }):
		return invalid(refusal.CodeBadKey, "%s: must be 1 to %d visible ASCII characters", KeyHeader, MaxKey)
	}
	return nil
}

func invalid(code, format string, args ...any) error {
	return refusal.New(refusal.Invalid, code, format, args...)
}

// firstFork returns the existing fork of the request's key. A key of another fork is a conflict.
func (f *Forker) firstFork(ctx context.Context, ns string, req Request) (Result, error) {
	var now runs.Result
	err := f.a.View(ctx, ns, req.RunID, func(run *runlog.Run) error {
		now = runs.Result{State: run.Memory().State, N: run.Memory().N}
		return nil
	})
	if err != nil {
		return Result{}, err
	}
	records, err := f.a.Events(ctx, ns, req.RunID, 1)
	if err != nil {
		return Result{}, err
	}
	for rec, err := range records {
		if err != nil {
			return Result{}, err
		}
		if e := f.a.Decode(rec); e != nil {
			if first, ok := e.Data.(*events.Forked); ok && first.At == req.At && sameJSON(first.Patch, req.Patch) {
				return Result{RunID: req.RunID, Result: now}, nil
			}
		}
		break
	}
	return Result{}, refusal.New(refusal.Conflict, refusal.CodeKeyReused,
		"the key was used for run %s, a fork at another event or with another patch; use a key for one fork only", req.RunID).
		With(map[string]any{"run": req.RunID, "state": now.State, "n": now.N})
}

// sameJSON reports whether two patches are the same JSON value.
func sameJSON(a, b json.RawMessage) bool {
	read := func(text json.RawMessage) (v any) {
		if codec.Strict(text, &v) != nil {
			return nil // no patch
		}
		return v
	}
	return reflect.DeepEqual(read(a), read(b))
}

// create makes a new fork.
func (f *Forker) create(ctx context.Context, at events.Run, req Request) (Result, error) {
	run, err := f.a.NewRun(ctx, at.Namespace, req.RunID)
	if err != nil {
		return Result{}, err
	}
	parent, err := f.parent(ctx, at, req.At)
	if err != nil {
		return Result{}, err
	}
	if err := f.checkApprovals(ctx, at, parent.Ancestors(), parent.Memory()); err != nil {
		return Result{}, err
	}
	fork := &events.Forked{Run: at.ID, At: req.At, Hash: parent.Memory().Control.Head}
	if len(bytes.TrimSpace(req.Patch)) > 0 {
		if err := f.patch(ctx, parent.Memory(), fork, req.Patch); err != nil {
			return Result{}, err
		}
	}
	first := runstart.Opening{
		First: fork, Parent: parent, Budget: parent.Memory().Budget,
		Check: func(*reducer.Memory) error { return f.checkAncestors(ctx, at, parent.Ancestors()) },
	}
	if fork.Agent != nil {
		first.Budget = fork.Agent.Budget
	}
	opened, err := f.a.Open(ctx, run, first)
	if errors.Is(err, reducer.ErrRevision) {
		return Result{}, invalid(refusal.CodeBadPatch, "patch: models: %s; name one model for each task type", err)
	}
	if err != nil {
		return Result{}, err
	}
	return Result{RunID: run.ID, Result: opened}, nil
}

// checkAncestors refuses a fork if the parent or one of its ancestors is being purged. A purge
// looks for forks again some time after it wrote its tombstones, so it finds a fork that was
// made just before. An ancestor of which an import restored only the beginning keeps its
// tombstone and is not being purged.
func (f *Forker) checkAncestors(ctx context.Context, parent events.Run, ancestors []events.Run) error {
	if err := f.a.CheckPurged(ctx, parent, refusal.NotFound); err != nil {
		return err
	}
	for _, run := range ancestors {
		err := f.a.CheckPurged(ctx, run, refusal.Conflict)
		var refused *refusal.Error
		if errors.As(err, &refused) {
			err = f.ifComplete(ctx, run, refused)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// ifComplete returns the refusal if the log holds the run up to the last event of its tombstone.
func (f *Forker) ifComplete(ctx context.Context, run events.Run, refused error) error {
	stone, err := f.a.Launcher.Tombstone(ctx, run)
	if stone == nil || err != nil {
		return err
	}
	head, err := f.a.Log.Head(ctx, run)
	if err != nil && !errors.Is(err, journal.ErrNotFound) {
		return err
	}
	if err == nil && events.Hash(head.Body) != stone.Last {
		return nil
	}
	return refused
}

// parent returns the fold of the run's first n events. It reads the log and takes no lock, so no
// worker of the run has to wait.
func (f *Forker) parent(ctx context.Context, at events.Run, n uint64) (*runlog.Fold, error) {
	machine := f.a.Store.Machine()
	fold, err := runlog.FoldAt(ctx, f.a.Log, machine, at, max(n, 1))
	mem := fold.Memory()
	switch {
	case err != nil:
		return nil, err
	case mem.N == 0:
		return nil, f.a.Missing(ctx, at)
	case n == 0:
		return nil, invalid(refusal.CodeBadParameter, "at: events are counted from 1")
	case mem.N < n:
		return nil, invalid(refusal.CodeBadParameter, "at: the run has %d events, so at is 1 to %d", mem.N, mem.N)
	case machine.Forkable(mem, mem.Control.Head) == nil:
		return fold, nil
	case f.a.Table.Terminal(mem.State):
		return nil, runs.Conflict(mem, refusal.CodeRunEnded, "the run has ended in state %s at event %d; fork it at an earlier one", mem.State, n)
	case mem.Control.Poison != nil:
		return nil, runs.Conflict(mem, refusal.CodeRunPoisoned, "the run is poisoned at event %d; fork it at an earlier one", mem.Control.Poison.N)
	}
	return nil, runs.Conflict(mem, refusal.CodeTooManyForks, "the run is the last of %d forks in a row, the limit, so it cannot be forked", reducer.MaxForks)
}
