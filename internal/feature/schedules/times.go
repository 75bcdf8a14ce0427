package schedules

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/robfig/cron/v3"

	"github.com/moorebus/moorebus/internal/runid"
)

// minEvery is the shortest interval between firings, which is also the bus's precision.
const minEvery = time.Second

// times are the times at which a schedule fires.
type times struct {
	// spec is evaluated on what the clocks of the zone show, as if that were UTC.
	spec *cron.SpecSchedule
	zone *time.Location
	// hourly says that the expression names no hours: then an hour that the clocks show twice
	// counts twice.
	hourly bool
	// every, if not 0, is the interval from anchor on, in place of an expression.
	every  time.Duration
	anchor time.Time
}

// timesOf reads when a schedule fires. The error begins with the field that is wrong.
func timesOf(d Definition, anchor time.Time) (times, error) {
	switch every := time.Duration(d.Every); {
	case (d.Cron == "") == (every == 0):
		return times{}, fmt.Errorf("cron: give an expression, or an interval under every, not both")
	case every != 0 && d.TZ != "":
		return times{}, fmt.Errorf("tz: belongs to cron; an interval has no time zone")
	case every != 0 && every < minEvery:
		return times{}, fmt.Errorf("every: must be at least %s, is %s", minEvery, every)
	case every != 0:
		return times{every: every, anchor: anchor}, nil
	}
	zone, err := time.LoadLocation(d.TZ)
	if err != nil || d.TZ == "Local" {
		return times{}, fmt.Errorf("tz: %.100q is not a time zone; use a name such as Europe/Berlin", d.TZ)
	}
	if strings.Contains(d.Cron, "=") || strings.HasPrefix(strings.TrimSpace(d.Cron), "@every") {
		return times{}, fmt.Errorf("cron: %.100q: give a time zone under tz, and an interval under every", d.Cron)
	}
	parsed, err := cron.ParseStandard(d.Cron)
	if err != nil {
		return times{}, fmt.Errorf("cron: %.100q: %w; use minute, hour, day, month and weekday, such as 0 9 * * MON-FRI", d.Cron, err)
	}
	spec, is := parsed.(*cron.SpecSchedule)
	if !is {
		return times{}, fmt.Errorf("cron: %.100q is not an expression", d.Cron)
	}
	spec.Location = time.UTC
	const star = 1 << 63 // how the library marks a field that is *
	t := times{spec: spec, zone: zone, hourly: spec.Hour&star != 0}
	if t.next(time.Date(2024, 1, 1, 0, 0, 0, 0, time.UTC)).IsZero() {
		return times{}, fmt.Errorf("cron: %.100q never fires: there is no such day", d.Cron)
	}
	return t, nil
}

// next returns the first firing after a time, or zero if there is none in the next years. A time
// of day that the clocks skip fires once, when they are put forward. One that they show twice
// fires the first time only, unless the expression names no hours.
func (t times) next(after time.Time) time.Time {
	if t.every != 0 {
		passed := max(0, after.Sub(t.anchor)/t.every)
		return t.anchor.Add((passed + 1) * t.every).UTC()
	}
	at := after.In(t.zone)
	from := shown(at, at)
	for {
		// The zone has one offset from start to end.
		start, end := bounds(at)
		if !t.hourly && !start.IsZero() {
			if again := shown(start, start.Add(-1)).Add(-1); from.Before(again) {
				from = again
			}
		}
		wall := t.spec.Next(from)
		if wall.IsZero() {
			return time.Time{}
		}
		_, offset := at.Zone()
		found := wall.Add(-time.Duration(offset) * time.Second)
		if end.IsZero() || found.Before(end) {
			return found
		}
		if wall.Before(shown(end, end)) {
			return end.UTC()
		}
		at, from = end, shown(end, end).Add(-1)
	}
}

// bounds returns from when until when the zone has one offset, at a time between the two. The end
// is zero if there is none, and after at otherwise.
func bounds(at time.Time) (start, end time.Time) {
	start, end = at.ZoneBounds()
	if !end.IsZero() && !end.After(at) {
		// On the last day of a leap year after 2037, time.ZoneBounds returns the beginning of
		// that day. No zone changes its offset other than at a quarter of an hour.
		const quarter = 15 * time.Minute
		end = at.Truncate(quarter).Add(quarter)
	}
	return start, end
}

// shown returns what the clocks show at an instant by the offset that is valid at another one, as
// if it were UTC.
func shown(at, by time.Time) time.Time {
	_, offset := by.Zone()
	return at.UTC().Add(time.Duration(offset) * time.Second)
}

// upcoming returns the next n firings after a time, unless ctx ends.
func (t times) upcoming(ctx context.Context, after time.Time, n int) ([]time.Time, error) {
	all := make([]time.Time, 0, n)
	for len(all) < n && ctx.Err() == nil {
		if after = t.next(after); after.IsZero() {
			break
		}
		all = append(all, after)
	}
	return all, ctx.Err()
}

// runID returns the id of the run that a firing starts, whoever starts it and however often. It
// is a UUIDv7 with the time of the firing.
func runID(ns, name, incarnation string, at time.Time) string {
	ms := fmt.Sprintf("%012x", at.UnixMilli())
	return runid.Fork(ms[:8]+"-"+ms[8:]+"-7000-8000-000000000000", strings.Join([]string{"schedule", ns, name, incarnation, at.UTC().Format(time.RFC3339Nano)}, "\x00"))
}
