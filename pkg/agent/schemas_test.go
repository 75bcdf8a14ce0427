package agent_test

import (
	"context"
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/pkg/agent"
	"github.com/moorebus/moorebus/pkg/events"
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
	_, err := agent.New("task").LLM(scripted.NewMock()).Tool(badTool(t)).Build()
	require.ErrorAs(t, err, &bad)
	require.ErrorContains(t, err, `tool "broken": schema: invalid JSON Schema`)
	_, err = agent.New("task").LLM(scripted.NewMock()).OutputSchema(json.RawMessage(`{"properties":[]}`)).Build()
	require.ErrorAs(t, err, &bad)
	require.ErrorContains(t, err, "output schema: invalid JSON Schema")
}

// What names a tool that the agent does not have is a mistake, and so is an
// expression that cannot be evaluated.
func TestNamesAreCheckedWhenAnAgentIsBuilt(t *testing.T) {
	t.Parallel()
	agentWith := func() *agent.Builder {
		return agent.New("task").LLM(scripted.NewMock()).Tool(searchTool(t)).RemoteTools("bank/pay")
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
