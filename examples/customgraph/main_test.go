package main

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/pkg/agent"
	"github.com/moorebus/moorebus/pkg/llm/scripted"
)

func TestCustomGraph(t *testing.T) {
	var out bytes.Buffer
	require.NoError(t, run(t.Context(), &out, func(string) string { return "" }))
	require.Contains(t, out.String(), "done: Mars has two moons. Source: A. Hall, 1877.")
	require.Contains(t, out.String(), "ReviewFailed")
	require.Contains(t, out.String(), "ReviewPassed")
}

func TestAbandoned(t *testing.T) {
	mock := scripted.NewMock(scripted.Say("Two moons."), scripted.Say("Two moons!"), scripted.Say("Two moons, really."))
	a, err := agent.New("astronomer").LLM(mock).Graph(graph()).Build()
	require.NoError(t, err)
	r, err := a.Start(t.Context(), agent.Task("How many moons does Mars have?"))
	require.NoError(t, err)
	_, err = r.Wait(t.Context())
	require.NoError(t, err)
	require.Equal(t, abandoned, r.State())
	require.NoError(t, r.Release())
	last := mock.Requests()[2].Messages
	require.Equal(t, "Name your source, as in: Source: …", last[len(last)-1].Content)
}
