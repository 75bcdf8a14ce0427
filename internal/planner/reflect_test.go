package planner_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/moorebus/moorebus/pkg/llm/scripted"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// reflecting leads a new run with one committed call to Reflecting.
func (r *rig) reflecting(change ...func(*events.Start)) events.Run {
	r.T.Helper()
	run := r.begin(change...)
	r.Await(run, func(mem *reducer.Memory) bool { return mem.State == events.Acting })
	r.Act(run, "a", "42")
	r.Append(run, events.Observing, &events.NeedsReflection{})
	return run
}

func TestReflection(t *testing.T) {
	long := strings.Repeat("All that was found. ", 1000)
	refusing := say("I will not do that.")
	refusing.Finish = llm.FinishRefusal
	for _, c := range []struct {
		name    string
		reply   any
		summary string
		failed  string
		billed  int
	}{
		{"a summary", say("All that was found."), "All that was found.", "", 15},
		{"a long summary is kept whole", say(long), long, "", 15},
		{"invalid UTF-8", say("\xffound"), "\uFFFDound", "", 15},
		{"no words", say("  "), "", "the model gave no summary", 15},
		{"calls instead of words", ask(call("x", "alpha", "{}")), "", "the model gave no summary", 15},
		{"a part of a summary", cutText("All that", llm.FinishLength, "max_tokens"), "", "the summary was cut off (max_tokens)", 15},
		{"a refusal", refusing, "", "the model refused: I will not do that.", 15},
		{"an error is not tried again", &llm.Error{Kind: llm.KindRateLimited, Message: "slow down"}, "", "rate_limited: slow down", 0},
		{"an error of authentication", &llm.Error{Kind: llm.KindAuth, Message: "bad key"}, "", "auth: bad key", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, []any{ask(call("a", "alpha", `{"q":"<b>&"}`)), c.reply, say("It is 42.")}, func(t *testing.T, r *rig) {
				run := r.reflecting()
				mem := r.AwaitEnd(run)
				require.Equal(t, events.Done, mem.State, "a failed reflection ends nothing")
				require.Equal(t, []string{"Start", "LlmToolCall", "ToolSuccess", "NeedsReflection", "ReflectDone", "LlmFinalAnswer"}, r.Types(run))
				done, ok := r.Events(run)[4].Data.(*events.ReflectDone)
				require.True(t, ok)
				require.Equal(t, c.summary, done.Summary)
				require.Equal(t, c.failed, done.Failed)
				require.Equal(t, 30+c.billed, mem.TotalUsage.Total)
				require.Len(t, mem.History, 1)
				if c.summary != "" {
					require.Equal(t, "[SUMMARY]", mem.History[0].Tool.Name)
					require.Equal(t, c.summary, mem.History[0].Observation)
				} else {
					require.Equal(t, "alpha", mem.History[0].Tool.Name)
				}
				requireReflectionPrompt(t, r.mock)
			})
		})
	}
}

// In a conversation the task is what the user said since the last answer.
func TestReflectionInAChat(t *testing.T) {
	replies := []any{say("Hello."), ask(call("a", "alpha", `{"q":1}`)), say("All that was found."), say("It is 42.")}
	bubble(t, replies, func(t *testing.T, r *rig) {
		run := r.begin(chat)
		r.AwaitState(run, events.WaitingForUser)
		r.Append(run, events.WaitingForUser, user("u2", "Look it up."))
		r.Await(run, func(mem *reducer.Memory) bool { return mem.State == events.Acting })
		r.Append(run, events.Control, user("u3", "And be quick."))
		r.Act(run, "a", "42")
		r.Append(run, events.Observing, &events.NeedsReflection{})
		r.Await(run, func(mem *reducer.Memory) bool { return mem.State == events.WaitingForUser && mem.Step == 3 })
		prompt := r.mock.Requests()[2].Messages[0].Content
		const before = `Summarize the following tool call history into a single concise paragraph
that preserves all key facts, findings, and data needed to continue the task.
The task is what the user said last in a conversation; the history may go back further.
Task: Look it up.

And be quick.
History: [`
		require.True(t, strings.HasPrefix(prompt, before), prompt)
		require.NotContains(t, prompt, "find it")
	})
}

// requireReflectionPrompt checks the second request, word for word.
func requireReflectionPrompt(t *testing.T, mock *scripted.Mock) {
	t.Helper()
	req := mock.Requests()[1]
	require.Equal(t, llm.PurposeReflect, req.Purpose)
	require.Empty(t, req.Tools)
	require.Len(t, req.Messages, 1)
	require.Equal(t, llm.RoleUser, req.Messages[0].Role)
	const before = `Summarize the following tool call history into a single concise paragraph
that preserves all key facts, findings, and data needed to continue the task.
Task: find it
History: `
	history, ok := strings.CutPrefix(req.Messages[0].Content, before)
	require.True(t, ok, req.Messages[0].Content)
	require.Contains(t, history, `<b>&`, "the model reads what it wrote")
	var entries []reducer.HistoryEntry
	require.NoError(t, json.Unmarshal([]byte(history), &entries))
	require.Equal(t, []reducer.HistoryEntry{{
		Step: 1, Tool: reducer.ToolCall{ID: "a", Name: "alpha", Arguments: `{"q":"<b>&"}`},
		Observation: "SUCCESS: 42", Success: true, Code: "ok",
	}}, entries)
}

func TestCancelledReflection(t *testing.T) {
	began, ended := make(chan struct{}), make(chan error, 1)
	caller := llm.CallerFunc(func(ctx context.Context, req llm.Request, _ func(llm.Chunk)) (llm.Response, error) {
		if req.Purpose == llm.PurposePlan {
			return ask(call("a", "alpha", "{}")), nil
		}
		close(began)
		<-ctx.Done()
		ended <- ctx.Err()
		return nil, ctx.Err()
	})
	bubbleWith(t, caller, func(t *testing.T, r *rig) {
		run := r.reflecting()
		<-began
		r.Append(run, events.Control, &events.CancelledRun{})
		require.ErrorIs(t, <-ended, context.Canceled)
		quiet()
		require.Equal(t, []string{"Start", "LlmToolCall", "ToolSuccess", "NeedsReflection", "Cancelled"}, r.Types(run))
	})
}

// A summary is for the model: nobody who listens to the run takes it for an answer.
func TestReflectionsAreNotStreamed(t *testing.T) {
	asked := 0
	caller := llm.CallerFunc(func(_ context.Context, req llm.Request, stream func(llm.Chunk)) (llm.Response, error) {
		if asked++; asked == 1 {
			return ask(call("a", "alpha", `{"q":1}`)), nil
		}
		text := "It is 42."
		if req.Purpose == llm.PurposeReflect {
			text = "All that was found."
			require.NotNil(t, stream, "the provider sends it in pieces: the connection may not be silent for long")
		}
		if stream != nil {
			stream(llm.Chunk{Kind: llm.ChunkText, Text: text})
		}
		return say(text), nil
	})
	bubbleWith(t, caller, func(t *testing.T, r *rig) {
		run := r.begin()
		heard, _ := r.listen(run)
		r.Await(run, func(mem *reducer.Memory) bool { return mem.State == events.Acting })
		r.Act(run, "a", "42")
		r.Append(run, events.Observing, &events.NeedsReflection{})
		require.Equal(t, "All that was found.", r.AwaitEnd(run).History[0].Observation)
		require.Equal(t, "It is 42.", heard.now())
		require.Len(t, heard.raw, 1)
	})
}
