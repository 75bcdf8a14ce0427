package agent_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/pkg/agent"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/moorebus/moorebus/pkg/llm/scripted"
	"github.com/moorebus/moorebus/pkg/tool"
)

// A handler has the run's memory, tools, model and output.
func TestHandlersHaveWhatTheRunHas(t *testing.T) {
	t.Parallel()
	pay := agent.Func("pay", "Pays.", func(context.Context, query) (string, error) { return "paid", nil }, agent.Idempotent, agent.Risk(tool.High))
	once := agent.Func("once", "Acts.", func(context.Context, query) (string, error) { return "done", nil })
	review := func(ctx context.Context, w *agent.Work) (events.Payload, error) {
		w.Output("looking it up")
		found, err := w.Tools.Call(ctx, "search", `{"q":"x"}`)
		if err != nil {
			return nil, err
		}
		for name, code := range map[string]string{"pay": "needs_approval", "once": "not_repeatable", "calculator": tool.CodeNotFound, "none": tool.CodeNotFound} {
			var failed *tool.Failure
			if _, err := w.Tools.Call(ctx, name, `{"q":"x"}`); !errors.As(err, &failed) || failed.Code != code {
				return nil, errors.New("called " + name)
			}
		}
		opinion, err := w.Model.Call(ctx, llm.Request{Messages: []llm.Message{{Role: llm.RoleUser, Content: "Is it good? " + *w.Memory.FinalAnswer}}}, nil)
		if err != nil {
			return nil, err
		}
		return agent.Emit("ReviewPassed", map[string]any{"found": found, "opinion": opinion.(llm.Text).Content, "tools": w.Tools.Names()})
	}
	mock := scripted.NewMock(scripted.Say("the answer"), scripted.Say("It is good."))
	a := build(t, mock, func(b *agent.Builder) {
		b.Graph(reviewed(review)).Tool(pay, once).Model("large").Blacklist("calculator").Approval(events.Approval{Policy: events.ApproveAbove, Risk: "medium"})
	})
	r, err := a.Start(t.Context(), agent.Task(task))
	require.NoError(t, err)
	_, err = r.Wait(t.Context())
	require.NoError(t, err)
	require.NoError(t, r.Release())
	require.Equal(t, `{"found":"found it","opinion":"It is good.","tools":["once","pay","search"]}`, r.Trace().ForState("reviewing")[0].Data)
	asked := mock.Requests()[1]
	require.Equal(t, "large", asked.Model)
	require.Equal(t, "Is it good? the answer", asked.Messages[0].Content)
	require.Empty(t, asked.Tools)
}

// Live text of a handler has no place in the log. Who begins to watch after it was said gets it, too.
func TestOutputOfAHandler(t *testing.T) {
	t.Parallel()
	said, seen := make(chan struct{}), make(chan struct{})
	r, err := build(t, scripted.NewMock(scripted.Say("the answer")), func(b *agent.Builder) {
		b.Graph(reviewed(func(ctx context.Context, w *agent.Work) (events.Payload, error) {
			w.Output("reviewing ")
			w.Output("it")
			close(said)
			select {
			case <-seen:
				return agent.Emit("ReviewPassed", nil)
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}))
	}).Start(t.Context(), agent.Task(task))
	require.NoError(t, err)
	<-said
	var text strings.Builder
	for o, err := range r.Outputs(t.Context()) {
		require.NoError(t, err)
		if token, ok := o.Output.(agent.LLMToken); ok && text.String() != "reviewing it" {
			text.WriteString(token.Text)
			if text.String() == "reviewing it" {
				close(seen)
			}
		}
	}
	require.Equal(t, "reviewing it", text.String())
	require.NoError(t, r.Release())
}

// Built-in states are wrapped: planning, a tool call with its events, and observing.
func TestWrappedStates(t *testing.T) {
	t.Parallel()
	var did []string
	around := func(ctx context.Context, w *agent.Work) (events.Payload, error) {
		did = append(did, string(w.Memory.State)+w.CallID) // one run, so one at a time
		p, err := w.Next()
		if err == nil {
			did = append(did, string(events.TypeOf(p)))
			_, again := w.Next()
			require.ErrorContains(t, again, "already")
		}
		return p, err
	}
	once := agent.Func("once", "Acts.", func(context.Context, query) (string, error) { return "done", nil })
	mock := scripted.NewMock(
		&llm.Error{Kind: llm.KindOverloaded, Message: "busy", RetryAfter: 1},
		llm.ToolCalls{Calls: []llm.Call{{ID: "a", Name: "once", Arguments: `{"q":"x"}`}}}, scripted.Say("the answer"))
	graph := agent.NewGraph().State(events.Planning, around).State(events.Acting, around).State(events.Observing, around)
	a := build(t, mock, func(b *agent.Builder) { b.Graph(graph).Tool(once) })
	answer, err := a.Run(t.Context(), task)
	require.NoError(t, err)
	require.Equal(t, "the answer", answer)
	require.Equal(t, []string{"Start", "LlmAttemptFailed", "LlmToolCall", "ToolCallStarted", "ToolSuccess", "Continue", "LlmFinalAnswer"}, eventsOf(a.Trace()))
	require.Equal(t, []string{
		"planning", "planning", "LlmToolCall", "actinga", "ToolSuccess", "observing", "Continue", "planning", "LlmFinalAnswer",
	}, did)
}

// Built-in states are replaced, and what comes of it is held to the rules of the state.
func TestReplacedStates(t *testing.T) {
	t.Parallel()
	with := func(handler agent.Handler) *watched {
		return build(t, scripted.NewMock(scripted.Say("never asked")), func(b *agent.Builder) { b.Graph(agent.NewGraph().State(events.Planning, handler)) })
	}
	answer, err := with(func(_ context.Context, w *agent.Work) (events.Payload, error) {
		return &events.LLMFinalAnswer{Reply: events.Reply{Content: "without a model: " + w.Memory.Task}}, nil
	}).Run(t.Context(), task)
	require.NoError(t, err)
	require.Equal(t, "without a model: "+task, answer)

	var invalid *agent.InvalidTransition
	_, err = with(func(context.Context, *agent.Work) (events.Payload, error) { return &events.Continue{}, nil }).Run(t.Context(), task)
	require.ErrorAs(t, err, &invalid)

	other, err := with(func(_ context.Context, w *agent.Work) (events.Payload, error) {
		if _, err := w.Next(); err != nil {
			return nil, err
		}
		return &events.LLMFinalAnswer{Reply: events.Reply{Content: "another answer"}}, nil
	}).Run(t.Context(), task)
	require.NoError(t, err)
	require.Equal(t, "another answer", other)
}

// A handler of a built-in state that fails, panics or hangs is asked again a few times, before
// and after the state's own work.
func TestWrappingHandlersThatFail(t *testing.T) {
	if testing.Short() {
		t.Skip("-short") // reason: it waits for real retries
	}
	t.Parallel()
	for name, handler := range map[string]agent.Handler{
		"fails":  func(context.Context, *agent.Work) (events.Payload, error) { return nil, errors.New("no") },
		"panics": func(context.Context, *agent.Work) (events.Payload, error) { panic("out of order") },
		"hangs": func(ctx context.Context, _ *agent.Work) (events.Payload, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		},
		"fails afterwards": func(_ context.Context, w *agent.Work) (events.Payload, error) {
			if _, err := w.Next(); err != nil {
				return nil, err
			}
			return nil, errors.New("no")
		},
		"hangs afterwards": func(ctx context.Context, w *agent.Work) (events.Payload, error) {
			if _, err := w.Next(); err != nil {
				return nil, err
			}
			<-ctx.Done()
			return w.Next()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			model := llm.CallerFunc(func(context.Context, llm.Request, func(llm.Chunk)) (llm.Response, error) {
				return llm.Text{Content: longAnswer}, nil
			})
			graph := agent.NewGraph().State(events.Planning, handler).Timeout(300 * time.Millisecond)
			_, err := build(t, model, func(b *agent.Builder) { b.Graph(graph) }).Run(t.Context(), task)
			var failed *agent.Failed
			require.ErrorAs(t, err, &failed)
			require.Equal(t, "attempts_exhausted", failed.Code)
		})
	}
}

// A program without the handler leaves the run alone: its graph is another one.
func TestReplacedStatesAreAGraphOfTheirOwn(t *testing.T) {
	t.Parallel()
	own := func(_ context.Context, w *agent.Work) (events.Payload, error) { return w.Next() }
	hash := func(g *agent.Graph) string {
		m, err := g.Machine()
		require.NoError(t, err)
		return m.Table().Hash()
	}
	require.NotEqual(t, hash(agent.NewGraph()), hash(agent.NewGraph().State(events.Planning, own)))
	require.NotEqual(t, hash(agent.NewGraph().State(events.Acting, own)), hash(agent.NewGraph().State(events.Planning, own)))
}
