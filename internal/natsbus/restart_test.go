package natsbus

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/moorebus/moorebus/internal/journaltest"
	"github.com/moorebus/moorebus/internal/natstest"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
)

// patience bounds every wait for something that must happen.
const patience = time.Minute

// restart has a server end in order and starts it again.
func restart(srv *natstest.Server) {
	srv.Stop()
	srv.Start()
}

// persist appends until it is known to be stored, as a worker does.
func persist(ctx context.Context, bus *Bus, run events.Run, last uint64, entry journal.Entry) (uint64, error) {
	for {
		seq, err := bus.Append(ctx, run, last, entry)
		if err == nil || ctx.Err() != nil {
			return seq, err
		}
		head, failed := bus.Head(ctx, run)
		if failed == nil && head.Seq > last && string(head.Body) == string(entry.Body) {
			return head.Seq, nil
		}
		if !errors.Is(err, journal.ErrUnknownOutcome) {
			return 0, err
		}
	}
}

// TestFollowAcrossRestarts writes, follows and restarts the server meanwhile.
func TestFollowAcrossRestarts(t *testing.T) {
	t.Parallel()
	for name, one := range map[string]bool{"one run": true, "all runs": false} {
		t.Run(name, func(t *testing.T) { t.Parallel(); followAcrossRestart(t, one) })
	}
}

func followAcrossRestart(t *testing.T, one bool) {
	srv := natstest.Start(t, natstest.Options{})
	writer, reader := openBus(t, connectTo(t, srv), 1), openBus(t, connectTo(t, srv), 1)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	run := journaltest.NewRun(t, writer)
	filter := journal.Filter{To: events.Observing}
	if one {
		filter.Run = run.ID
	}
	const total = 300
	var work sync.WaitGroup
	failed := make(chan error, 1)
	half := make(chan struct{})
	work.Go(func() {
		var last uint64
		for i := range total {
			if i == total/3 {
				close(half)
			}
			seq, err := persist(ctx, writer, run, last, entryTo(run, events.Observing, "default", fmt.Append(nil, i)))
			if err != nil {
				failed <- err
				return
			}
			last = seq
		}
		failed <- nil
	})
	work.Go(func() {
		<-half
		restart(srv)
	})
	n := 0
	for rec, err := range reader.Follow(ctx, 0, filter, 0) {
		require.NoError(t, err)
		require.Equal(t, fmt.Sprint(n), string(rec.Body))
		if n++; n == total {
			break
		}
	}
	require.NoError(t, <-failed)
	work.Wait()
}

// TestConsumeAcrossRestarts shows that after a restart what was acknowledged does
// not come again, what was not does, and what is new comes.
func TestConsumeAcrossRestarts(t *testing.T) {
	t.Parallel()
	srv := natstest.Start(t, natstest.Options{})
	bus := openBus(t, connectTo(t, srv), 1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	got := make(chan journal.Delivery, 100)
	ended := make(chan error, 1)
	web := journal.Inbox{States: []events.State{events.Acting}, Pool: "web"}
	go func() { ended <- bus.Consume(ctx, web, 5, func(d journal.Delivery) { got <- d }) }()
	next := func() journal.Delivery {
		t.Helper()
		select {
		case d := <-got:
			return d
		case <-time.After(patience):
			require.FailNow(t, "no delivery")
			return nil
		}
	}
	send := func(text string) {
		t.Helper()
		run := journaltest.NewRun(t, bus)
		_, err := persist(ctx, bus, run, 0, entryTo(run, events.Acting, "web", []byte(text)))
		require.NoError(t, err)
	}
	send("settled")
	require.NoError(t, next().Ack())
	send("open")
	first := next()
	require.Equal(t, "open", string(first.Record().Body))
	require.NoError(t, bus.Conn().Flush())
	restart(srv)
	again := next()
	require.Equal(t, "open", string(again.Record().Body))
	require.Greater(t, again.Attempt(), 1)
	require.NoError(t, again.Ack())
	for i := range 20 {
		send(fmt.Sprint("new", i))
		d := next()
		require.Equal(t, fmt.Sprint("new", i), string(d.Record().Body))
		require.NoError(t, d.Ack())
	}
	cancel()
	require.NoError(t, <-ended)
}

// TestConsumerDeleted deletes the durable under a worker, which makes it again.
func TestConsumerDeleted(t *testing.T) {
	t.Parallel()
	bus := newBus(t, 1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	got := make(chan string, 100)
	ended := make(chan error, 1)
	inbox := journal.Inbox{States: []events.State{events.Acting}, Pool: "fresh"}
	go func() {
		ended <- bus.Consume(ctx, inbox, 5, func(d journal.Delivery) {
			if d.Ack() == nil {
				got <- string(d.Record().Body)
			}
		})
	}()
	run := journaltest.NewRun(t, bus)
	last, err := bus.Append(ctx, run, 0, entryTo(run, events.Acting, "fresh", []byte("1")))
	require.NoError(t, err)
	require.Equal(t, "1", <-got)
	js, err := jetstream.New(bus.Conn())
	require.NoError(t, err)
	_, err = js.KeyValue(ctx, "tools_fresh")
	require.NoError(t, err, "the pool's buckets were made with its consumer")
	require.NoError(t, js.DeleteConsumer(ctx, events.StreamName(0), "acting_fresh"))
	require.Equal(t, "1", <-got, "a consumer made anew delivers everything")
	_, err = bus.Append(ctx, run, last, entryTo(run, events.Acting, "fresh", []byte("2")))
	require.NoError(t, err)
	require.Equal(t, "2", <-got)
	cancel()
	require.NoError(t, <-ended)
}

// TestBusAway appends and reads while there is no server.
func TestBusAway(t *testing.T) {
	t.Parallel()
	srv := natstest.Start(t, natstest.Options{})
	conn := connectTo(t, srv)
	openBus(t, conn, 1)
	bus, err := Open(t.Context(), conn, Options{Logger: quiet, RequestTimeout: 500 * time.Millisecond})
	require.NoError(t, err)
	run := journaltest.NewRun(t, bus)
	journaltest.AppendAll(t, bus, run, "1")
	lost := make(chan struct{}, 1)
	stop, err := bus.Watch(journal.Filter{}, func(journal.Record) {}, func() {
		select {
		case lost <- struct{}{}:
		default:
		}
	})
	require.NoError(t, err)
	defer stop()
	srv.Stop()
	require.Eventually(t, func() bool { return !conn.IsConnected() }, patience, 5*time.Millisecond)

	require.Error(t, bus.Ready(t.Context()))
	_, err = bus.Append(t.Context(), run, 1, entryTo(run, events.Acting, "web", []byte("2")))
	require.ErrorIs(t, err, journal.ErrUnknownOutcome)
	_, err = journaltest.Collect(bus.Read(t.Context(), run, 0))
	require.Error(t, err)
	ended, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err = Wait(ended, conn, Options{Logger: quiet})
	require.ErrorIs(t, err, context.DeadlineExceeded)

	srv.Start()
	<-lost
	bus, err = Wait(t.Context(), conn, Options{Logger: quiet})
	require.NoError(t, err)
	require.Eventually(t, func() bool { return bus.Ready(t.Context()) == nil }, patience, 10*time.Millisecond)
	recs, err := journaltest.Collect(bus.Read(t.Context(), run, 0))
	require.NoError(t, err)
	// What had an unknown outcome was sent when the connection came back, or not.
	require.Contains(t, []int{1, 2}, len(recs))
}
