package agent_test

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/pkg/agent"
	"github.com/moorebus/moorebus/pkg/llm/scripted"
)

// buffer is written by the goroutines of the roles.
type buffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// TestFailuresAreVisible: whoever runs an agent sees which calls failed, in the error and, if
// no logger was given, in the default log, although no such failure ends a run.
func TestFailuresAreVisible(t *testing.T) {
	var logged buffer
	before := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&logged, nil)))
	t.Cleanup(func() { slog.SetDefault(before) })
	pay := agent.Func("pay", "Pays.", func(context.Context, struct{}) (string, error) { panic("no money") }, agent.Pure)
	mock := scripted.NewMock(scripted.Ask("pay", `{}`), scripted.Ask("fly", `{}`))
	a, err := agent.New("payer").LLM(mock).Tool(pay).MaxSteps(2).ReflectEvery(0).Data(t.TempDir()).Build()
	require.NoError(t, err)
	_, err = a.Run(t.Context(), "Pay.")
	var failed *agent.Failed
	require.ErrorAs(t, err, &failed)
	require.Equal(t, "max_steps", failed.Code)
	require.Len(t, failed.Calls, 2)
	require.Equal(t, []string{"pay", "panic", "fly", "not_found"}, []string{failed.Calls[0].Tool, failed.Calls[0].Code, failed.Calls[1].Tool, failed.Calls[1].Code})
	require.ErrorContains(t, err, `pay (panic): the tool "pay" panicked: no money`)
	require.ErrorContains(t, err, `fly (not_found): `)
	for _, want := range []string{"tool panicked", "stack=", "a call failed", "code=not_found"} {
		require.Contains(t, logged.String(), want)
	}
	require.NotContains(t, logged.String(), "level=INFO")
}

// TestSchemaThatNeverFits: a run that uses up its steps because no answer satisfies its output
// schema says so.
func TestSchemaThatNeverFits(t *testing.T) {
	t.Parallel()
	mock := scripted.NewMock(scripted.Say(`{"total":"much"}`), scripted.Say(`{"total":"a lot"}`), scripted.Say(`{"total":"lots"}`))
	a := build(t, mock, func(b *agent.Builder) {
		b.OutputSchema(json.RawMessage(`{"type":"object","properties":{"total":{"type":"integer"}},"required":["total"]}`)).MaxSteps(3)
	})
	_, err := a.Run(t.Context(), task)
	require.ErrorContains(t, err, "max steps 3 exceeded; output_schema failed 3 times: ")
	require.ErrorContains(t, err, "/total: ")
}
