package natsbus

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/ports"
)

// Alarms are no timers of runs: who takes those, as every older build does, does not get them.
func TestAlarms(t *testing.T) {
	t.Parallel()
	ctx, bus := t.Context(), newBus(t, 1)
	timers := consumeTimers(t, bus)
	key := ports.AlarmKey{Namespace: "default", Name: "daily"}
	rang, ended := make(chan ports.Alarm, 10), make(chan error, 1)
	consuming, stop := context.WithCancel(ctx)
	go func() { ended <- bus.ConsumeAlarms(consuming, 2, func(a ports.Alarm) { rang <- a }) }()
	t.Cleanup(func() { stop(); require.NoError(t, <-ended) })
	next := func() ports.Alarm {
		select {
		case a := <-rang:
			return a
		case <-timers:
			require.FailNow(t, "it is a timer of a run")
		case <-time.After(patience):
			require.FailNow(t, "no alarm rings")
		}
		return ports.Alarm{}
	}
	for _, bad := range []ports.AlarmKey{{Namespace: "*", Name: "a"}, {Namespace: "a", Name: "A"}} {
		require.Error(t, bus.SetAlarm(ctx, bad, time.Now()))
	}

	require.NoError(t, bus.SetAlarm(ctx, key, time.Now().Add(time.Hour)))
	at := time.Now().Add(300 * time.Millisecond)
	require.NoError(t, bus.SetAlarm(ctx, key, at), "it replaces the one before")
	a := next()
	require.Equal(t, key, a.Of)
	require.True(t, at.Equal(a.At))
	require.False(t, time.Now().Before(at))
	require.NoError(t, a.Retry(0))
	require.NoError(t, next().Ack())

	require.NoError(t, bus.SetAlarm(ctx, key, time.Now().Add(time.Hour)))
	require.NoError(t, bus.SetAlarm(ctx, key, time.Time{}))
	require.Eventually(t, func() bool { return storedTimers(t, bus) == 0 }, patience, 50*time.Millisecond, "it was removed")
}
