package natsbus

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/moorebus/moorebus/internal/journaltest"
	"github.com/moorebus/moorebus/pkg/embedded"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
)

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
	var full atomic.Pointer[embedded.FullError]
	var first *nats.Msg
	bus := played(t, Options{RequestTimeout: patience, Full: func() error {
		if err := full.Load(); err != nil {
			return err
		}
		return nil
	}}, func(_ *nats.Subscription, m *nats.Msg, isProbe bool) {
		if !isProbe {
			first = m
			full.Store(&embedded.FullError{Dir: "d"})
			return
		}
		_ = first.Respond([]byte(`{"stream":"MOORE_0","seq":1}`))
	})
	require.NoError(t, appendOne(t, bus))
	err := appendOne(t, bus)
	require.ErrorIs(t, err, journal.ErrDiskFull)
	require.NotErrorIs(t, err, journal.ErrInDoubt)
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
	require.ErrorIs(t, err, journal.ErrInDoubt)
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
			if err := appendOne(t, bus); !errors.Is(err, journal.ErrInDoubt) {
				t.Errorf("%v", err)
			}
		})
	}
	all.Wait()
	require.EqualValues(t, appends, sent.Load())
	require.Positive(t, probed.Load())
	require.Less(t, probed.Load(), int64(appends/10))
}
