package permissions

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/control"
	"github.com/moorebus/moorebus/internal/feature/schedules"
	"github.com/moorebus/moorebus/internal/feature/schedules/row"
	"github.com/moorebus/moorebus/internal/kv"
	"github.com/moorebus/moorebus/internal/ports"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/internal/worker"
	"github.com/moorebus/moorebus/pkg/journal"
)

// A gateway keeps schedules and gets their alarms; other roles may not write one.
func TestGatewayKeepsSchedules(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx, bus, alarm := t.Context(), r.open(t, Gateway), ports.AlarmKey{Namespace: "default", Name: "daily"}
	_, err := bus.Get(ctx, row.Bucket, alarm.String())
	require.ErrorIs(t, err, journal.ErrNotFound)
	it := kv.Item{Key: alarm.String(), Value: []byte("1")}
	it.Revision, err = bus.Update(ctx, row.Bucket, it)
	require.NoError(t, err)
	keys, err := bus.Keys(ctx, row.Bucket, "*.*")
	require.NoError(t, err)
	require.Equal(t, []string{it.Key}, keys)

	consuming, stop := context.WithCancel(ctx)
	rang, ended := make(chan ports.AlarmKey, 1), make(chan error, 1)
	go func() {
		ended <- bus.ConsumeAlarms(consuming, 1, func(a ports.Alarm) {
			if a.Ack() == nil {
				rang <- a.Of
			}
		})
	}()
	require.NoError(t, bus.SetAlarm(ctx, alarm, time.Now()))
	select {
	case got := <-rang:
		require.Equal(t, alarm, got)
	case <-time.After(patience):
		require.FailNow(t, "no alarm rings")
	}
	stop()
	require.NoError(t, <-ended)
	require.NoError(t, bus.SetAlarm(ctx, alarm, time.Time{}))
	for _, role := range []string{Planner, Observer, Tap} {
		_, err := r.open(t, role).Update(ctx, row.Bucket, it)
		require.ErrorIs(t, err, journal.ErrDenied, role)
	}
}

// said collects a log.
type said struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (s *said) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(p)
}

func (s *said) has(text string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Contains(s.text.String(), text)
}

// A gateway with the permissions of an older build says what to do, and everything else goes on.
func TestSchedulesWithoutPermission(t *testing.T) {
	t.Parallel()
	var log said
	bus := newRig(t).open(t, Tap)
	c, err := control.New(control.Config{
		Base: worker.Base{Store: runlog.New(runlog.Options{Log: bus}), Instance: "test", Logger: slog.New(slog.NewTextHandler(&log, nil))},
	}.On(bus))
	require.NoError(t, err)
	s := schedules.New(c)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	require.Eventually(t, func() bool {
		return log.has("schedules do not fire: run `moorebus init` and print the permissions again")
	}, patience, 10*time.Millisecond)
	select {
	case err := <-ended:
		require.FailNow(t, "it ended", "%v", err)
	default:
	}
	stop()
	require.NoError(t, <-ended)
}
