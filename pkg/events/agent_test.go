package events_test

import (
	"encoding/json"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/pkg/events"
)

func agent(change func(*events.Agent)) events.Agent {
	a := events.DefaultAgent()
	a.Name, a.LLM.Provider = "researcher", "openai"
	change(&a)
	return a
}

func TestDefaultsAreThoseOfTheSpecification(t *testing.T) {
	a, err := agent(func(*events.Agent) {}).Resolve()
	require.NoError(t, err)
	require.Equal(t, events.ModeTask, a.Mode)
	require.Equal(t, events.Config{
		MaxSteps: 15, MaxRetries: 3, ConfidenceThreshold: 0.4, ReflectEveryNSteps: 5, MinAnswerLength: 1, ParallelTools: true,
		ContextWindowSize: 0, ExpandContextWindowSize: 10, PagingLimit: 4096, HardLimit: 8192, ThinkingLogEntries: 10, MaxDepth: 5,
	}, a.Config)

	a, err = agent(func(a *events.Agent) { a.Mode = events.ModeChat }).Resolve()
	require.NoError(t, err)
	require.Equal(t, 10, a.Config.ContextWindowSize)
	a, err = agent(func(a *events.Agent) { a.Mode, a.Config.ContextWindowSize = events.ModeChat, 0 }).Resolve()
	require.NoError(t, err)
	require.Equal(t, 0, a.Config.ContextWindowSize, "0 is off, also in chat mode")
	again, err := a.Resolve()
	require.NoError(t, err)
	require.Equal(t, a, again, "resolving twice changes nothing")
}

func TestAgentChecks(t *testing.T) {
	for key, change := range map[string]func(*events.Agent){
		"name":                              func(a *events.Agent) { a.Name = "" },
		"name ":                             func(a *events.Agent) { a.Name = "Has Upper" },
		"mode":                              func(a *events.Agent) { a.Mode = "batch" },
		"llm.provider":                      func(a *events.Agent) { a.LLM.Provider = "" },
		"config.max_steps":                  func(a *events.Agent) { a.Config.MaxSteps = 0 },
		"config.confidence_threshold":       func(a *events.Agent) { a.Config.ConfidenceThreshold = 1.1 },
		"config.confidence_threshold ":      func(a *events.Agent) { a.Config.ConfidenceThreshold = -0.1 },
		"config.confidence_threshold  ":     func(a *events.Agent) { a.Config.ConfidenceThreshold = math.NaN() },
		"config.max_retries":                func(a *events.Agent) { a.Config.MaxRetries = -1 },
		"config.reflect_every_n_steps":      func(a *events.Agent) { a.Config.ReflectEveryNSteps = -1 },
		"config.min_answer_length":          func(a *events.Agent) { a.Config.MinAnswerLength = -1 },
		"config.context_window_size":        func(a *events.Agent) { a.Config.ContextWindowSize = -2 },
		"config.expand_context_window_size": func(a *events.Agent) { a.Config.ExpandContextWindowSize = -1 },
		"config.paging_limit":               func(a *events.Agent) { a.Config.PagingLimit = -1 },
		"config.hard_limit":                 func(a *events.Agent) { a.Config.HardLimit = -1 },
		"config.thinking_log_entries":       func(a *events.Agent) { a.Config.ThinkingLogEntries = -1 },
		"config.max_iterations":             func(a *events.Agent) { a.Config.MaxIterations = -1 },
		"output_schema":                     func(a *events.Agent) { a.OutputSchema = json.RawMessage(`[]`) },
		"budget.max_input_tokens":           func(a *events.Agent) { a.Budget = &events.Budget{MaxInputTokens: -1} },
		"budget.max_cost_usd":               func(a *events.Agent) { a.Budget = &events.Budget{MaxCostUSD: math.NaN()} },
		"budget.max_cost_usd ":              func(a *events.Agent) { a.Budget = &events.Budget{MaxCostUSD: math.Inf(1)} },
		"budget.max_wall_time":              func(a *events.Agent) { a.Budget = &events.Budget{MaxWallTime: -1} },
		"approval.policy":                   func(a *events.Agent) { a.Approval = &events.Approval{Policy: "sometimes"} },
		"approval.risk":                     func(a *events.Agent) { a.Approval = &events.Approval{Policy: events.ApproveAbove, Risk: "mild"} },
		"approval.risk ":                    func(a *events.Agent) { a.Approval = &events.Approval{Policy: events.ApproveAbove} },
		"approval.risk  ":                   func(a *events.Agent) { a.Approval = &events.Approval{Policy: events.ApproveAtLeast} },
		"approval.tools":                    func(a *events.Agent) { a.Approval = &events.Approval{Policy: events.ApproveTools} },
		"approval.expr":                     func(a *events.Agent) { a.Approval = &events.Approval{Policy: events.ApproveExpr} },
		"approval.outcome_unknown": func(a *events.Agent) {
			a.Approval = &events.Approval{Policy: events.ApproveNever, OutcomeUnknown: "guess"}
		},
		"approval.expires": func(a *events.Agent) { a.Approval = &events.Approval{Policy: events.ApproveAlways, Expires: -1} },
	} {
		_, err := agent(change).Resolve()
		require.Error(t, err, key)
		require.Contains(t, err.Error(), trimRight(key)+":", "the error names the key")
	}
	for name, change := range map[string]func(*events.Agent){
		"limits off": func(a *events.Agent) {
			a.Config = events.Config{MaxSteps: 1}
		},
		"schema": func(a *events.Agent) { a.OutputSchema = json.RawMessage(`{"type":"object"}`) },
		"budget": func(a *events.Agent) {
			a.Budget = &events.Budget{MaxCostUSD: 2, MaxWallTime: events.Duration(time.Minute)}
		},
		"approval above":    func(a *events.Agent) { a.Approval = &events.Approval{Policy: events.ApproveAbove, Risk: "medium"} },
		"approval at_least": func(a *events.Agent) { a.Approval = &events.Approval{Policy: events.ApproveAtLeast, Risk: "high"} },
		"approval tools": func(a *events.Agent) {
			a.Approval = &events.Approval{Policy: events.ApproveTools, Tools: []string{"x"}}
		},
		"approval expr":  func(a *events.Agent) { a.Approval = &events.Approval{Policy: events.ApproveExpr, Expr: "true"} },
		"any tool names": func(a *events.Agent) { a.Tools = []string{"Weird Name"} },
	} {
		_, err := agent(change).Resolve()
		require.NoError(t, err, name)
	}
}

func trimRight(s string) string {
	for s[len(s)-1] == ' ' {
		s = s[:len(s)-1]
	}
	return s
}

func TestRisks(t *testing.T) {
	require.Equal(t, []string{"low", "medium", "high", "critical"}, events.Risks())
	for i, risk := range events.Risks() {
		rank, ok := events.RiskRank(risk)
		require.True(t, ok)
		require.Equal(t, i, rank)
	}
	rank, ok := events.RiskRank("")
	require.True(t, ok)
	require.Zero(t, rank)
	_, ok = events.RiskRank("Low")
	require.False(t, ok)
}

func TestDurations(t *testing.T) {
	var b events.Budget
	require.NoError(t, json.Unmarshal([]byte(`{"max_wall_time":"1h30m"}`), &b))
	require.Equal(t, 90*time.Minute, time.Duration(b.MaxWallTime))
	text, err := json.Marshal(b)
	require.NoError(t, err)
	require.JSONEq(t, `{"max_wall_time":"1h30m0s"}`, string(text))
	require.ErrorContains(t, json.Unmarshal([]byte(`{"max_wall_time":"soon"}`), &b), "soon")
}

func TestBudgetErrorsNameTheKey(t *testing.T) {
	t.Parallel()
	for says, b := range map[string]events.Budget{
		"max_input_tokens: must be an integer above 0, is -1":  {MaxInputTokens: -1},
		"max_output_tokens: must be an integer above 0, is -2": {MaxOutputTokens: -2},
		"max_total_tokens: must be an integer above 0, is -3":  {MaxTotalTokens: -3},
		"max_cost_usd: must be a number of US dollars above 0, is -0.5": {
			MaxCostUSD: -0.5,
		},
		"max_cost_usd: must be a number of US dollars above 0, is NaN":  {MaxCostUSD: math.NaN()},
		"max_cost_usd: must be a number of US dollars above 0, is +Inf": {MaxCostUSD: math.Inf(1)},
		"max_wall_time: must be a time above 0 such as 10m, is -1m0s":   {MaxWallTime: -events.Duration(time.Minute)},
	} {
		require.ErrorContains(t, b.Check(), says)
		a := events.DefaultAgent()
		a.Name, a.LLM.Provider, a.Budget = "a", "openai", &b
		_, err := a.Resolve()
		require.ErrorContains(t, err, "budget."+says)
	}
	require.NoError(t, (&events.Budget{MaxCostUSD: 1}).Check())
}

func TestNullOutputSchemaIsNone(t *testing.T) {
	t.Parallel()
	a := events.DefaultAgent()
	a.Name, a.LLM.Provider, a.OutputSchema = "a", "openai", json.RawMessage("null")
	resolved, err := a.Resolve()
	require.NoError(t, err)
	require.Empty(t, resolved.OutputSchema)
}

func TestTextAgents(t *testing.T) {
	plain, err := agent(func(*events.Agent) {}).Resolve()
	require.NoError(t, err)
	require.Nil(t, plain.Config.MaxInvalidReplies, "only who speaks the text protocol has the bound")

	a, err := agent(func(a *events.Agent) { a.LLM.Text = true }).Resolve()
	require.NoError(t, err)
	require.Equal(t, 5, a.Config.InvalidReplies())
	require.Equal(t, []int{1000, 0}, []int{a.Config.MaxIterations, plain.Config.MaxIterations}, "iterations are the text protocol's")
	require.NotNil(t, a.Config.MaxInvalidReplies, "what a run is started with does not follow a later default")

	zero := 0
	a, err = agent(func(a *events.Agent) { a.LLM.Text, a.Config.MaxInvalidReplies = true, &zero }).Resolve()
	require.NoError(t, err)
	require.Zero(t, a.Config.InvalidReplies(), "0 is off")

	a, err = agent(func(a *events.Agent) {
		a.LLM.Text, a.LLM.StatePrompts = true, map[string]string{"base": "b", "thinking": "t", "executing": "e"}
	}).Resolve()
	require.NoError(t, err)
	require.Len(t, a.LLM.StatePrompts, 3)
}

func TestTextAgentChecks(t *testing.T) {
	negative := -1
	for reason, change := range map[string]func(*events.Agent){
		`llm.state_prompts: "paging" is not a state; use base, thinking or executing`: func(a *events.Agent) {
			a.LLM.Text, a.LLM.StatePrompts = true, map[string]string{"paging": "?"}
		},
		"llm.state_prompts: is for the text protocol; write text: true as well": func(a *events.Agent) {
			a.LLM.StatePrompts = map[string]string{"base": "b"}
		},
		"config.max_invalid_replies: must not be negative, is -1": func(a *events.Agent) {
			a.LLM.Text, a.Config.MaxInvalidReplies = true, &negative
		},
	} {
		_, err := agent(change).Resolve()
		require.EqualError(t, err, reason)
	}
}

func TestThinkingTokensAreChecked(t *testing.T) {
	for _, c := range []struct {
		thinking, most int
		says           string
	}{
		{0, 0, ""},
		{0, 10, ""},
		{1024, 0, ""},
		{1024, 1025, ""},
		{1024, 1024, "must be less than max_tokens, which is 1024"},
		{1023, 0, "must be at least 1024"},
		{-1, 0, "must be at least 1024"},
	} {
		a := events.DefaultAgent()
		a.Name, a.LLM = "a", events.LLM{Provider: "anthropic", ThinkingTokens: c.thinking, MaxTokens: c.most}
		_, err := a.Resolve()
		if c.says == "" {
			require.NoError(t, err)
			continue
		}
		require.ErrorContains(t, err, "llm.thinking_tokens: ")
		require.ErrorContains(t, err, c.says)
	}
}

func TestClientToolsAreChecked(t *testing.T) {
	good := events.ClientTool{Name: "ask", Description: "Asks.", Schema: json.RawMessage(`{"type":"object"}`)}
	for says, change := range map[string]func(*events.ClientTool){
		"":                                      func(*events.ClientTool) {},
		"client_tools[1].name: \"a b\"":         func(c *events.ClientTool) { c.Name = "a b" },
		"client_tools[1].name: \"moorebus_x\"":  func(c *events.ClientTool) { c.Name = "moorebus_x" },
		"stands there twice":                    func(c *events.ClientTool) { c.Name = "first" },
		"client_tools[1].description":           func(c *events.ClientTool) { c.Description = "" },
		"client_tools[1].schema":                func(c *events.ClientTool) { c.Schema = json.RawMessage(`[]`) },
		"client_tools[1].risk: \"huge\"":        func(c *events.ClientTool) { c.Risk = "huge" },
		"above 0 and at most 720h, is -1s":      func(c *events.ClientTool) { c.Timeout = events.Duration(-time.Second) },
		"above 0 and at most 720h, is 720h0m1s": func(c *events.ClientTool) { c.Timeout = events.MaxClientTimeout + events.Duration(time.Second) },
	} {
		a, second := events.DefaultAgent(), good
		a.Name, a.LLM.Provider = "x", "scripted"
		change(&second)
		a.ClientTools = []events.ClientTool{{Name: "first", Description: "x", Schema: json.RawMessage(`{}`)}, second}
		_, err := a.Resolve()
		if says == "" {
			require.NoError(t, err)
			continue
		}
		require.ErrorContains(t, err, says)
	}
	a := events.DefaultAgent()
	a.Tools = []string{"client/ask"}
	require.ErrorContains(t, a.CheckNames(), "put the tool under client_tools")
}

func TestPatternsOfTools(t *testing.T) {
	t.Parallel()
	for ref, good := range map[string]bool{"git.*": true, "code/git.*": true, "list_*": true, "*": false, "code/*": false, "git.*.x": false, "**": false} {
		a := events.DefaultAgent()
		a.Tools = []string{ref}
		require.Equal(t, good, a.CheckNames() == nil, ref)
	}
}
