package natsbus

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/moorebus/moorebus/internal/journaltest"
	"github.com/moorebus/moorebus/internal/natstest"
	"github.com/moorebus/moorebus/pkg/embedded"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
)

var webInbox = journal.Inbox{States: []events.State{events.Acting}, Pool: "web"}

// consume hands the deliveries of the inbox of "web" to handle until the test ends.
func consume(t *testing.T, bus *Bus, slots int, handle func(journal.Delivery)) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- bus.Consume(ctx, webInbox, slots, handle) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-ended)
	})
}

// receive returns what comes next, within patience.
func receive[T any](t *testing.T, from <-chan T) (value T) {
	t.Helper()
	select {
	case value = <-from:
	case <-time.After(patience):
		require.FailNow(t, "nothing came")
	}
	return value
}

// sendText appends a first event for "web" to a new run.
func sendText(t *testing.T, bus *Bus, text string) {
	t.Helper()
	run := journaltest.NewRun(t, bus)
	_, err := persist(t.Context(), bus, run, 0, entryTo(run, events.Acting, "web", []byte(text)))
	require.NoError(t, err)
}

// A publisher may give a message any header. One without a body and with a header Status
// looks like the server's control messages, but it is a record as any other: every read
// brings it, and a worker gets it once.
func TestForgedStatus(t *testing.T) {
	t.Parallel()
	bus := newBus(t, 1)
	statuses := []string{"100", "204", "404", "408", "409", "503"}
	for _, status := range statuses {
		run := journaltest.NewRun(t, bus)
		forged := &nats.Msg{Subject: entryTo(run, events.Acting, "web", nil).Subject.String(), Header: nats.Header{}}
		forged.Header.Set("Status", status)
		forged.Header.Set("Description", "Consumer Deleted")
		_, err := bus.NC.RequestMsgWithContext(t.Context(), forged)
		require.NoError(t, err)
	}
	sendText(t, bus, "genuine")
	total := len(statuses) + 1

	ordered, direct := bothWays(t, bus)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	q, n := everything(t, bus, 0, 0), 0
	require.NoError(t, ordered.ReadOrdered(ctx, &q, func(journal.Record, error) bool { n++; return true }))
	require.Equal(t, total, n)
	for _, reader := range []*Bus{ordered, direct} {
		got, err := journaltest.Collect(reader.Scan(ctx, 0, journal.Filter{}, 0))
		require.NoError(t, err)
		require.Len(t, got, total)
	}
	requireNoReaders(t, bus)

	got := make(chan uint64, 100)
	consume(t, bus, 3, func(d journal.Delivery) {
		if d.Attempt() == 1 && d.Ack() == nil {
			got <- d.Record().Seq
		}
	})
	var seqs []uint64
	for range total {
		seqs = append(seqs, receive(t, got))
	}
	slices.Sort(seqs)
	for i, seq := range seqs {
		require.EqualValues(t, i+1, seq)
	}
}

// A consumer that the server lost while it was away is made again.
func TestConsumerLostInARestart(t *testing.T) {
	t.Parallel()
	srv := natstest.Start(t, natstest.Options{})
	bus := openBus(t, connectTo(t, srv), 1)
	got := make(chan string, 100)
	consume(t, bus, 5, func(d journal.Delivery) {
		if d.Ack() == nil {
			got <- string(d.Record().Body)
		}
	})
	sendText(t, bus, "before")
	require.Equal(t, "before", receive(t, got))
	srv.Stop()
	consumer := filepath.Join(srv.Dir, "jetstream", "$G", "streams", "MOORE_0", "obs", "acting_web")
	require.DirExists(t, consumer)
	require.NoError(t, os.RemoveAll(consumer))
	srv.Start()
	sendText(t, bus, "after")
	for receive(t, got) != "after" { // the new consumer begins at the start of the stream
	}
}

// After a short break of the connection the request that stood before may stand beside the
// new one, so that twice as many deliveries come as there are slots. Those without a slot
// go to another worker at once, and not when the ack wait ends.
func TestDeliveriesWithoutASlot(t *testing.T) {
	t.Parallel()
	srv := natstest.Start(t, natstest.Options{})
	conn := connectTo(t, srv)
	require.NoError(t, Init(t.Context(), conn, InitOptions{Shards: 1, AckWait: 10 * patience, Pools: []string{"web"}}))
	broken, other := reopenBus(t, conn, GroupCommitAuto), reopenBus(t, connectTo(t, srv), GroupCommitAuto)
	waiting := func(n int) func() bool {
		return func() bool {
			info, err := other.Consumer(t.Context(), events.StreamName(0), "acting_web")
			return err == nil && info.CachedInfo().NumWaiting == n
		}
	}
	const slots = 8
	got, release := make(chan string, 100), make(chan struct{})
	handle := func(d journal.Delivery) {
		got <- string(d.Record().Body)
		<-release
		_ = d.Ack() // it is the test's end
	}
	consume(t, broken, slots, handle)
	require.Eventually(t, waiting(1), patience, time.Millisecond)
	// While the connection is away nobody asks the server about the consumer: it would look
	// whether its requests still have somebody who listens.
	status := conn.StatusChanged(nats.CONNECTED)
	defer conn.RemoveStatusListener(status)
	require.NoError(t, conn.ForceReconnect())
	receive(t, status)
	require.NoError(t, conn.Flush())
	require.Eventually(t, waiting(2), patience, time.Millisecond)
	consume(t, other, 2*slots, handle)
	t.Cleanup(func() { close(release) }) // before the cleanups of consume, which wait for the handlers
	require.Eventually(t, waiting(3), patience, time.Millisecond)
	var want, came []string
	for i := range 3 * slots { // together, so that all requests bring their part
		want = append(want, fmt.Sprint(i))
		subject := entryTo(journaltest.NewRun(t, other), events.Acting, "web", nil).Subject.String()
		require.NoError(t, other.NC.Publish(subject, []byte(want[i])))
	}
	for range want {
		came = append(came, receive(t, got))
	}
	require.ElementsMatch(t, want, came)
}

// A record that MaxAckPending keeps back has not been delivered, although its worker has a
// free slot.
func TestMaxAckPendingKeepsRecordsBack(t *testing.T) {
	t.Parallel()
	conn := inProcess(t, startServer(t, embedded.Options{}))
	require.NoError(t, Init(t.Context(), conn, InitOptions{MaxAckPending: 1, Pools: []string{"web"}}))
	bus := reopenBus(t, conn, GroupCommitAuto)
	sendText(t, bus, "first")
	sendText(t, bus, "second")
	got := make(chan journal.Delivery, 2)
	consume(t, bus, 2, func(d journal.Delivery) { got <- d })
	undelivered := func(seq uint64) bool {
		waits, err := bus.Undelivered(t.Context(), webInbox, 0, seq)
		require.NoError(t, err)
		return waits
	}
	first := receive(t, got)
	require.EqualValues(t, 1, first.Record().Seq)
	require.False(t, undelivered(1))
	require.True(t, undelivered(2))
	require.NoError(t, first.Ack())
	require.NoError(t, receive(t, got).Ack())
	require.False(t, undelivered(2))
}
