package all_test

import (
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/feature/all"
	"github.com/moorebus/moorebus/internal/feature/row"
	"github.com/moorebus/moorebus/internal/feature/rows"
)

// The tables that know only the rows know the rows of exactly the features that there are.
func TestEveryFeatureHasItsRow(t *testing.T) {
	var of []row.Row
	for _, f := range all.Features() {
		require.NotNil(t, f.New, f.Name)
		if bare := (row.Row{Name: f.Name}); !reflect.DeepEqual(bare, f.Row) {
			of = append(of, f.Row)
		}
	}
	require.Equal(t, rows.All(), of)
}

// A feature that is in no list is in no program.
func TestEveryFeatureIsInAList(t *testing.T) {
	gateways, err := os.ReadFile("all.go")
	require.NoError(t, err)
	commands, err := os.ReadFile("../../../cmd/moorebus/main.go")
	require.NoError(t, err)
	files, err := filepath.Glob("../*/*.go")
	require.NoError(t, err)
	found := 0
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		if strings.Contains(string(text), "\nfunc Feature() feature.Feature {") {
			found++
			require.Contains(t, string(gateways)+string(commands), filepath.Base(filepath.Dir(file))+".Feature()")
		}
	}
	require.Greater(t, found, len(all.Features()))
}

// A metric that is in no row is in no registry, so counting it would fail.
func TestEveryMetricIsInARow(t *testing.T) {
	files, err := filepath.Glob("../*/*/row.go")
	require.NoError(t, err)
	exported := regexp.MustCompile(`(?m)^(?:var |\t)([A-Z]\w*) += (?:&meter\.Metric\{|metric\()`)
	defined := 0
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, name := range exported.FindAllStringSubmatch(string(text), -1) {
			defined++
			require.Regexp(t, `Metrics: \[\]\*meter\.Metric\{[^}]*\b`+name[1]+`\b`, string(text), "%s: %s", file, name[1])
		}
	}
	listed := 0
	for _, r := range rows.All() {
		listed += len(r.Metrics)
	}
	require.Equal(t, listed, defined)
}
