package llm_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

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

// Callers that may stand in for each other have one definition, whatever their keys
// are, and it does not tell the keys.
func TestDefinition(t *testing.T) {
	t.Parallel()
	of := func(o openai.Options) string {
		c, err := openai.New(o)
		require.NoError(t, err)
		return llm.Definition(c)
	}
	one := of(openai.Options{BaseURL: "http://user:secret@models.test/v1", APIKey: "secret-1", Model: "m"})
	require.NotContains(t, one, "secret")
	require.Equal(t, one, of(openai.Options{BaseURL: "http://models.test/v1", APIKey: "other", Model: "m"}))
	require.NotEqual(t, one, of(openai.Options{BaseURL: "http://models.test/v1", Model: "n"}))
	require.NotEqual(t, one, of(openai.Options{BaseURL: "http://elsewhere.test/v1", Model: "m"}))
	c, err := anthropic.New(anthropic.Options{BaseURL: "http://models.test", APIKey: "secret-2", Model: "m"})
	require.NoError(t, err)
	require.NotContains(t, llm.Definition(c), "secret")
	require.Equal(t, llm.Definition(scripted.New()), llm.Definition(scripted.New()))

	require.Equal(t, llm.Definition(llm.CallerFunc(hello)), llm.Definition(llm.CallerFunc(hello)))
	require.NotEqual(t, llm.Definition(llm.CallerFunc(hello)), llm.Definition(llm.CallerFunc(goodbye)))
	require.NotEqual(t, llm.Definition(scripted.NewMock()), llm.Definition(llm.CallerFunc(hello)))
}
