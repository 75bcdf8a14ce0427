package console

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/moorebus/moorebus/internal/output"
	"github.com/moorebus/moorebus/internal/simulated"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/stretchr/testify/require"
)

// A tap of outputs shows the model's words while they come, and none after the
// answer.
func TestTapOutputs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, log, out := done(t), simulated.New(simulated.Options{}), &buffer{}
		store(t, log, r, 1, 2)
		p := log.NewProcess()
		tap := newTap(p, out)
		tap.Outputs, tap.JSON, tap.Feed = true, true, p
		ended := make(chan error, 1)
		go func() {
			_, err := tap.Run(context.Background(), r.ID, 1)
			ended <- err
		}()
		synctest.Wait()
		require.NoError(t, p.PublishChunk(r.ID, []byte(`{"message_id":"w","offset":0,"text":"hello"}`)))
		synctest.Wait()
		require.Contains(t, out.String(), `"kind":"llm_token"`)
		store(t, log, r, 3, 5)
		require.NoError(t, <-ended)
		lines := strings.Split(strings.TrimSpace(out.String()), "\n")
		require.Contains(t, lines[0], `"kind":"state_started"`)
		require.Contains(t, lines[len(lines)-1], `"kind":"final_answer"`)
	})
}

func TestOutputLines(t *testing.T) {
	for want, o := range map[string]output.Output{
		"state_started       planning":    output.StateStarted{State: events.Planning},
		"llm_token           hello there": output.LLMToken{Text: "hello\nthere"},
		"tool_call_delta     1 add {":     output.ToolCallDelta{Index: 1, Name: "add", Text: "{"},
		"tool_call_started   a add({})":   output.ToolCallStarted{CallID: "a", Name: "add", Arguments: "{}"},
		"tool_call_finished  a add: 3":    output.ToolCallFinished{CallID: "a", Name: "add", Observation: "3"},
		"action              Continue ":   output.Action{Event: "Continue"},
		"final_answer        three":       output.FinalAnswer{Content: "three"},
		"error               auth: no":    output.Error{Code: "auth", Message: "no"},
	} {
		require.Equal(t, want, OutputLine(o, false))
	}
}
