package natsbus

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/ports"
	"github.com/moorebus/moorebus/pkg/journal"
)

func TestSchedulesAreKept(t *testing.T) {
	t.Parallel()
	ctx, bus := t.Context(), newBus(t, 1)
	key, other := ports.ScheduleKey{Namespace: "default", Name: "daily"}, ports.ScheduleKey{Namespace: "other", Name: "daily"}
	_, revision, err := bus.Schedule(ctx, key)
	require.ErrorIs(t, err, journal.ErrNotFound)
	require.Zero(t, revision)
	first, err := bus.PutSchedule(ctx, key, []byte("1"), 0)
	require.NoError(t, err)
	_, err = bus.PutSchedule(ctx, key, []byte("2"), 0)
	require.ErrorIs(t, err, journal.ErrConflict)
	_, err = bus.PutSchedule(ctx, other, []byte("3"), 0)
	require.NoError(t, err)
	value, revision, err := bus.Schedule(ctx, key)
	require.NoError(t, err)
	require.Equal(t, "1", string(value))
	require.Equal(t, first, revision)
	all, err := bus.ScheduleKeys(ctx, "")
	require.NoError(t, err)
	require.Equal(t, []ports.ScheduleKey{key, other}, all)
	all, err = bus.ScheduleKeys(ctx, "other")
	require.NoError(t, err)
	require.Equal(t, []ports.ScheduleKey{other}, all)

	_, err = bus.PutSchedule(ctx, key, nil, revision)
	require.NoError(t, err)
	_, revision, err = bus.Schedule(ctx, key)
	require.ErrorIs(t, err, journal.ErrNotFound)
	_, err = bus.PutSchedule(ctx, key, []byte("again"), revision)
	require.NoError(t, err, "it can be put anew")

	for _, bad := range []ports.ScheduleKey{{Namespace: "*", Name: "a"}, {Namespace: "a", Name: "A"}} {
		_, _, err := bus.Schedule(ctx, bad)
		require.Error(t, err)
		require.Error(t, bus.SetAlarm(ctx, bad, time.Now()))
	}
}

// Alarms are no timers of runs: who takes those, as every older build does, does not get them.
func TestAlarms(t *testing.T) {
	t.Parallel()
	ctx, bus := t.Context(), newBus(t, 1)
	timers := consumeTimers(t, bus)
	key := ports.ScheduleKey{Namespace: "default", Name: "daily"}
	rang, ended := make(chan ports.ScheduleAlarm, 10), make(chan error, 1)
	consuming, stop := context.WithCancel(ctx)
	go func() { ended <- bus.ConsumeAlarms(consuming, 2, func(a ports.ScheduleAlarm) { rang <- a }) }()
	t.Cleanup(func() { stop(); require.NoError(t, <-ended) })
	next := func() ports.ScheduleAlarm {
		select {
		case a := <-rang:
			return a
		case <-timers:
			require.FailNow(t, "it is a timer of a run")
		case <-time.After(patience):
			require.FailNow(t, "no alarm rings")
		}
		return nil
	}

	require.NoError(t, bus.SetAlarm(ctx, key, time.Now().Add(time.Hour)))
	at := time.Now().Add(300 * time.Millisecond)
	require.NoError(t, bus.SetAlarm(ctx, key, at), "it replaces the one before")
	a := next()
	require.Equal(t, key, a.Key())
	require.True(t, at.Equal(a.At()))
	require.False(t, time.Now().Before(at))
	require.NoError(t, a.Retry(0))
	require.NoError(t, next().Ack())

	require.NoError(t, bus.SetAlarm(ctx, key, time.Now().Add(time.Hour)))
	require.NoError(t, bus.SetAlarm(ctx, key, time.Time{}))
	require.Eventually(t, func() bool { return storedTimers(t, bus) == 0 }, patience, 50*time.Millisecond, "it was removed")
}
