package runstart_test

import (
	"encoding/json"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/refusal"
	"github.com/moorebus/moorebus/internal/runstart"
	"github.com/moorebus/moorebus/pkg/events"
)

func clientTool(name string) func(*events.Agent) {
	return func(a *events.Agent) {
		a.ClientTools = []events.ClientTool{{Name: name, Description: "Asks.", Schema: json.RawMessage(`{"type":"object"}`)}}
	}
}

// TestPinClientTools: the run pins its client's tools beside those of actors.
func TestPinClientTools(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPad(t)
		p.announce(t, "payments", "pay", "pays")
		p.announce(t, events.ClientPool, "stray", "is of an actor that may not have the pool")
		require.NoError(t, p.Directory().AnnounceProviders(t.Context(), "p", []string{"scripted"}))
		start, err := p.Pin(t.Context(), worker(pays, clientTool("ask")), runstart.Task{Text: "x"})
		require.NoError(t, err)
		require.Len(t, start.Tools, 2)
		require.Equal(t, events.ToolSpec{
			Name: "ask", Description: "Asks.", Schema: json.RawMessage(`{"type":"object"}`), Effect: "once", Pool: "client", Risk: "low",
			Client: true, Timeout: events.Duration(10 * time.Minute),
		}, start.Tools[1])
		for name, change := range map[string][]func(*events.Agent){
			"announced": {func(a *events.Agent) { a.Tools = nil }, clientTool("pay")},
			"both":      {pays, clientTool("pay")},
		} {
			_, err = p.Pin(t.Context(), worker(change...), runstart.Task{Text: "x"})
			require.True(t, refusal.Is(err, refusal.CodeAmbiguousTool), "%s: %v", name, err)
		}
		_, err = p.Pin(t.Context(), worker(func(a *events.Agent) { a.Tools = []string{"stray"} }), runstart.Task{Text: "x"})
		require.True(t, refusal.Is(err, refusal.CodeUnknownTool, refusal.CodePending), "%v", err)
	})
}
