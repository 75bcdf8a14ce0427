package control

import (
	"context"

	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// Admission bounds how many runs work at once.
type Admission interface {
	// Queues reports whether a new run of the agent has to be queued: then it wakes nobody until an
	// Admitted event. It refuses with too_many_queued, budget_exhausted or no_price.
	Queues(ctx context.Context, ns, agent string) (bool, error)
}

// Unbounded admits every run.
type Unbounded struct{}

// Queues reports that the run does not have to be queued.
func (Unbounded) Queues(context.Context, string, string) (bool, error) { return false, nil }

// ClientTools has the calls of the tools that a run's client carries out. Its inputs are [ToolCallStarted] and
// [ToolCallResult].
type ClientTools interface {
	// Keep makes the results among inputs what the log has of them. It stores large ones in blobs; nil: it
	// cuts them. large reports whether there are any.
	Keep(ctx context.Context, inputs []Input, blobs journal.Blobs) (large bool, err error)
	// Begin begins with the inputs of one request, under the lock of the memory. ended says that the run
	// accepts nothing more. event returns the event of each in order, nil for a repetition. Refusals are
	// NotFound, unknown_call; Unprocessable, call_differs; Conflict: not_yours, not_delivered, run_ended, and
	// already_answered with the first result in the field result.
	Begin(mem *reducer.Memory, ended bool) (event func(in Input) (events.Payload, error))
	// Late returns the events that end the calls past their deadline, and the refusal of an input that is the
	// result of one of them.
	Late(mem *reducer.Memory, in Input) (ends []runlog.Draft, refused error)
	// Explain returns the error of inputs as the client should see it.
	Explain(ctx context.Context, ns, id string, err error) error
	// Step works on one delivery, as [Controller.Step] does: a call that goes out, or the end of a batch.
	Step(ctx context.Context) error
}

// Push is where the client of a protocol has the updates of one run posted to, until the run ends.
// Only that protocol shows it.
type Push struct {
	// ID is the client's; empty: one is made.
	ID  string `json:"id"`
	Run string `json:"run"`
	URL string `json:"url"`
	// Token is sent back to the receiver. Scheme and Credentials are the header Authorization.
	Token       string `json:"token,omitempty"`
	Scheme      string `json:"scheme,omitempty"`
	Credentials string `json:"credentials,omitempty"`
	// Base is where the client reached the gateway. Updates after event After are sent.
	Base  string `json:"base"`
	After uint64 `json:"after,omitempty"`
}

// Updates says what of a run is an update in a protocol.
type Updates interface {
	// Follow returns a function that is called with each record of a run, from the first on. It
	// returns the run's last event, whether the record is an update, and whether it is the last.
	Follow(ns, run string) func(ctx context.Context, rec journal.Record) (n uint64, changed, over bool, err error)
	// Update returns the update of an event, and its media type. Where there is none, the error
	// is [journal.ErrNotFound].
	Update(ctx context.Context, ns string, p Push, event string) (body []byte, media string, err error)
}

// Pushes posts the updates of runs to clients of a protocol.
type Pushes interface {
	// SetUpdates says who makes the updates. Without it none is sent.
	SetUpdates(u Updates)
	// CheckPush returns what is wrong with a push: a refusal.
	CheckPush(ctx context.Context, p Push) error
	// PutPush has the updates of a run posted. A push with the same id is replaced, and one that is
	// equal stays as it is. The run has to be there. Refusals: those of CheckPush, conflict.
	PutPush(ctx context.Context, ns string, p Push) (Push, error)
	// Pushes returns those of a run, sorted by id.
	Pushes(ctx context.Context, ns, run string) ([]Push, error)
	// DeletePush removes a push. One that is not there is no error.
	DeletePush(ctx context.Context, ns, run, id string) error
}
