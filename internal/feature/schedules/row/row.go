// Package row is the row of schedules.
package row

import (
	"github.com/moorebus/moorebus/internal/feature/row"
	"github.com/moorebus/moorebus/internal/kv"
	"github.com/moorebus/moorebus/internal/meter"
	"github.com/moorebus/moorebus/internal/refusal"
)

// Bucket has the schedules.
var Bucket = kv.Bucket{Name: "schedules", About: "schedules of runs", Keys: "*.*"}

// Firings is the metric.
var Firings = &meter.Metric{
	Kind: meter.Counter, By: meter.Gateway, Name: "moorebus_schedule_firings_total", Labels: []meter.Label{meter.Outcome},
	Help: "Firings of schedules that this gateway settled: started, failed, skipped or missed.",
}

// The error codes.
const (
	CodeBadSchedule      = "bad_schedule"
	CodeScheduleNotFound = "schedule_not_found"
)

// Row returns the row.
func Row() row.Row {
	return row.Row{
		Name: "schedules", Buckets: []kv.Bucket{Bucket}, Alarms: true, Metrics: []*meter.Metric{Firings},
		Codes: map[string]refusal.Meaning{
			CodeBadSchedule:      {Kinds: []refusal.Kind{refusal.Invalid}, Text: "The schedule is malformed: its times, its time zone or one of its rules."},
			CodeScheduleNotFound: {Kinds: []refusal.Kind{refusal.NotFound}, Text: "No schedule of this name is stored in the namespace."},
		},
	}
}
