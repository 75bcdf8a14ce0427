package natsbus

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/moorebus/moorebus/internal/announce"
	"github.com/moorebus/moorebus/internal/journaltest"
	"github.com/moorebus/moorebus/internal/natstest"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
)

func natsMsg(subject, body string) *nats.Msg {
	msg := nats.NewMsg(subject)
	msg.Data = []byte(body)
	return msg
}

// guardedServer runs a server with an operator and a worker that may publish
// only what is listed.
func guardedServer(t *testing.T, allowed ...string) (operator, worker *nats.Conn) {
	t.Helper()
	connect := guardedUsers(t, map[string][]string{"worker": allowed})
	return connect("operator"), connect("worker")
}

// guardedUsers runs a server with an operator and with users that may publish only what
// is listed for each.
func guardedUsers(t *testing.T, users map[string][]string) (connect func(user string) *nats.Conn) {
	t.Helper()
	conf := "authorization { users: [ { user: operator, password: x }"
	for name, allowed := range users {
		conf += fmt.Sprintf("\n"+`{ user: %s, password: x, permissions: { publish: ["%s"], subscribe: "_W.>" } }`, name, strings.Join(allowed, `", "`))
	}
	srv := natstest.Start(t, natstest.Options{More: conf + " ] }"})
	return func(user string) *nats.Conn {
		conn, err := nats.Connect(srv.URL, nats.UserInfo(user, "x"), nats.CustomInboxPrefix("_W"),
			nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
		require.NoError(t, err)
		t.Cleanup(conn.Close)
		return conn
	}
}

// lines is a log to look at.
type lines struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *lines) contain(text string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Contains(l.buf.String(), text)
}

// TestDenied shows that what a worker may not do fails at once, by name, and that
// it waits for consumers that it may not make.
func TestDenied(t *testing.T) {
	t.Parallel()
	operator, conn := guardedServer(t, "moore.*.*.acting.>", "$JS.ACK.>", "$JS.API.STREAM.INFO.>",
		"$JS.API.CONSUMER.INFO.>", "$JS.API.CONSUMER.MSG.NEXT.MOORE_0.acting_web", "$JS.API.CONSUMER.MSG.NEXT.MOORE_0.acting_late",
		"$JS.API.DIRECT.GET.MOORE_0")
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	require.NoError(t, Init(ctx, operator, InitOptions{Pools: []string{"web", "db"}, AckWait: time.Second}))
	var log lines
	bus, err := Open(ctx, conn, Options{Logger: slog.New(slog.NewTextHandler(&log, nil)), RequestTimeout: time.Minute})
	require.NoError(t, err)
	owner, err := Open(ctx, operator, Options{Logger: quiet})
	require.NoError(t, err)

	run := journaltest.NewRun(t, bus)
	own := entryTo(run, events.Observing, "default", []byte("1"))
	own.Subject.From = events.Acting
	last, err := bus.Append(ctx, run, 0, own)
	require.NoError(t, err)
	forged := entryTo(run, events.Acting, "web", []byte("forged"))
	denied := func(err error, subject string) {
		t.Helper()
		require.ErrorIs(t, err, journal.ErrDenied)
		require.ErrorContains(t, err, subject)
	}
	_, err = bus.Append(ctx, run, last, forged)
	denied(err, forged.Subject.String())
	_, err = bus.Append(ctx, run, last, forged, own)
	denied(err, forged.Subject.String())
	_, err = bus.Append(ctx, run, last, own, forged)
	denied(err, forged.Subject.String())
	recs, err := journaltest.Collect(bus.Read(ctx, run, 0))
	require.NoError(t, err)
	require.Len(t, recs, 1)
	denied(announce.NewDirectory(bus, nil).Announce(ctx, "web", "x", nil), "$KV.tools_web.x")
	_, err = announce.NewDirectory(bus, nil).Tools(ctx)
	denied(err, "STREAM.NAMES")
	_, err = announce.NewDirectory(bus, nil).Providers(ctx)
	denied(err, "DIRECT.GET.KV_providers")
	denied(bus.Consume(ctx, journal.Inbox{States: []events.State{events.Acting}, Pool: "db"}, 1, nil), "acting_db")

	testLateConsumer(t, owner, bus, &log)
}

// testLateConsumer consumes before the operator has made the consumer.
func testLateConsumer(t *testing.T, owner, bus *Bus, log *lines) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	got := make(chan string, 1)
	go func() {
		ended <- bus.Consume(ctx, journal.Inbox{States: []events.State{events.Acting}, Pool: "late"}, 1, func(d journal.Delivery) {
			if d.Ack() == nil {
				got <- string(d.Record().Body)
			}
		})
	}()
	require.Eventually(t, func() bool { return log.contain("moorebus init --pools late") }, patience, 10*time.Millisecond)
	require.NoError(t, Init(ctx, owner.Conn(), InitOptions{Pools: []string{"late"}}))
	run := journaltest.NewRun(t, owner)
	_, err := owner.Append(ctx, run, 0, entryTo(run, events.Acting, "late", []byte("at last")))
	require.NoError(t, err)
	require.Equal(t, "at last", <-got)
	cancel()
	require.NoError(t, <-ended)
}

// TestForgedHeaders stores a message whose headers look like the server's own.
func TestForgedHeaders(t *testing.T) {
	t.Parallel()
	ctx, bus := t.Context(), newBus(t, 1)
	run := journaltest.NewRun(t, bus)
	journaltest.AppendAll(t, bus, run, "1")
	msg := natsMsg(entryTo(run, events.Acting, "web", nil).Subject.String(), "forged")
	for key, value := range map[string]string{
		"Status": "204", "Description": "EOB", "Nats-Sequence": "77", "Nats-Subject": "moore.0.x", "Nats-Time-Stamp": "never",
		"Nats-Last-Sequence": "99", "Nats-Num-Pending": "0", "Nats-Stream": "OTHER",
	} {
		msg.Header.Set(key, value)
	}
	js, err := jetstream.New(bus.Conn())
	require.NoError(t, err)
	watched := make(chan journal.Record, 4)
	stop, err := bus.Watch(journal.Filter{Run: run.ID}, func(r journal.Record) { watched <- r }, func() {})
	require.NoError(t, err)
	defer stop()
	_, err = js.PublishMsg(ctx, msg)
	require.NoError(t, err)
	_, err = bus.Append(ctx, run, 2, entryTo(run, events.Acting, "web", []byte("3")))
	require.NoError(t, err)
	recs, err := journaltest.Collect(bus.Read(ctx, run, 0))
	require.NoError(t, err)
	require.Len(t, recs, 3)
	for i, rec := range recs {
		require.EqualValues(t, i+1, rec.Seq)
		require.WithinDuration(t, time.Now(), rec.Stored, time.Minute)
	}
	require.Equal(t, msg.Subject, recs[1].Subject)
	rec := <-watched
	require.Equal(t, strconv.Itoa(2), strconv.FormatUint(rec.Seq, 10))
	require.Equal(t, msg.Subject, rec.Subject)
	got := make(chan journal.Record, 4)
	consuming, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() {
		ended <- bus.Consume(consuming, journal.Inbox{States: []events.State{events.Acting}, Pool: "web"}, 1, func(d journal.Delivery) {
			if d.Ack() == nil {
				got <- d.Record()
			}
		})
	}()
	for _, want := range recs[1:] {
		have := <-got
		require.Equal(t, want.Seq, have.Seq)
		require.Equal(t, want.Subject, have.Subject)
		require.Equal(t, string(want.Body), string(have.Body))
	}
	cancel()
	require.NoError(t, <-ended)
}

func (l *lines) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}
