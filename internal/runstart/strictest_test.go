package runstart_test

import (
	"encoding/json"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/refusal"
	"github.com/moorebus/moorebus/internal/runstart"
	"github.com/moorebus/moorebus/pkg/events"
)

// While the actors of a pool are replaced, a run pins the strictest of what they announce, in
// whichever order they do.
func TestPinWhileActorsAreReplaced(t *testing.T) {
	pays, many := &events.Approval{Policy: events.ApproveExpr, Expr: "arguments.n > 1"}, &events.Approval{Policy: events.ApproveExpr, Expr: "arguments.n > 2"}
	always, never := &events.Approval{Policy: events.ApproveAlways}, &events.Approval{Policy: events.ApproveNever}
	say := func(risk, effect string, asks bool, a *events.Approval) events.ToolSpec {
		return events.ToolSpec{Name: "pay", Schema: json.RawMessage(`{}`), Pool: "bank", Risk: risk, Effect: effect, Asks: asks, Approval: a}
	}
	low := say("low", "idempotent", false, nil)
	for name, c := range map[string]struct {
		said []events.ToolSpec
		want events.ToolSpec // no risk: the start is refused
	}{
		"risk and class":             {[]events.ToolSpec{low, say("high", "once", false, nil)}, say("high", "once", false, nil)},
		"risk of one, class of both": {[]events.ToolSpec{say("low", "once", false, nil), say("medium", "pure", false, nil), low}, say("medium", "once", false, nil)},
		"an unknown risk":            {[]events.ToolSpec{say("dreadful", "pure", false, nil), say("critical", "pure", false, nil)}, say("dreadful", "pure", false, nil)},
		"a tool that asks":           {[]events.ToolSpec{say("low", "pure", true, nil), say("high", "pure", false, nil)}, say("high", "pure", true, nil)},
		"an approval":                {[]events.ToolSpec{say("low", "idempotent", false, pays), say("high", "once", false, nil)}, say("high", "once", false, pays)},
		"never is no approval":       {[]events.ToolSpec{say("high", "once", false, never), say("low", "pure", false, pays)}, say("high", "once", false, pays)},
		"one approval":               {[]events.ToolSpec{say("low", "pure", false, pays), say("high", "pure", false, pays)}, say("high", "pure", false, pays)},
		"always":                     {[]events.ToolSpec{say("low", "pure", false, pays), say("high", "pure", false, always)}, say("high", "pure", false, always)},
		"two approvals":              {[]events.ToolSpec{say("low", "pure", false, pays), say("low", "pure", false, many)}, events.ToolSpec{}},
	} {
		t.Run(name, func(t *testing.T) {
			onPad(t, func(t *testing.T, p *pad) {
				for range 2 {
					slices.Reverse(c.said)
					for i, spec := range c.said {
						require.NoError(t, p.Directory().Announce(t.Context(), "bank", string(rune('a'+i)), []events.ToolSpec{spec}))
					}
					time.Sleep(2 * time.Second) // in the bubble
					pay := worker(func(a *events.Agent) { a.Tools = []string{"pay"} })
					tools, err := p.Tools(t.Context(), &pay, nil)
					if c.want.Risk == "" {
						var refused *refusal.Error
						require.ErrorAs(t, err, &refused)
						require.Equal(t, refusal.CodePending, refused.Code)
						require.Positive(t, refused.RetryAfter)
						require.Contains(t, refused.Message, "bank")
						continue
					}
					require.NoError(t, err)
					require.Equal(t, []events.ToolSpec{c.want}, tools)
				}
			})
		})
	}
}

// Two pools whose files ask for different approvals have different tools, whatever their order.
func TestPoolsWithDifferentApprovals(t *testing.T) {
	onPad(t, func(t *testing.T, p *pad) {
		spec := events.ToolSpec{Name: "pay", Effect: "once", Risk: "high"}
		for _, pool := range []string{"attic", "bank"} {
			spec.Pool = pool
			require.NoError(t, p.Directory().Announce(t.Context(), pool, "a", []events.ToolSpec{spec}))
			spec.Approval = &events.Approval{Policy: events.ApproveAlways}
		}
		_, err := p.Pin(t.Context(), worker(func(a *events.Agent) { a.Tools = []string{"pay"} }), runstart.Task{Text: "Pay."})
		require.True(t, refusal.Is(err, refusal.CodeAmbiguousTool), "%v", err)
	})
}
