package natsbus

import (
	"context"
	"testing"
	"time"

	"github.com/moorebus/moorebus/internal/journaltest"
	"github.com/moorebus/moorebus/internal/natstest"
	"github.com/moorebus/moorebus/pkg/embedded"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
)

// consumeTimers passes what fires to a channel until the test ends.
func consumeTimers(t *testing.T, bus *Bus) <-chan journal.TimerDelivery {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	got, ended := make(chan journal.TimerDelivery, 100), make(chan error, 1)
	go func() { ended <- bus.ConsumeTimers(ctx, 4, func(d journal.TimerDelivery) { got <- d }) }()
	t.Cleanup(func() { cancel(); require.NoError(t, <-ended) })
	return got
}

func nextTimer(t *testing.T, got <-chan journal.TimerDelivery) journal.TimerDelivery {
	t.Helper()
	select {
	case d := <-got:
		return d
	case <-time.After(patience):
		require.FailNow(t, "no timer fires")
		return nil
	}
}

func storedTimers(t *testing.T, bus *Bus) int {
	t.Helper()
	info, err := bus.streamOf(t.Context(), timerStream)
	require.NoError(t, err)
	return int(info.State.Messages)
}

// TestTimerStreamStaysSmall: there is one message for each timer, and none for
// those that are done with.
func TestTimerStreamStaysSmall(t *testing.T) {
	t.Parallel()
	ctx, bus := t.Context(), newBus(t, 1)
	run, other := journaltest.NewRun(t, bus), journaltest.NewRun(t, bus)
	for range 20 {
		require.NoError(t, bus.SetTimer(ctx, run, "run", time.Now().Add(time.Hour), []byte("x")))
		require.NoError(t, bus.SetTimer(ctx, other, "run", time.Now().Add(time.Hour), nil))
	}
	require.Equal(t, 2, storedTimers(t, bus))
	require.NoError(t, bus.CancelTimer(ctx, other, "run"))
	require.Eventually(t, func() bool { return storedTimers(t, bus) == 1 }, patience, 50*time.Millisecond)

	got := consumeTimers(t, bus)
	require.NoError(t, bus.SetTimer(ctx, run, "run", time.Now(), nil))
	d := nextTimer(t, got)
	require.Equal(t, 1, storedTimers(t, bus), "it is kept until it is settled")
	require.NoError(t, d.Ack())
	require.Eventually(t, func() bool { return storedTimers(t, bus) == 0 }, patience, 10*time.Millisecond)
}

// TestTimersAcrossRestarts: the server goes down, and the times of some timers
// come meanwhile.
func TestTimersAcrossRestarts(t *testing.T) {
	t.Parallel()
	srv := natstest.Start(t, natstest.Options{})
	bus := openBus(t, connectTo(t, srv), 1)
	past, later, open := journaltest.NewRun(t, bus), journaltest.NewRun(t, bus), journaltest.NewRun(t, bus)
	got := consumeTimers(t, bus)
	require.NoError(t, bus.SetTimer(t.Context(), open, "run", time.Now(), nil))
	require.Equal(t, open, nextTimer(t, got).Timer().Run)
	at := time.Now().Add(3 * time.Second)
	require.NoError(t, bus.SetTimer(t.Context(), past, "run", time.Now().Add(time.Second), nil))
	require.NoError(t, bus.SetTimer(t.Context(), later, "run", at, nil))
	srv.Stop()
	<-time.After(time.Second) // the first one's time comes while there is no server
	srv.Start()
	fired := map[string]bool{}
	for !fired[past.ID] || !fired[later.ID] || !fired[open.ID] {
		d := nextTimer(t, got)
		timer := d.Timer()
		if timer.Run == later {
			require.False(t, time.Now().Before(at), "it fired too early")
		}
		if timer.Run == open {
			require.Greater(t, d.Attempt(), 1)
		}
		fired[timer.Run.ID] = true
		require.NoError(t, d.Ack())
	}
}

// TestTimersOfAnOldBus: one that was set up before there were timers.
func TestTimersOfAnOldBus(t *testing.T) {
	t.Parallel()
	ctx, conn := t.Context(), inProcess(t, startServer(t, embedded.Options{}))
	bus := openBus(t, conn, 1)
	js, err := jetstream.New(conn)
	require.NoError(t, err)
	run := journaltest.NewRun(t, bus)
	refused := func(err error) {
		t.Helper()
		require.ErrorIs(t, err, journal.ErrNotReady)
		require.ErrorContains(t, err, "moorebus init")
	}
	require.NoError(t, js.DeleteConsumer(ctx, timerStream, timerDurable))
	refused(bus.Ready(ctx))
	require.Contains(t, texts(Check(ctx, conn, Options{Logger: quiet}), Bad), "consumer timers of MOORE_TIMERS")

	require.NoError(t, js.DeleteStream(ctx, timerStream))
	refused(bus.Ready(ctx))
	refused(bus.SetTimer(ctx, run, "run", time.Now(), nil))
	refused(bus.CancelTimer(ctx, run, "run"))
	require.Contains(t, texts(Check(ctx, conn, Options{Logger: quiet}), Bad), "stream MOORE_TIMERS")

	got := consumeTimers(t, bus) // waits for it
	require.NoError(t, Init(ctx, conn, InitOptions{AckWait: testAckWait}))
	require.NoError(t, bus.Ready(ctx))
	require.NoError(t, bus.SetTimer(ctx, run, "run", time.Now(), nil))
	require.NoError(t, nextTimer(t, got).Ack())
	require.Contains(t, texts(Check(ctx, conn, Options{Logger: quiet}), Good), "stream MOORE_TIMERS: 0 timers")

	require.NoError(t, js.DeleteStream(ctx, timerStream))
	wrong := timerStreamConfig(1, jetstream.FileStorage)
	wrong.Retention = jetstream.LimitsPolicy
	_, err = js.CreateStream(ctx, wrong)
	require.NoError(t, err)
	require.Contains(t, texts(Check(ctx, conn, Options{Logger: quiet}), Bad), "retention")
}

// TestTimerOfNoRun is a message that somebody else put among the timers.
func TestTimerOfNoRun(t *testing.T) {
	t.Parallel()
	ctx, bus := t.Context(), newBus(t, 1)
	js, err := jetstream.New(bus.Conn())
	require.NoError(t, err)
	_, err = js.Publish(ctx, "timers.due.default.not-a-run.run", nil)
	require.NoError(t, err)
	_, err = js.Publish(ctx, "timers.due.x", nil)
	require.NoError(t, err)
	got := consumeTimers(t, bus)
	run := journaltest.NewRun(t, bus)
	require.NoError(t, bus.SetTimer(ctx, run, "run", time.Now(), nil))
	d := nextTimer(t, got)
	require.Equal(t, run, d.Timer().Run)
	require.NoError(t, d.Ack())
	require.Eventually(t, func() bool { return storedTimers(t, bus) == 0 }, patience, 10*time.Millisecond)
}
