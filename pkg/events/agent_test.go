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
