package reducer

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/moorebus/moorebus/internal/codes"
	"github.com/moorebus/moorebus/pkg/events"
)

var toolsRules = []rule{
	{
		typ: events.TypeToolCallDispatched, stays: true, adds: true, in: []events.State{events.ParallelActing}, from: planning,
		ways: only(tools(events.ParallelActing)),
		route: func(mem *Memory, p events.Payload) (events.State, string) {
			return events.ParallelActing, mem.poolOf(callOf(p))
		},
		drives: callOf,
		check:  checkCall, legality: 1,
		fold:  func(mem *Memory, e *events.Event) { mem.Call(callOf(e.Data)).Dispatched = e.N },
		trace: callOf,
	},
	{
		typ: events.TypeToolCallStarted, stays: true, adds: true, in: []events.State{events.Acting, events.ParallelActing},
		from: own | control, fromNow: callOrigins,
		check: checkCall, legality: 2,
		fold:  func(mem *Memory, e *events.Event) { mem.Call(callOf(e.Data)).Started = e.N },
		trace: callOf,
	},
	{
		typ: events.TypeToolCallResult, stays: true, adds: true, in: []events.State{events.ParallelActing},
		from: own | control, fromNow: callOrigins,
		ways: only(tools(events.ParallelActing), nobody), route: resultRoute,
		drives: func(events.Payload) string { return "" },
		check:  checkCall, legality: 2,
		fold:  foldOutcome,
		trace: traceOutcome,
	},
	{
		typ: events.TypeToolSuccess, adds: true, from: own | control, fromNow: callOrigins,
		moves: []move{{events.Acting, events.Observing}, {events.ParallelActing, events.Observing}},
		check: checkOutcome, legality: 2, fold: foldOutcome, trace: traceOutcome,
	},
	{
		typ: events.TypeToolFailure, adds: true, from: own | control, fromNow: callOrigins,
		moves: []move{{events.Acting, events.Observing}, {events.ParallelActing, events.Observing}},
		check: checkOutcome, legality: 2, fold: foldOutcome, trace: traceOutcome,
	},
}

const (
	rejectedPrefix = "REJECTED: "
	codeRejected   = "rejected"
)

// outcomeOf is the outcome of the call that the event answers; nil if it ends a batch.
func outcomeOf(p events.Payload) *events.ToolOutcome {
	switch p := p.(type) {
	case *events.ToolSuccess:
		return p.Outcome
	case *events.ToolFailure:
		return p.Outcome
	case *events.ToolCallResult:
		return &p.ToolOutcome
	}
	return nil
}

// callOrigins says who may publish what becomes of a call: its actor, for a client call the
// gateway alone, which also says that nobody serves a call's pool. What ends a batch comes
// from the actor of a pool, or from the gateway if the last result went to the client's pool.
func callOrigins(mem *Memory, p events.Payload) origin {
	o, clients, ends := outcomeOf(p), false, false
	switch started, ok := p.(*events.ToolCallStarted); {
	case ok:
		o = &events.ToolOutcome{CallID: started.CallID}
	case o == nil:
		ends, o = true, &events.ToolOutcome{}
	}
	for i := range mem.Control.Calls {
		call := &mem.Control.Calls[i]
		if call.Client && call.ID == o.CallID {
			return control
		}
		clients = clients || call.Client
	}
	noActor := o.Code == codes.NoActor && (!o.Success || events.TypeOf(p) == events.TypeToolFailure)
	if noActor || ends && clients && mem.State == events.ParallelActing && mem.Control.LastResult == events.ClientPool {
		return own | control
	}
	return own
}

// checkOutcome checks the end of Acting (one call, with its outcome) or of
// ParallelActing (no outcome, every call answered).
func checkOutcome(mem *Memory, e *events.Event) error {
	o, success := outcomeOf(e.Data), e.Type() == events.TypeToolSuccess
	if mem.State == events.Acting {
		if o == nil || o.Success != success {
			return fmt.Errorf("has no outcome of its own kind")
		}
		_, err := mem.openCall(o.CallID)
		return err
	}
	abandoned := o != nil && reflect.DeepEqual(o, AbandonedBatch().Outcome)
	if o != nil && (success || !abandoned) {
		return fmt.Errorf("has an outcome, but ends a batch")
	}
	if open := mem.openCalls(); open > 0 {
		return fmt.Errorf("ends a batch of which %d calls have no result", open)
	}
	if !abandoned && mem.batchSucceeded() != success {
		return fmt.Errorf("does not match the batch's results")
	}
	return nil
}

// AbandonedBatch returns the event that ends a batch with all its results when none of its
// pools has an actor that could end it. It says nothing about the results: some of them
// may be successes.
func AbandonedBatch() *events.ToolFailure {
	return &events.ToolFailure{Outcome: &events.ToolOutcome{Code: codes.NoActor}}
}

func (mem *Memory) batchSucceeded() bool {
	return slices.ContainsFunc(mem.ParallelResults, func(r ToolResult) bool { return r.Success })
}

func (mem *Memory) openCalls() int {
	open := 0
	for i := range mem.Control.Calls {
		if !mem.Control.Calls[i].Answered {
			open++
		}
	}
	return open
}

// Call returns the state of a call of the current reply, nil if it is none.
func (mem *Memory) Call(id string) *CallState {
	for i := range mem.Control.Calls {
		if mem.Control.Calls[i].ID == id {
			return &mem.Control.Calls[i]
		}
	}
	return nil
}

// openCall returns a call of the current reply that has no result yet.
func (mem *Memory) openCall(id string) (*CallState, error) {
	for i := range mem.Control.Calls {
		switch call := &mem.Control.Calls[i]; {
		case call.ID != id:
		case call.Answered:
			return nil, fmt.Errorf("call %q has its result already", id)
		default:
			return call, nil
		}
	}
	return nil, fmt.Errorf("names call %q, which is not of this reply", id)
}

// callOf is the call that an event is about.
func callOf(p events.Payload) string {
	switch p := p.(type) {
	case *events.ToolCallDispatched:
		return p.CallID
	case *events.ToolCallStarted:
		return p.CallID
	case *events.ToolCallResult:
		return p.CallID
	}
	return ""
}

func checkCall(mem *Memory, e *events.Event) error {
	_, err := mem.openCall(callOf(e.Data))
	return err
}

func resultRoute(mem *Memory, p events.Payload) (events.State, string) {
	if mem.openCalls() == 1 {
		return events.ParallelActing, mem.joinPool(outcomeOf(p))
	}
	return events.Nobody, events.DefaultPool
}

// joinPool returns the pool whose actor ends the batch if o is its last result:
// the call's own, but where nobody served that the one of the last call that
// somebody did serve, if there is any.
func (mem *Memory) joinPool(o *events.ToolOutcome) string {
	if o.Success || o.Code != codes.NoActor {
		return mem.poolOf(o.CallID)
	}
	for _, r := range slices.Backward(mem.ParallelResults) {
		if r.Success || r.Code != codes.NoActor {
			return mem.poolOf(r.ID)
		}
	}
	return mem.poolOf(o.CallID)
}

func (mem *Memory) toolPool(name string) string {
	if pool := mem.Tools[name].Pool; pool != "" {
		return pool
	}
	return events.DefaultPool
}

func (mem *Memory) poolOf(callID string) string {
	if call := mem.Call(callID); call != nil {
		return call.Pool
	}
	return events.DefaultPool
}

// batchRoute sends a new batch to its pool, or to nobody when it has several:
// then each call is dispatched by its own event.
func batchRoute(mem *Memory, p events.Payload) (events.State, string) {
	calls := p.(*events.LLMParallelToolCalls).Calls
	pool := mem.toolPool(calls[0].Name)
	for _, call := range calls[1:] {
		if mem.toolPool(call.Name) != pool {
			return events.Nobody, events.DefaultPool
		}
	}
	return events.ParallelActing, pool
}

// singlePool returns the pool that all calls of the batch share.
func (mem *Memory) singlePool() (string, bool) {
	calls := mem.Control.Calls
	if len(calls) == 0 {
		return "", false
	}
	for _, call := range calls[1:] {
		if call.Pool != calls[0].Pool {
			return "", false
		}
	}
	return calls[0].Pool, true
}

// foldOutcome sets the result of an open call. What ends a batch sets none: its results were
// folded before.
func foldOutcome(mem *Memory, e *events.Event) {
	o := outcomeOf(e.Data)
	_, batch := e.Data.(*events.ToolCallResult)
	if o == nil || mem.Control.Batch && !batch {
		return
	}
	call, _ := mem.openCall(o.CallID)
	call.Answered = true
	result := ToolResult{
		ToolCall: ToolCall{ID: call.ID, Name: call.Name, Arguments: call.Arguments},
		Success:  o.Success, Observation: o.Observation, Code: o.Code, LatencyMS: o.LatencyMS,
	}
	if batch {
		mem.Control.LastResult = mem.joinPool(o)
		mem.ParallelResults = append(mem.ParallelResults, result)
	} else {
		result.ToolCall = *mem.CurrentToolCall
		mem.LastObservation, mem.Control.Last = &result.Observation, &result
	}
	record := mem.ToolCalls[o.CallID]
	if record == nil {
		return
	}
	record.Ref, record.Attachments, record.Run = o.Ref, o.Attachments, o.Run
	mem.Control.Stored = mem.Control.Stored || len(o.Attachments) > 0
	if o.Success {
		record.Result = &CallResult{Success: &Success{Content: strings.TrimPrefix(o.Observation, codes.SuccessPrefix)}}
	} else {
		record.Result = &CallResult{Failed: &Failed{Error: o.Observation}}
	}
	if o.Usage != nil && call.Delegated() {
		mem.addCalledUsage(o.Usage)
	}
}

// addCalledUsage adds what the run that answered a call has used to what this one
// has. It never reduces a count, whatever the event says.
func (mem *Memory) addCalledUsage(u *events.Usage) {
	used := events.Usage{Input: max(0, u.Input), Output: max(0, u.Output), Cached: max(0, u.Cached), Total: max(0, u.Total)}
	if u.CostUSD != nil {
		cost := max(0, *u.CostUSD)
		used.CostUSD = &cost
	}
	mem.addUsage(used)
}

// Delegated reports whether a sub-run answers the call. Once that run is in the log, a
// ToolCallStarted says so and no delivery is responsible for the call any more: the end of
// the sub-run brings the answer.
func (c *CallState) Delegated() bool { return c.Pool == events.AgentsPool }

// Waits reports whether a sub-run was started for the call and has not answered yet.
func (c *CallState) Waits() bool {
	return c.Delegated() && !c.Answered && c.Started > 0 && c.Started >= c.Wake
}

// Delegated returns the ids of the calls that wait for a sub-run's answer, whether it was
// started or not.
func (mem *Memory) Delegated() []string {
	var ids []string
	for i := range mem.Control.Calls {
		if call := &mem.Control.Calls[i]; call.Delegated() && !call.Answered {
			ids = append(ids, call.ID)
		}
	}
	return ids
}

func traceOutcome(p events.Payload) string {
	o := outcomeOf(p)
	if o == nil {
		return ""
	}
	return cut(o.Observation, traceTextLimit)
}
