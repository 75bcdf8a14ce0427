package print

import (
	"cmp"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/moorebus/moorebus/internal/control/schedules"
)

// firingTime formats a time as the schedule's time zone has it, else as UTC.
func firingTime(d schedules.Definition, t time.Time) string {
	if t.IsZero() {
		return ""
	}
	zone, err := time.LoadLocation(d.TZ)
	if err != nil {
		zone = time.UTC
	}
	return t.In(zone).Format("2006-01-02 15:04:05 MST")
}

func times(d schedules.Definition) string {
	if d.Every != 0 {
		return "every " + time.Duration(d.Every).String()
	}
	return strings.TrimSpace(d.Cron + " " + d.TZ)
}

// Schedules writes schedules with their next and last firings.
func Schedules(w io.Writer, f Format, all []schedules.Schedule) error {
	if f != Table {
		return Write(w, f, all)
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
		rows[i] = []string{s.Name, times(s.Definition), s.Agent, next, last}
	}
	return WriteTable(w, []string{"NAME", "TIMES", "AGENT", "NEXT", "LAST"}, rows)
}

// Schedule writes all of a schedule.
func Schedule(w io.Writer, f Format, s schedules.Schedule) error {
	if f != Table {
		return Write(w, f, s)
	}
	about := []string{
		"name     " + s.Name, "times    " + times(s.Definition), "agent    " + s.Agent, "task     " + Cut(cmp.Or(s.Task, "the agent's own"), descriptionWidth),
		"missed   " + string(s.Missed), "overlap  " + string(s.Overlap), "paused   " + strconv.FormatBool(s.Paused), "",
	}
	if _, err := fmt.Fprintln(w, strings.Join(about, "\n")); err != nil {
		return err
	}
	if err := ScheduleNext(w, f, s); err != nil || len(s.Pending)+len(s.History) == 0 {
		return err
	}
	if _, err := fmt.Fprintln(w); err != nil {
		return err
	}
	return Firings(w, f, s.Definition, append(s.Pending, s.History...))
}

// ScheduleNext writes the next firings of a schedule.
func ScheduleNext(w io.Writer, f Format, s schedules.Schedule) error {
	if f != Table {
		return Write(w, f, s.Next)
	}
	rows := make([][]string, len(s.Next))
	for i, at := range s.Next {
		rows[i] = []string{firingTime(s.Definition, at)}
	}
	return WriteTable(w, []string{"NEXT"}, rows)
}

// Firings writes what became of firings of a schedule.
func Firings(w io.Writer, f Format, d schedules.Definition, all []schedules.Firing) error {
	if f != Table {
		return Write(w, f, all)
	}
	rows := make([][]string, len(all))
	for i, firing := range all {
		reason := firing.Reason
		if firing.Manual && reason == "" {
			reason = "asked for"
		}
		rows[i] = []string{firingTime(d, firing.At), string(firing.Outcome), strconv.Itoa(max(1, firing.Count)), firing.RunID, Cut(reason, descriptionWidth)}
	}
	return WriteTable(w, []string{"FIRING", "OUTCOME", "COUNT", "RUN", "REASON"}, rows)
}
