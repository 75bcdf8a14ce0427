package agent_test

import (
	"context"
	"encoding/json"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/announce"
	"github.com/moorebus/moorebus/internal/buckets"
	"github.com/moorebus/moorebus/internal/journaltest/simtest"
	"github.com/moorebus/moorebus/internal/prices"
	"github.com/moorebus/moorebus/pkg/agent"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/moorebus/moorebus/pkg/llm/scripted"
	"github.com/moorebus/moorebus/pkg/tool"
	"github.com/moorebus/moorebus/pkg/tool/typed"
)

func badTool(t *testing.T) tool.Tool {
	t.Helper()
	made, err := typed.New(tool.Definition{Name: "broken", Effect: tool.Pure}, func(context.Context, query) (string, error) { return "", nil })
	require.NoError(t, err)
	def := made.Definition()
	def.Schema = json.RawMessage(`{"type":"wrong"}`)
	return tool.Redefine(made, def)
}

func TestSchemasAreCompiledWhenAnAgentIsBuilt(t *testing.T) {
	t.Parallel()
	var bad *agent.BuildError
	_, err := agent.New("agent").LLM(scripted.NewMock()).Tool(badTool(t)).Build()
	require.ErrorAs(t, err, &bad)
	require.ErrorContains(t, err, `tool "broken": schema: invalid JSON Schema`)
	_, err = agent.New("agent").LLM(scripted.NewMock()).OutputSchema(json.RawMessage(`{"properties":[]}`)).Build()
	require.ErrorAs(t, err, &bad)
	require.ErrorContains(t, err, "output schema: invalid JSON Schema")
}

// What names a tool that the agent does not have is a mistake, and so is an
// expression that cannot be evaluated.
func TestNamesAreCheckedWhenAnAgentIsBuilt(t *testing.T) {
	t.Parallel()
	agentWith := func() *agent.Builder {
		return agent.New("agent").LLM(scripted.NewMock()).Tool(searchTool(t)).RemoteTools("bank/pay")
	}
	policy := func(tools ...string) events.Approval {
		return events.Approval{Policy: events.ApproveTools, Tools: tools}
	}
	for want, b := range map[string]*agent.Builder{
		`blacklist: the agent has no tool "serach"; it has ["search" "bank/pay"]`:        agentWith().Blacklist("serach"),
		`approval.tools: the agent has no tool "pya"`:                                    agentWith().Approval(policy("search", "pya")),
		`blacklist[0]: "bank/pay" names a pool: write the tool's name alone, "pay"`:      agentWith().Blacklist("bank/pay"),
		`approval.tools[1]: "bank/pay" names a pool: write the tool's name alone, "pay"`: agentWith().Approval(policy("search", "bank/pay")),
		`tools[2]: the name "pay" stands there twice`:                                    agentWith().RemoteTools("shop/pay"),
		`tools[2]: "/refund" is neither a tool's name nor POOL/TOOL`:                     agentWith().RemoteTools("/refund"),
		`approval.expr: unknown name argumnets`:                                          agentWith().Approval(events.Approval{Policy: events.ApproveExpr, Expr: "argumnets.amount > 3"}),
		`approval.expr: `:                                                                agentWith().Approval(events.Approval{Policy: events.ApproveExpr, Expr: "1 +"}),
	} {
		_, err := b.Build()
		var bad *agent.BuildError
		require.ErrorAs(t, err, &bad, want)
		require.ErrorContains(t, err, want)
	}
	_, err := agentWith().Blacklist("pay").Approval(policy("pay", "search")).Build()
	require.NoError(t, err)
}

// Programs that share a bus cannot answer each other's runs: a name that means
// something else in a process that lives is refused, and the error names both.
func TestNamesThatCollide(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := simtest.New(simtest.Options{})
		says := func(words string) llm.Caller {
			return llm.CallerFunc(func(context.Context, llm.Request, func(llm.Chunk)) (llm.Response, error) {
				return llm.Text{Content: words}, nil
			})
		}
		program := func(change func(*agent.Builder)) *agent.Agent {
			b := agent.New("agent").LLM(says("I am the first one, always.")).Bus(j.NewProcess())
			if change != nil {
				change(b)
			}
			return built(t, b).Agent
		}
		first, err := agent.Serve(t.Context(), program(nil))
		require.NoError(t, err)

		var taken *journal.NameTakenError
		_, err = program(func(b *agent.Builder) { b.SystemPrompt("You are another one.") }).Run(t.Context(), task)
		require.ErrorAs(t, err, &taken)
		require.Equal(t, journal.ClaimAgent, taken.Claim.Kind)
		require.ErrorContains(t, err, taken.Claim.Instance)
		require.ErrorContains(t, err, taken.Instance)
		require.NotEqual(t, taken.Claim.Instance, taken.Instance)

		other := llm.CallerFunc(func(context.Context, llm.Request, func(llm.Chunk)) (llm.Response, error) {
			return llm.Text{Content: "I am somebody else altogether."}, nil
		})
		_, err = agent.Serve(t.Context(), program(func(b *agent.Builder) { b.LLM(other) }))
		require.ErrorAs(t, err, &taken)
		require.Equal(t, journal.ClaimProvider, taken.Claim.Kind)

		answer, err := built(t, agent.New("other").LLM(other).Bus(j.NewProcess())).Run(t.Context(), task)
		require.NoError(t, err, "under a name of its own")
		require.Equal(t, "I am somebody else altogether.", answer)
		copied, err := agent.Serve(t.Context(), program(nil))
		require.NoError(t, err, "a copy of the program")
		require.NoError(t, copied.Close())

		require.NoError(t, first.Close())
		left, err := announce.NewDirectory(j, nil).Claims(t.Context())
		require.NoError(t, err)
		require.Empty(t, left, "what has ended has given its names back")
		began := time.Now()
		answer, err = program(func(b *agent.Builder) { b.LLM(other) }).Run(t.Context(), task)
		require.NoError(t, err, "in its place")
		require.Equal(t, "I am somebody else altogether.", answer)
		require.Less(t, time.Since(began), buckets.AnnouncementRefresh, "what ended has given its names back")
	})
}

// paid is a caller that is not in this process: what it says costs money.
func paid(context.Context, llm.Request, func(llm.Chunk)) (llm.Response, error) {
	return llm.Text{Content: "It is 42.", Meta: llm.Meta{Model: "house-1", Confidence: 1, Usage: llm.Usage{Input: 1000, Output: 500, Total: 1500}}}, nil
}

// A budget in money needs a price of the model: here that of [agent.Builder.Prices].
func TestBudgetInMoney(t *testing.T) {
	t.Parallel()
	table, err := prices.New(map[string]llm.Price{"house-1": {Input: 2, CachedInput: 1, Output: 10}})
	require.NoError(t, err)
	b := agent.New("agent").LLM(llm.CallerFunc(paid)).Model("house-1").Budget(events.Budget{MaxCostUSD: 0.01})
	_, err = built(t, b).Run(t.Context(), task)
	require.ErrorContains(t, err, "no_price")
	a := built(t, b.Prices(table))
	_, err = a.Run(t.Context(), task)
	require.NoError(t, err)
	require.InDelta(t, 0.007, a.Memory().TotalUsage.Cost, 1e-12)
}

// A model that says nothing of its confidence is asked once for each reply.
func TestNoConfidenceIsNotDoubt(t *testing.T) {
	t.Parallel()
	calls := 0
	model := llm.CallerFunc(func(_ context.Context, req llm.Request, _ func(llm.Chunk)) (llm.Response, error) {
		calls++ // one run, so one call at a time
		if req.Replies == 0 {
			return llm.ToolCalls{Calls: []llm.Call{{ID: "a", Name: "search", Arguments: `{"q":"x"}`}}}, nil
		}
		return llm.Text{Content: "All of it is done by now."}, nil
	})
	a := build(t, model, nil)
	_, err := a.Run(t.Context(), task)
	require.NoError(t, err)
	require.Equal(t, 2, calls)
	require.InDelta(t, 1.0, a.Memory().ConfidenceScore, 0)
}
