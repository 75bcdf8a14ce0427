// Package rows is the list of the features' rows, for the tables that are made of them.
package rows

import (
	"maps"

	"github.com/moorebus/moorebus/internal/buckets"
	clienttools "github.com/moorebus/moorebus/internal/feature/clienttools/row"
	history "github.com/moorebus/moorebus/internal/feature/history/row"
	quotas "github.com/moorebus/moorebus/internal/feature/quotas/row"
	"github.com/moorebus/moorebus/internal/feature/row"
	schedules "github.com/moorebus/moorebus/internal/feature/schedules/row"
	"github.com/moorebus/moorebus/internal/feature/storage/entrystore"
	webhooks "github.com/moorebus/moorebus/internal/feature/webhooks/row"
	"github.com/moorebus/moorebus/internal/kv"
	"github.com/moorebus/moorebus/internal/meter"
	"github.com/moorebus/moorebus/internal/refusal"
)

// All returns the rows of all features, in the order in which their buckets are made.
func All() []row.Row {
	return []row.Row{schedules.Row(), webhooks.Row(), quotas.Row(), entrystore.Row(), clienttools.Row(), history.Row()}
}

// Buckets returns the buckets that an installation with these pools has from its beginning.
func Buckets(pools []string) []kv.Bucket {
	var features []kv.Bucket
	for _, r := range All() {
		features = append(features, r.Buckets...)
	}
	return buckets.All(pools, features)
}

// Metrics returns every metric, those of the core first.
func Metrics() []*meter.Metric {
	all := meter.All()
	for _, r := range All() {
		all = append(all, r.Metrics...)
	}
	return all
}

// Meanings returns every error code with its meaning.
func Meanings() map[string]refusal.Meaning {
	all := refusal.Meanings()
	for _, r := range All() {
		maps.Copy(all, r.Codes)
	}
	return all
}

// Filters returns the filters of the list of runs that features have.
func Filters() []row.Filter {
	var all []row.Filter
	for _, r := range All() {
		all = append(all, r.Filters...)
	}
	return all
}
