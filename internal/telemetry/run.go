package telemetry

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"

	"github.com/moorebus/moorebus/internal/effects"
	"github.com/moorebus/moorebus/internal/meter"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/internal/tracecontext"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// run makes the spans of one run from its events, in their order. What it returns depends on
// these events alone, and on the first ones of the runs that the run stands on.
type run struct {
	id    events.Run
	fold  *runlog.Fold
	table *reducer.Table
	// seq is that of the last record, bytes the length of all bodies.
	seq   uint64
	bytes int64

	content *Content
	trace   tracecontext.TraceID
	// forkOf is the trace of the run that a fork continues.
	forkOf tracecontext.TraceID
	shards int
	// up is the span in which the run was started; zero: none.
	up tracecontext.SpanID
	// traceOf reads in which trace another run is.
	traceOf func(context.Context, events.Run) (tracecontext.TraceID, error)

	turn, phase *open
	// used is the run's usage when the turn began.
	used reducer.TotalUsage
	// asked is when the model's present request began, or what came before it ended.
	asked time.Time
	// model is the present effect that asks a model, before it the one until then.
	model, earlier effect
	calls          map[string]*open
	// said are the ids of the last requests to models, so that none is given twice.
	said []tracecontext.SpanID

	spans []*tracepb.Span
}

// effect is the work of asking a model, and its failures so far.
type effect struct {
	key    string
	failed reducer.Attempt
}

// before is what an event finds.
type before struct {
	state  events.State
	queued bool
	input  string
}

// apply folds the next record and returns the spans that it ends. Errors are those of
// [runlog.Fold.Apply], except for a record that is refused, which ends nothing.
func (r *run) apply(ctx context.Context, rec journal.Record) ([]*tracepb.Span, error) {
	mem := r.fold.Memory()
	was := before{state: mem.State, queued: len(mem.Control.Queued) > 0, input: r.content.input(mem)}
	e, err := r.fold.Apply(ctx, rec)
	if err != nil && !runlog.Refused(err) {
		return nil, err
	}
	r.seq, r.bytes = rec.Seq, r.bytes+int64(len(rec.Body))
	if err != nil {
		return nil, nil // the memory shows it, and another event ends the run
	}
	r.spans = nil
	if e.N == 1 {
		if err := r.begin(ctx, e); err != nil {
			return nil, err
		}
	}
	r.step(e, was)
	return r.spans, nil
}

func (r *run) step(e *events.Event, was before) {
	mem := r.fold.Memory()
	reply := events.ReplyOf(e.Data)
	if reply != nil && reply.Part {
		return // the last event of the reply counts
	}
	if c, ok := chatOf(e, was); ok {
		r.endChat(e, c, was)
	}
	if failed, ok := e.Data.(*events.LLMAttemptFailed); ok && failed.Key == r.model.key {
		r.asked = e.Time
	}
	r.endCalls(e)
	r.movePhase(e)
	r.moveTurn(e)
	r.beginCalls(e)
	r.noteModel(mem)
}

// begin takes the run's place among other runs from its first event.
func (r *run) begin(ctx context.Context, e *events.Event) (err error) {
	c := &r.fold.Memory().Control
	known := false
	r.trace = tracecontext.TraceOf(r.id.ID, e.TraceParent)
	_, r.up, known = tracecontext.Parse(e.TraceParent)
	if p := c.Parent; p != nil {
		r.up = tracecontext.Tool(p.Run, p.CallID)
		if !known { // an older build started it
			r.trace, err = r.traceOf(ctx, r.beside(p.Run))
		}
	}
	if f := c.ForkedFrom; f != nil && err == nil {
		r.forkOf, err = r.traceOf(ctx, r.beside(f.Run))
	}
	return err
}

// beside returns the place of another run of the namespace.
func (r *run) beside(id string) events.Run { return events.NewRun(r.id.Namespace, id, r.shards) }

// active reports whether the run is at work or waits for anything but its user.
func (r *run) active() bool {
	state := r.fold.Memory().State
	return state != events.WaitingForUser && !r.table.Terminal(state)
}

// moveTurn ends and begins what the agent is invoked for: the run, or in a conversation what
// one message of the user leads to.
func (r *run) moveTurn(e *events.Event) {
	handoff, over := e.Data.(*events.HandedOff)
	old := r.turn
	if old != nil && (over || !r.active()) {
		r.endTurn(e)
	}
	if r.turn != nil || !r.active() {
		return
	}
	mem := r.fold.Memory()
	name := mem.Control.Agent.Name
	t := &open{op: opAgent, name: opAgent + " " + name, id: tracecontext.Numbered(r.id.ID, opAgent, e.N), up: r.up, begin: e.Time}
	r.common(t, e)
	t.text(attrAgent, name)
	t.text(attrAgentVersion, cut(mem.Control.AgentHash, 12))
	ref, _ := effects.Model(mem, reducer.Attempt{})
	t.text(attrProvider, meter.ProviderName(ref.Provider))
	t.text(attrRequestModel, ref.Model)
	t.text(attrMode, string(mem.Mode))
	t.text(attrInput, r.content.task(mem))
	if f := mem.Control.ForkedFrom; f != nil && e.N == 1 {
		t.link(r.forkOf, tracecontext.Numbered(f.Run, opAgent, 1), linkFork)
		t.number(attrForkedAt, int64(f.At))
	}
	if handoff != nil && old != nil {
		t.link(r.trace, old.id, linkHandoff)
	}
	r.turn, r.used = t, mem.TotalUsage
}

func (r *run) endTurn(e *events.Event) {
	mem, t := r.fold.Memory(), r.turn
	used := mem.TotalUsage
	t.number(attrInputTokens, int64(used.Input-r.used.Input))
	t.number(attrOutputTokens, int64(used.Output-r.used.Output))
	t.number(attrCachedTokens, int64(used.Cached-r.used.Cached))
	t.real(attrCost, used.Cost-r.used.Cost)
	t.text(attrState, string(mem.State))
	t.text(attrOutput, r.content.answer(e.Data))
	failed, message := "", ""
	switch {
	case mem.State == events.Cancelled:
		failed = string(events.Cancelled)
	case mem.Error != nil && r.table.Terminal(mem.State):
		failed, message = mem.Error.Code, r.content.text(mem.Error.Message)
	}
	if r.table.Terminal(mem.State) {
		for _, id := range slices.Sorted(maps.Keys(r.calls)) {
			r.emit(r.calls[id].end(r.trace, e.Time, cmp.Or(failed, string(mem.State)), ""))
		}
		clear(r.calls)
	}
	r.emit(t.end(r.trace, e.Time, failed, message))
	r.turn = nil
}

// phaseOf is what the run does by itself in its present state, with a key that is another one
// when it begins anew.
func phaseOf(mem *reducer.Memory) (op, key string) {
	switch mem.State {
	case events.Planning:
		op = opPlan
	case events.Reflecting:
		op = opReflect
	case events.WaitingForHuman:
		op = opApproval
	case events.WaitingForUser:
		op = opUser
	default:
		return "", ""
	}
	return op, op + "/" + strconv.FormatUint(mem.Control.Armed, 10)
}

// movePhase ends what the run is no longer at, and begins what it is at now.
func (r *run) movePhase(e *events.Event) {
	mem := r.fold.Memory()
	op, key := phaseOf(mem)
	if r.phase != nil && r.phase.key == key {
		return
	}
	if p := r.phase; p != nil {
		p.text(attrState, string(mem.State))
		failed, message := "", ""
		if end, ok := e.Data.(*events.FatalError); ok {
			failed, message = end.Code, r.content.text(end.Message)
		}
		if p.op == opApproval {
			p.text(attrDecision, decisionOf(e.Data))
		}
		r.emit(p.end(r.trace, e.Time, failed, message))
		r.phase = nil
	}
	if op == "" {
		return
	}
	p := &open{key: key, op: op, name: op, id: tracecontext.Numbered(r.id.ID, op, e.N), begin: e.Time}
	switch {
	case op == opUser:
		p.up = r.up // between two turns
	case r.turn != nil:
		p.up = r.turn.id
	default:
		p.up = tracecontext.Numbered(r.id.ID, opAgent, e.N) // which begins with the same event
	}
	r.common(p, e)
	p.number(attrStep, int64(mem.Step))
	if a := mem.PendingApproval; a != nil && op == opApproval {
		var tools []string
		for _, q := range a.Requests {
			tools = append(tools, q.Tool)
		}
		p.texts(attrTools, tools...)
	}
	r.phase, r.asked = p, e.Time
}

// decisionOf says how a wait for an approval ended.
func decisionOf(p events.Payload) string {
	switch p := p.(type) {
	case *events.HumanApproved:
		return events.DecisionApproved
	case *events.HumanModified:
		return events.DecisionModified
	case *events.HumanRejected:
		return events.DecisionRejected
	case *events.HumanApprovedParallel:
		return events.DecisionApproved
	case *events.ApprovalExpired:
		return "expired"
	default:
		return strings.ToLower(string(events.TypeOf(p)))
	}
}

// common gives a span what every span has.
func (r *run) common(o *open, e *events.Event) {
	if o.op == opAgent || o.op == opTool || o.op == opChat || o.op == opPlan {
		o.text(attrOperation, o.op)
	}
	o.text(attrConversation, r.id.ID)
	o.text(attrRun, r.id.ID)
	o.text(attrNamespace, r.id.Namespace)
	o.text(attrEvent, e.ID)
}

// beginCalls begins the calls that have gone to their tools.
func (r *run) beginCalls(e *events.Event) {
	mem := r.fold.Memory()
	for i := range mem.Control.Calls {
		c := &mem.Control.Calls[i]
		if c.Wake > 0 && !c.Answered && r.calls[c.ID] == nil {
			r.calls[c.ID] = r.newCall(e, c.ID, c.Name, c.Arguments, c.Pool)
		}
	}
}

func (r *run) newCall(e *events.Event, id, name, arguments, pool string) *open {
	c := &open{op: opTool, name: opTool + " " + name, id: tracecontext.Tool(r.id.ID, id), begin: e.Time}
	if r.turn != nil {
		c.up = r.turn.id
	}
	r.common(c, e)
	c.text(attrToolName, name)
	c.text(attrToolCall, id)
	c.text(attrToolType, "function")
	c.text(attrPool, pool)
	c.text(attrArguments, r.content.text(arguments))
	return c
}

// endCalls ends the calls that the event answers.
func (r *run) endCalls(e *events.Event) {
	switch p := e.Data.(type) {
	case *events.ToolCallResult:
		r.endCall(e, &p.ToolOutcome)
	case *events.ToolSuccess:
		r.endCall(e, p.Outcome)
	case *events.ToolFailure:
		if p.Outcome == nil || p.Outcome.CallID != "" {
			r.endCall(e, p.Outcome)
			return
		}
		for _, id := range slices.Sorted(maps.Keys(r.calls)) {
			r.endCall(e, &events.ToolOutcome{CallID: id, Code: p.Outcome.Code, Observation: p.Outcome.Observation})
		}
	}
}

func (r *run) endCall(e *events.Event, o *events.ToolOutcome) {
	if o == nil {
		return
	}
	c := r.calls[o.CallID]
	if c == nil {
		c = r.newCall(e, o.CallID, "", "", "")
		if known := r.fold.Memory().ToolCalls[o.CallID]; known != nil {
			c = r.newCall(e, o.CallID, known.Name, known.Parameters, "")
		}
	}
	delete(r.calls, o.CallID)
	if took := e.Time.Add(-time.Duration(o.LatencyMS) * time.Millisecond); o.LatencyMS > 0 && took.After(c.begin) {
		c.begin = took // what came before was waiting
	}
	c.text(attrSubrun, o.Run)
	c.text(attrResult, r.content.text(o.Observation))
	failed, message := "", ""
	if !o.Success {
		failed, message = cmp.Or(o.Code, "tool_failed"), r.content.text(o.Observation)
	}
	r.emit(c.end(r.trace, e.Time, failed, message))
}

// noteModel remembers the effect that asks a model now.
func (r *run) noteModel(mem *reducer.Memory) {
	if mem.State != events.Planning && mem.State != events.Reflecting {
		return
	}
	kind := effects.KindPlan
	if mem.State == events.Reflecting {
		kind = effects.KindReflect
	}
	now := effect{key: string(kind) + "/" + strconv.FormatUint(mem.Control.Armed, 10)}
	for _, a := range mem.Control.Attempts {
		if a.Key == now.key {
			now.failed = a
		}
	}
	if now.key != r.model.key {
		r.earlier = r.model
	}
	r.model = now
}

func (r *run) emit(s *tracepb.Span) { r.spans = append(r.spans, s) }

func cut(text string, n int) string { return text[:min(n, len(text))] }

// evaluation is the model's own confidence in a reply.
func evaluation(e *events.Event, score float64) *tracepb.Span_Event {
	return &tracepb.Span_Event{Name: eventEvaluation, TimeUnixNano: uint64(e.Time.UnixNano()), Attributes: []*commonpb.KeyValue{
		keyText(attrEvalName, evalConfidence), keyReal(attrEvalScore, score), keyText(attrEvalLabel, labelLow),
	}}
}
