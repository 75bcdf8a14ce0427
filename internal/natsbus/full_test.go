package natsbus

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/moorebus/moorebus/internal/journaltest"
	"github.com/moorebus/moorebus/pkg/embedded"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
)

// smallAccount connects to an account that may store that much, of a server that
// has room for more.
func smallAccount(t *testing.T, most string) *nats.Conn {
	t.Helper()
	file := filepath.Join(t.TempDir(), "nats.conf")
	require.NoError(t, os.WriteFile(file, fmt.Appendf(nil, `
		jetstream { store_dir: %q }
		accounts { A { jetstream { max_file: %s, max_mem: 1M }, users: [{user: a, password: a}] } }`, t.TempDir(), most), 0o600))
	settings, err := server.ProcessConfigFile(file)
	require.NoError(t, err)
	settings.DontListen, settings.NoSigs, settings.NoLog = true, true, true
	srv, err := server.NewServer(settings)
	require.NoError(t, err)
	srv.Start()
	t.Cleanup(func() { srv.Shutdown(); srv.WaitForShutdown() })
	require.True(t, srv.ReadyForConnections(patience))
	conn, err := nats.Connect("", nats.InProcessServer(srv), nats.UserInfo("a", "a"))
	require.NoError(t, err)
	t.Cleanup(conn.Close)
	return conn
}

// fill appends to runs until that is refused.
func fill(t *testing.T, bus *Bus) (err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	body := `"` + strings.Repeat("x", 50<<10) + `"`
	for range 100 {
		run := journaltest.NewRun(t, bus)
		if _, err = bus.Append(ctx, run, 0, journaltest.Entry(run, events.Observing, events.DefaultPool, body)); err != nil {
			require.NoError(t, ctx.Err(), "it is sent again and again")
			return err
		}
	}
	require.FailNow(t, "it is never full")
	return nil
}

// An account that has no room left says so, by a code of its own.
func TestFullAccount(t *testing.T) {
	t.Parallel()
	bus := openBus(t, smallAccount(t, "1M"), 1)
	require.NoError(t, bus.Ready(t.Context()))
	err := fill(t, bus)
	require.ErrorIs(t, err, journal.ErrFull)
	require.NotErrorIs(t, err, journal.ErrUnknownOutcome)
	require.ErrorContains(t, err, "resource limits exceeded for account")
	require.ErrorIs(t, bus.Ready(t.Context()), journal.ErrFull)
	run := journaltest.NewRun(t, bus)
	body := `"` + strings.Repeat("x", 50<<10) + `"`
	_, err = bus.Append(t.Context(), run, 0, journaltest.Entry(run, events.Observing, events.DefaultPool, body), journaltest.Entry(run, events.Observing, events.DefaultPool, body))
	require.ErrorIs(t, err, journal.ErrFull, "a batch is refused as well")
	err = nil
	for n := 0; err == nil && n < 100; n++ { // what room is left is less than an entry
		err = bus.SetTimer(t.Context(), journaltest.NewRun(t, bus), "run", time.Now().Add(time.Hour), []byte(strings.Repeat("x", 4<<10)))
	}
	require.ErrorIs(t, err, journal.ErrFull)
}

// A stream that is at its own limit stays so: what it refuses is not sent again.
func TestFullStream(t *testing.T) {
	t.Parallel()
	for limit, change := range map[string]func(*jetstream.StreamConfig){
		"maximum bytes":    func(c *jetstream.StreamConfig) { c.MaxBytes = 256 << 10 },
		"maximum messages": func(c *jetstream.StreamConfig) { c.MaxMsgs = 3 },
	} {
		t.Run(limit, func(t *testing.T) {
			t.Parallel()
			conn := inProcess(t, startServer(t, embedded.Options{}))
			openBus(t, conn, 1)
			bus, err := Open(t.Context(), conn, Options{Logger: quiet, RequestTimeout: time.Hour})
			require.NoError(t, err)
			stream, err := bus.JS.Stream(t.Context(), events.StreamName(0))
			require.NoError(t, err)
			cfg := stream.CachedInfo().Config
			change(&cfg)
			_, err = bus.JS.UpdateStream(t.Context(), cfg)
			require.NoError(t, err)
			err = fill(t, bus)
			require.ErrorIs(t, err, journal.ErrFull)
			require.ErrorContains(t, err, limit)
			require.ErrorIs(t, bus.Ready(t.Context()), journal.ErrFull)
		})
	}
}

// A stream that is full stays so while others store, and that is logged once.
func TestRefusalsOfOneStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log lines
		s := storageSign{log: slog.New(slog.NewTextHandler(&log, nil))}
		full := fmt.Errorf("%w: x", journal.ErrFull)
		for range 3 {
			require.Error(t, s.note("moore.0", full))
			require.NoError(t, s.note("$KV.tools_default", nil))
			require.NoError(t, s.note("moore.0", nil), "what is small is stored")
			require.ErrorIs(t, s.last(0), journal.ErrFull)
		}
		require.Equal(t, 1, strings.Count(log.text(), "\n"), log.text())
		time.Sleep(recoveredAfter + 1) // in the bubble
		require.NoError(t, s.note("moore.0", nil))
		require.NoError(t, s.last(0))
		require.Contains(t, log.text(), "stored again")
	})
}

// What a stream refused once is forgotten although nothing is stored there again.
func TestRefusalOfLongAgo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log lines
		s := storageSign{log: slog.New(slog.NewTextHandler(&log, nil))}
		for range 2 {
			require.Error(t, s.note("$KV.written_once", fmt.Errorf("%w: x", journal.ErrFull)))
			time.Sleep(fullFor + 1) // in the bubble
			require.NoError(t, s.note("moore.0", nil))
			require.False(t, s.any.Load())
		}
		require.Equal(t, 2, strings.Count(log.text(), "nothing can be stored"), log.text())
		require.Equal(t, 2, strings.Count(log.text(), "stored again"), log.text())
	})
}

// A server that stored nothing is believed again when it stores something, and to ask
// whether it does costs no trial.
func TestServerThatStoresAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s storageSign
		s.found("moore.0", journal.ErrDiskFull, 0)
		require.ErrorIs(t, s.refuses(0), journal.ErrDiskFull)
		time.Sleep(brokenRetry + 1) // in the bubble
		require.ErrorIs(t, s.last(0), journal.ErrDiskFull)
		require.NoError(t, s.refuses(0), "one message is tried")
		require.ErrorIs(t, s.refuses(0), journal.ErrDiskFull)
		require.NoError(t, s.note("moore.0", nil))
		require.NoError(t, s.last(0))
		require.NoError(t, s.refuses(0))

		s.found("moore.0", journal.ErrDiskFull, 0)
		require.NoError(t, s.last(1), "it was started again")
		require.NoError(t, s.refuses(1))
	})
}

// A timer that is refused until there is no time left is a sign as well.
func TestTimerThatIsRefusedToTheEnd(t *testing.T) {
	t.Parallel()
	conn := inProcess(t, startServer(t, embedded.Options{}))
	openBus(t, conn, 1)
	bus, err := Open(t.Context(), conn, Options{Logger: quiet, RequestTimeout: 2 * time.Second})
	require.NoError(t, err)
	stream, err := bus.JS.Stream(t.Context(), timerStream)
	require.NoError(t, err)
	cfg := stream.CachedInfo().Config
	cfg.Subjects = []string{"elsewhere.>"}
	_, err = bus.JS.UpdateStream(t.Context(), cfg)
	require.NoError(t, err)
	sub, err := conn.Subscribe(timerSubjects, func(m *nats.Msg) {
		_ = m.Respond([]byte(`{"error":{"code":503,"err_code":10077,"description":"store is closed"}}`)) // it is sent again
	})
	require.NoError(t, err)
	defer func() { require.NoError(t, sub.Unsubscribe()) }()
	require.NoError(t, conn.Flush())
	require.NoError(t, bus.full.last(0))
	require.ErrorIs(t, bus.SetTimer(t.Context(), journaltest.NewRun(t, bus), "run", time.Now(), nil), journal.ErrFull)
	require.ErrorIs(t, bus.full.last(0), journal.ErrFull)
}

// played is a bus whose only shard is played by a function that gets what is sent to
// be stored, and whether that is a probe.
func played(t *testing.T, o Options, play func(sub *nats.Subscription, m *nats.Msg, isProbe bool)) *Bus {
	t.Helper()
	conn := inProcess(t, startServer(t, embedded.Options{}))
	openBus(t, conn, 1)
	o.Logger, o.GroupCommit = quiet, GroupCommitOff
	bus, err := Open(t.Context(), conn, o)
	require.NoError(t, err)
	stream, err := bus.JS.Stream(t.Context(), events.StreamName(0))
	require.NoError(t, err)
	cfg := stream.CachedInfo().Config
	cfg.Subjects = []string{"elsewhere.>"}
	_, err = bus.JS.UpdateStream(t.Context(), cfg)
	require.NoError(t, err)
	_, err = conn.Subscribe("moore.0.>", func(m *nats.Msg) { play(m.Sub, m, m.Header.Get(headerExpectStream) != "") })
	require.NoError(t, err)
	require.NoError(t, conn.Flush())
	return bus
}

func appendOne(t *testing.T, bus *Bus) error {
	run := journaltest.NewRun(t, bus)
	_, err := bus.Append(t.Context(), run, 0, journaltest.Entry(run, events.Observing, events.DefaultPool, "1"))
	return err
}

// A slow append is stored although the disk has too little room for others by now.
func TestSlowAppendWhileTheDiskFillsUp(t *testing.T) {
	t.Parallel()
	var full atomic.Bool
	var first *nats.Msg
	bus := played(t, Options{RequestTimeout: patience, Full: func() error {
		if full.Load() {
			return errors.New("full")
		}
		return nil
	}}, func(_ *nats.Subscription, m *nats.Msg, isProbe bool) {
		if !isProbe {
			first = m
			full.Store(true)
			return
		}
		_ = first.Respond([]byte(`{"stream":"MOORE_0","seq":1}`))
	})
	require.NoError(t, appendOne(t, bus))
	err := appendOne(t, bus)
	require.ErrorIs(t, err, journal.ErrDiskFull)
	require.NotErrorIs(t, err, journal.ErrUnknownOutcome)
}

// An append is given up soon if JetStream ended for want of room.
func TestJetStreamEndsForWantOfRoom(t *testing.T) {
	t.Parallel()
	var full atomic.Bool
	bus := played(t, Options{RequestTimeout: time.Hour, Full: func() error {
		if full.Load() {
			return errors.New("full")
		}
		return nil
	}}, func(sub *nats.Subscription, _ *nats.Msg, _ bool) {
		full.Store(true)
		_ = sub.Unsubscribe()
	})
	err := appendOne(t, bus)
	require.ErrorIs(t, err, journal.ErrDiskFull)
	require.ErrorIs(t, err, journal.ErrUnknownOutcome)
}

// Many appends without an answer send few probes.
func TestWaitingAppendsShareAProbe(t *testing.T) {
	t.Parallel()
	const appends = 500
	var sent, probed atomic.Int64
	bus := played(t, Options{RequestTimeout: 3 * time.Second}, func(_ *nats.Subscription, _ *nats.Msg, isProbe bool) {
		if isProbe {
			probed.Add(1)
		} else {
			sent.Add(1)
		}
	})
	var all sync.WaitGroup
	for range appends {
		all.Go(func() {
			if err := appendOne(t, bus); !errors.Is(err, journal.ErrUnknownOutcome) {
				t.Errorf("%v", err)
			}
		})
	}
	all.Wait()
	require.EqualValues(t, appends, sent.Load())
	require.Positive(t, probed.Load())
	require.Less(t, probed.Load(), int64(appends/10))
}

// What a probe found before a message was sent says nothing about that message.
func TestProbeBeforeTheMessage(t *testing.T) {
	t.Parallel()
	var s storageSign
	before := time.Now()
	s.found("moore.0", journal.ErrDiskFull, 0)
	require.ErrorIs(t, s.brokenSince(before), journal.ErrDiskFull)
	require.NoError(t, s.brokenSince(time.Now().Add(time.Nanosecond)))
}
