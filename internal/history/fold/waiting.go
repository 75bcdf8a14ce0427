package fold

import (
	"slices"

	"github.com/moorebus/moorebus/pkg/events"
)

// The values of history.Run.Waiting but for the empty one: a run waits for a decision or an answer, for the
// next message of a conversation, or for its client's tools or model.
const (
	Human  = "human"
	User   = "user"
	Client = "client"
)

// waits returns for whom the run waits; empty: for nobody, or for an actor.
func (f *Fold) waits() string {
	switch f.run.State {
	case events.WaitingForHuman:
		return Human
	case events.WaitingForUser:
		return User
	case events.Acting, events.ParallelActing:
		if len(f.open.Client) > 0 {
			return Client
		}
	}
	if f.outside() {
		return Client
	}
	return ""
}

// outside reports whether a reply is asked of the run's client.
func (f *Fold) outside() bool {
	return f.open.Outside && (f.run.State == events.Planning || f.run.State == events.Reflecting)
}

// clients takes which calls of the client's tools wait for their results.
func (f *Fold) clients(e *events.Event) {
	o := &f.open
	calls, _, _ := callsOf(e.Data)
	for _, call := range calls {
		if slices.Contains(o.ClientTools, call.Name) {
			o.Client = append(o.Client, call.ID)
		}
	}
	if p, is := e.Data.(*events.ToolCallResult); is {
		o.Client = slices.DeleteFunc(o.Client, func(id string) bool { return id == p.CallID })
	}
	switch e.To {
	case events.Acting, events.ParallelActing, events.WaitingForHuman:
	default:
		o.Client = nil
	}
}

// sends takes in which pools the run's calls wait. The subject of the event that sent them names the pool.
func (f *Fold) sends(s events.Subject, e *events.Event) {
	o := &f.open
	if e.To != events.Acting && e.To != events.ParallelActing {
		o.Sent = nil
		return
	}
	of := func(id string) func(sent) bool { return func(c sent) bool { return c.Call == id } }
	switch p := e.Data.(type) {
	case *events.ToolCallResult:
		o.Sent = slices.DeleteFunc(o.Sent, of(p.CallID))
	case *events.ToolCallDispatched:
		if !slices.ContainsFunc(o.Sent, of(p.CallID)) {
			o.Sent = append(o.Sent, sent{p.CallID, s.Pool})
		}
	default:
		if e.From != e.To {
			o.Sent = nil
		}
		if s.To == e.To && len(o.Sent) == 0 { // also Resumed, after an event that woke nobody
			o.Sent = []sent{{Pool: s.Pool}}
		}
	}
}
