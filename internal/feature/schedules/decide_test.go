package schedules

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/pkg/events"
)

var noon = time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)

// minutely is a schedule that fires at every minute and was last decided on at noon.
func minutely(t *testing.T, missed Missed, overlap Overlap) (*state, times) {
	d, err := Definition{Cron: "* * * * *", Agent: "a", Missed: missed, Overlap: overlap}.withDefaults()
	require.NoError(t, err)
	all, err := timesOf(d, noon)
	require.NoError(t, err)
	return &state{Schedule: Schedule{Name: "daily", Definition: d}, Incarnation: "1", Anchor: noon, Handled: noon}, all
}

// summary lists pending firings and then the history, as minutes after noon.
func summary(s *state) (all []string) {
	for _, list := range [][]Firing{s.Pending, s.History} {
		for _, f := range list {
			text := fmt.Sprintf("%s %d", f.Outcome, f.At.Sub(noon)/time.Minute)
			if f.Count > 0 {
				text += fmt.Sprintf(" x%d", f.Count)
			}
			all = append(all, text)
		}
	}
	return all
}

func decide(t *testing.T, s *state, all times, now time.Time, busy bool) bool {
	t.Helper()
	changed, err := s.decide(t.Context(), "default", all, now, busy)
	require.NoError(t, err)
	return changed
}

// Five minutes after noon, one second late: four firings were missed and one is due.
func TestMissedAndOverlap(t *testing.T) {
	for _, c := range []struct {
		missed     Missed
		overlap    Overlap
		idle, busy []string
	}{
		{MissedSkip, OverlapAllow, []string{"starting 5", "missed 4 x4"}, []string{"starting 5", "missed 4 x4"}},
		{MissedSkip, OverlapSkip, []string{"starting 5", "missed 4 x4"}, []string{"skipped 5", "missed 4 x4"}},
		{MissedSkip, OverlapQueue, []string{"starting 5", "missed 4 x4"}, []string{"waiting 5", "missed 4 x4"}},
		{MissedOnce, OverlapAllow, []string{"starting 4 x4", "starting 5"}, []string{"starting 4 x4", "starting 5"}},
		{MissedOnce, OverlapSkip, []string{"starting 4 x4", "skipped 5"}, []string{"skipped 5 x5"}},
		{MissedOnce, OverlapQueue, []string{"starting 4 x4", "waiting 5"}, []string{"waiting 4 x4", "waiting 5"}},
		{MissedAll, OverlapAllow, []string{"starting 1", "starting 2", "starting 3", "starting 4", "starting 5"}, []string{"starting 1", "starting 2", "starting 3", "starting 4", "starting 5"}},
		{MissedAll, OverlapSkip, []string{"starting 1", "skipped 5 x4"}, []string{"skipped 5 x5"}},
		{MissedAll, OverlapQueue, []string{"starting 1", "waiting 2", "waiting 3", "waiting 4", "waiting 5"}, []string{"waiting 1", "waiting 2", "waiting 3", "waiting 4", "waiting 5"}},
	} {
		for _, busy := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s %s busy=%t", c.missed, c.overlap, busy), func(t *testing.T) {
				s, all := minutely(t, c.missed, c.overlap)
				now := noon.Add(5*time.Minute + time.Second)
				require.True(t, decide(t, s, all, now, busy))
				want := c.idle
				if busy {
					want = c.busy
				}
				require.Equal(t, want, summary(s))
				require.Equal(t, noon.Add(5*time.Minute), s.Handled)
				require.False(t, decide(t, s, all, now, true), "each is decided on once")
			})
		}
	}
}

func TestFiringWithinItsGraceIsNotMissed(t *testing.T) {
	s, all := minutely(t, MissedSkip, OverlapAllow)
	require.True(t, decide(t, s, all, noon.Add(2*time.Minute), false))
	require.Equal(t, []string{"starting 1", "starting 2"}, summary(s), "one is exactly a minute late")
}

// The queue is in the order of time, and one starts when the one before it has ended.
func TestQueue(t *testing.T) {
	s, all := minutely(t, MissedAll, OverlapQueue)
	now := noon.Add(2 * time.Minute)
	decide(t, s, all, now, false)
	require.Equal(t, []string{"starting 1", "waiting 2"}, summary(s))
	require.False(t, decide(t, s, all, now, false), "the first one is not started yet")
	first := s.Pending[0]
	first.Outcome = Started
	require.True(t, s.settle(first))
	require.Equal(t, first.RunID, s.Last)
	require.False(t, decide(t, s, all, now, true), "its run has not ended")
	require.Equal(t, now.Add(time.Second), s.wake(all, now, time.Second))
	require.True(t, decide(t, s, all, now, false))
	require.Equal(t, []string{"starting 2", "started 1"}, summary(s))

	decide(t, s, all, noon.Add(300*time.Minute), true)
	for decide(t, s, all, noon.Add(300*time.Minute), true) {
	}
	require.Equal(t, maxWaiting, s.pending(Waiting))
	require.Equal(t, Firing{At: noon.Add(300 * time.Minute), Outcome: Skipped, Reason: "100 firings wait already", Count: 298 - maxWaiting}, s.History[0])
}

// Of very many missed firings the last ones start. The history has the number of the others.
func TestVeryManyMissed(t *testing.T) {
	const minutes = 3 * 24 * 60
	now := noon.Add(minutes*time.Minute + 59*time.Second)
	for missed, want := range map[Missed][]string{
		MissedSkip: {fmt.Sprintf("starting %d", minutes), fmt.Sprintf("missed %d x%d", minutes-1, minutes-1)},
		MissedOnce: {fmt.Sprintf("starting %d x%d", minutes-1, minutes-1), fmt.Sprintf("starting %d", minutes)},
	} {
		s, all := minutely(t, missed, OverlapAllow)
		require.True(t, decide(t, s, all, now, false))
		require.Equal(t, want, summary(s))
	}
	s, all := minutely(t, MissedAll, OverlapAllow)
	for rounds := 1; decide(t, s, all, now, false); rounds++ {
		require.Len(t, s.Pending, rounds*maxRound)
	}
	require.Equal(t, maxMissed, s.pending(Starting))
	require.Equal(t, noon.Add(minutes*time.Minute), s.Pending[maxMissed-1].At)
	require.Equal(t, fmt.Sprintf("missed %d x%d", minutes-maxMissed, minutes-maxMissed), summary(s)[maxMissed])
}

// An interval of a second that nobody looked after for ten years is counted, not walked through.
func TestYearsOfMissedIntervals(t *testing.T) {
	const seconds = 10 * 365 * 24 * 3600
	s, _ := minutely(t, MissedAll, OverlapAllow)
	due, older, err := s.due(t.Context(), times{every: time.Second, anchor: noon}, noon.Add(seconds*time.Second))
	require.NoError(t, err)
	require.Equal(t, Firing{At: noon.Add((seconds - maxMissed) * time.Second), Count: seconds - maxMissed}, older)
	require.Len(t, due, maxMissed)
	require.Equal(t, noon.Add(seconds*time.Second), due[maxMissed-1])
}

// Runs that could not be started are tried until another firing is due.
func TestGivingUp(t *testing.T) {
	s, all := minutely(t, MissedSkip, OverlapSkip)
	decide(t, s, all, noon.Add(time.Minute), false)
	failing := s.Pending[0]
	failing.Tries, failing.Reason, failing.Next = 1, "the bus is away", noon.Add(63*time.Second)
	require.True(t, s.settle(failing))
	require.Equal(t, failing.Next, s.wake(all, noon.Add(time.Minute), time.Hour))
	require.False(t, decide(t, s, all, noon.Add(119*time.Second), false))
	require.True(t, decide(t, s, all, noon.Add(121*time.Second), false))
	require.Equal(t, []string{"starting 2", "failed 1"}, summary(s))
	require.Equal(t, "the bus is away", s.History[0].Reason)
	require.False(t, s.settle(failing), "it is settled")
}

func TestPausedSchedulesDecideNothing(t *testing.T) {
	s, all := minutely(t, MissedAll, OverlapQueue)
	decide(t, s, all, noon.Add(2*time.Minute), true)
	s.Paused = true
	require.False(t, decide(t, s, all, noon.Add(9*time.Minute), false))
	require.Equal(t, []string{"waiting 1", "waiting 2"}, summary(s))
	require.Zero(t, s.wake(all, noon.Add(9*time.Minute), time.Second))
}

func TestHistoryIsBounded(t *testing.T) {
	s, _ := minutely(t, MissedSkip, OverlapAllow)
	for i := range 3 * maxHistory {
		s.remember(Firing{At: noon.Add(time.Duration(i) * time.Minute), Outcome: Started, RunID: fmt.Sprint(i)})
	}
	require.Len(t, s.History, maxHistory)
	require.Equal(t, fmt.Sprint(3*maxHistory-1), s.History[0].RunID)
}

func TestBadDefinitions(t *testing.T) {
	for why, d := range map[string]Definition{
		"missed:": {Agent: "a", Missed: "never"}, "overlap:": {Agent: "a", Overlap: "maybe"},
		"agent:": {Agent: "A B"}, "is not a key": {Agent: "a", Labels: events.Labels{"A": "x"}}, "not valid UTF-8": {Agent: "a", Task: "\xff"}, "at most": {Agent: "a", Task: string(make([]byte, maxTask+1))},
	} {
		_, err := d.withDefaults()
		require.ErrorContains(t, err, why)
	}
}
