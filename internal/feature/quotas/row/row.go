// Package row is the row of quotas.
package row

import (
	"github.com/moorebus/moorebus/internal/feature/row"
	"github.com/moorebus/moorebus/internal/kv"
	"github.com/moorebus/moorebus/internal/meter"
	"github.com/moorebus/moorebus/internal/refusal"
)

// Bucket has all quotas under one key. So they are read at once, and each change is held against all of
// them.
var Bucket = kv.Bucket{Name: "quotas", About: "quotas of namespaces and agents", Keys: "all"}

// Lease is what the gateway has that admits queued runs.
const Lease = "admission"

// The metrics. Every gateway follows the queue; one at a time admits.
var (
	QueuedRuns = metric(meter.Gauge, "moorebus_quota_queued_runs", "Runs that are queued, by the quotas.")
	ActiveRuns = metric(meter.Gauge, "moorebus_quota_active_runs", "Runs that have a place, by the quotas.")
	Admitted   = metric(meter.Counter, "moorebus_quota_admitted_total", "Queued runs that this gateway admitted.")
	Refused    = metric(meter.Counter, "moorebus_quota_refused_total", "Starts that this gateway refused because the queue was full or the daily budget was used up.", meter.Label{Name: "code"})
	BudgetUsed = metric(meter.Gauge, "moorebus_quota_budget_used_ratio", "Share of its daily budget that a namespace has used, 1 for all of it; budget is tokens or cost.", meter.Label{Name: "budget"})
)

func metric(kind meter.Kind, name, help string, labels ...meter.Label) *meter.Metric {
	return &meter.Metric{Kind: kind, By: meter.Gateway, Name: name, Help: help, Labels: append([]meter.Label{meter.Tenant}, labels...)}
}

// CodeBadQuota is the error code.
const CodeBadQuota = "bad_quota"

// Row returns the row.
func Row() row.Row {
	return row.Row{
		Name: "quotas", Buckets: []kv.Bucket{Bucket}, Leases: []string{Lease},
		Metrics: []*meter.Metric{QueuedRuns, ActiveRuns, Admitted, Refused, BudgetUsed},
		Codes:   map[string]refusal.Meaning{CodeBadQuota: {Kinds: []refusal.Kind{refusal.Invalid}, Text: "The quota is malformed, or its scope is invalid."}},
	}
}
