package httpapi

import (
	"context"
	"errors"

	"github.com/moorebus/moorebus/internal/clientmodel"
	"github.com/moorebus/moorebus/internal/control"
	"github.com/moorebus/moorebus/internal/httpapi/sse"
	"github.com/moorebus/moorebus/internal/refusal"
	"github.com/moorebus/moorebus/pkg/events"
)

// eventRequest is the server-sent event of a request that waits for the run's client.
const eventRequest = "request"

// requestJSON writes a request. An encoder would escape characters that the model is sent as
// they are.
func requestJSON(req control.ModelRequest) ([]byte, error) {
	data, err := req.MarshalJSON()
	if err != nil {
		return nil, refusal.Fault("request: %w", err)
	}
	return data, nil
}

// asks follows for a stream which request waits for the run's client.
type asks struct {
	s  *Server
	ns string
	id string
	// client says that a model of the run is its client. sent is the key of the last request.
	client bool
	sent   string
	// failed says that the request could not be sent.
	failed bool
}

// see takes from an event whether a model of the run is its client. Only forks and streams that
// begin later, where e is nil, read the run for it.
func (q *asks) see(ctx context.Context, e *events.Event) {
	if e == nil {
		client, err := q.s.control.AsksClient(ctx, q.ns, q.id)
		q.client = client || err != nil // what is not known now, tell finds out
		return
	}
	switch p := e.Data.(type) {
	case *events.Start:
		q.client = clientmodel.Asks(&p.Agent)
	case *events.HandedOff:
		q.client = clientmodel.Asks(&p.Agent)
	case *events.Forked:
		q.see(ctx, nil)
	}
}

// tell sends the request that waits for the run's client, once, behind the events that the
// client has. t is the stream's place in the run.
func (q *asks) tell(ctx context.Context, st *sse.Stream, t *tail) error {
	if !q.client || t.state != events.Planning && t.state != events.Reflecting {
		return nil
	}
	req, err := q.s.control.PendingForClient(ctx, q.ns, q.id, q.sent, t.n)
	q.failed = false
	var refused *refusal.Error
	switch {
	case errors.As(err, &refused) && refused.Kind != refusal.Unavailable: // the run continued
		return nil
	case err != nil:
		q.failed = true
		if ctx.Err() == nil {
			q.s.cfg.Logger.Warn("a stream cannot show requests to a model that is the run's client", "run", q.id, "reason", err)
		}
		return nil
	case req.Key == "", req.N > t.n:
		return nil
	}
	q.sent, req.Body = req.Key, nil
	data, err := requestJSON(req)
	if err != nil {
		return nil
	}
	return st.Event(eventRequest, "", data)
}

// again sends a request that could not be sent.
func (q *asks) again(ctx context.Context, st *sse.Stream, t *tail) error {
	if !q.failed {
		return nil
	}
	return q.tell(ctx, st, t)
}
