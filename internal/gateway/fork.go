package gateway

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"reflect"
	"strings"

	"github.com/moorebus/moorebus/internal/launch"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// The codes of an [Error] of [Gateway.Fork]. They are stable.
const (
	CodeRunPoisoned  = "run_poisoned"
	CodeTooManyForks = "too_many_forks"
	CodeParentGone   = "parent_gone"
	CodeBadPatch     = "bad_patch"
	CodeBadKey       = "bad_idempotency_key"
	CodeKeyReused    = "idempotency_key_reused"
)

// idempotencyKey is the header with [ForkRequest.Key], and maxKey how long that may
// be, in bytes.
const (
	idempotencyKey = "Idempotency-Key"
	maxKey         = 255
)

// ForkRequest says where a run is forked, and what is to be different. It is the
// body of POST /v1/runs/{id}/fork.
type ForkRequest struct {
	// At is the last event that the fork has of its parent, from 1.
	At uint64 `json:"at"`
	// Patch is a JSON merge patch (RFC 7396) over the agent's definition with
	// the run's task, task_type and mode beside its keys; empty: none.
	Patch json.RawMessage `json:"patch"`
	// RunID is the id of the fork, a lower-case UUIDv7 that no run has; empty: a new
	// one.
	RunID string `json:"run_id"`
	// Key, if not empty, makes the request safe to repeat: under one key a run is
	// forked once, and whoever asks again gets that fork. It is 1 to 255 visible
	// characters of ASCII, over HTTP in the header Idempotency-Key. A request has a
	// Key or a RunID, not both.
	Key string `json:"-"`
}

// ForkResult names the fork and says where it stands.
type ForkResult struct {
	RunID string `json:"run_id"`
	Result
}

// Fork starts a run that goes on from an event of another one, which may have
// ended or go on, and is not touched. What the parent had under way there begins
// again in the fork, under keys of the fork's own.
//
// Errors are *[Error]:
//
//   - 400 bad_parameter: at is no event of the run. 400 bad_patch, bad_run_id,
//     bad_idempotency_key.
//   - 404 run_not_found. 404 run_purged, also while a purge is under way.
//   - 409 run_purged: a run that it was forked from is being purged.
//   - 409 run_ended: the run has ended at that event. 409 run_poisoned: it was
//     poisoned there. 409 too_many_forks. 409 parent_gone: what the run was
//     forked from itself is not in the log. 409 run_exists: a run has the id that the
//     request names. 409 idempotency_key_reused: the key's fork has another at or
//     patch; the field run names it.
//   - 413 too_large.
//   - 422: as for [Gateway.Start], for the agent as it was patched.
func (g *Gateway) Fork(ctx context.Context, ns, id string, req ForkRequest) (ForkResult, error) {
	at, err := g.place(ns, id)
	if err != nil {
		return ForkResult{}, err
	}
	if err := req.check(); err != nil {
		return ForkResult{}, err
	}
	if req.Key == "" {
		return g.forkAs(ctx, at, req)
	}
	req.RunID = events.ForkID(id, req.Key)
	fork, err := g.forkAs(ctx, at, req)
	var there *Error
	if errors.As(err, &there) && there.Code == CodeRunExists {
		return g.firstFork(ctx, at.Namespace, req)
	}
	return fork, err
}

// firstFork returns the fork that the request's key stands for, where it stands now.
// A key that was used for another fork is a conflict.
func (g *Gateway) firstFork(ctx context.Context, ns string, req ForkRequest) (ForkResult, error) {
	p, err := g.end(ctx, ns, req.RunID)
	if err != nil {
		return ForkResult{}, err
	}
	records, err := g.Events(ctx, ns, req.RunID, 1)
	if err != nil {
		return ForkResult{}, err
	}
	for rec, err := range records {
		if err != nil {
			return ForkResult{}, err
		}
		e := g.plausible(rec)
		if e == nil {
			break
		}
		if first, ok := e.Data.(*events.Forked); ok && first.At == req.At && sameJSON(first.Patch, req.Patch) {
			return ForkResult{RunID: req.RunID, Result: Result{State: p.state, N: p.n}}, nil
		}
		break
	}
	e := conflict(CodeKeyReused, "the key was used for run %s, a fork at another event or with another patch; use a key for one fork only", req.RunID)
	e.Fields = map[string]any{"run": req.RunID, "state": p.state, "n": p.n}
	return ForkResult{}, e
}

// sameJSON reports whether two patches say the same, however they are written.
func sameJSON(a, b json.RawMessage) bool {
	read := func(text json.RawMessage) (v any) {
		d := json.NewDecoder(bytes.NewReader(text))
		d.UseNumber()
		if d.Decode(&v) != nil {
			return nil // there is none
		}
		return v
	}
	return reflect.DeepEqual(read(a), read(b))
}

func (r *ForkRequest) check() error {
	switch {
	case r.RunID != "" && r.Key != "":
		return badRequest(CodeBadRunID, "run_id: the fork's id follows from the header %s; give one of the two", idempotencyKey)
	case r.RunID != "" && events.CheckID(r.RunID) != nil:
		return badRequest(CodeBadRunID, "run_id: %.100q is not a lower-case UUIDv7", r.RunID)
	case len(r.Key) > maxKey || strings.ContainsFunc(r.Key, func(c rune) bool { return c <= ' ' || c > '~' }):
		return badRequest(CodeBadKey, "%s: must be 1 to %d visible characters of ASCII", idempotencyKey, maxKey)
	}
	return nil
}

// forkAs forks a run, whatever other forks there are.
func (g *Gateway) forkAs(ctx context.Context, at events.Run, req ForkRequest) (ForkResult, error) {
	run := g.store.Place(at.Namespace, cmp.Or(req.RunID, g.store.NewID()))
	if req.RunID != "" {
		if err := g.checkNew(ctx, run); err != nil {
			return ForkResult{}, err
		}
	}
	parent, err := g.parent(ctx, at, req.At)
	if err != nil {
		return ForkResult{}, err
	}
	fork := &events.Forked{Run: at.ID, At: req.At, Hash: parent.Memory().Control.Head}
	if len(bytes.TrimSpace(req.Patch)) > 0 {
		if err := g.patch(ctx, parent.Memory(), fork, req.Patch); err != nil {
			return ForkResult{}, err
		}
	}
	first := launch.Opening{
		First: fork, Parent: parent, Budget: parent.Memory().Budget,
		Check: func(mem *reducer.Memory) error {
			if err := exists(mem); err != nil {
				return err
			}
			return g.checkLineage(ctx, at, parent.Ancestors())
		},
	}
	if fork.Agent != nil {
		first.Budget = fork.Agent.Budget
	}
	opened, err := g.open(ctx, run, first)
	if err != nil {
		return ForkResult{}, err
	}
	return ForkResult{RunID: run.ID, Result: opened}, nil
}

// checkLineage refuses to fork a run that is being purged, or one that stands on
// such a run. A purge looks for forks again some time after it left its tombstones,
// so that one that was forked just before is found. An ancestor of which an import
// brought back the beginning only keeps its tombstone, and is not about to go.
func (g *Gateway) checkLineage(ctx context.Context, parent events.Run, ancestors []events.Run) error {
	if err := g.purged(ctx, parent, http.StatusNotFound); err != nil {
		return err
	}
	for _, run := range ancestors {
		err := g.purged(ctx, run, http.StatusConflict)
		var refused *Error
		if errors.As(err, &refused) {
			err = g.stillWhole(ctx, run, refused)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// stillWhole returns the refusal if the log holds the run as its tombstone has it, up
// to its last event.
func (g *Gateway) stillWhole(ctx context.Context, run events.Run, refusal error) error {
	stone, err := g.cfg.Tombstones.Tombstone(ctx, run)
	if errors.Is(err, journal.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	head, err := g.log.Head(ctx, run)
	if err != nil && !errors.Is(err, journal.ErrNotFound) {
		return err
	}
	if err == nil && events.Hash(head.Body) != stone.Last {
		return nil
	}
	return refusal
}

// parent returns the fold that a fork at the run's n-th event goes on from. It
// is read from the log, so that whoever works on the run does not wait for it.
func (g *Gateway) parent(ctx context.Context, at events.Run, n uint64) (*runlog.Fold, error) {
	fold, err := runlog.FoldAt(ctx, g.log, g.machine, at, max(n, 1))
	mem := fold.Memory()
	switch {
	case err != nil:
		return nil, err
	case mem.N == 0:
		return nil, g.missing(ctx, at)
	case n == 0:
		return nil, badRequest(CodeBadParameter, "at: events are counted from 1")
	case mem.N < n:
		return nil, badRequest(CodeBadParameter, "at: the run has %d events, so at is 1 to %d", mem.N, mem.N)
	}
	refused := g.machine.Forkable(mem, mem.Control.Head)
	if refused == nil {
		return fold, nil
	}
	e := conflict(CodeTooManyForks, "the run stands on %d forks already, and cannot be forked once more", reducer.MaxForks)
	switch {
	case g.table.Terminal(mem.State):
		e = conflict(CodeRunEnded, "the run has ended in state %s at event %d; fork it at an earlier one", mem.State, n)
	case mem.Control.Poison != nil:
		e = conflict(CodeRunPoisoned, "the run is poisoned at event %d; fork it at an earlier one", mem.Control.Poison.N)
	}
	e.Fields = map[string]any{"run": mem.RunID, "state": mem.State, "n": mem.N}
	return nil, e
}

func (g *Gateway) postFork(w http.ResponseWriter, r *http.Request) error {
	ctx, stop := bounded(r)
	defer stop()
	var req ForkRequest
	if err := readJSON(w, r, false, &req); err != nil {
		return err
	}
	if keys := r.Header.Values(idempotencyKey); len(keys) > 0 {
		if req.Key = keys[0]; len(keys) > 1 || req.Key == "" {
			return badRequest(CodeBadKey, "%s: must be there once, with 1 to %d visible characters of ASCII", idempotencyKey, maxKey)
		}
	}
	result, err := g.Fork(ctx, namespace(r), r.PathValue("id"), req)
	if err != nil {
		return err
	}
	w.Header().Set("Location", "/v1/runs/"+result.RunID)
	return writeJSON(w, http.StatusOK, result)
}
