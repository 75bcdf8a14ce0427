package schedules

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/pkg/events"
)

// Each case lists the first firings after a time, as the clocks of the zone show them.
func TestTimesAroundClockChanges(t *testing.T) {
	for _, c := range []struct {
		name, cron, zone, after string
		want                    []string
	}{
		{"a skipped hour fires when the clocks go forward", "30 2 * * *", "Europe/Berlin", "2026-03-28T12:00:00+01:00",
			[]string{"2026-03-29T03:00:00+02:00", "2026-03-30T02:30:00+02:00"}},
		{"several times of a skipped hour fire once", "*/20 2 * * *", "Europe/Berlin", "2026-03-28T12:00:00+01:00",
			[]string{"2026-03-29T03:00:00+02:00", "2026-03-30T02:00:00+02:00"}},
		{"what fires after the gap anyway fires once", "0,30 2,3 * * *", "Europe/Berlin", "2026-03-28T12:00:00+01:00",
			[]string{"2026-03-29T03:00:00+02:00", "2026-03-29T03:30:00+02:00"}},
		{"a repeated hour fires once", "30 2 * * *", "Europe/Berlin", "2026-10-24T12:00:00+02:00",
			[]string{"2026-10-25T02:30:00+02:00", "2026-10-26T02:30:00+01:00"}},
		{"also from between its two", "30 2 * * *", "Europe/Berlin", "2026-10-25T02:10:00+01:00",
			[]string{"2026-10-26T02:30:00+01:00"}},
		{"the hour after a repeated one fires", "0 3 * * *", "Europe/Berlin", "2026-10-25T02:10:00+01:00",
			[]string{"2026-10-25T03:00:00+01:00"}},
		{"without hours each hour counts", "0 * * * *", "Europe/Berlin", "2026-10-25T01:30:00+02:00",
			[]string{"2026-10-25T02:00:00+02:00", "2026-10-25T02:00:00+01:00", "2026-10-25T03:00:00+01:00"}},
		{"without hours a skipped one is not", "0 * * * *", "Europe/Berlin", "2026-03-29T00:30:00+01:00",
			[]string{"2026-03-29T01:00:00+01:00", "2026-03-29T03:00:00+02:00", "2026-03-29T04:00:00+02:00"}},
		{"New York goes forward", "15 2 * * *", "America/New_York", "2026-03-07T12:00:00-05:00",
			[]string{"2026-03-08T03:00:00-04:00", "2026-03-09T02:15:00-04:00"}},
		{"New York goes back", "15 1 * * *", "America/New_York", "2026-10-31T12:00:00-04:00",
			[]string{"2026-11-01T01:15:00-04:00", "2026-11-02T01:15:00-05:00"}},
		{"Lord Howe goes forward by 30 minutes", "15 2 * * *", "Australia/Lord_Howe", "2026-10-03T12:00:00+10:30",
			[]string{"2026-10-04T02:30:00+11:00", "2026-10-05T02:15:00+11:00"}},
		{"Lord Howe goes forward in the middle of an hour", "45 2 * * *", "Australia/Lord_Howe", "2026-10-03T12:00:00+10:30",
			[]string{"2026-10-04T02:45:00+11:00"}},
		{"Lord Howe goes back by 30 minutes", "45 1 * * *", "Australia/Lord_Howe", "2026-04-04T12:00:00+11:00",
			[]string{"2026-04-05T01:45:00+11:00", "2026-04-06T01:45:00+10:30"}},
		{"Lord Howe without hours", "*/30 * * * *", "Australia/Lord_Howe", "2026-04-05T01:10:00+11:00",
			[]string{"2026-04-05T01:30:00+11:00", "2026-04-05T01:30:00+10:30", "2026-04-05T02:00:00+10:30"}},
		{"weekdays are those of the zone", "0 9 * * MON-FRI", "Pacific/Auckland", "2026-11-20T10:00:00+13:00",
			[]string{"2026-11-23T09:00:00+13:00"}},
		{"without a zone it is UTC", "0 9 * * *", "", "2026-11-20T08:59:59.5Z", []string{"2026-11-20T09:00:00Z"}},
		{"leap days", "0 0 29 2 *", "Europe/Berlin", "2026-01-01T00:00:00Z", []string{"2028-02-29T00:00:00+01:00"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			all, err := timesOf(Definition{Cron: c.cron, TZ: c.zone}, time.Time{})
			require.NoError(t, err)
			after, err := time.Parse(time.RFC3339Nano, c.after)
			require.NoError(t, err)
			var got []string
			next, err := all.upcoming(t.Context(), after, len(c.want))
			require.NoError(t, err)
			for _, at := range next {
				got = append(got, at.In(all.zone).Format(time.RFC3339))
			}
			require.Equal(t, c.want, got)
		})
	}
}

// Over years, a daily time fires once on every day, in order, whatever the clocks do.
func TestOneFiringADay(t *testing.T) {
	for _, zone := range []string{"Europe/Berlin", "America/New_York", "Australia/Lord_Howe"} {
		for _, expression := range []string{"0 1 * * *", "30 1 * * *", "45 1 * * *", "0 2 * * *", "15 2 * * *", "30 2 * * *", "0 3 * * *"} {
			all, err := timesOf(Definition{Cron: expression, TZ: zone}, time.Time{})
			require.NoError(t, err)
			day := time.Date(2025, 1, 1, 12, 0, 0, 0, all.zone)
			at := all.next(day)
			for range 3 * 365 {
				day = day.AddDate(0, 0, 1)
				require.Equal(t, day.Format(time.DateOnly), at.In(all.zone).Format(time.DateOnly), "%s in %s", expression, zone)
				at = all.next(at)
			}
		}
	}
}

func TestIntervals(t *testing.T) {
	anchor := time.Date(2026, 10, 25, 0, 0, 0, 0, time.UTC)
	all, err := timesOf(Definition{Every: events.Duration(15 * time.Minute)}, anchor)
	require.NoError(t, err)
	next, err := all.upcoming(t.Context(), anchor, 2)
	require.NoError(t, err)
	require.Equal(t, []time.Time{anchor.Add(15 * time.Minute), anchor.Add(30 * time.Minute)}, next)
	require.Equal(t, anchor.Add(45*time.Minute), all.next(anchor.Add(31*time.Minute)))
	require.Equal(t, anchor.Add(15*time.Minute), all.next(anchor.Add(-time.Hour)))
}

func TestBadTimes(t *testing.T) {
	for why, d := range map[string]Definition{
		"cron: give":            {},
		"not both":              {Cron: "* * * * *", Every: events.Duration(time.Minute)},
		"tz: belongs to cron":   {Every: events.Duration(time.Minute), TZ: "Europe/Berlin"},
		"at least 1s":           {Every: events.Duration(time.Millisecond)},
		`"Mars/Olympus" is not`: {Cron: "* * * * *", TZ: "Mars/Olympus"},
		`"Local" is not`:        {Cron: "* * * * *", TZ: "Local"},
		"expected exactly 5":    {Cron: "0 0 9 * * MON"},
		"under every":           {Cron: "@every 5m"},
		"under tz":              {Cron: "TZ=UTC 0 9 * * *"},
		"never fires":           {Cron: "0 0 30 2 *"},
	} {
		_, err := timesOf(d, time.Time{})
		require.ErrorContains(t, err, why)
	}
}

func TestRunIDs(t *testing.T) {
	at := time.Date(2026, 11, 23, 9, 0, 0, 0, time.UTC)
	id := runID("default", "daily", "1", at)
	require.NoError(t, events.CheckID(id))
	require.Equal(t, id, runID("default", "daily", "1", at.In(time.FixedZone("x", 3600))))
	for _, other := range []string{runID("default", "daily", "2", at), runID("default", "other", "1", at), runID("x", "daily", "1", at), runID("default", "daily", "1", at.Add(time.Second))} {
		require.NotEqual(t, id, other)
	}
	require.Equal(t, id[:13], runID("default", "daily", "2", at)[:13], "they begin with the time")
}
