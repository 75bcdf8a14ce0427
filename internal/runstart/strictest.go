package runstart

import (
	"cmp"
	"reflect"
	"slices"

	"github.com/moorebus/moorebus/pkg/events"
)

// strictest returns one announcement of a tool for each pool. The actors of a pool may differ while
// they are replaced, by another build or with another tool file. A call may reach any of them, so
// a run pins the strictest of what they say. unclear is a pool whose actors have approvals of
// which neither is known to be the stricter.
func strictest(found []events.ToolSpec) (one []events.ToolSpec, unclear string) {
	for _, t := range found {
		i := slices.IndexFunc(one, func(o events.ToolSpec) bool { return o.Pool == t.Pool })
		if i < 0 {
			one = append(one, t)
			continue
		}
		var clear bool
		if one[i], clear = stricter(one[i], t); !clear {
			return one, t.Pool
		}
	}
	return one, ""
}

// stricter joins two announcements of one pool: the one of the higher risk and class, with all
// that is stricter in the other. It returns false if it cannot tell which approval is.
func stricter(a, b events.ToolSpec) (events.ToolSpec, bool) {
	if cmp.Or(cmp.Compare(riskRank(b.Risk), riskRank(a.Risk)), cmp.Compare(effectRank(b.Effect), effectRank(a.Effect))) > 0 {
		a, b = b, a
	}
	if effectRank(b.Effect) > effectRank(a.Effect) {
		a.Effect = b.Effect
	}
	a.Asks = a.Asks || b.Asks
	switch asks, also := asking(a.Approval), asking(b.Approval); {
	case !also, reflect.DeepEqual(a.Approval, b.Approval):
	case !asks, b.Approval.Policy == events.ApproveAlways:
		a.Approval = b.Approval
	case a.Approval.Policy != events.ApproveAlways:
		return a, false
	}
	return a, true
}

// asking reports whether a policy can ask a human.
func asking(a *events.Approval) bool { return a != nil && a.Policy != events.ApproveNever }

// riskRank is [events.RiskRank], with an unknown risk above all others: it always asks.
func riskRank(risk string) int {
	if rank, known := events.RiskRank(risk); known {
		return rank
	}
	return len(events.Risks())
}

// effectRank returns the place of a class among them, the strictest last.
func effectRank(effect string) int {
	if i := slices.Index([]string{"pure", "idempotent"}, effect); i >= 0 {
		return i
	}
	return 2
}
