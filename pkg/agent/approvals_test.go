package agent_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/pkg/agent"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/llm"
)

const longAnswer = "All of it is done by now."

// callsThen asks for the calls, a reply each, and then answers.
func callsThen(replies ...[]llm.Call) llm.Caller {
	return llm.CallerFunc(func(_ context.Context, req llm.Request, _ func(llm.Chunk)) (llm.Response, error) {
		if req.Replies < len(replies) && len(replies[req.Replies]) > 0 {
			return llm.ToolCalls{Calls: replies[req.Replies]}, nil
		}
		return llm.Text{Content: longAnswer}, nil
	})
}

func one(id, name, arguments string) []llm.Call {
	return []llm.Call{{ID: id, Name: name, Arguments: arguments}}
}

func always(b *agent.Builder) { b.Approval(events.Approval{Policy: events.ApproveAlways}) }

// approveAll is the loop that a program has: it approves what waits until nothing
// can wait any more, and returns the calls that it approved.
func approveAll(ctx context.Context, r *agent.Run) (approved []agent.Approval, err error) {
	ctx, stop := context.WithTimeout(ctx, time.Minute)
	defer stop()
	for call := range r.Approvals(ctx) {
		if err := call.Approve(ctx); err != nil {
			return approved, err
		}
		approved = append(approved, call)
	}
	return approved, nil
}

// waitingFor returns the calls that the run waits for.
func waitingFor(ctx context.Context, t *testing.T, r *agent.Run) []agent.Approval {
	t.Helper()
	_, err := r.Wait(ctx, agent.UntilInterrupt)
	var interrupted *agent.Interrupted
	require.ErrorAs(t, err, &interrupted)
	return interrupted.Approvals
}

// Approvals never returns a call that was decided.
func TestApprovalLoop(t *testing.T) {
	t.Parallel()
	var replies [][]llm.Call
	for i := range 7 {
		replies = append(replies, one(fmt.Sprint("call", i), "search", `{"q":"x"}`))
	}
	a := build(t, callsThen(replies...), always)
	r, err := a.Start(t.Context(), agent.Task(task))
	require.NoError(t, err)
	approved, err := approveAll(t.Context(), r)
	require.NoError(t, err)
	require.Len(t, approved, 7)
	require.Equal(t, r.ID(), approved[0].Run)
	answer, err := r.Wait(t.Context())
	require.NoError(t, err)
	require.Equal(t, longAnswer, answer)
	require.NoError(t, r.Release())
}

// Of a reply's calls those that are decided are not returned again.
func TestApprovalsOfABatch(t *testing.T) {
	t.Parallel()
	both := append(one("a", "search", `{"q":"x"}`), one("b", "calculator", `{"q":"y"}`)...)
	r, err := build(t, callsThen(both), always).Start(t.Context(), agent.Task(task))
	require.NoError(t, err)
	for _, want := range [][]string{{"a", "b"}, {"b"}} {
		waiting := waitingFor(t.Context(), t, r)
		var ids []string
		for _, a := range waiting {
			ids = append(ids, a.CallID)
		}
		require.Equal(t, want, ids)
		require.NoError(t, r.Decide(t.Context(), events.Decision{CallID: ids[0], Decision: events.DecisionApproved}))
	}
	none, err := approveAll(t.Context(), r)
	require.NoError(t, err)
	require.Empty(t, none)
	require.NoError(t, r.Release())
}

// A call of a run that answers a call is decided on by whoever watches the caller,
// at any depth.
func TestApprovalsOfRunsBelow(t *testing.T) {
	t.Parallel()
	named := func(name string, model llm.Caller) *agent.Builder {
		return agent.New(name).LLM(model).ReflectEvery(0)
	}
	deep := built(t, named("deep", callsThen(one("same", "search", `{"q":"x"}`))).Tool(searchTool(t)).Approval(events.Approval{Policy: events.ApproveAlways}))
	helper := built(t, named("helper", callsThen(one("d", "deep", `{"task":"dig"}`))).Subagent(deep.Agent))
	both := append(one("first", "helper", `{"task":"help"}`), one("second", "helper", `{"task":"help"}`)...)
	boss := built(t, named("boss", callsThen(both)).Subagent(helper.Agent))

	r, err := boss.Start(t.Context(), agent.Task(task))
	require.NoError(t, err)
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	waiting := waitingFor(ctx, t, r)
	require.Equal(t, "same", waiting[0].CallID)
	require.NotEqual(t, r.ID(), waiting[0].Run)
	if len(waiting) == 1 {
		require.NoError(t, r.Decide(ctx, events.Decision{CallID: "same", Decision: events.DecisionApproved}))
	} else {
		require.ErrorContains(t, r.Decide(ctx, events.Decision{CallID: "same", Decision: events.DecisionApproved}), "Approval.Decide")
	}
	_, err = approveAll(ctx, r)
	require.NoError(t, err)
	answer, err := r.Wait(ctx)
	require.NoError(t, err)
	require.Equal(t, longAnswer, answer)
	require.NoError(t, r.Release())
	for _, entry := range r.Memory().History {
		require.Equal(t, "SUCCESS: "+longAnswer, entry.Observation)
	}
}

// In a chat the loop ends with each turn.
func TestApprovalsOfAChat(t *testing.T) {
	t.Parallel()
	search := one("a", "search", `{"q":"x"}`)
	again := one("b", "search", `{"q":"y"}`)
	r, err := build(t, callsThen(search, nil, again), func(b *agent.Builder) { always(b); b.Chat() }).Start(t.Context(), agent.Task(task))
	require.NoError(t, err)
	for _, more := range []string{"and now?", ""} {
		approved, err := approveAll(t.Context(), r)
		require.NoError(t, err)
		require.Len(t, approved, 1)
		answer, err := r.Answer(t.Context())
		require.NoError(t, err)
		require.Equal(t, longAnswer, answer)
		if more != "" {
			require.NoError(t, r.Post(t.Context(), more))
		}
	}
	require.NoError(t, r.Finish(t.Context()))
	require.NoError(t, r.Release())
}
