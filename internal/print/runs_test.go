package print

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/control/list"
	"github.com/moorebus/moorebus/internal/terminal"
	"github.com/moorebus/moorebus/pkg/events"
)

var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func onScreen(t *testing.T, runs []list.Run, s Screen) string {
	t.Helper()
	var b bytes.Buffer
	s.Now = now
	require.NoError(t, Runs(&b, Table, list.Page{Runs: runs}, s))
	return b.String()
}

func somePage() []list.Run {
	return []list.Run{
		{RunID: "0198c5a0-5a6b-7c00-8000-000000000001", State: events.Done, N: 5, CostUSD: 0.0123, Agent: "reporter", Task: "Sum up\nthe invoices of the last month", Started: now.Add(-3 * time.Hour), Updated: now.Add(-90 * time.Second)},
		{RunID: "0198c5a0-5a6b-7d00-8000-000000000001", State: events.WaitingForHuman, N: 12, Agent: "payer", Task: strings.Repeat("日本", 100), Started: now, Updated: now},
		{RunID: "0198c5a1-5a6b-7d00-8000-000000000001", State: "sorting", Waiting: list.WaitingClient, Agent: "\x1b[31mred", Task: "\x1b]0;owned\x07"},
	}
}

func TestRunsFitTheTerminal(t *testing.T) {
	require.Equal(t, `RUN                                   STATE                      N   COST     AGENT        STARTED  UPDATED  TASK
0198c5a0-5a6b-7c00-8000-000000000001  ✓ done                     5   $0.0123  reporter     3h ago   1m ago   Sum up the invoices of the l…
0198c5a0-5a6b-7d00-8000-000000000001  ‖ waiting_for_human        12  -        payer        0s ago   0s ago   日本日本日本日本日本日本日本…
0198c5a1-5a6b-7d00-8000-000000000001  □ sorting, for its client  0   -        \x1b[31mred  -        -        \x1b]0;owned\x07
`, onScreen(t, somePage(), Screen{Columns: 139}))
	require.Equal(t, `RUN               STATE                      AGENT        TASK
0198c5a0-5a6b-7c  ✓ done                     reporter     Sum up the invoices of the…
0198c5a0-5a6b-7d  ‖ waiting_for_human        payer        日本日本日本日本日本日本日…
0198c5a1-5a6b-7d  □ sorting, for its client  \x1b[31mred  \x1b]0;owned\x07
`, onScreen(t, somePage(), Screen{Columns: 86}))
	for columns := range 200 {
		for _, line := range strings.Split(onScreen(t, somePage(), Screen{Columns: columns + 1}), "\n") {
			width := 0
			for _, r := range line {
				if w := terminal.Width(r); r > 0x3000 {
					width += w
				} else if w > 0 {
					width++ // the shapes and … are as wide as letters
				}
			}
			if columns >= 46 {
				require.LessOrEqual(t, width, columns, "%q", line)
			}
			require.NotContains(t, line, "\x1b")
		}
	}
}

func TestRunsInColour(t *testing.T) {
	got := onScreen(t, somePage(), Screen{Columns: 90, Color: true})
	require.Contains(t, got, terminal.Style("32", Pad("✓ done", 25)))
	require.Contains(t, got, terminal.Style("33", Pad("‖ waiting_for_human", 25)))
	require.Contains(t, got, "  reporter ", "only states have a colour")
}

func TestAgo(t *testing.T) {
	for want, ago := range map[string]time.Duration{
		"0s ago": -time.Hour, "59s ago": 59 * time.Second, "59m ago": time.Hour - 1, "47h ago": 48*time.Hour - 1, "29d ago": 30*24*time.Hour - 1,
	} {
		require.Equal(t, want, Ago(now, now.Add(-ago)))
	}
	require.Equal(t, "-", Ago(now, time.Time{}))
	require.Equal(t, "2025-11-01", Ago(now, time.Date(2025, 11, 1, 12, 0, 0, 0, time.Local)))
}
