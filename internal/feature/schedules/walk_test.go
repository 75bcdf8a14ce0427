package schedules

import (
	"context"
	"testing"
	"time"

	"github.com/robfig/cron/v3"
	"github.com/stretchr/testify/require"
)

// walker finds firings by looking at every step of the clock, which is slow and simple.
type walker struct {
	times
	step time.Duration
}

// fires reports whether a schedule fires at an instant, a multiple of the step. The clocks show
// now, and showed before a step earlier.
func (w walker) fires(at, now, before time.Time) bool {
	for wall := before.Add(w.step); wall.Before(now); wall = wall.Add(w.step) {
		if matches(w.spec, wall) { // the clocks skip it
			return true
		}
	}
	if !matches(w.spec, now) {
		return false
	}
	if w.hourly {
		return true
	}
	for earlier := at.Add(-w.step); at.Sub(earlier) < 4*time.Hour; earlier = earlier.Add(-w.step) {
		if shown(earlier, earlier.In(w.zone)).Equal(now) { // they show it again
			return false
		}
	}
	return true
}

func matches(s *cron.SpecSchedule, wall time.Time) bool {
	const star = 1 << 63
	day, weekday := s.Dom&(1<<wall.Day()) != 0, s.Dow&(1<<wall.Weekday()) != 0
	both := day && weekday
	if s.Dom&star == 0 && s.Dow&star == 0 {
		both = day || weekday
	}
	return both && s.Minute&(1<<wall.Minute()) != 0 && s.Hour&(1<<wall.Hour()) != 0 && s.Month&(1<<wall.Month()) != 0
}

// walkedZones have clock changes of an hour, of half an hour and of two hours, in both halves of
// the year, or none.
var walkedZones = []string{"Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Antarctica/Troll", "America/Nuuk", "Africa/Casablanca", "Asia/Kolkata", "UTC"}

// Rare firings of the years 2026 to 2099 are those that a walk over the clock finds.
func TestRareFiringsUntil2100(t *testing.T) {
	if testing.Short() {
		t.Skip("-short") // reason: it takes seconds of processor time
	}
	const step = 30 * time.Minute
	from, until := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, zone := range walkedZones[:3] {
		var walked []walker
		var next []time.Time
		for _, expression := range []string{"0 0 29 2 *", "@yearly", "@monthly", "30 2 * * SUN", "30 1 31 12 *"} {
			all, err := timesOf(Definition{Cron: expression, TZ: zone}, time.Time{})
			require.NoError(t, err)
			walked, next = append(walked, walker{all, step}), append(next, all.next(from))
		}
		before := shown(from, from.In(walked[0].zone))
		for at := from.Add(step); at.Before(until); at = at.Add(step) {
			now := shown(at, at.In(walked[0].zone))
			for i, w := range walked {
				fires := w.fires(at, now, before)
				if fires != next[i].Equal(at) {
					t.Fatalf("%s: firing %d: at %v a walk says %t, next is %v", zone, i, at, fires, next[i])
				}
				if fires {
					next[i] = w.next(at)
				}
			}
			before = now
		}
	}
}

// FuzzTimes compares the firings of some days with those that a walk over every minute finds.
func FuzzTimes(f *testing.F) {
	for _, expression := range []string{"0 0 29 2 *", "@yearly", "30 2 * * *", "*/20 1-3 * * *", "7 * * * *", "0 0 1 1 MON"} {
		for zone := range walkedZones {
			for _, day := range []int64{86, 297, 5478} { // near changes of clocks in 2026; 2040-12-31
				f.Add(expression, zone, day*1440)
			}
		}
	}
	first := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	f.Fuzz(func(t *testing.T, expression string, zone int, minute int64) {
		const years = 74
		if zone < 0 || zone >= len(walkedZones) || minute < 0 || minute > years*365*1440 {
			return
		}
		all, err := timesOf(Definition{Cron: expression, TZ: walkedZones[zone]}, time.Time{})
		if err != nil {
			return
		}
		w, from := walker{all, time.Minute}, first.Add(time.Duration(minute)*time.Minute)
		next := all.next(from)
		require.True(t, next.IsZero() || next.After(from), "%v is not after %v", next, from)
		before := shown(from, from.In(w.zone))
		for at := from.Add(time.Minute); at.Before(from.AddDate(0, 0, 3)); at = at.Add(time.Minute) {
			now := shown(at, at.In(w.zone))
			if fires := w.fires(at, now, before); fires != next.Equal(at) {
				t.Fatalf("%q in %s: at %v a walk says %t, next is %v", expression, walkedZones[zone], at, fires, next)
			}
			if next.Equal(at) {
				next = all.next(at)
			}
			before = now
		}
	})
}

// A caller that is gone ends the search for firings.
func TestSearchEndsWithItsContext(t *testing.T) {
	all, err := timesOf(Definition{Cron: "* * * * *"}, time.Time{})
	require.NoError(t, err)
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = all.upcoming(gone, noon, 10)
	require.ErrorIs(t, err, context.Canceled)
	s, _ := minutely(t, MissedSkip, OverlapAllow)
	_, err = s.decide(gone, "default", all, noon.Add(time.Hour), false)
	require.ErrorIs(t, err, context.Canceled)
	require.Empty(t, s.History)
}
