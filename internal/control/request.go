package control

import (
	"context"
	"errors"

	"github.com/moorebus/moorebus/internal/clientmodel"
	"github.com/moorebus/moorebus/internal/refusal"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

// ModelRequest is what a model is asked, or was asked.
type ModelRequest = clientmodel.ModelRequest

// Request returns what the model was asked for the reply that is event at, or with at 0 for the
// reply that the run waits for. Without such a request it is a conflict: no_request,
// nothing_pending.
func (c *Controller) Request(ctx context.Context, ns, id string, at uint64) (ModelRequest, error) {
	run, err := c.asked(ctx, ns, id, "")
	if err != nil {
		return ModelRequest{}, err
	}
	conflict := func(code, format string, args ...any) error {
		return refusal.New(refusal.Conflict, code, format, args...).With(map[string]any{"run": run.at.ID, "state": run.state, "n": run.n})
	}
	var req ModelRequest
	switch {
	case at > run.n:
		return req, conflict(refusal.CodeNoRequest, "the run has %d events, and none is event %d", run.n, at)
	case at == 0 && !run.waits:
		err = clientmodel.ErrNothingPending
	case c.cfg.Requests == nil:
		return req, refusal.New(refusal.Unavailable, refusal.CodeUnavailable, "this process does not show what models are asked")
	default:
		req, err = c.cfg.Requests.Of(ctx, run.at, at)
	}
	switch {
	case errors.Is(err, clientmodel.ErrNothingPending):
		return req, conflict(refusal.CodeNothingPending, "the run is in state %s and waits for no reply of its model", run.state)
	case errors.Is(err, clientmodel.ErrNoRequest):
		return req, conflict(refusal.CodeNoRequest, "event %d is no reply of a model", at)
	}
	return req, err
}

// AsksClient reports whether a model of the run is its client.
func (c *Controller) AsksClient(ctx context.Context, ns, id string) (bool, error) {
	run, err := c.asked(ctx, ns, id, "")
	return run.client, err
}

// PendingForClient returns the request that waits for the run's client, unless it is the one
// with that key or follows a later event than n. Its Key is empty if there is none.
func (c *Controller) PendingForClient(ctx context.Context, ns, id, but string, n uint64) (ModelRequest, error) {
	run, err := c.asked(ctx, ns, id, "")
	if err != nil || !run.waits || !run.pending.Client || run.pending.Key == but || run.pending.N > n {
		return ModelRequest{}, err
	}
	return c.Request(ctx, ns, id, 0)
}

// Blob returns what a reference of an event points to. What is not there is a CodeUnknownRef.
func (c *Controller) Blob(ctx context.Context, ref events.Ref) ([]byte, error) {
	if c.cfg.Blobs == nil {
		return nil, refusal.New(refusal.Unavailable, refusal.CodeUnavailable, "this process has no large results")
	}
	data, err := c.cfg.Blobs.Blob(ctx, ref)
	if errors.Is(err, journal.ErrNotFound) {
		err = refusal.Wrap(err, refusal.NotFound, refusal.CodeUnknownRef, "%s", err.Error())
	}
	return data, err
}
