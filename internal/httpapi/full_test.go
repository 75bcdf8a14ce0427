package httpapi_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/announce"
	"github.com/moorebus/moorebus/internal/control"
	"github.com/moorebus/moorebus/internal/natsbus"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/internal/worker"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// smallBus is a bus whose server has room for half a MiB.
func smallBus(t *testing.T) *natsbus.Bus {
	quiet := slog.New(slog.DiscardHandler)
	srv, err := server.NewServer(&server.Options{
		DontListen: true, NoSigs: true, NoLog: true, JetStream: true, StoreDir: t.TempDir(), JetStreamMaxStore: 512 << 10,
	})
	require.NoError(t, err)
	srv.Start()
	t.Cleanup(func() { srv.Shutdown(); srv.WaitForShutdown() })
	require.True(t, srv.ReadyForConnections(patience))
	conn, err := nats.Connect("", nats.InProcessServer(srv))
	require.NoError(t, err)
	t.Cleanup(conn.Close)
	require.NoError(t, natsbus.Init(t.Context(), conn, natsbus.InitOptions{Shards: 1}))
	b, err := natsbus.Open(t.Context(), conn, natsbus.Options{Logger: quiet, RequestTimeout: patience})
	require.NoError(t, err)
	return b
}

// fill stores announcements until there is no room left for them.
func fill(t *testing.T, b *natsbus.Bus) {
	t.Helper()
	var err error
	for size := 100 << 10; size > 100; {
		spec := searchTool
		spec.Description = strings.Repeat("x", size)
		if err = announce.NewDirectory(b, nil).Announce(t.Context(), spec.Pool, runlog.NewID(), []events.ToolSpec{spec}); err != nil {
			require.ErrorIs(t, err, journal.ErrFull)
			size /= 2
		}
	}
	require.ErrorIs(t, err, journal.ErrFull)
}

// A server whose storage is full answers every request, and says why.
func TestStorageFull(t *testing.T) {
	t.Parallel()
	b := smallBus(t)
	r := newRig(t, b, func(c *config) { c.Ready = b.Ready })
	id := r.start("chat")
	require.Equal(t, http.StatusOK, r.do("GET", "/readyz", "").status)
	fill(t, b)

	require.Contains(t, r.fails(http.StatusServiceUnavailable, "store_full", r.do("GET", "/readyz", "")).text(t, "message"), "storage is full")
	require.Equal(t, http.StatusOK, r.do("GET", "/v1/runs/"+id, "").status, "what is stored can be read")
	for _, post := range []struct{ path, body string }{
		{"/v1/runs", startBody("task")},
		{"/v1/runs", strings.ReplaceAll(startBody("task"), "openai", "nobody")},
		{"/v1/runs/" + id + "/cancel", "{}"},
	} {
		began := time.Now()
		a := r.fails(http.StatusServiceUnavailable, "store_full", r.do("POST", post.path, post.body))
		require.Contains(t, a.text(t, "message"), "storage is full")
		require.Less(t, time.Since(began), patience/2, "nobody waits for what does not pass by itself")
	}
}

// failingLog answers each append with the next of its errors.
type failingLog struct {
	journal.Log
	errs []error
}

func (f *failingLog) Append(context.Context, events.Run, uint64, ...journal.Entry) (uint64, error) {
	err := f.errs[0]
	f.errs = f.errs[1:]
	return 0, err
}

// A start that may be stored is not answered as one that is not.
func TestStartUnknownOutcomeOnAFullDisk(t *testing.T) {
	t.Parallel()
	b := natsBus(t, 1)
	newRig(t, b, nil).start("chat")
	log := &failingLog{b, []error{fmt.Errorf("%w: %w", journal.ErrUnknownOutcome, journal.ErrDiskFull), journal.ErrDiskFull, journal.ErrDiskFull}}
	r := newRig(t, b, func(c *config) {
		c.Store, c.Instance = runlog.New(runlog.Options{Log: log}), "second"
	})
	for _, want := range []string{"may or may not be stored", "nothing was stored"} {
		a := r.fails(http.StatusServiceUnavailable, "disk_full", r.do("POST", "/v1/runs", startBody("task")))
		require.Contains(t, a.text(t, "message"), want)
	}
}

// frozenLog does not answer appends.
type frozenLog struct {
	journal.Log
	entered chan struct{}
}

func (f *frozenLog) Append(ctx context.Context, _ events.Run, _ uint64, _ ...journal.Entry) (uint64, error) {
	close(f.entered)
	<-ctx.Done()
	return 0, ctx.Err()
}

// A reader does not wait for an append to its run that nobody answers.
func TestReadBesideAnAppendWithoutAnAnswer(t *testing.T) {
	if testing.Short() {
		t.Skip("-short") // reason: it waits for a server without an answer
	}
	t.Parallel()
	b := natsBus(t, 1)
	frozen := &frozenLog{b, make(chan struct{})}
	store := runlog.New(runlog.Options{Log: frozen})
	id := newRig(t, b, nil).start("chat")
	r := newRig(t, b, func(c *config) { c.Store, c.Instance = store, "second" })

	run := store.Acquire(store.Place(events.DefaultNamespace, id))
	defer store.Release(run)
	ctx, stop := context.WithCancel(t.Context())
	appended := make(chan error, 1)
	go func() {
		run.Lock()
		defer run.Unlock()
		_, err := run.Commit(ctx, runlog.Stamp{Source: "test"}, func(*reducer.Memory) ([]runlog.Draft, error) {
			return []runlog.Draft{{Origin: events.Control, Payload: &events.CancelledRun{}}}, errors.Join(run.Refresh(ctx))
		})
		appended <- err
	}()
	<-frozen.entered
	require.Contains(t, r.fails(http.StatusServiceUnavailable, "unavailable", r.do("GET", "/v1/runs/"+id, "")).text(t, "message"), "takes no writes")
	stop()
	require.ErrorIs(t, <-appended, context.Canceled)
	require.Equal(t, http.StatusOK, r.do("GET", "/v1/runs/"+id, "").status)
}

// Nobody who announces a tool is a list without one.
func TestNoTools(t *testing.T) {
	t.Parallel()
	b := natsBus(t, 1)
	g, err := control.New(control.Config{
		Base: worker.Base{Store: runlog.New(runlog.Options{Log: b}), Queue: b, Feed: b, Instance: "test"}, Timers: b, KV: b,
	})
	require.NoError(t, err)
	tools, err := g.Tools(t.Context())
	require.NoError(t, err)
	require.NotNil(t, tools)
	require.Empty(t, tools)
}

// A bus that was set up before there were timers starts no run, and says what to
// do.
func TestBusWithoutTimers(t *testing.T) {
	t.Parallel()
	b := natsBus(t, 1)
	r := newRig(t, b, func(cfg *config) { cfg.Ready = b.Ready })
	require.Equal(t, http.StatusOK, r.do("GET", "/readyz", "").status)
	_, err := b.Conn().Request("$JS.API.STREAM.DELETE.MOORE_TIMERS", nil, patience)
	require.NoError(t, err)
	for _, a := range []answer{r.do("GET", "/readyz", ""), r.do("POST", "/v1/runs", startBody("task"))} {
		require.Contains(t, r.fails(503, "unavailable", a).text(t, "message"), "moorebus init")
	}
}
