// Package meter is what the code counts with. It has the names of the core's metrics, and knows
// nothing of who keeps the numbers or how they are served: package metrics does.
//
// A metric is a variable of this package ([All]), or of the row of a feature. Code below the wiring gets a [Meter], which
// may be nil, and counts with [Add], which then does nothing.
package meter

import (
	"context"
	"time"
)

// Kind is what a metric's numbers mean.
type Kind int

// The kinds: a sum that only grows, a value as it is now, a distribution of values.
const (
	Counter Kind = iota
	Gauge
	Histogram
)

// String names the kind as Prometheus does.
func (k Kind) String() string { return [...]string{"counter", "gauge", "histogram"}[k] }

// Label is one label of a metric.
type Label struct {
	Name string
	// Outside says that the values come from agents, tools, models or graphs, so that there
	// may be any number of them. A meter keeps [MaxValues] of them apart.
	Outside bool
}

// MaxValues is how many values of a label from outside are kept apart; the further ones are
// counted as [Other].
const (
	MaxValues = 200
	Other     = "other"
)

// MaxLabels is how many labels a metric has at most.
const MaxLabels = 4

// Values are the values of a metric's labels, in their order. Empty values are those of labels
// that it does not have, or that do not apply.
type Values [MaxLabels]string

// Metric is one metric: a name, and what its numbers mean.
type Metric struct {
	Kind Kind
	// Name is the name in the exposition, with its unit. Help is one sentence.
	Name, Help string
	Labels     []Label
	// Buckets are the upper bounds of a histogram.
	Buckets []float64
	// By says which processes have it.
	By string
}

// Emit takes one value of a gauge at the moment of a scrape.
type Emit func(m *Metric, value float64, of Values)

// Meter keeps numbers. It is safe for concurrent use.
type Meter interface {
	// Add adds to a counter, or notes a value of a histogram. It does not block.
	Add(m *Metric, value float64, of Values)
	// Read has read called at each scrape, for gauges. read ends soon after ctx does. What it
	// cannot tell it leaves out. Of several values of one series the largest counts.
	Read(read func(ctx context.Context, emit Emit))
}

// Add adds to a counter, or notes a value of a histogram. A nil meter counts nothing.
func Add(to Meter, m *Metric, value float64, of ...string) {
	if to == nil {
		return
	}
	var values Values
	copy(values[:], of)
	to.Add(m, value, values)
}

// Since notes the seconds since a time in a histogram. A nil meter counts nothing.
func Since(to Meter, m *Metric, began time.Time, of ...string) {
	if to != nil {
		Add(to, m, max(0, time.Since(began).Seconds()), of...)
	}
}

// conventional are the providers for which the GenAI conventions have another name.
var conventional = map[string]string{"gemini": "gcp.gemini", "mistral": "mistral_ai", "xai": "x_ai"}

// ProviderName returns a provider's name as the GenAI conventions of OpenTelemetry have it, for
// metrics and spans.
func ProviderName(provider string) string {
	if name, is := conventional[provider]; is {
		return name
	}
	return provider
}
