package schedules

import (
	"cmp"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/moorebus/moorebus/internal/print"
)

// firingTime formats a time as the schedule's time zone has it, else as UTC.
func firingTime(d Definition, t time.Time) string {
	if t.IsZero() {
		return ""
	}
	zone, err := time.LoadLocation(d.TZ)
	if err != nil {
		zone = time.UTC
	}
	return t.In(zone).Format("2006-01-02 15:04:05 MST")
}

func timesText(d Definition) string {
	if d.Every != 0 {
		return "every " + time.Duration(d.Every).String()
	}
	return strings.TrimSpace(d.Cron + " " + d.TZ)
}

// writeAll writes schedules with their next and last firings.
func writeAll(w io.Writer, f print.Format, all []Schedule) error {
	if f != print.Table {
		return print.Write(w, f, all)
	}
	rows := make([][]string, len(all))
	for i, s := range all {
		var next, last string
		if s.Paused {
			next = "paused"
		} else if len(s.Next) > 0 {
			next = firingTime(s.Definition, s.Next[0])
		}
		if len(s.History) > 0 {
			last = string(s.History[0].Outcome) + " " + firingTime(s.Definition, s.History[0].At)
		}
		rows[i] = []string{s.Name, timesText(s.Definition), s.Agent, next, last}
	}
	return print.WriteTable(w, []string{"NAME", "TIMES", "AGENT", "NEXT", "LAST"}, rows)
}

// write writes all of a schedule.
func write(w io.Writer, f print.Format, s Schedule) error {
	if f != print.Table {
		return print.Write(w, f, s)
	}
	about := []string{
		"name     " + s.Name, "times    " + timesText(s.Definition), "agent    " + s.Agent, "task     " + print.Cut(cmp.Or(s.Task, "the agent's own"), print.DescriptionWidth),
		"missed   " + string(s.Missed), "overlap  " + string(s.Overlap), "paused   " + strconv.FormatBool(s.Paused), "",
	}
	if _, err := fmt.Fprintln(w, strings.Join(about, "\n")); err != nil {
		return err
	}
	if err := writeNext(w, f, s); err != nil || len(s.Pending)+len(s.History) == 0 {
		return err
	}
	if _, err := fmt.Fprintln(w); err != nil {
		return err
	}
	return writeFirings(w, f, s.Definition, append(s.Pending, s.History...))
}

// writeNext writes the next firings of a schedule.
func writeNext(w io.Writer, f print.Format, s Schedule) error {
	if f != print.Table {
		return print.Write(w, f, s.Next)
	}
	rows := make([][]string, len(s.Next))
	for i, at := range s.Next {
		rows[i] = []string{firingTime(s.Definition, at)}
	}
	return print.WriteTable(w, []string{"NEXT"}, rows)
}

// writeFirings writes what became of firings of a schedule.
func writeFirings(w io.Writer, f print.Format, d Definition, all []Firing) error {
	if f != print.Table {
		return print.Write(w, f, all)
	}
	rows := make([][]string, len(all))
	for i, firing := range all {
		reason := firing.Reason
		if firing.Manual && reason == "" {
			reason = "asked for"
		}
		rows[i] = []string{firingTime(d, firing.At), string(firing.Outcome), strconv.Itoa(max(1, firing.Count)), firing.RunID, print.Cut(reason, print.DescriptionWidth)}
	}
	return print.WriteTable(w, []string{"FIRING", "OUTCOME", "COUNT", "RUN", "REASON"}, rows)
}
