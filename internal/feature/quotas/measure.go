package quotas

import (
	"context"
	"strings"

	"github.com/moorebus/moorebus/internal/feature/quotas/row"
	"github.com/moorebus/moorebus/internal/meter"
)

func (a *Admission) count(m *meter.Metric, of ...string) {
	meter.Add(a.runs.Store.Meter(), m, 1, of...)
}

// measure tells a scrape how the quotas are used.
func (a *Admission) measure(_ context.Context, emit meter.Emit) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.follows {
		for scope := range a.all {
			if ns, _, ofAgent := strings.Cut(scope, "."); !ofAgent && ns != Bus {
				emit(row.ActiveRuns, 0, meter.Values{ns}) // the largest value counts
				emit(row.QueuedRuns, 0, meter.Values{ns})
			}
		}
		for ns := range a.queue.spaces {
			active, waiting := a.queue.counts(ns)
			emit(row.ActiveRuns, float64(active), meter.Values{ns})
			emit(row.QueuedRuns, float64(waiting), meter.Values{ns})
		}
	}
	for ns, u := range a.usage {
		d := a.all[ns].Daily
		if d == nil {
			continue
		}
		if d.Tokens > 0 {
			emit(row.BudgetUsed, float64(u.used.Input+u.used.Output)/float64(d.Tokens), meter.Values{ns, "tokens"})
		}
		if d.CostUSD > 0 && u.used.CostUSD != nil {
			emit(row.BudgetUsed, *u.used.CostUSD/d.CostUSD, meter.Values{ns, "cost"})
		}
	}
}
