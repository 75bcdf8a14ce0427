package actor_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/actor"
	"github.com/moorebus/moorebus/internal/codes"
	"github.com/moorebus/moorebus/internal/journaltest/simtest"
	"github.com/moorebus/moorebus/internal/reducertest"
	"github.com/moorebus/moorebus/internal/worker/workertest"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
	"github.com/moorebus/moorebus/pkg/tool"
)

var (
	always = &events.Approval{Policy: events.ApproveAlways, Expires: events.Duration(time.Hour)}
	never  = &events.Approval{Policy: events.ApproveNever}
)

func calls(n int) events.ToolCallReply {
	reply := events.ToolCallReply{Confidence: 1}
	for i := range n {
		reply.Calls = append(reply.Calls, events.Call{ID: "c" + string(rune('1'+i)), Name: "pay", Arguments: `{"amount":1}`})
	}
	return reply
}

// asking is what a planner appends that has the calls of a reply wait.
func asking(reply events.ToolCallReply, ids ...string) *events.HumanApprovalRequired {
	p := &events.HumanApprovalRequired{ToolCallReply: reply}
	for _, call := range reply.Calls {
		for _, id := range ids {
			if call.ID == id {
				p.Requests = append(p.Requests, events.Request{CallID: id, Tool: call.Name, Arguments: call.Arguments})
			}
		}
	}
	return p
}

func saying(id, what, arguments string) events.Decision {
	return events.Decision{CallID: id, Decision: what, Arguments: arguments, By: "ann"}
}

// under opens a run under a policy and appends what is given, each from the
// state that it is for.
func (r *rig) under(policy *events.Approval, spec events.ToolSpec, steps ...events.Payload) events.Run {
	r.T.Helper()
	start := reducertest.StartOf("pay it", events.ModeTask)
	start.Agent.Approval, start.Tools = policy, []events.ToolSpec{spec}
	run := r.Start(start)
	for _, p := range steps {
		mem, _ := r.Fold(run)
		r.Append(run, mem.State, p)
	}
	return run
}

var payTool = events.ToolSpec{Name: "pay", Effect: "once", Pool: "default", Risk: "high"}

func TestACallRunsOnlyAsItWasApproved(t *testing.T) {
	single, two := calls(1), calls(2)
	expr := func(text string) *events.Approval { return &events.Approval{Policy: events.ApproveExpr, Expr: text} }
	other := asking(single, "c1")
	other.Requests[0].Arguments = `{"amount":0}`
	for name, c := range map[string]struct {
		policy *events.Approval
		steps  []events.Payload
		// runs are the calls that run, refused says why the others do not.
		runs    []string
		refused string
	}{
		"nothing asks for it": {never, []events.Payload{&events.LLMToolCall{ToolCallReply: single}}, []string{"c1"}, ""},
		"past the humans":     {always, []events.Payload{&events.LLMToolCall{ToolCallReply: single}}, nil, "the log holds none"},
		"below the risk":      {&events.Approval{Policy: events.ApproveAbove, Risk: "high"}, []events.Payload{&events.LLMToolCall{ToolCallReply: single}}, []string{"c1"}, ""},
		"of the risk":         {&events.Approval{Policy: events.ApproveAtLeast, Risk: "high"}, []events.Payload{&events.LLMToolCall{ToolCallReply: single}}, nil, "the risk is high, and the policy asks from high on"},
		"above the risk":      {&events.Approval{Policy: events.ApproveAbove, Risk: "medium"}, []events.Payload{&events.LLMToolCall{ToolCallReply: single}}, nil, "the risk is high, above medium"},
		"named":               {&events.Approval{Policy: events.ApproveTools, Tools: []string{"pay"}}, []events.Payload{&events.LLMToolCall{ToolCallReply: single}}, nil, "calls of pay need approval"},
		"an expression":       {expr(`arguments.amount > 0`), []events.Payload{&events.LLMToolCall{ToolCallReply: single}}, nil, "arguments.amount > 0"},
		"an expression that fails": {
			expr(`arguments.amount.cents > 0`), []events.Payload{&events.LLMToolCall{ToolCallReply: single}}, nil, "cannot be evaluated",
		},
		"an expression that costs too much": {
			expr(`all(1..900, all(1..900, arguments.amount > 0))`),
			[]events.Payload{&events.LLMToolCall{ToolCallReply: single}}, nil, "it takes more than 1000000 steps",
		},
		"an expression that costs too much, approved": {
			expr(`all(1..900, all(1..900, arguments.amount > 0))`),
			[]events.Payload{asking(single, "c1"), &events.HumanApproved{Decision: saying("c1", "approved", "")}}, []string{"c1"}, "",
		},
		"approved": {always, []events.Payload{asking(single, "c1"), &events.HumanApproved{Decision: saying("c1", "approved", "")}}, []string{"c1"}, ""},
		"modified": {always, []events.Payload{asking(single, "c1"), &events.HumanModified{Decision: saying("c1", "modified", `{"amount":2}`)}}, []string{"c1"}, ""},
		"modified, and asked for only then": {
			expr(`arguments.amount > 1`),
			[]events.Payload{asking(single, "c1"), &events.HumanModified{Decision: saying("c1", "modified", `{"amount":2}`)}}, []string{"c1"}, "",
		},
		"approved for what the human was not shown": {
			always, []events.Payload{other, &events.HumanApproved{Decision: saying("c1", "approved", "")}}, nil, "for another call",
		},
		"a batch": {
			always,
			[]events.Payload{
				asking(two, "c1", "c2"), &events.HumanDecision{Decision: saying("c1", "approved", "")},
				&events.HumanDecision{Decision: saying("c2", "modified", `{"amount":3}`)}, &events.HumanApprovedParallel{},
			}, []string{"c1", "c2"}, "",
		},
		"a batch of which one was not asked for": {
			always,
			[]events.Payload{asking(two, "c1"), &events.HumanDecision{Decision: saying("c1", "approved", "")}, &events.HumanApprovedParallel{}},
			[]string{"c1"}, "the log holds none",
		},
		"a batch past the humans": {always, []events.Payload{&events.LLMParallelToolCalls{ToolCallReply: two}}, nil, "the log holds none"},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, r *rig) {
				f := once("pay", says("paid"))
				run := r.under(c.policy, payTool, c.steps...)
				r.spawn([]tool.Tool{f})
				mem := r.AwaitState(run, events.Observing)
				for _, id := range mem.Control.CallOrder {
					runs := 0
					for _, want := range c.runs {
						if want == id {
							runs = 1
						}
					}
					require.Equal(t, runs, f.count(id), id)
					if runs == 0 {
						require.Contains(t, mem.ToolCalls[id].Result.Text(), "ERROR: pay was not run: it needs a human's approval")
						require.Contains(t, mem.ToolCalls[id].Result.Text(), c.refused)
					}
				}
				require.Equal(t, len(c.runs), r.Count(run, events.TypeToolCallStarted))
				if len(c.steps) == 1 && len(c.runs) == 0 && !mem.Control.Batch {
					require.Equal(t, codes.NotApproved, mem.Control.Last.Code)
				}
			})
		})
	}
}

// The policy of the tool's own file holds beside the agent's: as it was pinned, and as the actor's
// file says now.
func TestTheFilesOwnPolicy(t *testing.T) {
	file := &tool.Approval{Policy: "expr", Expr: "arguments.amount > 0"}
	pinned := payTool
	pinned.Approval = &events.Approval{Policy: events.ApproveExpr, Expr: "arguments.amount > 0"}
	past := []events.Payload{&events.LLMToolCall{ToolCallReply: calls(1)}}
	approved := []events.Payload{asking(calls(1), "c1"), &events.HumanApproved{Decision: saying("c1", "approved", "")}}
	for name, c := range map[string]struct {
		spec  events.ToolSpec
		own   *tool.Approval
		steps []events.Payload
		runs  int
	}{
		"neither":                     {payTool, nil, past, 1},
		"the actor's file":            {payTool, file, past, 0},
		"what was pinned":             {pinned, nil, past, 0},
		"the actor's file, approved":  {payTool, file, approved, 1},
		"what was pinned, approved":   {pinned, nil, approved, 1},
		"a file that asks for others": {payTool, &tool.Approval{Policy: "tools", Tools: []string{"other"}}, past, 1},
		"a file that cannot be read":  {payTool, &tool.Approval{Policy: "expr", Expr: "arguments.amount >"}, past, 0},
		"a policy of later builds":    {payTool, &tool.Approval{Policy: "quorum"}, past, 0},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, r *rig) {
				f := once("pay", says("paid"))
				run := r.under(never, c.spec, c.steps...)
				def := f.Definition()
				def.Approval = c.own
				r.spawn([]tool.Tool{tool.Redefine(f, def)})
				mem := r.AwaitState(run, events.Observing)
				require.Equal(t, c.runs, f.count("c1"))
				if c.runs == 0 {
					require.Equal(t, codes.NotApproved, mem.Control.Last.Code)
				}
			})
		})
	}
}

// lying is a machine whose memory of a run is not what the log holds, as after a
// forged snapshot.
func lying(lies map[events.Type]reducer.Fold) *reducer.Machine {
	return reducer.NewMachine(reducer.MachineOptions{Folds: lies})
}

// What a memory says of policies, approvals and arguments is not believed.
func TestMemoryApprovesNothing(t *testing.T) {
	for name, c := range map[string]struct {
		lies  map[events.Type]reducer.Fold
		steps []events.Payload
	}{
		"a policy": {
			map[events.Type]reducer.Fold{events.TypeStart: func(mem *reducer.Memory, _ *events.Event) { mem.Control.Agent.Approval = nil }},
			[]events.Payload{&events.LLMToolCall{ToolCallReply: calls(1)}},
		},
		"arguments": {
			map[events.Type]reducer.Fold{events.TypeHumanApproved: func(mem *reducer.Memory, _ *events.Event) {
				mem.Call("c1").Arguments = `{"amount":1000}`
			}},
			[]events.Payload{asking(calls(1), "c1"), &events.HumanApproved{Decision: saying("c1", "approved", "")}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := &rig{Bench: workertest.New(t, simtest.Options{}, lying(c.lies))}
				f := once("pay", says("paid"))
				run := r.under(always, payTool, c.steps...)
				r.spawn([]tool.Tool{f})
				require.Equal(t, codes.NotApproved, r.outcome(run).Code)
				require.Zero(t, f.count("c1"))
			})
		})
	}
}

// An approval that somebody publishes out of a state that he owns is poison.
func TestForgedApproval(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		f := once("pay", says("paid"))
		run := r.under(always, payTool, asking(calls(1), "c1"))
		held := r.Store.Acquire(run)
		held.Lock()
		_, e, err := r.Machine.Draft(held.Memory(), run, events.WaitingForHuman, &events.HumanApproved{Decision: saying("c1", "approved", "")},
			reducer.Stamp{ID: r.Store.NewID(), Source: "moorebus/gateway/1", Time: time.Now()})
		held.Unlock()
		r.Store.Release(held)
		require.NoError(t, err)
		body, err := r.Machine.Codec().Encode(e)
		require.NoError(t, err)
		r.spawn([]tool.Tool{f})
		r.Journal.Inject(run.Shard, events.Subject{Run: run, From: events.Acting, To: events.Acting, Pool: events.DefaultPool}.String(), body)
		mem, _ := r.Fold(run)
		for mem.State != events.Errored {
			quiet()
			mem, _ = r.Fold(run)
		}
		require.Equal(t, codes.Poison, mem.Error.Code)
		require.Zero(t, f.count("c1"))
	})
}

// counting is a log that counts lookups, of which the first two fail, and scans.
type counting struct {
	journal.Log
	lookups, scans atomic.Int64
}

func (l *counting) Newest(ctx context.Context, shard int, f journal.Filter) (journal.Record, error) {
	switch l.lookups.Add(1) {
	case 1:
		return journal.Record{}, errors.New("the bus is away")
	case 2:
		return journal.Record{}, fmt.Errorf("JetStream is still starting: %w", journal.ErrNotReady)
	}
	return l.Log.Newest(ctx, shard, f)
}

func (l *counting) Scan(ctx context.Context, shard int, f journal.Filter, after uint64) iter.Seq2[journal.Record, error] {
	l.scans.Add(1)
	return l.Log.Scan(ctx, shard, f, after)
}

// A run whose policy wants nothing costs one read, whatever it calls.
func TestPolicyIsReadOnceForARun(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		f := pure("pay", "default", says("paid"))
		log := &counting{Log: r.Journal}
		r.spawn([]tool.Tool{f}, func(c *actor.Config) { c.Store = r.NewStore(log) })
		run := r.under(never, payTool)
		for i, id := range []string{"c1", "c2", "c3"} {
			reply := calls(1)
			reply.Calls[0].ID = id
			r.Append(run, events.Planning, &events.LLMToolCall{ToolCallReply: reply})
			r.AwaitState(run, events.Observing)
			if i == 0 {
				require.EqualValues(t, 3, log.lookups.Load(), "an outage is waited for")
				require.Zero(t, r.Count(run, events.TypeLLMAttemptFailed))
			}
			require.Eventually(t, func() bool { return r.TryAppend(run, events.Observing, &events.Continue{}) == nil }, workertest.Patience, time.Second)
			r.Await(run, func(mem *reducer.Memory) bool { return len(mem.History) == i+1 })
		}
		require.EqualValues(t, 3, log.lookups.Load())
		require.Zero(t, log.scans.Load())
	})
}

// A tool that asks waits under every policy, and runs on an answer alone.
func TestToolThatAsks(t *testing.T) {
	spec := events.ToolSpec{Name: "pay", Effect: "pure", Pool: "default", Asks: true}
	for name, c := range map[string]struct {
		steps []events.Payload
		code  string
	}{
		"not asked": {[]events.Payload{&events.LLMToolCall{ToolCallReply: calls(1)}}, codes.NotApproved},
		"approved":  {[]events.Payload{asking(calls(1), "c1"), &events.HumanApproved{Decision: saying("c1", "approved", "")}}, codes.NotApproved},
		"answered":  {[]events.Payload{asking(calls(1), "c1"), &events.HumanModified{Decision: saying("c1", "modified", `{"answer":"x"}`)}}, codes.OK},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, r *rig) {
				run := r.under(nil, spec, c.steps...)
				r.spawn([]tool.Tool{pure("pay", "default", says("x"))})
				require.Equal(t, c.code, r.outcome(run).Code)
			})
		})
	}
}

// lost runs a once tool whose worker is killed in the middle of so many calls,
// with another one beside it. A second run of a call ends at once.
func lost(r *rig, calls int) *fn {
	began := make(chan struct{}, 10)
	f := once("pay", nil)
	f.run = func(ctx context.Context, c tool.Call) (string, error) {
		if f.count(c.ID) > 1 {
			return "paid " + c.Arguments, nil
		}
		began <- struct{}{}
		<-ctx.Done()
		return "", ctx.Err()
	}
	p := r.spawn([]tool.Tool{f})
	for range calls {
		<-began
	}
	p.Kill()
	r.spawn([]tool.Tool{f})
	return f
}

func TestAHumanDecidesOnAnUnknownOutcome(t *testing.T) {
	ask := &events.Approval{Policy: events.ApproveAlways, OutcomeUnknown: events.AskHuman, Expires: events.Duration(time.Hour)}
	for name, c := range map[string]struct {
		decision events.Payload
		runs     int
		says     string
	}{
		"again":                {&events.HumanApproved{Decision: saying("c1", "approved", "")}, 2, `SUCCESS: paid {"amount":1}`},
		"with other arguments": {&events.HumanModified{Decision: saying("c1", "modified", `{"amount":9}`)}, 2, `SUCCESS: paid {"amount":9}`},
		"not again":            {&events.HumanRejected{Decision: events.Decision{CallID: "c1", Decision: "rejected", Reason: "it is paid", By: "ann"}}, 1, "REJECTED: it is paid"},
		"nobody said":          {&events.ApprovalExpired{}, 1, "REJECTED: expired"},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, r *rig) {
				run := r.under(ask, payTool, asking(calls(1), "c1"), &events.HumanApproved{Decision: saying("c1", "approved", "")})
				f := lost(r, 1)
				mem := r.Await(run, func(mem *reducer.Memory) bool { return mem.PendingApproval != nil && mem.N > 3 })
				require.Equal(t, events.WaitingForHuman, mem.State)
				request := mem.PendingApproval.Requests[0]
				require.Equal(t, []string{"c1", "pay", `{"amount":1}`, "high"}, []string{request.CallID, request.Tool, request.Arguments, request.Risk})
				require.Contains(t, request.Reason, "the outcome is unknown")
				deadline, err := time.Parse(time.RFC3339, mem.PendingApproval.Deadline)
				require.NoError(t, err)
				require.WithinDuration(t, time.Now().Add(time.Hour), deadline, time.Minute)
				quiet()
				require.Equal(t, 1, f.count("c1"), "it waits")
				r.Append(run, events.WaitingForHuman, c.decision)
				mem = r.AwaitState(run, events.Observing)
				require.Equal(t, c.says, *mem.LastObservation)
				require.Equal(t, c.runs, f.count("c1"))
				require.Equal(t, c.runs, r.Count(run, events.TypeToolCallStarted), "each run is started in the log")
			})
		})
	}
}

// A once call that was sent and not answered within its timeout is an unknown
// outcome too.
func TestAnUnansweredCallIsAnUnknownOutcome(t *testing.T) {
	hanging := func(f func(tool.Call) bool) *fn {
		made := once("pay", func(ctx context.Context, c tool.Call) (string, error) {
			if !f(c) {
				return "paid", nil
			}
			<-ctx.Done()
			return "", ctx.Err()
		})
		made.def.Timeout = time.Second
		return made
	}
	for _, policy := range []*events.Approval{never, {Policy: events.ApproveNever, OutcomeUnknown: events.AskHuman}} {
		bubble(t, func(t *testing.T, r *rig) {
			hangs := true
			r.spawn([]tool.Tool{hanging(func(tool.Call) bool { return hangs })})
			run := r.under(policy, payTool, &events.LLMToolCall{ToolCallReply: calls(1)})
			if policy.OutcomeUnknown != events.AskHuman {
				o := r.outcome(run)
				require.Equal(t, codes.OutcomeUnknown, o.Code)
				require.Equal(t, `ERROR: the tool "pay" did not finish within 1s; it may or may not have taken effect`, o.Observation)
				return
			}
			request := r.AwaitState(run, events.WaitingForHuman).PendingApproval.Requests[0]
			require.Equal(t, `the outcome is unknown: the tool "pay" did not finish within 1s; it may or may not have taken effect. Approved, it runs again`, request.Reason)
			hangs = false
			r.Append(run, events.WaitingForHuman, &events.HumanApproved{Decision: saying("c1", "approved", "")})
			require.Equal(t, "SUCCESS: paid", *r.AwaitState(run, events.Observing).LastObservation)
			require.Equal(t, 2, r.Count(run, events.TypeToolCallStarted))
		})
	}
	bubble(t, func(t *testing.T, r *rig) { // in a batch the model is told
		r.spawn([]tool.Tool{hanging(func(c tool.Call) bool { return c.ID == "c1" })})
		run := r.under(&events.Approval{Policy: events.ApproveNever, OutcomeUnknown: events.AskHuman}, payTool,
			&events.LLMParallelToolCalls{ToolCallReply: calls(2)})
		results := r.results(run)
		require.Equal(t, []string{codes.OutcomeUnknown, "ok"}, []string{results["c1"].Code, results["c2"].Code})
	})
}

// The model is told the unknown outcomes of a batch, since no human can be asked in it.
func TestUnknownOutcomesOfABatchAreTold(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		run := r.under(&events.Approval{Policy: events.ApproveNever, OutcomeUnknown: events.AskHuman}, payTool,
			&events.LLMParallelToolCalls{ToolCallReply: calls(2)})
		f := lost(r, 2)
		for id, result := range r.results(run) {
			require.Equal(t, codes.OutcomeUnknown, result.Code, id)
			require.Equal(t, 1, f.count(id))
		}
	})
}
