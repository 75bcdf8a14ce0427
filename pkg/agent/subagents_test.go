package agent_test

import (
	"context"
	"errors"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/pkg/agent"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/moorebus/moorebus/pkg/llm/scripted"
	"github.com/moorebus/moorebus/pkg/reducer"
	"github.com/moorebus/moorebus/pkg/tool"
)

func built(t *testing.T, b *agent.Builder) *agent.Agent {
	t.Helper()
	a, err := b.Build()
	require.NoError(t, err)
	return a
}

func named(name string, replies ...any) *agent.Builder {
	return agent.New("").Name(name).LLM(scripted.NewMock(replies...))
}

func TestWrongCallees(t *testing.T) {
	t.Parallel()
	child := built(t, named("child", scripted.Say("yes")))
	remote := built(t, named("remote").Use("model").Elsewhere().NATS("nats://127.0.0.1:1"))
	drawn := built(t, named("drawn", scripted.Say("yes")).Graph(agent.NewGraph().Fold("Continue", func(*reducer.Memory, *events.Event) {})))
	for want, b := range map[string]*agent.Builder{
		"is nil":                      named("a").Subagent(nil),
		"name its tool by":            named("b").Subagent(remote),
		"so do those of agent child":  named("c").Use("model").Elsewhere().NATS("nats://127.0.0.1:1").Subagent(child),
		`"child" stands there twice`:  named("d").Subagent(child).Tool(textTool(t, "child", "x")),
		"two agents are called child": named("child").Subagent(child),
		"different graphs":            named("e").Subagent(drawn),
		"risk":                        named("f").Subagent(child, func(t *agent.Callee) { t.Risk = "none at all" }),
		"one is an agent":             named("g").Subagent(child).Subagent(built(t, named("h").Tool(textTool(t, "child", "x")))),
		"the same one": named("i").Subagent(child, func(t *agent.Callee) { t.Risk = tool.High }).
			Subagent(built(t, named("j").Subagent(child))),
	} {
		_, err := b.Build()
		var wrong *agent.BuildError
		require.ErrorAs(t, err, &wrong, want)
		require.ErrorContains(t, err, want)
	}
}

func TestCalleesDoNotStep(t *testing.T) {
	t.Parallel()
	child := built(t, named("child", scripted.Say("yes")))
	_, err := built(t, agent.New("Go.").LLM(scripted.NewMock()).Subagent(child)).Stepwise(t.Context())
	require.ErrorIs(t, err, agent.ErrStepwise)
}

// late is a source whose tool comes when it runs.
type late struct {
	tool  tool.Tool
	ended chan struct{}
}

func (late) Name() string    { return "late" }
func (late) Pools() []string { return []string{"shelf"} }

func (s late) Run(ctx context.Context, _ *slog.Logger, put func([]tool.Tool)) {
	defer close(s.ended)
	put([]tool.Tool{s.tool})
	<-ctx.Done()
}

func TestToolsOfASource(t *testing.T) {
	t.Parallel()
	find := agent.Func("shelf.find", "Finds.", func(context.Context, query) (string, error) { return "found it", nil }, agent.Pure,
		func(d *tool.Definition) { d.Pool = "shelf" })
	var opened []late
	open := func() (tool.Source, error) {
		opened = append(opened, late{find, make(chan struct{})})
		return opened[len(opened)-1], nil
	}
	a := built(t, agent.New("Find it.").Source(open, "shelf.find").
		LLM(llm.CallerFunc(func(_ context.Context, req llm.Request, _ func(llm.Chunk)) (llm.Response, error) {
			if req.Replies == 0 {
				return llm.ToolCalls{Meta: llm.Meta{Confidence: 1}, Calls: []llm.Call{{ID: "c", Name: "shelf.find", Arguments: `{"q":"it"}`}}}, nil
			}
			return llm.Text{Meta: llm.Meta{Confidence: 1}, Content: "It was found."}, nil
		})))
	require.Len(t, opened, 1, "Build looks at it")
	for run := range 2 {
		answer, err := a.Run(t.Context())
		require.NoError(t, err)
		require.Equal(t, "It was found.", answer)
		require.Equal(t, "SUCCESS: found it", a.Memory().History[0].Observation)
		require.Len(t, opened, run+2, "each service has one of its own")
		<-opened[run+1].ended // nothing is left running
	}

	_, err := agent.New("x").LLM(scripted.NewMock()).Source(func() (tool.Source, error) { return nil, errors.New("no such server") }).Build()
	require.ErrorContains(t, err, "no such server")
	_, err = built(t, agent.New("x").LLM(scripted.NewMock()).Source(open, "shelf.lose")).Run(t.Context())
	var wrong *agent.BuildError
	require.ErrorAs(t, err, &wrong)
	require.ErrorContains(t, err, "shelf.lose")
}

func TestThinkingTokens(t *testing.T) {
	t.Parallel()
	mock := scripted.NewMock(scripted.Say("the answer"))
	_, err := built(t, agent.New("Think.").LLM(mock).Sampling(llm.Sampling{ThinkingTokens: 4096}).ThinkingTokens(2048)).Run(t.Context())
	require.NoError(t, err)
	require.Equal(t, 2048, mock.Requests()[0].Sampling.ThinkingTokens)
	_, err = agent.New("Think.").LLM(mock).ThinkingTokens(1).Build()
	require.ErrorContains(t, err, "thinking_tokens")
	built(t, agent.New("Think.").LLM(mock).ThinkingTokens(1).Sampling(llm.Sampling{}))
}
