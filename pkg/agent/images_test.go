package agent_test

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/pkg/agent"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/moorebus/moorebus/pkg/llm/scripted"
)

func png(data string) events.Part {
	return events.Part{Type: events.PartImage, MediaType: "image/png", Data: []byte(data)}
}

// Images of the task, of a tool's result and of a message get to the model.
func TestImages(t *testing.T) {
	t.Parallel()
	photo := strings.Repeat("photo", 2000) // too large for the log
	draw := agent.Func("draw", "Draws.", func(ctx context.Context, _ struct{}) (string, error) {
		return "drawn: " + agent.Attach(ctx, "image/png", []byte("drawing")), nil
	}, agent.Pure)
	mock := scripted.NewMock(llm.ToolCalls{Calls: []llm.Call{{ID: "c", Name: "draw", Arguments: "{}"}}}, scripted.Say("Two."), scripted.Say("Three."))
	a := built(t, agent.New("agent").LLM(mock).Tool(draw).Chat())
	r, err := a.Start(t.Context(), agent.Task("What is this?", png(photo)))
	require.NoError(t, err)
	answer, err := r.Answer(t.Context())
	require.NoError(t, err)
	require.Equal(t, "Two.", answer)
	answer, err = r.Send(t.Context(), "And this?", png("more"))
	require.NoError(t, err)
	require.Equal(t, "Three.", answer)
	require.NoError(t, r.Finish(t.Context()))
	require.NoError(t, r.Release())

	var images []string
	requests := mock.Requests()
	for _, m := range requests[len(requests)-1].Messages {
		for _, p := range m.Parts {
			if p.Type == events.PartImage {
				images = append(images, string(m.Role)+" "+string(p.Data))
			}
		}
	}
	require.Equal(t, []string{"user " + photo, "tool drawing", "user more"}, images)
	require.Contains(t, r.Memory().ToolCalls["c"].Result.Text(), "drawn: [image image/png, 7 bytes, kept as results_default/")
}
