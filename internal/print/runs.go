package print

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/moorebus/moorebus/internal/control/list"
	"github.com/moorebus/moorebus/pkg/events"
)

// Screen is what a list is written on. The zero value is no terminal.
type Screen struct {
	// Columns is the width of the terminal, 0 without one.
	Columns int
	// Color styles text.
	Color bool
	// Now is the time that others are told from.
	Now time.Time
}

// Runs writes a page of runs. On a terminal the table fits its width, states have shapes, and
// times are told from now. Without one the table has whole ids and times.
func Runs(w io.Writer, f Format, page list.Page, s Screen) error {
	switch {
	case f != Table:
		return Write(w, f, page)
	case s.Columns > 0:
		return s.runs(w, page.Runs)
	}
	rows := make([][]string, len(page.Runs))
	for i, r := range page.Runs {
		rows[i] = []string{
			r.RunID, stateText(r), strconv.FormatUint(r.N, 10), r.Agent,
			timestamp(r.Started), timestamp(r.Updated), Cut(r.Task, TaskWidth),
		}
	}
	return WriteTable(w, []string{"RUN", "STATE", "N", "AGENT", "STARTED", "UPDATED", "TASK"}, rows)
}

// stateText is a run's state in words.
func stateText(r list.Run) string {
	if r.Queued {
		return string(r.State) + " (queued)"
	}
	if r.Paused {
		return string(r.State) + " " + PausedFor(r.PauseReason)
	}
	if r.WaitsFor != nil {
		return string(r.State) + " (waits for pool " + Plain(r.WaitsFor.Pool) + ")"
	}
	return string(r.State)
}

// taskLeast is how many columns a task gets before other columns are omitted.
const taskLeast = 24

// runs writes the table that fits. The more it must leave out, the later it stands here.
func (s Screen) runs(w io.Writer, runs []list.Run) error {
	size := shortID(runs)
	id := s.column("RUN", runs, func(r list.Run) string { return r.RunID })
	short := s.column("RUN", runs, func(r list.Run) string { return r.RunID[:min(size, len(r.RunID))] })
	state := s.column("STATE", runs, func(r list.Run) string {
		text := StateShape(r.State) + " " + stateText(r)
		switch {
		case r.Error != "":
			text += ": " + r.Error
		case r.Waiting == list.WaitingClient: // other states say it
			text += ", for its client"
		}
		return text
	})
	cost := s.column("COST", runs, func(r list.Run) string {
		if r.CostUSD == 0 {
			return "-"
		}
		return dollars(&r.CostUSD)
	})
	n := s.column("N", runs, func(r list.Run) string { return strconv.FormatUint(r.N, 10) })
	agent := s.column("AGENT", runs, func(r list.Run) string { return r.Agent })
	started := s.column("STARTED", runs, func(r list.Run) string { return Ago(s.Now, r.Started) })
	updated := s.column("UPDATED", runs, func(r list.Run) string { return Ago(s.Now, r.Updated) })
	shape := s.column("", runs, func(r list.Run) string { return StateShape(r.State) })
	var columns []column
	left := 0
	for _, columns = range [][]column{
		{id, state, n, cost, agent, started, updated}, {short, state, n, cost, agent, started, updated},
		{short, state, agent, updated}, {short, state, agent}, {short, state}, {short, shape},
	} {
		left = s.Columns - 1 // some terminals wrap after the last column
		for _, c := range columns {
			left -= c.width + 2
		}
		if left >= taskLeast {
			break
		}
	}
	var b bytes.Buffer
	for i := range len(runs) + 1 {
		task := "TASK"
		if i > 0 {
			task = Fit(runs[i-1].Task, left)
		}
		for _, c := range columns {
			b.WriteString(c.cell(i) + "  ")
		}
		b.WriteString(task + "\n")
	}
	_, err := w.Write(b.Bytes())
	return err
}

// column is a column of a table, with its heading as the first cell.
type column struct {
	cells []string
	width int
	style func(i int, text string) string
}

func (s Screen) column(heading string, runs []list.Run, cell func(list.Run) string) column {
	c := column{cells: []string{heading}}
	for _, r := range runs {
		c.cells = append(c.cells, Plain(cell(r)))
	}
	for _, text := range c.cells {
		c.width = max(c.width, utf8.RuneCountInString(text))
	}
	p := Palette{s.Color}
	c.style = func(i int, text string) string {
		switch {
		case i == 0:
			return p.Faint(text)
		case strings.HasPrefix(text, StateShape(runs[i-1].State)):
			return p.State(runs[i-1].State, text)
		}
		return text
	}
	return c
}

// cell returns the i-th cell as wide as the column.
func (c column) cell(i int) string { return c.style(i, Pad(c.cells[i], c.width)) }

// shortestID is the length of the part of an id that is its time.
const shortestID = 13

// shortID returns how many characters tell the ids of runs apart.
func shortID(runs []list.Run) int {
	ids := make([]string, len(runs))
	for i, r := range runs {
		ids[i] = r.RunID
	}
	slices.Sort(ids)
	size := shortestID
	for i := 1; i < len(ids); i++ {
		same := 0
		for same < min(len(ids[i-1]), len(ids[i])) && ids[i-1][same] == ids[i][same] {
			same++
		}
		size = max(size, same+1)
	}
	return size
}

// StateShape returns the sign of a state, the same as in the console.
func StateShape(s events.State) string {
	switch s {
	case events.Idle:
		return "○"
	case events.Planning:
		return "◇"
	case events.Acting:
		return "▶"
	case events.ParallelActing:
		return "⊪"
	case events.Observing:
		return "◎"
	case events.Reflecting:
		return "↻"
	case events.WaitingForHuman, events.WaitingForUser:
		return "‖"
	case events.Done:
		return "✓"
	case events.Errored:
		return "✗"
	case events.Cancelled:
		return "⊘"
	}
	return "□"
}

// Ago says how long before now a time was, or after a month its date; "-" for the zero time.
func Ago(now, at time.Time) string {
	d := now.Sub(at)
	switch {
	case at.IsZero():
		return "-"
	case d < time.Minute:
		return fmt.Sprintf("%ds ago", max(0, int(d.Seconds())))
	case d < time.Hour:
		return fmt.Sprintf("%dm ago", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh ago", int(d.Hours()))
	case d < 30*24*time.Hour:
		return fmt.Sprintf("%dd ago", int(d.Hours()/24))
	}
	return at.Local().Format(time.DateOnly)
}
