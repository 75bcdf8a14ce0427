package control_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/control"
	"github.com/moorebus/moorebus/internal/control/controltest"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

// These tests use a real server and real time: an approval expires, a run comes to its
// deadline, and work stalls, each when it is due. How soon after that depends on the machine.
func requireDue(t *testing.T, due, at time.Time) {
	t.Helper()
	require.WithinRange(t, at, due.Add(-50*time.Millisecond), due.Add(patience))
}

// eventually waits for the run's event of a type and returns when it was made.
func (r *rig) eventually(id string, typ events.Type) time.Time {
	r.T.Helper()
	var at time.Time
	require.Eventually(r.T, func() bool {
		for _, rec := range r.Records(id) {
			if controltest.TypeOf(r.T, rec) == string(typ) {
				at = rec.Stored
			}
		}
		return !at.IsZero()
	}, patience, 10*time.Millisecond, "%s", typ)
	return at
}

// toldTimers reports which kinds of timers were set.
type toldTimers struct {
	journal.Timers
	set chan<- string
}

func (n toldTimers) SetTimer(ctx context.Context, run events.Run, kind string, at time.Time, data []byte) error {
	err := n.Timers.SetTimer(ctx, run, kind, at, data)
	n.set <- kind
	return err
}

// A gateway takes over the timers of another one.
func TestTimersOutliveTheGateway(t *testing.T) {
	t.Parallel()
	b := natsBus(t)
	set := make(chan string, 10)
	first := newRig(t, b, func(cfg *control.Config) { cfg.Timers = toldTimers{cfg.Timers, set} })
	id := first.start(nil)
	deadline := time.Now().Add(3 * time.Second)
	first.Happens(id, events.Planning, waiting(deadline.UTC().Format(events.TimeFormat), "search", []string{"c1"}))
	limited := first.start(wallTime(3 * time.Second))
	for <-set != "approval" { // a run's own timer
	}
	first.stop()

	second := newRig(t, b, func(*control.Config) {})
	requireDue(t, deadline, second.eventually(id, events.TypeApprovalExpired))
	second.eventually(limited, events.TypeBudgetExceeded)
	mem := second.Fold(limited)
	require.Equal(t, "budget_wall_time", mem.Error.Code)
	requireDue(t, mem.Started.Add(3*time.Second), mem.Updated)
}

// Work whose delivery was acknowledged without work stalls.
func TestStallOnTheBus(t *testing.T) {
	if testing.Short() {
		t.Skip("-short") // reason: it waits for real timers
	}
	t.Parallel()
	r := newRig(t, natsBus(t), func(cfg *control.Config) { cfg.StallAfter = 2 * time.Second })
	id := r.start(nil)
	began := r.Fold(id).Started
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	woken := make(chan string, 10)
	ended := make(chan error, 1)
	go func() {
		ended <- r.Bus.Consume(ctx, journal.Inbox{States: []events.State{events.Planning}}, 1, func(d journal.Delivery) {
			woken <- controltest.TypeOf(t, d.Record())
			_ = d.Ack()
		})
	}()
	require.Equal(t, "Start", <-woken)
	require.Equal(t, "Resumed", <-woken)
	requireDue(t, began.Add(2*time.Second), r.eventually(id, events.TypeResumed))
	requireDue(t, began.Add(4*time.Second), r.eventually(id, events.TypeFatalError))
	require.Equal(t, "stalled", r.Fold(id).Error.Code)
	stop()
	require.NoError(t, <-ended)
}

// The timer of a run that never started does nothing.
func TestTimerWithoutARunOnTheBus(t *testing.T) {
	t.Parallel()
	r := newRig(t, natsBus(t), func(*control.Config) {})
	require.NoError(t, r.Bus.SetTimer(t.Context(), r.Store.Place("default", runlog.NewID()), "run", time.Now(), nil))
	id := r.start(nil)
	deadline := time.Now().Add(time.Second)
	r.Happens(id, events.Planning, waiting(deadline.UTC().Format(events.TimeFormat), "search", []string{"c1"}))
	requireDue(t, deadline, r.eventually(id, events.TypeApprovalExpired)) // and it is in nobody's way
	last, err := r.Bus.Last(t.Context(), 0)
	require.NoError(t, err)
	require.EqualValues(t, 3, last)
}
