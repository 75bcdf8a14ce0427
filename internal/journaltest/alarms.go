package journaltest

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/ports"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

// LogAlarms is a journal that keeps alarms beside the timers of runs.
type LogAlarms interface {
	LogTimers
	ports.Alarms
}

// Alarms tests [ports.Alarms]: what holds of timers holds of them. The factory is that of
// [Timers].
func Alarms(t *testing.T, open func(t *testing.T) LogAlarms) {
	timers(t, func(t *testing.T) LogTimers { return &alarms{LogAlarms: open(t), data: map[armed]journal.Timer{}} })
	for name, test := range map[string]func(*testing.T, LogAlarms){
		"no timers of runs": testAlarmsAreNoTimers,
		"refused":           testAlarmRefused,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, open(t))
		})
	}
}

// alarms are alarms in the form of timers. Their data is remembered by the name and the time
// that alarms bring.
type alarms struct {
	LogAlarms
	mu   sync.Mutex
	data map[armed]journal.Timer
}

type armed struct {
	of ports.AlarmKey
	at int64
}

func alarmOf(run events.Run, kind string) ports.AlarmKey {
	return ports.AlarmKey{Namespace: run.Namespace, Name: kind + "-" + run.ID}
}

func (a *alarms) SetTimer(ctx context.Context, run events.Run, kind string, at time.Time, data []byte) error {
	of := alarmOf(run, kind)
	a.mu.Lock()
	a.data[armed{of, at.UnixNano()}] = journal.Timer{Run: run, Kind: kind, Data: data}
	a.mu.Unlock()
	return a.SetAlarm(ctx, of, at)
}

func (a *alarms) CancelTimer(ctx context.Context, run events.Run, kind string) error {
	return a.SetAlarm(ctx, alarmOf(run, kind), time.Time{})
}

func (a *alarms) ConsumeTimers(ctx context.Context, slots int, handle func(journal.TimerDelivery)) error {
	return a.ConsumeAlarms(ctx, slots, func(rang ports.Alarm) {
		a.mu.Lock()
		timer := a.data[armed{rang.Of, rang.At.UnixNano()}]
		a.mu.Unlock()
		handle(journal.TimerDelivery{Delivery: rang.Delivery, Timer: timer})
	})
}

// testAlarmsAreNoTimers: who takes the timers of runs, as every older build does, does not get
// alarms.
func testAlarmsAreNoTimers(t *testing.T, j LogAlarms) {
	b := ring(t, j, 4, nil)
	key := ports.AlarmKey{Namespace: events.DefaultNamespace, Name: "daily"}
	require.NoError(t, j.SetAlarm(bounded(t), key, time.Now()))
	ctx, stop := context.WithCancel(bounded(t))
	defer stop()
	rang := false
	require.NoError(t, j.ConsumeAlarms(ctx, 1, func(a ports.Alarm) {
		rang = a.Of == key
		assert.NoError(t, a.Ack())
		stop()
	}))
	require.True(t, rang)
	b.nothing(t, soon/6)
}

func testAlarmRefused(t *testing.T, j LogAlarms) {
	ctx := bounded(t)
	for _, bad := range []ports.AlarmKey{{Namespace: "*", Name: "a"}, {Namespace: "a", Name: "A"}, {Name: "a"}, {Namespace: "a"}, {Namespace: "a", Name: "b.c"}} {
		require.Error(t, j.SetAlarm(ctx, bad, time.Now()))
		require.Error(t, j.SetAlarm(ctx, bad, time.Time{}))
	}
	require.Error(t, j.ConsumeAlarms(ctx, 0, func(ports.Alarm) {}))
	ended, cancel := context.WithCancel(ctx)
	cancel()
	require.ErrorIs(t, j.SetAlarm(ended, ports.AlarmKey{Namespace: "a", Name: "b"}, time.Now()), context.Canceled)
}
