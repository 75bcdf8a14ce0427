package compare

import (
	"context"
	"fmt"
	"time"

	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// Use is what a part of a run used, with its sub-runs as far as they have answered.
type Use struct {
	Input      int      `json:"input" jsonschema:"Tokens."`
	Output     int      `json:"output" jsonschema:"Tokens."`
	Cached     int      `json:"cached" jsonschema:"Tokens of input that the provider had in its cache."`
	Total      int      `json:"total" jsonschema:"Tokens."`
	CostUSD    *float64 `json:"cost_usd,omitempty" jsonschema:"US dollars, if a price is known."`
	ModelCalls int      `json:"model_calls" jsonschema:"Replies of the run's own models, and attempts that failed."`
	ToolCalls  int      `json:"tool_calls" jsonschema:"The run's own calls, as in calls."`
	Approvals  int      `json:"approvals" jsonschema:"Decisions of humans on calls."`
	DurationMS int64    `json:"duration_ms" jsonschema:"How long models and tools worked, one after another."`
	ElapsedMS  int64    `json:"elapsed_ms" jsonschema:"The time between the events, with all waiting, without that between a run and its fork."`
}

func (u *Use) add(o Use) {
	u.Input += o.Input
	u.Output += o.Output
	u.Cached += o.Cached
	u.Total += o.Total
	if o.CostUSD != nil {
		cost := *o.CostUSD
		if u.CostUSD != nil {
			cost += *u.CostUSD
		}
		u.CostUSD = &cost
	}
	u.ModelCalls += o.ModelCalls
	u.Approvals += o.Approvals
	u.DurationMS += o.DurationMS
	u.ElapsedMS += o.ElapsedMS
}

func (u *Use) bill(tokens *events.Usage) {
	if tokens != nil {
		u.add(Use{Input: tokens.Input, Output: tokens.Output, Cached: tokens.Cached, Total: tokens.Total, CostUSD: tokens.CostUSD})
	}
}

// place is where an event is.
type place struct {
	run string
	n   uint64
}

// step is a legal event of a run, or of a run that it was forked from.
type step struct {
	place
	use Use
}

// asked is a call, and where among the steps it was let go.
type asked struct {
	Call
	id   string
	step int
	gone bool // it is not to run
	// started says that a human is asked about a call that has begun, question that they are
	// asked for its result.
	started, question bool
}

// trace is what a run did, from the first event of the runs that it stands on.
type trace struct {
	run    events.Run
	steps  []step
	calls  []*asked // in the order in which models asked for them
	state  events.State
	answer *string

	last  *events.Event
	reply []*asked // the calls of the last reply
}

func newTrace(ctx context.Context, log journal.Log, machine *reducer.Machine, run events.Run) (*trace, error) {
	t := &trace{run: run}
	mem, err := runlog.Retrace(ctx, log, machine, run, func(_ journal.Record, e *events.Event) { t.see(e) })
	if err != nil {
		return nil, err
	}
	if mem.N == 0 {
		return nil, fmt.Errorf("run %s: %w", run.ID, journal.ErrNotFound)
	}
	t.state, t.answer = mem.State, mem.FinalAnswer
	return t, nil
}

func (t *trace) see(e *events.Event) {
	s := step{place: place{e.Run, e.N}}
	var since time.Duration
	steps := 0
	if t.last != nil {
		steps = t.last.Step
		if t.last.Run == e.Run {
			since = max(0, e.Time.Sub(t.last.Time))
		}
	}
	s.use.ElapsedMS = since.Milliseconds()
	s.use.bill(events.Billed(e.Data))
	if asksModel(e, steps) {
		s.use.ModelCalls, s.use.DurationMS = 1, since.Milliseconds()
	}
	if o := outcome(e.Data); o != nil {
		s.use.bill(o.Usage)
		s.use.DurationMS += o.LatencyMS
	}
	if r := reply(e); r != nil {
		t.ask(r.Calls, s.place)
	}
	t.decide(e, &s)
	t.steps, t.last = append(t.steps, s), e
}

// asksModel reports whether an event is a model's reply or a failed attempt at one. The next call
// of an earlier reply is not; then the run has made as many steps as before, which is steps.
func asksModel(e *events.Event, steps int) bool {
	switch p := e.Data.(type) {
	case *events.LLMAttemptFailed:
		return p.FromProvider() || p.Usage != nil
	case *events.LLMToolCall, *events.HumanApprovalRequired:
		return e.Step > steps
	}
	return events.Billed(e.Data) != nil
}

func outcome(p events.Payload) *events.ToolOutcome {
	switch p := p.(type) {
	case *events.ToolCallResult:
		return &p.ToolOutcome
	case *events.ToolSuccess:
		return p.Outcome
	case *events.ToolFailure:
		return p.Outcome
	}
	return nil
}

// reply returns a reply with calls, nil for another event.
func reply(e *events.Event) *events.ToolCallReply {
	switch p := e.Data.(type) {
	case *events.LLMToolCall:
		return &p.ToolCallReply
	case *events.LLMParallelToolCalls:
		return &p.ToolCallReply
	case *events.HumanApprovalRequired:
		if e.From == events.Planning { // else it is about a call that was started before
			return &p.ToolCallReply
		}
	}
	return nil
}

// at notes where a call was let go.
func (c *asked) at(p place, step int, run string) {
	c.N, c.Run, c.step = p.n, "", step
	if p.run != run {
		c.Run = p.run
	}
}

func (t *trace) ask(calls []events.Call, p place) {
	t.reply = nil
	for _, call := range calls {
		c := &asked{id: call.ID, Call: Call{Name: call.Name, Arguments: call.Arguments}}
		c.at(p, len(t.steps), t.run.ID)
		t.reply = append(t.reply, c)
	}
	t.calls = append(t.calls, t.reply...)
}

// decide follows what humans say about calls.
func (t *trace) decide(e *events.Event, s *step) {
	switch p := e.Data.(type) {
	case *events.HumanApprovalRequired:
		t.await(e, p)
	case *events.HumanDecision:
		t.decided(&p.Decision, s)
	case *events.HumanApproved:
		t.decided(&p.Decision, s)
	case *events.HumanModified:
		t.decided(&p.Decision, s)
	case *events.HumanRejected:
		if p.CallID != "" { // else each call was rejected before
			t.decided(&p.Decision, s)
		}
	case *events.ApprovalExpired:
		for _, c := range t.reply {
			c.gone = !c.started
		}
	}
}

func (t *trace) await(e *events.Event, p *events.HumanApprovalRequired) {
	for _, r := range p.Requests {
		for _, c := range t.reply {
			if c.id == r.CallID {
				c.started, c.question = e.From != events.Planning, r.Asks
			}
		}
	}
}

func (t *trace) decided(d *events.Decision, s *step) {
	s.use.Approvals++
	for _, c := range t.reply {
		switch {
		case c.id != d.CallID:
		case d.Decision == events.DecisionRejected:
			c.gone = !c.started
		default:
			c.at(s.place, len(t.steps), t.run.ID)
			if d.Decision == events.DecisionModified && !c.question {
				c.Arguments = d.Arguments
			}
		}
	}
}

// callsAfter returns the calls that were let go after the first n steps.
func (t *trace) callsAfter(n int) []Call {
	var calls []Call
	for _, c := range t.calls {
		if c.step >= n && !c.gone {
			calls = append(calls, c.Call)
		}
	}
	return calls
}

// useAfter returns what was used after the first n steps.
func (t *trace) useAfter(n int) Use {
	var u Use
	for _, s := range t.steps[n:] {
		u.add(s.use)
	}
	u.ToolCalls = len(t.callsAfter(n))
	return u
}
