package subagent

import (
	"time"

	"github.com/moorebus/moorebus/internal/effects"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// share is how much of its run's budget a call may use. A limit of 0 is none. The calls of
// a reply that agents answer get equal parts of what is left. What one of them leaves goes
// to those that have not begun.
type share struct {
	budget events.Budget
	// deadline is when the run's time is up. It is not divided, since calls run side by
	// side. Zero: never.
	deadline time.Time
	// spent names the first limit that is used up; empty: none.
	spent string
}

// shareOf returns the share of one of the run's open calls.
func shareOf(mem *reducer.Memory) share {
	s := share{}
	if at, limited := effects.Deadline(mem); limited {
		s.deadline = at
	}
	b := mem.Budget
	if b == nil {
		return s
	}
	parts, used := max(1, len(mem.Delegated())), mem.TotalUsage
	s.budget.MaxInputTokens = s.part("input_tokens", b.MaxInputTokens, used.Input, parts)
	s.budget.MaxOutputTokens = s.part("output_tokens", b.MaxOutputTokens, used.Output, parts)
	s.budget.MaxTotalTokens = s.part("total_tokens", b.MaxTotalTokens, used.Total, parts)
	if b.MaxCostUSD > 0 {
		s.budget.MaxCostUSD = (b.MaxCostUSD - used.Cost) / float64(parts)
		if s.budget.MaxCostUSD <= 0 {
			s.spend("cost")
		}
	}
	return s
}

// part returns one of the equal parts of what is left under a limit.
func (s *share) part(name string, limit, used, parts int) int {
	if limit <= 0 {
		return 0
	}
	left := (limit - used) / parts
	if left <= 0 {
		s.spend(name)
	}
	return left
}

func (s *share) spend(name string) {
	if s.spent == "" {
		s.spent = name
	}
}

// within returns an agent's own budget, lowered to the share; nil if nothing bounds the
// run. A timeout that is not 0 bounds its time. It returns false if the time is up.
func (s *share) within(own *events.Budget, timeout time.Duration, now time.Time) (*events.Budget, bool) {
	b := events.Budget{}
	if own != nil {
		b = *own
	}
	b.MaxInputTokens = lower(b.MaxInputTokens, s.budget.MaxInputTokens)
	b.MaxOutputTokens = lower(b.MaxOutputTokens, s.budget.MaxOutputTokens)
	b.MaxTotalTokens = lower(b.MaxTotalTokens, s.budget.MaxTotalTokens)
	b.MaxCostUSD = lower(b.MaxCostUSD, s.budget.MaxCostUSD)
	b.MaxWallTime = lower(b.MaxWallTime, events.Duration(timeout))
	if !s.deadline.IsZero() {
		left := s.deadline.Sub(now)
		if left <= 0 {
			return nil, false
		}
		b.MaxWallTime = lower(b.MaxWallTime, events.Duration(left))
	}
	if b == (events.Budget{}) {
		return nil, true
	}
	return &b, true
}

// lower returns the lower of two limits. 0 is no limit.
func lower[T int | float64 | events.Duration](a, b T) T {
	if a <= 0 || b <= 0 {
		return max(a, b)
	}
	return min(a, b)
}
