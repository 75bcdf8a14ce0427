// Package row is what the tables of an installation have of a feature. Rows are data alone, so every
// program may know them: a planner announces itself on the same bus and links no feature.
package row

import (
	"github.com/moorebus/moorebus/internal/kv"
	"github.com/moorebus/moorebus/internal/meter"
	"github.com/moorebus/moorebus/internal/refusal"
)

// Row is what a feature adds to the tables. `moorebus init` makes its buckets, and gateways may use
// them.
type Row struct {
	Name    string
	Buckets []kv.Bucket
	// Leases are the names of those that gateways take.
	Leases []string
	// Alarms says that gateways consume the alarms of the bus for it, and that its buckets are what
	// starts runs then.
	Alarms bool
	// Metrics are what gateways count of it.
	Metrics []*meter.Metric
	// Codes are the error codes of its requests, with their meanings.
	Codes map[string]refusal.Meaning
	// Filters are those that it adds to the list of runs. The feature says what they match when it is made:
	// list.Lister.Filter.
	Filters []Filter
}
