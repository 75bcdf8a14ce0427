package metrics_test

import (
	"encoding/json"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/moorebus/moorebus/internal/feature/rows"
	"github.com/moorebus/moorebus/internal/meter"
)

type alert struct {
	Alert       string            `yaml:"alert"`
	Expr        string            `yaml:"expr"`
	Annotations map[string]string `yaml:"annotations"`
}

// alerts reads deploy/prometheus/alerts.yml.
func alerts(t *testing.T) []alert {
	t.Helper()
	text, err := os.ReadFile("../../deploy/prometheus/alerts.yml")
	require.NoError(t, err)
	var file struct {
		Groups []struct {
			Rules []alert `yaml:"rules"`
		} `yaml:"groups"`
	}
	require.NoError(t, yaml.Unmarshal(text, &file))
	require.Len(t, file.Groups, 1)
	return file.Groups[0].Rules
}

// names are what a query may name: metrics, with the suffixes of histograms, and labels.
func names(t *testing.T) map[string]bool {
	t.Helper()
	all := map[string]bool{}
	for _, m := range rows.Metrics() {
		all[m.Name] = true
		if m.Kind == meter.Histogram {
			all[m.Name+"_bucket"], all[m.Name+"_sum"], all[m.Name+"_count"] = true, true, true
		}
		for _, l := range m.Labels {
			all[l.Name] = true
		}
	}
	_, own := scrape(t, everything())
	for name := range own {
		all[name] = true
	}
	return all
}

var named = regexp.MustCompile(`\b(moorebus|gen_ai|go|process)_[a-z0-9_]+`)

// Every metric in a query of the alerts and the dashboard is there, and every metric is in one
// of them.
func TestQueriesNameMetrics(t *testing.T) {
	known := names(t)
	dashboard, err := os.ReadFile("../../deploy/grafana/moorebus.json")
	require.NoError(t, err)
	var board struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	require.NoError(t, json.Unmarshal(dashboard, &board))
	var queries []string
	for _, p := range board.Panels {
		for _, target := range p.Targets {
			require.NotEmpty(t, target.Expr, p.Title)
			queries = append(queries, target.Expr)
		}
	}
	require.Greater(t, len(queries), 40)
	for _, a := range alerts(t) {
		queries = append(queries, a.Expr)
	}
	for _, q := range queries {
		for _, name := range named.FindAllString(q, -1) {
			require.True(t, known[name], "%s in %s", name, q)
		}
	}
	all := strings.Join(queries, "\n")
	for _, m := range rows.Metrics() {
		if m != meter.Build && m != meter.GatewayAdded && m != meter.GatewayRuns {
			require.Contains(t, all, m.Name)
		}
	}
}

// Every alert has an entry in the runbook with its three parts, and every entry an alert.
func TestRunbookHasEveryAlert(t *testing.T) {
	text, err := os.ReadFile("../../docs/operations/runbook.md")
	require.NoError(t, err)
	_, entries, found := strings.Cut(string(text), "\n## Alerts\n")
	require.True(t, found)
	book := map[string]string{}
	for _, entry := range strings.Split(entries, "\n### ")[1:] {
		name, body, _ := strings.Cut(entry, "\n")
		book[name] = body
	}
	for _, a := range alerts(t) {
		for _, part := range []string{"**Meaning:**", "**Look:**", "**Do:**"} {
			require.Contains(t, book[a.Alert], part, a.Alert)
		}
		require.Equal(t, "docs/operations/runbook.md#"+strings.ToLower(a.Alert), a.Annotations["runbook"])
		require.NotEmpty(t, a.Annotations["summary"])
		delete(book, a.Alert)
	}
	require.Empty(t, book, "entries without an alert")
}
