package control_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/control"
	"github.com/moorebus/moorebus/internal/natsbus"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

// These tests are on a real server, with real time: an approval expires, a run
// comes to its deadline, and work stands still, each when it is due. How soon after
// that depends on the machine.
func requireDue(t *testing.T, due, at time.Time) {
	t.Helper()
	require.WithinRange(t, at, due.Add(-50*time.Millisecond), due.Add(patience))
}

// eventually waits for the run's event of a type and returns when it was made.
func (r *rig) eventually(id string, typ events.Type) time.Time {
	r.t.Helper()
	var at time.Time
	require.Eventually(r.t, func() bool {
		for _, rec := range r.records(id) {
			if typeOf(r.t, rec) == string(typ) {
				at = rec.Stored
			}
		}
		return !at.IsZero()
	}, patience, 10*time.Millisecond, "%s", typ)
	return at
}

// toldTimers tells which kinds of timers were set.
type toldTimers struct {
	journal.Timers
	set chan<- string
}

func (n toldTimers) SetTimer(ctx context.Context, run events.Run, kind string, at time.Time, data []byte) error {
	err := n.Timers.SetTimer(ctx, run, kind, at, data)
	n.set <- kind
	return err
}

// A gateway takes over the timers of one that is gone.
func TestTimersOutliveTheGateway(t *testing.T) {
	t.Parallel()
	b := natsBus(t)
	set := make(chan string, 10)
	first := newRig(t, b, func(cfg *control.Config) { cfg.Timers = toldTimers{cfg.Timers, set} })
	id := first.start(nil)
	deadline := time.Now().Add(3 * time.Second)
	first.happens(id, events.Planning, waiting(deadline.UTC().Format(events.TimeFormat), "search", []string{"c1"}))
	limited := first.start(wallTime(3 * time.Second))
	for <-set != "approval" { // a run's own timer
	}
	first.stop()

	second := newRig(t, b, func(*control.Config) {})
	requireDue(t, deadline, second.eventually(id, events.TypeApprovalExpired))
	second.eventually(limited, events.TypeBudgetExceeded)
	mem := second.fold(limited)
	require.Equal(t, "budget_wall_time", mem.Error.Code)
	requireDue(t, mem.Started.Add(3*time.Second), mem.Updated)
}

// What nobody is at any more since its delivery was settled for nothing.
func TestStandstillOnTheBus(t *testing.T) {
	t.Parallel()
	r := newRig(t, natsBus(t), func(cfg *control.Config) { cfg.StallAfter = 2 * time.Second })
	id := r.start(nil)
	began := r.fold(id).Started
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	woken := make(chan string, 10)
	ended := make(chan error, 1)
	go func() {
		ended <- r.bus.Consume(ctx, journal.Inbox{States: []events.State{events.Planning}}, 1, func(d journal.Delivery) {
			woken <- typeOf(t, d.Record())
			_ = d.Ack()
		})
	}()
	require.Equal(t, "Start", <-woken)
	require.Equal(t, "Resumed", <-woken)
	requireDue(t, began.Add(2*time.Second), r.eventually(id, events.TypeResumed))
	requireDue(t, began.Add(4*time.Second), r.eventually(id, events.TypeFatalError))
	require.Equal(t, "stalled", r.fold(id).Error.Code)
	stop()
	require.NoError(t, <-ended)
}

// A consumer keeps work back while as much as it may have is at work.
func TestQueueIsNoStandstillOnTheBus(t *testing.T) {
	t.Parallel()
	b, ok := natsBus(t).(*natsbus.Bus)
	require.True(t, ok)
	require.NoError(t, natsbus.Init(t.Context(), b.Conn(), natsbus.InitOptions{Memory: true, MaxAckPending: 2}))
	queue := &mute{Queue: b}
	queue.says.Store(true)
	r := newRig(t, b, func(cfg *control.Config) { cfg.StallAfter, cfg.Queue = time.Second, queue })
	atWork, held := []string{r.start(nil), r.start(nil)}, r.start(nil)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	woken, answer := make(chan string, 10), make(chan struct{})
	ended := make(chan error, 1)
	go func() {
		ended <- r.bus.Consume(ctx, journal.Inbox{States: []events.State{events.Planning}}, 8, func(d journal.Delivery) {
			s, err := events.ParseSubject(d.Record().Subject)
			require.NoError(t, err)
			woken <- s.Run.ID
			for waits := s.Run.ID != held; waits; {
				select {
				case <-answer:
					waits = false
				case <-time.After(100 * time.Millisecond):
					_ = d.Extend()
				}
			}
			_ = d.Ack()
		})
	}()
	require.ElementsMatch(t, atWork, []string{<-woken, <-woken})
	// What is at work for too long is driven once more, and that is kept back, too.
	for _, id := range atWork {
		r.eventually(id, events.TypeResumed)
	}
	asked := queue.asked.Load()
	require.Eventually(t, func() bool { return queue.asked.Load() > asked+20 }, patience, 10*time.Millisecond)
	for _, id := range atWork {
		require.Equal(t, []string{"Start", "Resumed"}, r.types(id))
	}
	require.Equal(t, []string{"Start"}, r.types(held))
	close(answer)
	for id := <-woken; id != held; id = <-woken { // beside it comes what was driven once more
		require.Contains(t, atWork, id)
	}
	r.eventually(held, events.TypeResumed)
	stop()
	require.NoError(t, <-ended)
}

// The timer of a run that was never started finds nothing.
func TestTimerWithoutARunOnTheBus(t *testing.T) {
	t.Parallel()
	r := newRig(t, natsBus(t), func(*control.Config) {})
	require.NoError(t, r.bus.SetTimer(t.Context(), r.others.Place("default", runlog.NewID()), "run", time.Now(), nil))
	id := r.start(nil)
	deadline := time.Now().Add(time.Second)
	r.happens(id, events.Planning, waiting(deadline.UTC().Format(events.TimeFormat), "search", []string{"c1"}))
	requireDue(t, deadline, r.eventually(id, events.TypeApprovalExpired)) // and it is in nobody's way
	last, err := r.bus.Last(t.Context(), 0)
	require.NoError(t, err)
	require.EqualValues(t, 3, last)
}
