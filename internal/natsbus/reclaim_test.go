package natsbus

import (
	"context"
	"testing"
	"time"

	"github.com/moorebus/moorebus/internal/journaltest"
	"github.com/moorebus/moorebus/pkg/embedded"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
)

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
	require.NoError(t, bus.AnnounceProviders(t.Context(), "gone", []string{"model"}))
	require.NoError(t, bus.PutOffers(t.Context(), journal.Offers{First: map[string]string{"gone": "default"}, Providers: []string{"model"}}))
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
	providers, err := bus.Providers(t.Context())
	require.NoError(t, err)
	require.Empty(t, providers)
	offers, err := bus.Offers(t.Context())
	require.NoError(t, err)
	require.Empty(t, offers.First)
	require.Empty(t, offers.Providers)
	require.NoError(t, bus.PutOffers(t.Context(), offers), "it goes on from there")
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
