package agent_test

import (
	"context"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/pkg/agent"
	"github.com/moorebus/moorebus/pkg/llm"
)

// userKey is the key of a value that a program gives its runs.
type userKey struct{}

func as(t *testing.T, user string) context.Context {
	t.Helper()
	return context.WithValue(t.Context(), userKey{}, user)
}

// seen are the users that models and tools saw.
type seen struct {
	mu    sync.Mutex
	users map[string][]any
}

func (s *seen) note(ctx context.Context, who string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.users == nil {
		s.users = map[string][]any{}
	}
	s.users[who] = append(s.users[who], ctx.Value(userKey{}))
}

func (s *seen) take() map[string][]any {
	s.mu.Lock()
	defer s.mu.Unlock()
	users := s.users
	s.users = nil
	return users
}

// noting is a model that notes whom it answers: with the given call, then with a word.
func (s *seen) noting(who, tool, arguments string) llm.Caller {
	return llm.CallerFunc(func(ctx context.Context, req llm.Request, _ func(llm.Chunk)) (llm.Response, error) {
		s.note(ctx, who)
		if req.Replies == 0 && tool != "" {
			return llm.ToolCalls{Calls: []llm.Call{{ID: "a", Name: tool, Arguments: arguments}}}, nil
		}
		return llm.Text{Content: "All of it is done by now."}, nil
	})
}

// A model and a tool see the values of the context that their own run was started
// with, whoever started the roles; and so do those of the agents that it calls.
func TestContextValues(t *testing.T) {
	t.Parallel()
	var s seen
	look := agent.Func("look", "Looks.", func(ctx context.Context, _ query) (string, error) {
		s.note(ctx, "tool")
		return "nothing", nil
	}, agent.Pure)
	helper, err := agent.New("help").Name("helper").LLM(s.noting("helper", "look", `{"q":"x"}`)).Tool(look).Build()
	require.NoError(t, err)
	a, err := agent.New("ask").Name("boss").LLM(s.noting("boss", "helper", `{"task":"x"}`)).Subagent(helper).Build()
	require.NoError(t, err)
	server, err := agent.Serve(as(t, "whoever serves"), a)
	require.NoError(t, err)
	defer func() { require.NoError(t, server.Close()) }()

	ann, err := a.Start(as(t, "ann"))
	require.NoError(t, err)
	_, err = ann.Wait(t.Context())
	require.NoError(t, err)
	want := map[string][]any{"boss": {"ann", "ann"}, "helper": {"ann", "ann"}, "tool": {"ann"}}
	require.Equal(t, want, s.take())

	_, err = a.Run(as(t, "bob"))
	require.NoError(t, err)
	require.Equal(t, map[string][]any{"boss": {"bob", "bob"}, "helper": {"bob", "bob"}, "tool": {"bob"}}, s.take())

	_, err = a.Run(t.Context())
	require.NoError(t, err)
	require.Equal(t, map[string][]any{"boss": {nil, nil}, "helper": {nil, nil}, "tool": {nil}}, s.take())
	require.NoError(t, ann.Release())
}

// The values outlive the context that they came with, and a run that is only opened
// keeps those of its start.
func TestContextValuesAreThoseOfTheStart(t *testing.T) {
	t.Parallel()
	var s seen
	started := make(chan struct{})
	slow := agent.Func("slow", "Waits.", func(ctx context.Context, _ query) (string, error) {
		<-started
		s.note(ctx, "tool")
		return "", ctx.Err()
	}, agent.Pure)
	a, err := agent.New("ask").LLM(s.noting("model", "slow", `{"q":"x"}`)).Tool(slow).Build()
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(as(t, "ann"))
	r, err := a.Start(ctx)
	require.NoError(t, err)
	cancel()
	opened, err := a.Open(as(t, "bob"), r.ID())
	require.NoError(t, err)
	close(started)
	answer, err := opened.Wait(t.Context())
	require.NoError(t, err)
	require.Equal(t, "All of it is done by now.", answer)
	require.Equal(t, map[string][]any{"model": {"ann", "ann"}, "tool": {"ann"}}, s.take())
	require.NoError(t, opened.Release())
	require.NoError(t, r.Release())
}

// Each step's own context gives no values to the run.
func TestContextValuesStepwise(t *testing.T) {
	t.Parallel()
	var s seen
	a, err := agent.New("ask").LLM(s.noting("model", "", "")).Build()
	require.NoError(t, err)
	r, err := a.Stepwise(as(t, "ann"))
	require.NoError(t, err)
	_, err = r.Step(as(t, "bob"))
	require.NoError(t, err)
	require.Equal(t, map[string][]any{"model": {"ann"}}, s.take())
	require.NoError(t, r.Release())
}
