package planner_test

import (
	"context"
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/planner"
	"github.com/moorebus/moorebus/internal/prices"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/moorebus/moorebus/pkg/llm/scripted"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// remote is a provider that is paid: what a mock is not.
type remote struct {
	mock  *scripted.Mock
	model string
}

func (r remote) Call(ctx context.Context, req llm.Request, stream func(llm.Chunk)) (llm.Response, error) {
	return r.mock.Call(ctx, req, stream)
}

func (r remote) Describe() llm.Description { return llm.Description{DefaultModel: r.model} }

// nameless is a remote provider that does not say whom it asks.
type nameless struct{ llm.Caller }

// paid runs a test with a provider whose models m-1 and m-0 cost a dollar for a
// thousand tokens of either kind, and half of it for cached ones.
func paid(t *testing.T, replies []any, test func(t *testing.T, r *rig)) {
	t.Helper()
	mock := scripted.NewMock(replies...)
	paidBy(t, remote{mock, "m-0"}, func(t *testing.T, r *rig) {
		r.mock = mock
		test(t, r)
	})
}

func paidBy(t *testing.T, caller llm.Caller, test func(t *testing.T, r *rig)) {
	t.Helper()
	dear := llm.Price{Input: 1000, CachedInput: 500, Output: 1000}
	table, err := prices.New(map[string]llm.Price{"m-0": dear, "scripted/m-1": dear})
	require.NoError(t, err)
	bubbleWith(t, caller, test, func(c *planner.Config) { c.Prices = table })
}

func money(usd float64) func(*events.Start) {
	return func(s *events.Start) { s.Agent.Budget = &events.Budget{MaxCostUSD: usd} }
}

// used100 is a reply of m-1 that used 60 tokens of input, 20 of them cached, and
// 40 of output.
func used100(reply llm.Response) llm.Response {
	meta := llm.Meta{Confidence: 1, Model: "m-1", Usage: llm.Usage{Input: 60, Cached: 20, Output: 40, Total: 100}}
	switch r := reply.(type) {
	case llm.Text:
		r.Meta = meta
		return r
	case llm.ToolCalls:
		r.Meta = meta
		return r
	}
	panic("no such reply")
}

// cost100 is what that costs.
const cost100 = 0.09

func TestRepliesCostWhatTheTableSays(t *testing.T) {
	doubt := used100(ask(call("a", "alpha", "{}"))).(llm.ToolCalls)
	doubt.Confidence = 0.1
	for name, c := range map[string]struct {
		reply  llm.Response
		change []func(*events.Start)
	}{
		"LlmToolCall":           {used100(ask(call("a", "alpha", "{}"))), nil},
		"LlmParallelToolCalls":  {used100(ask(call("a", "alpha", "{}"), call("b", "alpha", "{}"))), nil},
		"LlmFinalAnswer":        {used100(say("It is 42.")), nil},
		"LlmMessageComplete":    {used100(say("Hi")), []func(*events.Start){chat}},
		"AnswerTooShort":        {used100(say("42")), nil},
		"ReplyInvalid":          {used100(ask(call("a", "nonsense", "{}"))), nil},
		"ToolBlacklisted":       {used100(ask(call("a", "alpha", "{}"))), []func(*events.Start){func(s *events.Start) { s.Agent.Blacklist = []string{"alpha"} }}},
		"LowConfidence":         {doubt, nil},
		"HumanApprovalRequired": {used100(ask(call("a", "alpha", "{}"))), []func(*events.Start){approve(events.Approval{Policy: events.ApproveAlways})}},
	} {
		t.Run(name, func(t *testing.T) {
			paid(t, []any{c.reply}, func(t *testing.T, r *rig) {
				e := r.event(r.begin(c.change...), 2)
				require.Equal(t, name, string(e.Type()))
				u := events.Billed(e.Data)
				require.NotNil(t, u.CostUSD)
				require.InDelta(t, cost100, *u.CostUSD, 1e-9)
			})
		})
	}
}

// What a provider says that it cost is what it cost, and one in this process
// costs nothing unless it says so.
func TestCostsOfTheProvidersOwn(t *testing.T) {
	said := 7.0
	own := used100(say("It is 42.")).(llm.Text)
	own.Usage.CostUSD = &said
	paid(t, []any{own}, func(t *testing.T, r *rig) {
		require.Equal(t, 7.0, r.AwaitEnd(r.begin()).TotalUsage.Cost)
	})
	mock := scripted.NewMock(used100(say("It is 42.")))
	paidBy(t, mock, func(t *testing.T, r *rig) {
		run := r.begin(money(1))
		require.Zero(t, r.AwaitEnd(run).TotalUsage.Cost)
		require.Nil(t, events.Billed(r.Events(run)[1].Data).CostUSD)
	})
}

// endless has a price of its own that no cost can be written of.
type endless struct{}

func (endless) Price(string, string) (llm.Price, bool) {
	return llm.Price{Input: math.MaxFloat64, CachedInput: math.Inf(1), Output: math.MaxFloat64}, true
}

func TestCostThatIsNoNumber(t *testing.T) {
	mock := scripted.NewMock(used100(say("It is 42.")))
	bubbleWith(t, remote{mock, "m-0"}, func(t *testing.T, r *rig) {
		run := r.begin()
		require.Equal(t, events.Done, r.AwaitEnd(run).State)
		require.Nil(t, events.Billed(r.Events(run)[1].Data).CostUSD)
	}, func(c *planner.Config) { c.Prices = endless{} })
}

func TestMoneyIsReservedAndSettled(t *testing.T) {
	four := []any{used100(say("1")), used100(say("2")), used100(say("3")), used100(say("4"))}
	for name, c := range map[string]struct {
		budget    float64
		maxTokens int
		calls     int
	}{
		"what was used counts":                 {0.25, 0, 2},
		"the output that is bounded counts":    {0.25, 120, 1},
		"the output alone is more than enough": {0.25, 300, 0},
		"the input alone is more than enough":  {0.001, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			paid(t, four, func(t *testing.T, r *rig) {
				run := r.begin(money(c.budget), func(s *events.Start) { s.Agent.LLM.MaxTokens = c.maxTokens })
				mem := r.AwaitEnd(run)
				require.Equal(t, "budget_cost", mem.Error.Code)
				require.Contains(t, mem.Error.Message, fmt.Sprintf("the budget of $%g is used up", c.budget))
				require.Equal(t, c.calls, r.mock.CallCount())
				require.InDelta(t, float64(c.calls)*cost100, mem.TotalUsage.Cost, 1e-9)
				require.LessOrEqual(t, mem.TotalUsage.Cost, c.budget)
			})
		})
	}
}

func TestNoPrice(t *testing.T) {
	named := func(model string) func(*events.Start) {
		return func(s *events.Start) { s.Agent.Models = map[string]events.Models{"default": {{Model: model}}} }
	}
	says := func(t *testing.T, mem *reducer.Memory, model string) {
		require.Equal(t, "no_price", mem.Error.Code)
		for _, part := range []string{`"` + model + `"`, "--prices FILE", "MOOREBUS_PRICES", `"scripted/` + model + `"`} {
			require.Contains(t, mem.Error.Message, part)
		}
	}
	t.Run("before any money is spent", func(t *testing.T) {
		paid(t, []any{say("never asked")}, func(t *testing.T, r *rig) {
			run := r.begin(money(1), named("exotic"))
			says(t, r.AwaitEnd(run), "exotic")
			require.Zero(t, r.mock.CallCount())
			require.Equal(t, []string{"Start", "FatalError"}, r.Types(run))
		})
	})
	t.Run("of the provider's default", func(t *testing.T) {
		mock := scripted.NewMock(say("never asked"))
		paidBy(t, remote{mock, "strange"}, func(t *testing.T, r *rig) {
			says(t, r.AwaitEnd(r.begin(money(1))), "strange")
			require.Zero(t, mock.CallCount())
		})
	})
	t.Run("known only after the reply", func(t *testing.T) {
		reply := used100(ask(call("a", "alpha", "{}"))).(llm.ToolCalls)
		reply.Model = "surprise"
		paidBy(t, nameless{remote{scripted.NewMock(reply), ""}}, func(t *testing.T, r *rig) {
			run := r.begin(money(1))
			mem := r.AwaitEnd(run)
			says(t, mem, "surprise")
			require.Equal(t, []string{"Start", "FatalError"}, r.Types(run))
			require.Equal(t, 100, mem.TotalUsage.Total, "it was used")
		})
	})
	t.Run("nobody cares without a budget in money", func(t *testing.T) {
		paid(t, []any{say("It is 42.")}, func(t *testing.T, r *rig) {
			run := r.begin(named("exotic"), func(s *events.Start) { s.Agent.Budget = &events.Budget{MaxTotalTokens: 100000} })
			require.Equal(t, events.Done, r.AwaitEnd(run).State)
		})
	})
	t.Run("a release of a known family answers for an unknown name", func(t *testing.T) {
		reply := used100(say("It is 42.")).(llm.Text)
		reply.Model = "m-1-2026-01-02"
		paid(t, []any{reply}, func(t *testing.T, r *rig) {
			require.InDelta(t, cost100, r.AwaitEnd(r.begin(money(1))).TotalUsage.Cost, 1e-9)
		})
	})
	t.Run("without a table", func(t *testing.T) {
		bubbleWith(t, remote{scripted.NewMock(), "m-0"}, func(t *testing.T, r *rig) {
			says(t, r.AwaitEnd(r.begin(money(1))), "m-0")
		})
	})
}

// A reply may use up the budget with the calls that it asks for: they run, and
// the next reply is not asked for.
func TestBudgetIsUsedUpByParallelCalls(t *testing.T) {
	paid(t, []any{used100(ask(call("a", "alpha", "{}"), call("b", "alpha", "{}"))), say("never asked")}, func(t *testing.T, r *rig) {
		run := r.begin(money(cost100))
		r.Await(run, func(mem *reducer.Memory) bool { return mem.State == events.ParallelActing })
		for _, id := range []string{"a", "b"} {
			r.Append(run, events.ParallelActing, &events.ToolCallResult{ToolOutcome: events.ToolOutcome{CallID: id, Success: true, Observation: "SUCCESS: 1", Code: "ok"}})
		}
		r.Append(run, events.ParallelActing, &events.ToolSuccess{})
		r.Append(run, events.Observing, &events.Continue{})
		mem := r.AwaitEnd(run)
		require.Equal(t, "budget_cost", mem.Error.Code)
		require.Len(t, mem.History, 2, "no result is lost")
		require.Equal(t, 1, r.mock.CallCount())
	})
}

func TestRaisedMoneyIsSpent(t *testing.T) {
	paid(t, []any{used100(ask(call("a", "alpha", "{}"))), used100(say("It is 42."))}, func(t *testing.T, r *rig) {
		run := r.begin(money(cost100))
		r.Await(run, func(mem *reducer.Memory) bool { return mem.State == events.Acting })
		r.Append(run, events.Control, &events.BudgetRaised{Budget: events.Budget{MaxCostUSD: 1}})
		r.act(run, "found")
		mem := r.AwaitEnd(run)
		require.Equal(t, events.Done, mem.State)
		require.InDelta(t, 2*cost100, mem.TotalUsage.Cost, 1e-9)
	})
}

// failing is a call that failed and was billed.
func failing(kind llm.ErrorKind) *llm.Error {
	return &llm.Error{Kind: kind, Message: "stopped", Usage: &llm.Usage{Input: 60, Cached: 20, Output: 40, Total: 100}}
}

func TestFailedAttemptsAreBilled(t *testing.T) {
	t.Run("one that is tried again", func(t *testing.T) {
		paid(t, []any{failing(llm.KindOverloaded), used100(say("It is 42."))}, func(t *testing.T, r *rig) {
			run := r.begin(money(1))
			mem := r.AwaitEnd(run)
			require.Equal(t, []string{"Start", "LlmAttemptFailed", "LlmFinalAnswer"}, r.Types(run))
			require.InDelta(t, 2*cost100, mem.TotalUsage.Cost, 1e-9)
			require.Equal(t, 200, mem.TotalUsage.Total)
		})
	})
	t.Run("they use a budget up", func(t *testing.T) {
		paid(t, []any{failing(llm.KindOverloaded), say("never asked")}, func(t *testing.T, r *rig) {
			run := r.begin(money(cost100))
			require.Equal(t, "budget_cost", r.AwaitEnd(run).Error.Code)
			require.Equal(t, 1, r.mock.CallCount())
		})
	})
	t.Run("the last one", func(t *testing.T) {
		paid(t, []any{failing(llm.KindInvalid)}, func(t *testing.T, r *rig) {
			run := r.begin()
			mem := r.AwaitEnd(run)
			require.Equal(t, []string{"Start", "FatalError"}, r.Types(run))
			require.InDelta(t, cost100, mem.TotalUsage.Cost, 1e-9)
		})
	})
}

func TestReflectionsAreBilled(t *testing.T) {
	for name, c := range map[string]struct {
		reply any
	}{
		"one that succeeds": {used100(say("All that was found."))},
		"one that fails":    {failing(llm.KindOther)},
	} {
		t.Run(name, func(t *testing.T) {
			paid(t, []any{used100(ask(call("a", "alpha", "{}"))), c.reply, used100(say("It is 42."))}, func(t *testing.T, r *rig) {
				mem := r.AwaitEnd(r.reflecting())
				require.Equal(t, events.Done, mem.State)
				require.InDelta(t, 3*cost100, mem.TotalUsage.Cost, 1e-9)
			})
		})
	}
	t.Run("one that the budget forbids", func(t *testing.T) {
		paid(t, []any{used100(ask(call("a", "alpha", "{}"))), say("never asked")}, func(t *testing.T, r *rig) {
			run := r.reflecting(money(cost100))
			require.Equal(t, "budget_cost", r.AwaitEnd(run).Error.Code)
			require.Equal(t, 1, r.mock.CallCount())
		})
	})
}

// What a caller of one's own may say of itself cannot end a run.
func TestNumbersThatAreNone(t *testing.T) {
	for name, c := range map[string]struct {
		says, want float64
		zero       bool
	}{
		"no number":        {says: math.NaN(), want: 1},
		"more than sure":   {says: math.Inf(1), want: 1},
		"less than unsure": {says: -3, want: 0},
		"none":             {says: 0, want: 1},
		"given as zero":    {says: 0, zero: true, want: 0},
	} {
		t.Run(name, func(t *testing.T) {
			reply := doubting(c.says, call("a", "alpha", "{}"))
			reply.ZeroConfidence = c.zero
			if c.says != 0 {
				reply.Usage.CostUSD = &c.says
			}
			bubble(t, []any{reply}, func(t *testing.T, r *rig) {
				e := r.event(r.begin(config(func(c *events.Config) { c.ConfidenceThreshold = 0 })), 2)
				p, ok := e.Data.(*events.LLMToolCall)
				require.True(t, ok, "%T", e.Data)
				require.Equal(t, c.want, p.Confidence)
				require.Nil(t, p.Usage.CostUSD)
			})
		})
	}
}
