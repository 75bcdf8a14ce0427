package a2atool

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/callctx"
	"github.com/moorebus/moorebus/pkg/tool"
)

// conversation runs a call again and again: with each of the answers, a human's, until it asks no
// more.
func conversation(t *testing.T, made tool.Tool, c tool.Call, answers ...string) (questions []string, result string, err error) {
	t.Helper()
	d := callctx.Dialogue{}
	for {
		asked, state := "", ""
		d.Put = func(text, s string) { asked, state = text, s }
		result, err = made.Run(callctx.WithDialogue(t.Context(), d), c)
		if asked == "" || len(answers) == 0 {
			return questions, result, err
		}
		require.Error(t, err, "a call that asks has ended")
		questions = append(questions, asked)
		d.Answers = append(d.Answers, callctx.Answer{Question: asked, Text: answers[0], State: state})
		answers = answers[1:]
	}
}

// A task that asks gets the answers of a human, each as one message, and is not cancelled. The
// questions may have the same words.
func TestQuestionsOfATask(t *testing.T) {
	t.Parallel()
	for _, state := range []string{"INPUT_REQUIRED", "AUTH_REQUIRED"} {
		r := newRemote(t)
		made := toolOf(t, Options{URL: r.url})
		questions, result, err := conversation(t, made, call("ask for "+state), "red", `{"colour": "blue"}`)
		require.NoError(t, err)
		require.Len(t, questions, 2)
		for _, q := range questions {
			require.Contains(t, q, "task of run-1/call_1")
			require.Contains(t, q, "Which colour?")
		}
		require.Equal(t, `painted red and {"colour":"blue"}`, result)
		require.Equal(t, []string{"run-1/call_1", "run-1/call_1/1", "run-1/call_1/2"}, r.sent)
		require.Empty(t, r.canceled)
	}
}

// An answer that the agent refuses is asked for again, with the reason.
func TestAnswersThatAreRefused(t *testing.T) {
	t.Parallel()
	r := newRemote(t)
	questions, result, err := conversation(t, toolOf(t, Options{URL: r.url}), call("ask for INPUT_REQUIRED"), "what", "red", "blue")
	require.NoError(t, err)
	require.Len(t, questions, 3)
	require.Contains(t, questions[1], "The answer was not accepted: HTTP status 422: say a colour\n")
	require.Equal(t, "painted red and blue", result)
}

// An answer that was sent before the actor died is not sent again.
func TestAnswersThatWereSent(t *testing.T) {
	t.Parallel()
	r := newRemote(t)
	made := toolOf(t, Options{URL: r.url})
	var asked []callctx.Answer
	d := callctx.Dialogue{Put: func(text, state string) {
		asked = append(asked, callctx.Answer{Question: text, Text: "red", State: state})
	}}
	for range 3 {
		_, err := made.Run(callctx.WithDialogue(t.Context(), d), call("ask for INPUT_REQUIRED"))
		require.Error(t, err)
		d.Answers = asked[:1]
	}
	require.Len(t, asked, 3)
	require.Equal(t, asked[1], asked[2])
	require.NotEqual(t, asked[0].State, asked[1].State)
	require.Len(t, r.sent, 2)
}

// Where no human can be asked, the model gets the question, and answers it with the next call.
func TestModelAnswers(t *testing.T) {
	t.Parallel()
	r := newRemote(t)
	made := toolOf(t, Options{URL: r.url})
	_, err := made.Run(t.Context(), call("ask for INPUT_REQUIRED"))
	var f *tool.Failure
	for i, colour := range []string{"red", "blue"} {
		require.ErrorAs(t, err, &f)
		require.Equal(t, "a2a_input_required", f.Code)
		require.Contains(t, f.Message, "Which colour?")
		require.Contains(t, f.Message, `task_id "task of run-1/call_1"`)
		var result string
		result, err = made.Run(t.Context(), tool.Call{Run: "run-1", ID: fmt.Sprint("again_", i), Arguments: fmt.Sprintf(`{"task_id": "task of run-1/call_1", "task": %q}`, colour)})
		if err == nil {
			require.Equal(t, "painted red and blue", result)
		}
	}
	require.NoError(t, err)
	require.Empty(t, r.canceled)
	own := toolOf(t, Options{URL: r.url, Over: tool.Definition{Name: "own", Schema: []byte(`{"type":"object"}`)}}).(*agentTool)
	now := &task{ID: "t", Status: status{State: "TASK_STATE_INPUT_REQUIRED"}}
	require.ErrorContains(t, own.ask(context.Background(), now, ""), "call this tool alone")
}
