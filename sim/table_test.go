package sim

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// TestLivenessTable holds ARCHITECTURE.md's table, the cases of TestLiveness and
// the built-in transition table together: a row without a case, a case without a
// row, and an event or a transition that nobody thought of are failures.
func TestLivenessTable(t *testing.T) {
	rows := livenessRows(t)
	for _, c := range livenessCases {
		if !contains(rows, c.row) {
			t.Errorf("the case %q is for a row %q that ARCHITECTURE.md does not have", c.title(), c.row)
		}
	}
	for _, row := range rows {
		for _, kind := range named(row) {
			if !hasCase(func(c *livenessCase) bool { return c.row == row && (c.event == kind || kind == "") }) {
				t.Errorf("the row %q of ARCHITECTURE.md has no case for %s: add one to livenessCases", row, kind)
			}
		}
	}
	for _, kind := range vocabulary() {
		if !slices.ContainsFunc(rows, func(row string) bool { return contains(named(row), kind) }) {
			t.Errorf("ARCHITECTURE.md has no row for %s under \"Who continues a run when a process dies\"", kind)
		}
	}
	for _, tr := range reducer.DefaultTable().Spec().Rows {
		if !hasCase(func(c *livenessCase) bool { return c.event == tr.Event && (c.from == tr.From || tr.From == "") }) {
			t.Errorf("no case has %s in %s: add one to livenessCases", tr.Event, tr.From)
		}
	}
}

func hasCase(is func(*livenessCase) bool) bool { return slices.ContainsFunc(livenessCases, is) }

// named returns the event types that a row is for; one that is empty where it
// is for something else.
func named(row string) []events.Type {
	var kinds []events.Type
	for _, word := range regexp.MustCompile(`[A-Za-z]+`).FindAllString(row, -1) {
		if contains(vocabulary(), events.Type(word)) {
			kinds = append(kinds, events.Type(word))
		}
	}
	if kinds == nil {
		return []events.Type{""}
	}
	return kinds
}

// livenessRows returns the first cells of the table.
func livenessRows(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile("../ARCHITECTURE.md")
	require.NoError(t, err)
	_, section, found := strings.Cut(string(text), "\n## Who continues a run when a process dies\n")
	require.True(t, found, "ARCHITECTURE.md has no section \"Who continues a run when a process dies\"")
	section, _, _ = strings.Cut(section, "\n## ")
	var rows []string
	for line := range strings.Lines(section) {
		if cells := strings.Split(line, "|"); len(cells) > 2 {
			rows = append(rows, strings.TrimSpace(cells[1]))
		}
	}
	require.Greater(t, len(rows), 2, "the table is empty")
	return rows[2:] // without its head
}
