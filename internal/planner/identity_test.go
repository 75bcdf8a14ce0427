package planner_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/planner"
	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/moorebus/moorebus/pkg/llm/anthropic"
	"github.com/moorebus/moorebus/pkg/llm/openai"
	"github.com/moorebus/moorebus/pkg/llm/scripted"
)

func hello(context.Context, llm.Request, func(llm.Chunk)) (llm.Response, error) {
	return llm.Text{Content: "hello"}, nil
}

func goodbye(context.Context, llm.Request, func(llm.Chunk)) (llm.Response, error) {
	return llm.Text{Content: "goodbye"}, nil
}

// Callers that may stand in for each other have one identity, whatever their keys
// are, and it does not tell the keys.
func TestIdentity(t *testing.T) {
	t.Parallel()
	of := func(o openai.Options) string {
		c, err := openai.New(o)
		require.NoError(t, err)
		return planner.Identity(c)
	}
	one := of(openai.Options{BaseURL: "http://user:secret@models.test/v1", APIKey: "secret-1", Model: "m"})
	require.NotContains(t, one, "secret")
	require.Equal(t, one, of(openai.Options{BaseURL: "http://models.test/v1", APIKey: "other", Model: "m"}))
	require.NotEqual(t, one, of(openai.Options{BaseURL: "http://models.test/v1", Model: "n"}))
	require.NotEqual(t, one, of(openai.Options{BaseURL: "http://elsewhere.test/v1", Model: "m"}))
	c, err := anthropic.New(anthropic.Options{BaseURL: "http://models.test", APIKey: "secret-2", Model: "m"})
	require.NoError(t, err)
	require.NotContains(t, planner.Identity(c), "secret")
	require.Equal(t, planner.Identity(scripted.New()), planner.Identity(scripted.New()))

	require.Equal(t, planner.Identity(llm.CallerFunc(hello)), planner.Identity(llm.CallerFunc(hello)))
	require.NotEqual(t, planner.Identity(llm.CallerFunc(hello)), planner.Identity(llm.CallerFunc(goodbye)))
	require.NotEqual(t, planner.Identity(scripted.NewMock()), planner.Identity(llm.CallerFunc(hello)))
}
