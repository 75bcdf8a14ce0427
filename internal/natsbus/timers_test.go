package natsbus

import (
	"context"
	"testing"
	"time"

	"github.com/moorebus/moorebus/internal/announce"
	"github.com/moorebus/moorebus/internal/journaltest"
	"github.com/moorebus/moorebus/internal/natstest"
	"github.com/moorebus/moorebus/pkg/embedded"
	"github.com/moorebus/moorebus/pkg/events"
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
		return journal.TimerDelivery{}
	}
}

func storedTimers(t *testing.T, bus *Bus) int {
	t.Helper()
	info, err := bus.Stream(t.Context(), timerStream)
	require.NoError(t, err)
	return int(info.State.Msgs)
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
	require.Equal(t, 1, storedTimers(t, bus), "it is kept until it is finished")
	require.NoError(t, d.Ack())
	require.Eventually(t, func() bool { return storedTimers(t, bus) == 0 }, patience, 10*time.Millisecond)
}

// TestTimersAcrossRestarts: the server goes down, and the times of some timers
// come meanwhile.
func TestTimersAcrossRestarts(t *testing.T) {
	if testing.Short() {
		t.Skip("-short") // reason: it restarts a server
	}
	t.Parallel()
	srv := natstest.Start(t, natstest.Options{})
	bus := openBus(t, connectTo(t, srv), 1)
	past, later, open := journaltest.NewRun(t, bus), journaltest.NewRun(t, bus), journaltest.NewRun(t, bus)
	got := consumeTimers(t, bus)
	require.NoError(t, bus.SetTimer(t.Context(), open, "run", time.Now(), nil))
	require.Equal(t, open, nextTimer(t, got).Timer.Run)
	at := time.Now().Add(3 * time.Second)
	require.NoError(t, bus.SetTimer(t.Context(), past, "run", time.Now().Add(time.Second), nil))
	require.NoError(t, bus.SetTimer(t.Context(), later, "run", at, nil))
	srv.Stop()
	<-time.After(time.Second) // the first one's time comes while there is no server
	srv.Start()
	fired := map[string]bool{}
	for !fired[past.ID] || !fired[later.ID] || !fired[open.ID] {
		d := nextTimer(t, got)
		timer := d.Timer
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
	require.Equal(t, run, d.Timer.Run)
	require.NoError(t, d.Ack())
	require.Eventually(t, func() bool { return storedTimers(t, bus) == 0 }, patience, 10*time.Millisecond)
}

// A process that has the bus alone gets at once what its predecessor held when it
// died, with the count of deliveries going on, and everything else stays as it is.
func TestReclaim(t *testing.T) {
	t.Parallel()
	const ackWait = 10 * time.Minute
	dir, inbox := t.TempDir(), journal.Inbox{States: []events.State{events.Planning}}
	var bus *Bus
	start := func(o InitOptions) func() {
		server, err := embedded.Start(t.Context(), embedded.Options{Dir: dir, Logger: quiet})
		require.NoError(t, err)
		conn, err := server.Connect()
		require.NoError(t, err)
		require.NoError(t, Init(t.Context(), conn, o))
		bus, err = Open(t.Context(), conn, Options{Logger: quiet})
		require.NoError(t, err)
		return func() { conn.Close(); server.Shutdown() }
	}
	// take returns the next deliveries, without a verdict on them.
	take := func(n int) map[string]journal.Delivery {
		ctx, stop := context.WithTimeout(t.Context(), patience)
		defer stop()
		taken := make(chan journal.Delivery, n)
		ended := make(chan error, 1)
		go func() { ended <- bus.Consume(ctx, inbox, n, func(d journal.Delivery) { taken <- d }) }()
		all := map[string]journal.Delivery{}
		for range n {
			select {
			case d := <-taken:
				all[string(d.Record().Body)] = d
			case <-ctx.Done():
				stop()
				require.NoError(t, <-ended)
				require.Fail(t, "a delivery does not come")
			}
		}
		stop()
		require.NoError(t, <-ended)
		return all
	}

	end := start(InitOptions{AckWait: ackWait})
	for _, body := range []string{"held", "settled", "later"} {
		run := journaltest.NewRun(t, bus)
		_, err := bus.Append(t.Context(), run, 0, journaltest.Entry(run, events.Planning, events.DefaultPool, body))
		require.NoError(t, err)
	}
	require.NoError(t, announce.NewDirectory(bus, nil).AnnounceProviders(t.Context(), "gone", []string{"model"}))
	require.NoError(t, announce.NewDirectory(bus, nil).PutOffers(t.Context(), announce.Offers{First: map[string]string{"gone": "default"}, Providers: []string{"model"}}))
	all := take(3)
	require.NoError(t, all["settled"].Ack())
	require.NoError(t, all["later"].Retry(time.Hour))
	require.NoError(t, bus.NC.Flush())
	js, err := jetstream.New(bus.NC)
	require.NoError(t, err)
	info := func() *jetstream.ConsumerInfo {
		c, err := js.Consumer(t.Context(), events.StreamName(0), string(events.Planning))
		require.NoError(t, err)
		return c.CachedInfo()
	}
	require.Eventually(t, func() bool { return info().NumAckPending == 2 }, patience, 5*time.Millisecond)
	end()

	end = start(InitOptions{Alone: true})
	defer end()
	again := take(1)
	require.Contains(t, again, "held")
	require.Equal(t, 2, again["held"].Attempt())
	wait, err := bus.AckWait(t.Context(), inbox)
	require.NoError(t, err)
	require.Equal(t, ackWait, wait)
	js, err = jetstream.New(bus.NC)
	require.NoError(t, err)
	require.Equal(t, 1, info().NumRedelivered, "a delay goes on")
	require.NotContains(t, info().Config.Metadata, metaAckWait)
	providers, err := announce.NewDirectory(bus, nil).Providers(t.Context())
	require.NoError(t, err)
	require.Empty(t, providers)
	offers, err := announce.NewDirectory(bus, nil).Offers(t.Context())
	require.NoError(t, err)
	require.Empty(t, offers.First)
	require.Empty(t, offers.Providers)
	require.NoError(t, announce.NewDirectory(bus, nil).PutOffers(t.Context(), offers), "it goes on from there")
}

// A consumer that was left with the short ack wait gets its own back.
func TestReclaimThatWasCutOff(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]InitOptions{"alone": {Alone: true}, "with others": {}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, conn := t.Context(), inProcess(t, startServer(t, embedded.Options{}))
			require.NoError(t, Init(ctx, conn, InitOptions{AckWait: time.Minute}))
			js, err := jetstream.New(conn)
			require.NoError(t, err)
			stream, err := js.Stream(ctx, events.StreamName(0))
			require.NoError(t, err)
			c, err := stream.Consumer(ctx, string(events.Planning))
			require.NoError(t, err)
			cut := heldConsumer{stream: events.StreamName(0), cfg: c.CachedInfo().Config, ackWait: time.Minute}
			require.NoError(t, cut.setAckWait(ctx, js, reclaimWait))

			require.NoError(t, Init(ctx, conn, o))
			c, err = stream.Consumer(ctx, string(events.Planning))
			require.NoError(t, err)
			require.Equal(t, time.Minute, c.CachedInfo().Config.AckWait)
			require.NotContains(t, c.CachedInfo().Config.Metadata, metaAckWait)
		})
	}
}
