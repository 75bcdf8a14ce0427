package approval_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/approval"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/reducer"
)

func TestRequired(t *testing.T) {
	call := events.Call{ID: "c1", Name: "pay", Arguments: `{"amount": 120, "to": "bob"}`}
	expr := func(text string) *events.Approval { return &events.Approval{Policy: events.ApproveExpr, Expr: text} }
	for name, c := range map[string]struct {
		policy   *events.Approval
		risk     string
		required bool
	}{
		"no policy":           {nil, "critical", false},
		"never":               {&events.Approval{Policy: events.ApproveNever}, "critical", false},
		"always":              {&events.Approval{Policy: events.ApproveAlways}, "low", true},
		"above, higher":       {&events.Approval{Policy: events.ApproveAbove, Risk: "medium"}, "high", true},
		"above, equal":        {&events.Approval{Policy: events.ApproveAbove, Risk: "medium"}, "medium", false},
		"above, unset is low": {&events.Approval{Policy: events.ApproveAbove, Risk: "low"}, "", false},
		"above, unknown risk": {&events.Approval{Policy: events.ApproveAbove, Risk: "critical"}, "odd", true},
		"at_least, higher":    {&events.Approval{Policy: events.ApproveAtLeast, Risk: "medium"}, "high", true},
		"at_least, equal":     {&events.Approval{Policy: events.ApproveAtLeast, Risk: "high"}, "high", true},
		"at_least, lower":     {&events.Approval{Policy: events.ApproveAtLeast, Risk: "high"}, "medium", false},
		"at_least low, unset": {&events.Approval{Policy: events.ApproveAtLeast, Risk: "low"}, "", true},
		"at_least, unknown":   {&events.Approval{Policy: events.ApproveAtLeast, Risk: "critical"}, "odd", true},
		"tools, named":        {&events.Approval{Policy: events.ApproveTools, Tools: []string{"pay"}}, "low", true},
		"tools, other":        {&events.Approval{Policy: events.ApproveTools, Tools: []string{"rm"}}, "low", false},
		"expr, true":          {expr(`tool == "pay" && arguments.amount > 100`), "low", true},
		"expr, false":         {expr(`arguments.amount > 1000`), "low", false},
		"expr over risk, run": {expr(`risk == "high" && run == "r1"`), "high", true},
	} {
		t.Run(name, func(t *testing.T) {
			reason, required, err := approval.New().Required(c.policy, call, reducer.ToolInfo{Risk: c.risk}, "r1")
			require.NoError(t, err)
			require.Equal(t, c.required, required)
			require.Equal(t, c.required, reason != "")
		})
	}
}

// A tool that asks waits under every policy, also one that cannot be evaluated,
// and the reason is its question.
func TestQuestionsAlwaysWait(t *testing.T) {
	for _, policy := range []*events.Approval{
		nil, {Policy: events.ApproveNever}, {Policy: events.ApproveTools, Tools: []string{"other"}}, {Policy: events.ApproveExpr, Expr: "amount +"},
	} {
		for arguments, want := range map[string]string{
			`{"question":"Which?"}`: "Which?", `{"question":7}`: "the tool asks a human", `{}`: "the tool asks a human", `no`: "the tool asks a human",
		} {
			reason, required, err := approval.New().Required(policy, events.Call{Name: "boss", Arguments: arguments}, reducer.ToolInfo{Asks: true}, "r1")
			require.NoError(t, err)
			require.True(t, required)
			require.Equal(t, want, reason)
		}
	}
}

func TestExpressionsThatFailAreErrors(t *testing.T) {
	_, _, err := approval.New().Required(&events.Approval{Policy: "of a later version"}, events.Call{}, reducer.ToolInfo{}, "")
	require.Error(t, err, "an unknown policy allows nothing")
	for _, text := range []string{"amount +", "arguments.amount", "1 + 1", "unknown == 1"} {
		policy := &events.Approval{Policy: events.ApproveExpr, Expr: text}
		_, required, err := approval.New().Required(policy, events.Call{Arguments: `{"amount": "x"}`}, reducer.ToolInfo{}, "")
		require.Error(t, err, text)
		require.False(t, required)
	}
	require.Error(t, approval.New().Check(&events.Approval{Policy: events.ApproveExpr, Expr: "amount +"}))
	require.NoError(t, approval.New().Check(&events.Approval{Policy: events.ApproveExpr, Expr: `tool == "x"`}))
	require.NoError(t, approval.New().Check(nil))
}
