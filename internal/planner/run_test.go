package planner_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/announce"
	"github.com/moorebus/moorebus/internal/planner"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/moorebus/moorebus/pkg/llm/scripted"
	"github.com/moorebus/moorebus/pkg/reducer"
)

func TestMaxSteps(t *testing.T) {
	limit := config(func(c *events.Config) { c.MaxSteps = 2 })
	t.Run("task", func(t *testing.T) {
		bubble(t, []any{say("a"), say("b"), say("never asked")}, func(t *testing.T, r *rig) {
			run := r.begin(limit)
			mem := r.AwaitEnd(run)
			require.Equal(t, []string{"Start", "AnswerTooShort", "AnswerTooShort", "MaxSteps"}, r.Types(run))
			require.Equal(t, "max steps 2 exceeded", mem.Error.Message)
			require.Equal(t, "max_steps", mem.Error.Code)
			require.Equal(t, 2, mem.Step)
			require.Equal(t, 2, r.mock.CallCount())
		})
	})
	t.Run("the last step may answer", func(t *testing.T) {
		bubble(t, []any{say("a"), say("It is 42.")}, func(t *testing.T, r *rig) {
			require.Equal(t, events.Done, r.AwaitEnd(r.begin(limit)).State)
		})
	})
	t.Run("a chat counts since the last message", func(t *testing.T) {
		odd := ask(call("", "nonsense", "{}"))
		bubble(t, []any{odd, say("Hi."), odd, odd}, func(t *testing.T, r *rig) {
			run := r.begin(chat, limit)
			r.AwaitState(run, events.WaitingForUser)
			r.Append(run, events.WaitingForUser, &events.UserMessage{MessageID: "u", Content: "again"})
			mem := r.AwaitEnd(run)
			require.Equal(t, "max_steps", mem.Error.Code)
			require.Equal(t, 4, mem.Step, "the step itself goes on")
		})
	})
}

func TestLowConfidenceIsAcceptedInTheEnd(t *testing.T) {
	doubt := doubting(0.2, call("a", "alpha", "{}"))
	bubble(t, []any{doubt, doubt, doubt}, func(t *testing.T, r *rig) {
		run := r.begin(config(func(c *events.Config) { c.MaxRetries = 2 }))
		mem := r.AwaitState(run, events.Acting)
		require.Equal(t, []string{"Start", "LowConfidence", "ReflectDone", "LowConfidence", "ReflectDone", "LlmToolCall"}, r.Types(run))
		require.Zero(t, mem.RetryCount, "an accepted call starts the retries again")
		require.InDelta(t, 0.2, mem.ConfidenceScore, 0)
		require.Equal(t, 3, mem.Step)
		require.Equal(t, 45, mem.TotalUsage.Total, "doubtful replies are billed")
		require.Equal(t, 3, r.mock.CallCount(), "without history there is nothing to reflect on")
	})
}

func TestBudgets(t *testing.T) {
	cost := 0.6
	dear := say("x")
	dear.Usage.CostUSD = &cost
	dear.Usage.Input, dear.Usage.Output, dear.Usage.Total = 1000, 500, 1500
	for _, c := range []struct {
		code   string
		budget events.Budget
		calls  int
		// output is the most that the agent lets a reply have: so much is reserved.
		output int
	}{
		{"budget_input_tokens", events.Budget{MaxInputTokens: 2000}, 2, 0},
		{"budget_output_tokens", events.Budget{MaxOutputTokens: 1000}, 2, 0},
		{"budget_output_tokens", events.Budget{MaxOutputTokens: 399}, 0, 400},
		{"budget_total_tokens", events.Budget{MaxTotalTokens: 3000}, 2, 0},
		{"budget_cost", events.Budget{MaxCostUSD: 1}, 2, 0},
		{"budget_input_tokens", events.Budget{MaxInputTokens: 5}, 0, 0},
	} {
		t.Run(fmt.Sprint(c.code, c.calls), func(t *testing.T) {
			bubble(t, []any{dear, dear, dear, dear}, func(t *testing.T, r *rig) {
				run := r.begin(func(s *events.Start) { s.Agent.Budget, s.Agent.LLM.MaxTokens = &c.budget, c.output })
				mem := r.AwaitEnd(run)
				require.Equal(t, c.code, mem.Error.Code)
				require.Equal(t, c.calls, r.mock.CallCount())
				types := r.Types(run)
				require.Equal(t, "BudgetExceeded", types[len(types)-1])
				require.Equal(t, c.calls, mem.Step)
			})
		})
	}
}

func TestWallTimeAndRaisedBudget(t *testing.T) {
	slow := llm.CallerFunc(func(ctx context.Context, _ llm.Request, _ func(llm.Chunk)) (llm.Response, error) {
		time.Sleep(40 * time.Minute) // in the bubble
		return say("x"), ctx.Err()
	})
	bubbleWith(t, slow, func(t *testing.T, r *rig) {
		run := r.begin(func(s *events.Start) { s.Agent.Budget = &events.Budget{MaxWallTime: events.Duration(time.Hour)} })
		r.event(run, 3)
		raised := r.begin(func(s *events.Start) { s.Agent.Budget = &events.Budget{MaxWallTime: events.Duration(time.Hour)} })
		r.Append(raised, events.Control, &events.BudgetRaised{Budget: events.Budget{MaxWallTime: events.Duration(2 * time.Hour)}})
		require.Equal(t, "budget_wall_time", r.AwaitEnd(run).Error.Code)
		require.Equal(t, []string{"Start", "AnswerTooShort", "AnswerTooShort", "BudgetExceeded"}, r.Types(run))
		r.AwaitEnd(raised)
		require.Equal(t, 3, r.Count(raised, events.TypeAnswerTooShort))
	}, func(c *planner.Config) { c.CallTimeout = time.Hour })
}

func TestModelSelection(t *testing.T) {
	big, small := events.Models{{Model: "big"}}, events.Models{{Provider: "scripted", Model: "small"}}
	for _, c := range []struct {
		taskType string
		models   map[string]events.Models
		want     string
	}{
		{"", nil, ""},
		{"", map[string]events.Models{"default": big}, "big"},
		{"calculation", map[string]events.Models{"default": big, "calculation": small}, "small"},
		{"poetry", map[string]events.Models{"default": big, "calculation": small}, "big"},
		{"poetry", map[string]events.Models{"calculation": small}, ""},
	} {
		bubble(t, []any{say("It is 42.")}, func(t *testing.T, r *rig) {
			r.AwaitEnd(r.begin(func(s *events.Start) { s.TaskType, s.Agent.Models = c.taskType, c.models }))
			require.Equal(t, c.want, r.mock.ModelForCall(0))
		})
	}
}

func TestWhatTheModelIsSent(t *testing.T) {
	temperature := 0.5
	bubble(t, []any{ask(call("x", "alpha", `{"q":1}`)), ask(call("x", "nonsense", "{}")), ask(call("x", "alpha", "{}")), say("It is 42.")}, func(t *testing.T, r *rig) {
		run := r.begin(func(s *events.Start) {
			s.Agent.SystemPrompt = "Be brief."
			s.Agent.LLM.Temperature, s.Agent.LLM.MaxTokens = &temperature, 77
			s.Agent.LLM.Script = json.RawMessage(`[{"text":"from the script"}]`)
			s.Agent.Blacklist = []string{"delta"}
		})
		r.act(run, "first")
		r.event(run, 6) // the third reply
		r.act(run, "")
		mem := r.AwaitEnd(run)
		requests := r.mock.Requests()
		require.Len(t, requests, 4)

		last := requests[3]
		require.Equal(t, []llm.Message{
			{Role: llm.RoleSystem, Content: "Be brief."},
			{Role: llm.RoleUser, Content: "find it"},
			{Role: llm.RoleAssistant, Calls: []llm.Call{call("x", "alpha", `{"q":1}`)}},
			{Role: llm.RoleTool, CallID: "x", Name: "alpha", Content: "first"},
			{Role: llm.RoleAssistant, Calls: []llm.Call{call("x", "nonsense", "{}")}},
			{Role: llm.RoleTool, CallID: "x", Name: "nonsense", Content: `ERROR: tool "nonsense" not found`, Failed: true},
			{Role: llm.RoleAssistant, Calls: []llm.Call{call("x", "alpha", "{}")}},
			{Role: llm.RoleTool, CallID: "x", Name: "alpha", Content: ""},
		}, last.Messages, "repeated ids are sent back as they were")
		require.Equal(t, []string{"x", "x~1", "x~2"}, mem.Control.CallOrder)
		require.Equal(t, []string{"first", `ERROR: tool "nonsense" not found`, ""}, last.Observations)
		require.Equal(t, 3, last.Replies)
		require.Equal(t, llm.PurposePlan, last.Purpose)
		require.Equal(t, run.ID, last.Run)
		require.Equal(t, 77, last.Sampling.MaxTokens)
		require.Equal(t, &temperature, last.Sampling.Temperature)
		require.Contains(t, string(last.Settings), "from the script")
		var names []string
		for _, offered := range last.Tools {
			names = append(names, offered.Name)
		}
		require.Equal(t, []string{"alpha", "beta", "gamma", "pair"}, names, "sorted, without the blacklisted one")
	})
}

func TestQueuedCallsTakeNoStepAndNoModel(t *testing.T) {
	one := config(func(c *events.Config) { c.ParallelTools = false; c.MaxSteps = 2 })
	replies := []any{ask(call("a", "alpha", "{}"), call("b", "pair", `{"a":1,"b":""}`), call("c", "alpha", "{}")), say("It is 42.")}
	bubble(t, replies, func(t *testing.T, r *rig) {
		run := r.begin(one)
		for _, id := range []string{"a", "b", "c"} {
			mem := r.Await(run, func(now *reducer.Memory) bool { return now.State == events.Acting && now.CurrentToolCall.ID == id })
			require.Equal(t, 1, mem.Step)
			r.answer(run, id)
		}
		mem := r.AwaitEnd(run)
		require.Equal(t, events.Done, mem.State)
		require.Equal(t, 2, mem.Step)
		require.Equal(t, 2, r.mock.CallCount())
		require.Equal(t, 15, mem.TotalUsage.Total-15)
		last := r.mock.Requests()[1].Messages
		require.Len(t, last[len(last)-4].Calls, 3, "the model sees one reply")
	})
}

// The last step's reply is carried out to its end, also beyond the last step.
func TestQueuedCallsNeedApprovalEach(t *testing.T) {
	one := config(func(c *events.Config) { c.ParallelTools = false; c.MaxSteps = 1 })
	replies := []any{ask(call("a", "alpha", "{}"), call("b", "pair", `{"a":1,"b":""}`))}
	bubble(t, replies, func(t *testing.T, r *rig) {
		run := r.begin(one, approve(events.Approval{Policy: events.ApproveTools, Tools: []string{"pair"}}))
		r.AwaitState(run, events.Acting)
		r.answer(run, "a")
		mem := r.AwaitState(run, events.WaitingForHuman)
		require.Equal(t, "b", mem.PendingApproval.Requests[0].CallID)
		require.Equal(t, 1, mem.Step)
		r.Append(run, events.WaitingForHuman, &events.HumanApproved{Decision: events.Decision{CallID: "b", Decision: "approved"}})
		r.answer(run, "b")
		require.Equal(t, "max_steps", r.AwaitEnd(run).Error.Code)
		require.Equal(t, 1, r.mock.CallCount())
	})
}

func TestDispatch(t *testing.T) {
	bubble(t, []any{ask(call("a", "alpha", "{}"), call("b", "gamma", "{}"), call("c", "delta", "{}"))}, func(t *testing.T, r *rig) {
		run := r.begin()
		quiet()
		require.Equal(t, []string{"Start", "LlmParallelToolCalls", "ToolCallDispatched", "ToolCallDispatched", "ToolCallDispatched"}, r.Types(run))
		subjects := map[string]bool{}
		for _, rec := range r.Records(run)[1:] {
			subjects[strings.TrimSuffix(strings.TrimPrefix(rec.Subject, "moore.0.default."), "."+run.ID)] = true
		}
		require.Equal(t, map[string]bool{
			"planning.none.default":            true,
			"planning.parallel_acting.default": true, "planning.parallel_acting.web": true, "planning.parallel_acting.math": true,
		}, subjects)
		// Resumed dispatches again what has no result yet.
		r.Append(run, events.ParallelActing, &events.ToolCallResult{ToolOutcome: events.ToolOutcome{CallID: "b", Success: true}})
		r.Append(run, events.Control, &events.Resumed{})
		quiet()
		require.Equal(t, 5, r.Count(run, events.TypeToolCallDispatched))
	})
	// Calls of one pool go there by the reply itself.
	bubble(t, []any{ask(call("a", "gamma", "{}"), call("b", "gamma", "{}"))}, func(t *testing.T, r *rig) {
		run := r.begin()
		quiet()
		require.Equal(t, []string{"Start", "LlmParallelToolCalls"}, r.Types(run))
		require.Contains(t, r.Records(run)[1].Subject, ".planning.parallel_acting.web.")
	})
}

// planned waits until the planner's call hangs.
type hangingCaller struct {
	began chan llm.Request
	ended chan error
}

func (h *hangingCaller) Call(ctx context.Context, req llm.Request, _ func(llm.Chunk)) (llm.Response, error) {
	h.began <- req
	<-ctx.Done()
	h.ended <- context.Cause(ctx)
	return nil, ctx.Err()
}

func TestUserMessageMakesTheCallObsolete(t *testing.T) {
	h := &hangingCaller{began: make(chan llm.Request, 10), ended: make(chan error, 10)}
	bubbleWith(t, h, func(t *testing.T, r *rig) {
		run := r.begin()
		<-h.began
		r.Append(run, events.Control, &events.UserMessage{MessageID: "u", Content: "rather this"})
		require.ErrorIs(t, <-h.ended, context.Canceled)
		second := <-h.began
		require.Equal(t, "rather this", second.Messages[len(second.Messages)-1].Content)
		synctest.Wait()
		require.Equal(t, []string{"Start", "UserMessage"}, r.Types(run))
		r.Append(run, events.Control, &events.CancelledRun{})
		require.ErrorIs(t, <-h.ended, context.Canceled)
		quiet()
		require.Equal(t, []string{"Start", "UserMessage", "Cancelled"}, r.Types(run))
	})
}

func TestErrors(t *testing.T) {
	failure := func(kind llm.ErrorKind) error { return &llm.Error{Kind: kind, Message: "the provider's words"} }
	times := func(n int, what any) []any {
		all := make([]any, n)
		for i := range all {
			all[i] = what
		}
		return all
	}
	for _, c := range []struct {
		name     string
		replies  []any
		failures int
		code     string
	}{
		{"auth", []any{failure(llm.KindAuth)}, 0, "auth"},
		{"invalid", []any{failure(llm.KindInvalid)}, 0, "invalid"},
		{"context too long", []any{failure(llm.KindContextTooLong)}, 0, "context_too_long"},
		{"other", times(2, failure(llm.KindOther)), 1, "other"},
		{"an error of no kind", times(2, errors.New("the provider's words")), 1, "other"},
		{"network", times(6, failure(llm.KindNetwork)), 5, "network"},
		{"overloaded", times(6, failure(llm.KindOverloaded)), 5, "overloaded"},
		{"rate limited", times(100, failure(llm.KindRateLimited)), 99, "rate_limited"},
		{"recovers", append(times(5, failure(llm.KindNetwork)), say("It is 42.")), 5, ""},
		{"wrapped", []any{fmt.Errorf("calling: %w", failure(llm.KindAuth))}, 0, "auth"},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, c.replies, func(t *testing.T, r *rig) {
				run := r.begin()
				mem := r.AwaitEnd(run)
				require.Equal(t, len(c.replies), r.mock.CallCount())
				require.Equal(t, c.failures, r.Count(run, events.TypeLLMAttemptFailed))
				if c.code == "" {
					require.Equal(t, events.Done, mem.State)
					return
				}
				require.Equal(t, c.code, mem.Error.Code)
				require.Equal(t, "the provider's words", mem.Error.Message)
				require.Zero(t, mem.Step)
			})
		})
	}
}

func TestRetryAfterIsHonoured(t *testing.T) {
	limited := &llm.Error{Kind: llm.KindRateLimited, Message: "slow down", RetryAfter: 42 * time.Second}
	bubble(t, []any{limited, limited, say("It is 42.")}, func(t *testing.T, r *rig) {
		run := r.begin()
		r.AwaitEnd(run)
		all := r.Events(run)
		require.Len(t, all, 4)
		for i := 1; i <= 2; i++ {
			f, ok := all[i].Data.(*events.LLMAttemptFailed)
			require.True(t, ok)
			require.Equal(t, &events.LLMAttemptFailed{
				Kind: "rate_limited", Message: "slow down", Key: "plan/1", RetryAfterMS: 42_000, Under: 1, Delivery: i,
				Facts: events.Facts{Asked: &events.Asked{Provider: "scripted"}},
			}, f)
			require.Equal(t, 42*time.Second, all[i+1].Time.Sub(all[i].Time).Round(time.Second))
		}
	})
}

func TestSilentProvider(t *testing.T) {
	h := &hangingCaller{began: make(chan llm.Request, 10), ended: make(chan error, 10)}
	bubbleWith(t, h, func(t *testing.T, r *rig) {
		run := r.begin()
		mem := r.AwaitEnd(run)
		require.Equal(t, "network", mem.Error.Code)
		require.Contains(t, mem.Error.Message, "no reply within 1m0s")
		require.Equal(t, 5, r.Count(run, events.TypeLLMAttemptFailed))
	}, func(c *planner.Config) { c.CallTimeout = time.Minute })
}

// A planner announces its provider until it ends.
func TestAnnouncement(t *testing.T) {
	bubble(t, nil, func(t *testing.T, r *rig) {
		for range 3 {
			time.Sleep(25 * time.Second) // in the bubble
			names, err := announce.NewDirectory(r.Journal, nil).Providers(t.Context())
			require.NoError(t, err)
			require.Equal(t, []string{"scripted"}, names)
		}
	})
}

func TestStep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newBenchRig(t)
		made, err := planner.New(r.config(scripted.NewMock(say("a"), say("It is 42."))))
		require.NoError(t, err)
		run := r.begin()
		require.NoError(t, made.Step(t.Context()))
		require.Equal(t, []string{"Start", "AnswerTooShort"}, r.Types(run))
		require.NoError(t, made.Step(t.Context()))
		require.Equal(t, []string{"Start", "AnswerTooShort", "LlmFinalAnswer"}, r.Types(run))
	})
}
