package main

import (
	"bytes"
	"net/http/httptest"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/moorebus/moorebus/pkg/llm/anthropic"
)

func TestAnthropic(t *testing.T) {
	var out bytes.Buffer
	require.NoError(t, run(t.Context(), &out, func(string) string { return "" }))
	require.Contains(t, out.String(), "goes back: The moons are for the tool to say.")
	require.Contains(t, out.String(), "Mars has two moons, Phobos and Deimos.")
}

// The example shows something: without the thinking the model takes no result.
func TestTheModelWantsItsThinkingBack(t *testing.T) {
	server := httptest.NewServer(model{})
	t.Cleanup(server.Close)
	caller, err := anthropic.New(anthropic.Options{BaseURL: server.URL, Model: "claude-sonnet-4-5"})
	require.NoError(t, err)
	t.Cleanup(caller.Close)
	tools := []llm.Tool{{Name: "moons", Schema: []byte(`{"type":"object"}`)}}
	messages := []llm.Message{{Role: llm.RoleUser, Content: "How many moons does Mars have?"}}
	ask := func() (llm.Response, error) {
		return caller.Call(t.Context(), llm.Request{Messages: messages, Tools: tools, Sampling: llm.Sampling{ThinkingTokens: 1024}}, func(llm.Chunk) {})
	}
	first, err := ask()
	require.NoError(t, err)
	forged := slices.Clone(first.About().Reasoning)
	forged[1].Data = []byte(`"forged"`)
	messages = append(messages,
		llm.Message{Role: llm.RoleAssistant, Calls: first.(llm.ToolCalls).Calls, Reasoning: forged},
		llm.Message{Role: llm.RoleTool, CallID: "toolu_1", Name: "moons", Content: "Phobos, Deimos"})
	_, err = ask()
	var refused *llm.Error
	require.ErrorAs(t, err, &refused)
	require.Contains(t, refused.Message, "unchanged")
}
