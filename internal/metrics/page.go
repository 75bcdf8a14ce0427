package metrics

import (
	"fmt"
	"strings"

	"github.com/moorebus/moorebus/internal/feature/rows"
	"github.com/moorebus/moorebus/internal/meter"
)

// Page returns docs/metrics.md: every metric with its type, labels and meaning.
func Page() string {
	var b strings.Builder
	fmt.Fprintf(&b, `# Metrics

<!-- go test ./internal/metrics -update writes this page from internal/meter/names.go and the rows of features. -->

Every role serves these metrics for Prometheus at /metrics of --metrics-listen ADDRESS (MOOREBUS_METRICS_LISTEN). The gateway, `+"`moorebus dev`"+` and the HTTP handler of a Go program serve them with the HTTP API as well. [The runbook](operations/runbook.md) says what to watch.

No label has the id of a run. The values of a label marked * come from agents, tools, models or graphs: a process counts the first %d of them separately, and the others together as %q. A metric has at most %d series in a process.

The metrics of the Go runtime (go_…) and of the process (process_…) come from the Prometheus client for Go.

| metric | type | labels | served by | meaning |
|---|---|---|---|---|
`, meter.MaxValues, meter.Other, maxSeries)
	for _, m := range rows.Metrics() {
		labels := make([]string, len(m.Labels))
		for i, l := range m.Labels {
			if labels[i] = l.Name; l.Outside {
				labels[i] += "*"
			}
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s |\n", m.Name, m.Kind, strings.Join(labels, ", "), m.By, m.Help)
	}
	return b.String()
}
