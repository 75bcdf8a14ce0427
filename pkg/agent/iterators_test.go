package agent_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/pkg/agent"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/moorebus/moorebus/pkg/llm/scripted"
)

// kindsOf tells outputs in short, without what is best effort.
func kindsOf(outs []agent.RunOutput) []string {
	var kinds []string
	for _, o := range outs {
		switch o := o.Output.(type) {
		case agent.LLMToken, agent.ToolCallDelta:
		case agent.StateStarted:
			kinds = append(kinds, "state "+string(o.State))
		case agent.Action:
			kinds = append(kinds, "action "+string(o.Event))
		case agent.ToolCallStarted:
			kinds = append(kinds, "started "+o.Name)
		case agent.ToolCallFinished:
			kinds = append(kinds, fmt.Sprintf("finished %s %v", o.Name, o.Success))
		case agent.FinalAnswer:
			kinds = append(kinds, "answer "+o.Content)
		case agent.RunError:
			kinds = append(kinds, "error "+o.Code)
		}
	}
	return kinds
}

// A reader sees everything in order, each once, and no word after its answer, live and later.
func TestOutputs(t *testing.T) {
	t.Parallel()
	mock := scripted.NewMock(scripted.Ask("search", `{"q":"a"}`), scripted.Say("Pass the salt."), scripted.Say("Pass the salt, please."))
	r, err := build(t, mock, func(b *agent.Builder) { b.Graph(reviewed(strict)) }).Start(t.Context(), agent.Task(task))
	require.NoError(t, err)
	defer func() { require.NoError(t, r.Release()) }()
	for range 2 {
		var outs []agent.RunOutput
		for o, err := range r.Outputs(t.Context()) {
			require.NoError(t, err)
			require.Equal(t, r.ID(), o.Run)
			outs = append(outs, o)
		}
		require.Equal(t, []string{
			"state planning", "action LlmToolCall", "state acting", "started search", "finished search true", "state observing",
			"action Continue", "state planning", "action LlmFinalAnswer", "state reviewing", "action ReviewFailed", "state planning",
			"action LlmFinalAnswer", "state reviewing", "state done", "answer Pass the salt, please.",
		}, kindsOf(outs))
		said, deltas := map[string]string{}, ""
		for _, o := range outs {
			switch o := o.Output.(type) {
			case agent.LLMToken:
				require.Len(t, said[o.MessageID], o.Offset)
				said[o.MessageID] += o.Text
			case agent.ToolCallDelta:
				deltas += o.Text
			}
		}
		for _, text := range said {
			require.True(t, strings.HasPrefix("Pass the salt, please.", strings.TrimSuffix(text, ".")), text)
		}
		require.Contains(t, []string{"", `{"q":"a"}`}, deltas)
	}
}

// A run does not wait for a slow reader, and a reader that breaks off leaves nothing behind:
// the end of the tests checks for goroutines.
func TestReadersThatBreakOff(t *testing.T) {
	t.Parallel()
	r, err := build(t, callsThen(one("a", "search", `{"q":"x"}`)), nil).Start(t.Context(), agent.Task(task))
	require.NoError(t, err)
	for _, err := range r.Outputs(t.Context()) {
		require.NoError(t, err)
		answer, err := r.Wait(t.Context())
		require.NoError(t, err)
		require.Equal(t, longAnswer, answer)
		break
	}
	for e, err := range r.Events(t.Context()) {
		require.NoError(t, err)
		require.Equal(t, events.TypeStart, e.Type())
		break
	}
	n := 0
	for e, err := range r.Events(t.Context()) {
		require.NoError(t, err)
		require.Equal(t, r.ID(), e.Run)
		n++
		require.EqualValues(t, n, e.N)
	}
	require.EqualValues(t, r.Memory().N, n)
	require.NoError(t, r.Release())
	for _, err := range r.Events(t.Context()) {
		require.ErrorContains(t, err, "was released")
	}
}

// Iterators end with their context, with the run's release, and with its server, and say so.
func TestIteratorsThatAreEnded(t *testing.T) {
	t.Parallel()
	waits := func() (*agent.Run, *agent.Server) {
		a := build(t, callsThen(one("a", "search", `{"q":"x"}`)), always)
		server, err := agent.Serve(t.Context(), a.Agent)
		require.NoError(t, err)
		r, err := a.Start(t.Context(), agent.Task(task))
		require.NoError(t, err)
		return r, server
	}
	last := func(ctx context.Context, r *agent.Run, at events.State, end func()) (last error) {
		for e, err := range r.Events(ctx) {
			if last = err; err == nil && e.To == at {
				end()
			}
		}
		return last
	}
	r, server := waits()
	ctx, cancel := context.WithCancel(t.Context())
	require.ErrorIs(t, last(ctx, r, events.WaitingForHuman, cancel), context.Canceled)
	for call, err := range r.Approvals(ctx) {
		require.ErrorIs(t, err, context.Canceled)
		require.ErrorIs(t, call.Approve(t.Context()), context.Canceled)
	}
	require.ErrorContains(t, last(t.Context(), r, events.WaitingForHuman, func() { require.NoError(t, r.Release()) }), "was released")
	require.NoError(t, server.Close())

	r, server = waits()
	require.ErrorContains(t, last(t.Context(), r, events.WaitingForHuman, func() { require.NoError(t, server.Close()) }), "server is closed")
	require.NoError(t, r.Release())
}

// What sub-runs do is seen by whoever watches the caller, at any depth, also afterwards.
func TestIteratorsOfRunsBelow(t *testing.T) {
	t.Parallel()
	deep := built(t, agent.New("deep").LLM(callsThen()))
	helper := built(t, agent.New("helper").LLM(callsThen(one("d", "deep", `{"task":"dig"}`))).Subagent(deep.Agent))
	both := append(one("first", "helper", `{"task":"help"}`), one("second", "helper", `{"task":"help"}`)...)
	r, err := built(t, agent.New("boss").Namespace("lab").LLM(callsThen(both)).Subagent(helper.Agent)).Start(t.Context(), agent.Task(task))
	require.NoError(t, err)
	for range 2 {
		ctx, stop := context.WithTimeout(t.Context(), time.Minute)
		of := map[string][]agent.RunOutput{}
		for o, err := range r.Outputs(ctx) {
			require.NoError(t, err)
			of[o.Run] = append(of[o.Run], o)
		}
		require.Len(t, of, 5, "the run, two below it, and two below those")
		for _, outs := range of {
			kinds := kindsOf(outs)
			require.Equal(t, "answer "+longAnswer, kinds[len(kinds)-1])
		}
		number := map[string]uint64{}
		for e, err := range r.Events(ctx) {
			require.NoError(t, err)
			number[e.Run]++
			require.Equal(t, number[e.Run], e.N)
		}
		require.Len(t, number, 5)
		stop()
	}
	require.NoError(t, r.Release())
}

// A call that somebody else decides on is not yielded, and one that is left alone is yielded
// once.
func TestApprovalsThatOthersDecide(t *testing.T) {
	t.Parallel()
	both := append(one("a", "search", `{"q":"x"}`), one("b", "calculator", `{"q":"y"}`)...)
	r, err := build(t, callsThen(both, one("c", "search", `{"q":"z"}`)), always).Start(t.Context(), agent.Task(task))
	require.NoError(t, err)
	var got []string
	for call, err := range r.Approvals(t.Context()) {
		require.NoError(t, err)
		switch got = append(got, call.CallID); call.CallID {
		case "a": // the other one is decided before its turn
			require.NoError(t, r.Decide(t.Context(), events.Decision{CallID: "b", Decision: events.DecisionApproved}))
			require.NoError(t, call.Approve(t.Context()))
			var refused *agent.Refused
			require.ErrorAs(t, call.Approve(t.Context()), &refused)
		case "c":
			go func() { _ = call.Reject(context.Background(), "no") }() // later, by somebody else
		}
	}
	require.Equal(t, []string{"a", "c"}, got)
	require.NoError(t, r.Release())
}

// A wait that is to end where the run needs its user ends there, and the run goes on.
func TestUntilInterrupt(t *testing.T) {
	t.Parallel()
	r, err := build(t, callsThen(one("a", "search", `{"q":"x"}`)), func(b *agent.Builder) { always(b); b.Chat() }).Start(t.Context(), agent.Task(task))
	require.NoError(t, err)
	_, err = r.Answer(t.Context(), agent.UntilInterrupt)
	var interrupted *agent.Interrupted
	require.ErrorAs(t, err, &interrupted)
	require.Equal(t, events.WaitingForHuman, interrupted.State)
	require.NoError(t, interrupted.Approvals[0].Approve(t.Context()))
	answer, err := r.Answer(t.Context(), agent.UntilInterrupt)
	require.NoError(t, err)
	require.Equal(t, longAnswer, answer)
	_, err = r.Wait(t.Context(), agent.UntilInterrupt)
	require.ErrorAs(t, err, &interrupted)
	require.Equal(t, events.WaitingForUser, interrupted.State)
	require.Empty(t, interrupted.Approvals)
	require.NoError(t, r.Finish(t.Context()))
	require.NoError(t, r.Release())
}

// A deadline of the start is the run's own, and no longer than that of its agent.
func TestDeadlineOfAStart(t *testing.T) {
	t.Parallel()
	a := build(t, callsThen(one("a", "search", `{"q":"x"}`)), func(b *agent.Builder) {
		always(b)
		b.Budget(events.Budget{MaxTotalTokens: 1000, MaxWallTime: events.Duration(time.Hour)})
	})
	server, err := agent.Serve(t.Context(), a.Agent)
	require.NoError(t, err)
	defer func() { require.NoError(t, server.Close()) }()
	start := func(d time.Duration) *agent.Run {
		ctx, stop := context.WithTimeout(t.Context(), d)
		defer stop()
		r, err := a.Start(ctx, agent.Task(task))
		require.NoError(t, err)
		return r
	}
	long := start(24 * time.Hour)
	_ = waitingFor(t.Context(), t, long)
	require.Equal(t, events.Duration(time.Hour), long.Memory().Budget.MaxWallTime)
	require.NoError(t, long.Cancel(t.Context(), "enough"))
	require.NoError(t, long.Release())

	r := start(2 * time.Second)
	_, err = r.Wait(t.Context())
	require.ErrorIs(t, err, context.DeadlineExceeded)
	var failed *agent.Failed
	require.ErrorAs(t, err, &failed)
	require.Equal(t, 1000, r.Memory().Budget.MaxTotalTokens)
	require.NoError(t, r.Release())

	ended, cancel := context.WithDeadline(t.Context(), time.Now().Add(-time.Second))
	defer cancel()
	_, err = a.Start(ended, agent.Task(task))
	require.ErrorIs(t, err, context.DeadlineExceeded)
}

// A run begins with all its messages: its model is asked once.
func TestMessagesOfAStart(t *testing.T) {
	t.Parallel()
	mock := scripted.NewMock(scripted.Say(longAnswer))
	id := "018f0000-0000-7000-8000-000000000001"
	r, err := build(t, mock, nil).Start(t.Context(), agent.Task(task), agent.RunID(id), agent.Messages(agent.Message{ID: "m1", Text: "and that"}, agent.Message{Text: "and more"}))
	require.NoError(t, err)
	require.Equal(t, id, r.ID())
	_, err = r.Wait(t.Context())
	require.NoError(t, err)
	var said []string
	for _, m := range mock.Requests()[0].Messages {
		if m.Role == llm.RoleUser {
			said = append(said, m.Content)
		}
	}
	require.Equal(t, []string{task, "and that", "and more"}, said)
	require.Equal(t, 1, mock.CallCount())
	require.NoError(t, r.Release())
}

// A run is steered, forked and listed by its agent, in the agent's namespace.
func TestSteering(t *testing.T) {
	t.Parallel()
	a := build(t, callsThen(one("a", "search", `{"q":"x"}`)), func(b *agent.Builder) { always(b); b.Namespace("lab").Data(t.TempDir()) })
	r, err := a.Start(t.Context(), agent.Task(task))
	require.NoError(t, err)
	_ = waitingFor(t.Context(), t, r)
	require.NoError(t, r.Pause(t.Context(), "lunch"))
	require.True(t, r.Memory().Control.Paused)
	require.NoError(t, r.Resume(t.Context()))
	require.False(t, r.Memory().Control.Paused)
	var refused *agent.Refused
	require.ErrorAs(t, r.Resume(t.Context()), &refused)
	require.Equal(t, "not_paused", refused.Code)
	require.NoError(t, r.RaiseBudget(t.Context(), events.Budget{MaxTotalTokens: 5000}))
	require.Equal(t, 5000, r.Memory().Budget.MaxTotalTokens)
	require.NoError(t, r.ExpandContext(t.Context(), 3))
	require.NoError(t, r.ShowCalls(t.Context(), "a"))
	require.ErrorAs(t, r.ShowCalls(t.Context(), "none"), &refused)
	_, err = a.Start(t.Context(), agent.Task(task), agent.RunID(r.ID()))
	require.ErrorAs(t, err, &refused)
	require.Equal(t, "run_exists", refused.Code)
	_, err = a.Start(t.Context(), agent.Task(task), agent.RunID("one"))
	require.ErrorAs(t, err, &refused)
	_, err = a.Start(t.Context(), agent.Task(task), agent.Priority("urgent"))
	require.ErrorAs(t, err, &refused)
	require.ErrorContains(t, err, "use high, normal or low")

	fork, err := r.Fork(t.Context(), 1, agent.Task("another one"), agent.Patch(map[string]any{"approval": nil}))
	require.NoError(t, err)
	answer, err := fork.Wait(t.Context())
	require.NoError(t, err)
	require.Equal(t, longAnswer, answer)
	require.Equal(t, "another one", fork.Memory().Task)
	require.NoError(t, fork.Release())

	runs := func(states ...events.State) (ids []string) {
		for run, err := range a.Runs(t.Context(), states...) {
			require.NoError(t, err)
			ids = append(ids, run.RunID)
		}
		return ids
	}
	require.ElementsMatch(t, []string{r.ID(), fork.ID()}, runs())
	require.Equal(t, []string{r.ID()}, runs(events.WaitingForHuman))
	require.NoError(t, r.Release())

	again, err := a.Attach(t.Context(), r.ID())
	require.NoError(t, err)
	_, err = approveAll(t.Context(), again)
	require.NoError(t, err)
	answer, err = again.Wait(t.Context())
	require.NoError(t, err)
	require.Equal(t, longAnswer, answer)
	require.NoError(t, again.Release())
}
