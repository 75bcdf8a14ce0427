package journaltest

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/moorebus/moorebus/internal/journalcheck"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/stretchr/testify/require"
)

// LogTimers is a journal that keeps timers.
type LogTimers interface {
	journal.Log
	journal.Timers
}

// Timers tests [journal.Timers]. All consumers of a journal share its timers, so
// the factory is called for every test, and its journal must hold no timers. Its
// ack wait should be two seconds or less.
func Timers(t *testing.T, open func(t *testing.T) LogTimers) {
	timers(t, open)
	t.Run("refused", func(t *testing.T) {
		t.Parallel()
		testTimerRefused(t, open(t))
	})
}

func timers(t *testing.T, open func(t *testing.T) LogTimers) {
	for name, test := range map[string]func(*testing.T, LogTimers){
		"fires at its time":              testTimerFires,
		"fires at once if it is late":    testTimerLate,
		"set again":                      testTimerReplaced,
		"runs and kinds":                 testTimerNames,
		"cancelled":                      testTimerCancelled,
		"again after the ack wait":       testTimerAckWait,
		"retry after a delay":            testTimerRetry,
		"set again by its handler":       testTimerRearmed,
		"waits for a consumer":           testTimerWaits,
		"two consumers share":            testTimerShare,
		"slots":                          testTimerSlots,
		"the end waits for the handlers": testTimerEnd,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, open(t))
		})
	}
}

// soon is long enough for every journal to be set a few timers before it fires.
const soon = 3 * time.Second

// bell is a running ConsumeTimers.
type bell struct {
	got  chan journal.TimerDelivery
	stop func()
}

// ring consumes timers in the background. A nil handle passes the deliveries to
// the channel got, and leaves their verdicts to the test.
func ring(t *testing.T, timers journal.Timers, slots int, handle func(journal.TimerDelivery)) *bell {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	b := &bell{got: make(chan journal.TimerDelivery, 1000)}
	if handle == nil {
		handle = func(d journal.TimerDelivery) { b.got <- d }
	}
	ended := make(chan error, 1)
	go func() { ended <- timers.ConsumeTimers(ctx, slots, handle) }()
	stopped := false
	b.stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		select {
		case err := <-ended:
			require.NoError(t, err)
		case <-time.After(patience):
			require.Fail(t, "ConsumeTimers does not end")
		}
	}
	t.Cleanup(b.stop)
	return b
}

func (b *bell) next(t *testing.T) journal.TimerDelivery {
	t.Helper()
	select {
	case d := <-b.got:
		return d
	case <-time.After(patience):
		require.FailNow(t, "no timer fires")
	}
	return journal.TimerDelivery{}
}

// nothing asserts that no timer fires for as long.
func (b *bell) nothing(t *testing.T, during time.Duration) {
	t.Helper()
	select {
	case d := <-b.got:
		require.FailNow(t, "a timer too many", "%+v attempt %d: %s", d.Timer, d.Attempt(), d.Timer.Data)
	case <-time.After(during):
	}
}

func set(t *testing.T, timers journal.Timers, run events.Run, kind string, in time.Duration, data string) (at time.Time) {
	t.Helper()
	at = time.Now().Add(in)
	require.NoError(t, timers.SetTimer(bounded(t), run, kind, at, []byte(data)))
	return at
}

func testTimerFires(t *testing.T, j LogTimers) {
	run := NewRun(t, j)
	b := ring(t, j, 4, nil)
	at := set(t, j, run, "run", soon, `{"any":"data"}`)
	d := b.next(t)
	require.False(t, time.Now().Before(at), "it fired too early")
	require.WithinDuration(t, at, time.Now(), 20*time.Second)
	timer := d.Timer
	require.Equal(t, run, timer.Run)
	require.Equal(t, "run", timer.Kind)
	require.Equal(t, `{"any":"data"}`, string(timer.Data))
	require.Equal(t, 1, d.Attempt())
	require.NoError(t, d.Ack())
	b.nothing(t, soon)
}

func testTimerLate(t *testing.T, j LogTimers) {
	b := ring(t, j, 4, nil)
	run := NewRun(t, j)
	for _, ago := range []time.Duration{time.Hour, time.Second, 0} {
		set(t, j, run, "run", -ago, ago.String())
		d := b.next(t)
		require.Equal(t, ago.String(), string(d.Timer.Data))
		require.NoError(t, d.Ack())
	}
	require.NoError(t, j.SetTimer(bounded(t), run, "run", time.Now(), nil))
	d := b.next(t)
	require.Empty(t, d.Timer.Data)
	require.NoError(t, d.Ack())
}

func testTimerReplaced(t *testing.T, j LogTimers) {
	b := ring(t, j, 4, nil)
	earlier, later := NewRun(t, j), NewRun(t, j)
	set(t, j, earlier, "run", time.Hour, "first")
	set(t, j, later, "run", soon/2, "first")
	set(t, j, earlier, "run", soon, "second")
	at := set(t, j, later, "run", 2*soon, "second")
	for _, want := range []events.Run{earlier, later} {
		d := b.next(t)
		require.Equal(t, want, d.Timer.Run)
		require.Equal(t, "second", string(d.Timer.Data))
		require.NoError(t, d.Ack())
	}
	require.False(t, time.Now().Before(at), "it fired too early")
	b.nothing(t, soon)
}

func testTimerNames(t *testing.T, j LogTimers) {
	one, two := NewRun(t, j), NewRun(t, j)
	other := events.NewRun(NewToken(t), one.ID, j.Shards())
	want := []string{}
	for _, run := range []events.Run{one, two, other} {
		for _, kind := range []string{"run", "approval"} {
			text := run.Namespace + run.ID + kind
			set(t, j, run, kind, 0, text)
			want = append(want, text)
		}
	}
	b := ring(t, j, 10, nil)
	got := []string{}
	for range want {
		timer := b.next(t)
		require.NoError(t, timer.Ack())
		got = append(got, timer.Timer.Run.Namespace+timer.Timer.Run.ID+timer.Timer.Kind)
		require.Equal(t, got[len(got)-1], string(timer.Timer.Data))
	}
	slices.Sort(want)
	slices.Sort(got)
	require.Equal(t, want, got)
}

func testTimerCancelled(t *testing.T, j LogTimers) {
	b := ring(t, j, 4, nil)
	run, other := NewRun(t, j), NewRun(t, j)
	require.NoError(t, j.CancelTimer(bounded(t), run, "run"), "there is none")
	set(t, j, run, "run", soon, "cancelled")
	set(t, j, run, "approval", soon, "another kind")
	set(t, j, other, "run", soon, "another run")
	require.NoError(t, j.CancelTimer(bounded(t), run, "run"))
	require.NoError(t, j.CancelTimer(bounded(t), run, "run"), "again")
	for range 2 {
		d := b.next(t)
		require.NotEqual(t, "cancelled", string(d.Timer.Data))
		require.NoError(t, d.Ack())
	}
	b.nothing(t, soon/2)
	set(t, j, run, "run", 0, "set after it was cancelled")
	d := b.next(t)
	require.Equal(t, "set after it was cancelled", string(d.Timer.Data))
	require.NoError(t, d.Ack())
}

func testTimerAckWait(t *testing.T, j LogTimers) {
	b := ring(t, j, 4, nil)
	set(t, j, NewRun(t, j), "run", 0, "x")
	first := b.next(t)
	second := b.next(t)
	require.Equal(t, first.Timer, second.Timer)
	require.Equal(t, 2, second.Attempt())
	require.NoError(t, second.Ack())
	b.nothing(t, 4*time.Second)
}

func testTimerRetry(t *testing.T, j LogTimers) {
	b := ring(t, j, 4, nil)
	set(t, j, NewRun(t, j), "run", 0, "x")
	const delay = 300 * time.Millisecond
	for attempt := 1; attempt <= 3; attempt++ {
		d := b.next(t)
		require.Equal(t, attempt, d.Attempt())
		began := time.Now()
		require.NoError(t, d.Retry(delay))
		if attempt == 3 {
			d = b.next(t)
			require.GreaterOrEqual(t, time.Since(began), delay*9/10)
			require.NoError(t, d.Ack())
		}
	}
	b.nothing(t, 4*time.Second)
}

// testTimerRearmed sets the timer again before it is acknowledged, as a handler
// does so that it cannot be lost.
func testTimerRearmed(t *testing.T, j LogTimers) {
	run := NewRun(t, j)
	set(t, j, run, "run", 0, "0")
	var fired atomic.Int32
	b := &bell{got: make(chan journal.TimerDelivery, 100)}
	ring(t, j, 4, func(d journal.TimerDelivery) {
		b.got <- d // first: once it is set again, another slot may handle it
		if n := fired.Add(1); n < 4 {
			if err := j.SetTimer(context.Background(), run, "run", time.Now(), fmt.Append(nil, n)); err != nil {
				t.Error(err)
			}
		}
		if err := d.Ack(); err != nil {
			t.Error(err)
		}
	})
	for i := range 4 {
		require.Equal(t, fmt.Sprint(i), string(b.next(t).Timer.Data))
	}
	b.nothing(t, soon)
}

func testTimerWaits(t *testing.T, j LogTimers) {
	b := ring(t, j, 4, nil)
	b.stop()
	run, left := NewRun(t, j), NewRun(t, j)
	set(t, j, left, "run", 0, "left by the one before")
	b = ring(t, j, 4, nil)
	require.Equal(t, left, b.next(t).Timer.Run)
	b.stop()
	set(t, j, run, "run", -time.Second, "nobody was there")
	b = ring(t, j, 4, nil)
	got := map[string]int{}
	for range 2 {
		d := b.next(t)
		got[string(d.Timer.Data)] = d.Attempt()
		require.NoError(t, d.Ack())
	}
	require.Equal(t, map[string]int{"left by the one before": 2, "nobody was there": 1}, got)
}

func testTimerShare(t *testing.T, j LogTimers) {
	done := make(chan string, 1000)
	handle := func(d journal.TimerDelivery) {
		if d.Ack() == nil {
			done <- d.Timer.Run.ID
		}
	}
	ring(t, j, 5, handle)
	ring(t, j, 5, handle)
	for range 100 {
		set(t, j, NewRun(t, j), "run", 0, "")
	}
	seen := map[string]bool{}
	for range 100 {
		id := <-done
		require.False(t, seen[id], "fired twice")
		seen[id] = true
	}
}

func testTimerSlots(t *testing.T, j LogTimers) {
	for range 40 {
		set(t, j, NewRun(t, j), "run", 0, "")
	}
	var g gauge
	done := make(chan error, 100)
	ring(t, j, 3, func(d journal.TimerDelivery) {
		g.enter()
		defer g.leave()
		done <- d.Ack()
	})
	for range 40 {
		require.NoError(t, <-done)
	}
	require.LessOrEqual(t, int(g.most.Load()), 3)
}

func testTimerEnd(t *testing.T, j LogTimers) {
	started, release := make(chan struct{}, 10), make(chan struct{})
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		ended <- j.ConsumeTimers(ctx, 3, func(d journal.TimerDelivery) {
			started <- struct{}{}
			<-release
			_ = d.Ack()
		})
	}()
	set(t, j, NewRun(t, j), "run", 0, "")
	<-started
	cancel()
	select {
	case <-ended:
		require.Fail(t, "ConsumeTimers ended before its handler")
	case <-time.After(50 * time.Millisecond):
	}
	close(release)
	require.NoError(t, <-ended)
}

func testTimerRefused(t *testing.T, j LogTimers) {
	ctx, run := bounded(t), NewRun(t, j)
	wrong := run
	wrong.Namespace = "a.b"
	for _, kind := range []string{"", "*", "a.b"} {
		require.Error(t, j.SetTimer(ctx, run, kind, time.Now(), nil))
		require.Error(t, j.CancelTimer(ctx, run, kind))
	}
	require.Error(t, j.SetTimer(ctx, wrong, "run", time.Now(), nil))
	require.ErrorIs(t, j.SetTimer(ctx, run, "run", time.Now(), make([]byte, journalcheck.MaxTimerData+1)), journal.ErrTooLarge)
	require.NoError(t, j.SetTimer(ctx, run, "run", time.Now().Add(time.Hour), make([]byte, journalcheck.MaxTimerData)))
	require.Error(t, j.ConsumeTimers(ctx, 0, func(journal.TimerDelivery) {}))
	ended, cancel := context.WithCancel(ctx)
	cancel()
	require.ErrorIs(t, j.SetTimer(ended, run, "run", time.Now(), nil), context.Canceled)
}
