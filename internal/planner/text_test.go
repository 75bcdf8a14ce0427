package planner_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/codes"
	"github.com/moorebus/moorebus/internal/planner"
	"github.com/moorebus/moorebus/internal/textprotocol"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/moorebus/moorebus/pkg/llm/scripted"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// textBubble is a planner with the text protocol, and a model that says texts.
func textBubble(t *testing.T, texts []string, test func(t *testing.T, r *rig)) {
	t.Helper()
	var replies []any
	for _, text := range texts {
		replies = append(replies, say(text))
	}
	mock := scripted.NewMock(replies...)
	bubbleWith(t, mock, func(t *testing.T, r *rig) {
		r.mock = mock
		test(t, r)
	}, func(c *planner.Config) { c.Text = textprotocol.Wrap })
}

func textual(s *events.Start) {
	s.Agent.LLM.Text = true
	s.Agent.LLM.StatePrompts = map[string]string{"base": "BASE", "thinking": "THINK", "executing": "EXECUTE"}
}

const (
	think   = "<agent><next_state>executing</next_state><thinking_log>I call alpha.</thinking_log></agent>"
	actOn   = "<agent><action><type>alpha</type></action></agent>"
	answer  = "<agent><action><type>answer</type><value>It is 42.</value></action></agent>"
	garbage = "<agent><action><type>alpha"
)

func TestTextRun(t *testing.T) {
	textBubble(t, []string{think, actOn, garbage, answer}, func(t *testing.T, r *rig) {
		run := r.begin(textual)
		r.act(run, "found </value> it")
		mem := r.AwaitEnd(run)
		require.Equal(t, []string{"Start", "LlmThought", "LlmToolCall", "ToolSuccess", "Continue", "ReplyInvalid", "LlmFinalAnswer"}, r.Types(run))
		require.Equal(t, "It is 42.", *mem.FinalAnswer)
		require.Equal(t, 4, mem.Step)

		all := r.Events(run)
		require.Equal(t, &events.LLMThought{
			Reply:     events.Reply{Content: "I call alpha.", Model: "m-1", Usage: events.Usage{Input: 10, Output: 5, Total: 15}},
			NextState: "executing",
		}, withoutID(all[1].Data))
		invalid := all[5].Data.(*events.ReplyInvalid)
		require.Equal(t, garbage, invalid.Content)
		require.Equal(t, []events.Answer{{
			Observation: "ERROR: line 1, column 16: <type> is never closed: expected </type>", Code: codes.MalformedReply,
		}}, invalid.Results)

		prompts := r.mock.Requests()
		require.Len(t, prompts, 4)
		system := func(i int) string { return prompts[i].Messages[0].Content }
		last := func(i int) string { return prompts[i].Messages[len(prompts[i].Messages)-1].Content }
		require.Contains(t, system(0), "BASE\n\nTHINK\n\n")
		require.Contains(t, system(1), "BASE\n\nEXECUTE\n\n", "the state that the thought asked for")
		require.Contains(t, last(1), "<thinking_log_001>I call alpha.</thinking_log_001>")
		require.Contains(t, system(2), "THINK", "after an action the model thinks")
		require.Contains(t, last(2), "<value>found &lt;/value&gt; it</value>", "a result stays in its element")
		require.Contains(t, last(3), "ERROR: line 1, column 16: <type> is never closed")
		require.Equal(t, garbage, prompts[3].Messages[len(prompts[3].Messages)-2].Content, "what it wrote, as it wrote it")
		for _, p := range prompts {
			require.Empty(t, p.Tools)
		}
	})
}

// A reply of the text protocol that is cut off ends a run that takes no cut replies.
func TestACutTextReplyEndsTheRun(t *testing.T) {
	bubbleWith(t, scripted.NewMock(cutText(garbage, llm.FinishLength, "length"), say(answer)), func(t *testing.T, r *rig) {
		require.Equal(t, "cut_off", r.AwaitEnd(r.begin(textual, onCut(events.CutFail))).Error.Code)
	}, func(c *planner.Config) { c.Text = textprotocol.Wrap })
}

func TestNextStateThatIsNone(t *testing.T) {
	dream := "<agent><next_state>dreaming</next_state><thinking_log>zzz</thinking_log></agent>"
	textBubble(t, []string{dream, answer}, func(t *testing.T, r *rig) {
		run := r.begin(textual)
		r.AwaitEnd(run)
		p := r.Events(run)[1].Data.(*events.LLMThought)
		require.Equal(t, "thinking", p.NextState)
		require.Equal(t, `next_state "dreaming" is unknown: thinking`, p.Note)
	})
}

// TestAStoredStateThatIsNone: a foreign writer's thought stands in the log before
// the planner looks.
func TestAStoredStateThatIsNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newBenchRig(t)
		mock := scripted.NewMock(say(think), say(answer))
		cfg := r.config(mock)
		cfg.Text = textprotocol.Wrap
		run := r.begin(textual)
		r.Append(run, events.Planning, &events.LLMThought{NextState: strings.Repeat("dreaming ", 20)})
		made, err := planner.New(cfg)
		require.NoError(t, err)
		r.Go(made.Run)
		r.AwaitEnd(run)
		p := r.Events(run)[2].Data.(*events.LLMThought)
		require.Equal(t, "executing", p.NextState)
		require.Contains(t, p.Note, `the stored state "dreaming dreaming`)
		require.Contains(t, p.Note, `…" is unknown and was reset to thinking`)
		require.Less(t, len(p.Note), 200)
		require.Contains(t, mock.Requests()[0].Messages[0].Content, "THINK")
	})
}

func TestInvalidRepliesAreBounded(t *testing.T) {
	three := 3
	bounded := config(func(c *events.Config) { c.MaxInvalidReplies = &three })
	unknown := "<agent><action><type>fly</type></action></agent>"
	textBubble(t, []string{garbage, think, garbage, unknown, "no XML", answer}, func(t *testing.T, r *rig) {
		run := r.begin(textual, bounded)
		mem := r.AwaitEnd(run)
		require.Equal(t, []string{"Start", "ReplyInvalid", "LlmThought", "ReplyInvalid", "ReplyInvalid", "ReplyInvalid", "FatalError"}, r.Types(run))
		require.Equal(t, &reducer.RunError{Code: "reply_invalid", Message: "3 replies in a row could not be used; the last one: " +
			"line 1, column 7: there is no <agent> element: reply with one, and with nothing else"}, mem.Error)
		require.Equal(t, 5, r.mock.CallCount())
	})
	t.Run("by a refused call", func(t *testing.T) {
		textBubble(t, []string{unknown, unknown, unknown}, func(t *testing.T, r *rig) {
			mem := r.AwaitEnd(r.begin(textual, bounded))
			require.Equal(t, "reply_invalid", mem.Error.Code)
			require.Contains(t, mem.Error.Message, `tool "fly" not found`)
		})
	})
	t.Run("5 by default, 0 is off", func(t *testing.T) {
		many := strings.Split(strings.Repeat("nonsense,", 9)+answer, ",")
		textBubble(t, many, func(t *testing.T, r *rig) {
			mem := r.AwaitEnd(r.begin(textual))
			require.Contains(t, mem.Error.Message, "5 replies in a row")
		})
		zero := 0
		textBubble(t, many, func(t *testing.T, r *rig) {
			mem := r.AwaitEnd(r.begin(textual, config(func(c *events.Config) { c.MaxInvalidReplies = &zero })))
			require.Equal(t, events.Done, mem.State)
		})
	})
	t.Run("not without the text protocol", func(t *testing.T) {
		odd := ask(call("", "nonsense", "{}"))
		bubble(t, []any{odd, odd, odd, odd, say("Hi.")}, func(t *testing.T, r *rig) {
			r.AwaitState(r.begin(chat, bounded), events.WaitingForUser)
		})
	})
}

func TestMaxIterations(t *testing.T) {
	limits := func(steps, iterations int) func(*events.Start) {
		return config(func(c *events.Config) { c.MaxSteps, c.MaxIterations = steps, iterations })
	}
	for name, c := range map[string]struct {
		limits  func(*events.Start)
		code    string
		message string
		step    int
	}{
		"iterations are fewer": {limits(15, 3), "max_iterations", "max iterations 3 exceeded", 3},
		"just fewer":           {limits(4, 3), "max_iterations", "max iterations 3 exceeded", 3},
		"steps are fewer":      {limits(2, 3), "max_steps", "max steps 2 exceeded", 2},
		"as many":              {limits(3, 3), "max_steps", "max steps 3 exceeded", 3},
		"iterations are off":   {limits(4, 0), "max_steps", "max steps 4 exceeded", 4},
	} {
		t.Run(name, func(t *testing.T) {
			textBubble(t, []string{think, think, think, think, think}, func(t *testing.T, r *rig) {
				run := r.begin(textual, c.limits)
				mem := r.AwaitEnd(run)
				require.Equal(t, &reducer.RunError{Code: c.code, Message: c.message}, mem.Error)
				require.Equal(t, c.step, mem.Step)
				require.Equal(t, c.step, r.Count(run, events.TypeLLMThought))
			})
		})
	}
	t.Run("not without the text protocol", func(t *testing.T) {
		bubble(t, []any{say("a"), say("b"), say("c"), say("d")}, func(t *testing.T, r *rig) {
			mem := r.AwaitEnd(r.begin(limits(4, 2)))
			require.Equal(t, &reducer.RunError{Code: "max_steps", Message: "max steps 4 exceeded"}, mem.Error)
		})
	})
	t.Run("since the last message", func(t *testing.T) {
		textBubble(t, []string{think, answer, think, answer, think}, func(t *testing.T, r *rig) {
			run := r.begin(textual, chat, limits(15, 2))
			r.AwaitState(run, events.WaitingForUser)
			r.Append(run, events.WaitingForUser, &events.UserMessage{MessageID: "u", Content: "again"})
			mem := r.Await(run, func(mem *reducer.Memory) bool { return mem.State == events.WaitingForUser && mem.Step == 4 })
			require.Nil(t, mem.Error)
		})
	})
}

func TestAPlannerWithoutTheTextProtocol(t *testing.T) {
	bubble(t, []any{say(answer)}, func(t *testing.T, r *rig) {
		mem := r.AwaitEnd(r.begin(textual))
		require.Equal(t, "other", mem.Error.Code)
		require.Contains(t, mem.Error.Message, "this planner has no text protocol")
		require.Zero(t, r.mock.CallCount())
	})
}

func TestReflectionsAreAskedInPlainText(t *testing.T) {
	textBubble(t, []string{actOn, "A summary.", answer}, func(t *testing.T, r *rig) {
		run := r.begin(textual)
		mem := r.AwaitState(run, events.Acting)
		r.Act(run, mem.CurrentToolCall.ID, "x")
		r.Append(run, events.Observing, &events.NeedsReflection{})
		r.AwaitEnd(run)
		require.Equal(t, "A summary.", r.Events(run)[4].Data.(*events.ReflectDone).Summary)
		require.Equal(t, llm.PurposeReflect, r.mock.Requests()[1].Purpose)
		require.NotContains(t, r.mock.Requests()[1].Messages[0].Content, "<agent>")
	})
}

func TestAThoughtThatIsTooLarge(t *testing.T) {
	long := "<agent><thinking_log>" + strings.Repeat("hm ", 400_000) + "</thinking_log></agent>"
	textBubble(t, []string{long, strings.Repeat("no ", 400_000), answer}, func(t *testing.T, r *rig) {
		run := r.begin(textual)
		r.AwaitEnd(run)
		for _, n := range []int{1, 2} {
			p := r.Events(run)[n].Data.(*events.ReplyInvalid)
			require.Equal(t, "too_large", p.Results[0].Code)
			require.Less(t, len(p.Content), 5000)
		}
	})
}

func TestTheBudgetCountsMemory(t *testing.T) {
	small := func(s *events.Start) { s.Agent.Budget = &events.Budget{MaxInputTokens: 2000} }
	textBubble(t, []string{"<agent><thinking_log>" + strings.Repeat("word ", 2000) + "</thinking_log></agent>", answer}, func(t *testing.T, r *rig) {
		mem := r.AwaitEnd(r.begin(textual, small))
		require.Equal(t, "budget_input_tokens", mem.Error.Code)
	})
}

// TestThePromptOfALongRunIsBounded: a run that thinks and acts on and on is asked
// with a prompt that stops growing, and the task is in it to the end.
func TestThePromptOfALongRunIsBounded(t *testing.T) {
	const passes = 120
	var sizes []int
	caller := llm.CallerFunc(func(_ context.Context, req llm.Request, _ func(llm.Chunk)) (llm.Response, error) {
		size := 0
		for _, m := range req.Messages {
			size += len(m.Content)
		}
		sizes = append(sizes, size)
		if !strings.HasPrefix(req.Messages[1].Content, "find it") {
			return nil, &llm.Error{Kind: llm.KindInvalid, Message: "the task is gone"}
		}
		said := actOn
		switch {
		case len(sizes) == 2*passes+1:
			said = answer
		case len(sizes)%2 == 1:
			said = think
		}
		return llm.Text{Content: said, Meta: llm.Meta{Confidence: 1}}, nil
	})
	limits := config(func(c *events.Config) { c.MaxSteps, c.ContextWindowSize = 1000, 6 })
	bubbleWith(t, caller, func(t *testing.T, r *rig) {
		run := r.begin(textual, limits)
		for range passes {
			r.act(run, "found it")
		}
		require.Equal(t, events.Done, r.AwaitEnd(run).State)
	}, func(c *planner.Config) { c.Text = textprotocol.Wrap })
	most := slices.Max(sizes)
	require.Less(t, most, 8000)
	require.Equal(t, most, slices.Max(sizes[40:80]), "it does not grow any more after the first steps")
}
