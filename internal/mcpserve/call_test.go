package mcpserve

import (
	"context"
	"encoding/json"
	"errors"
	"iter"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/agentfile"
	"github.com/moorebus/moorebus/internal/announce"
	"github.com/moorebus/moorebus/internal/control"
	"github.com/moorebus/moorebus/internal/journaltest/simtest"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/internal/worker"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

// impatient is a log whose first append is stored and then not heard of, because its
// caller has gone.
type impatient struct {
	journal.Log
	once sync.Once
	gone context.CancelFunc
	run  events.Run
}

func (l *impatient) Append(ctx context.Context, run events.Run, last uint64, entries ...journal.Entry) (uint64, error) {
	seq, err := l.Log.Append(ctx, run, last, entries...)
	l.once.Do(func() {
		l.run = run
		l.gone()
		seq, err = 0, journal.ErrUnknownOutcome
	})
	return seq, err
}

// lossy is a log whose first append is stored, or comes to be with late where its
// caller gives it up; the answer to it is lost.
type lossy struct {
	journal.Log
	once sync.Once
	gone context.CancelFunc // of the client, nil if it waits
	late func(context.Context) error
	run  events.Run
	lost chan events.Run // gets the run when the answer is lost and the client waits
}

func (l *lossy) Append(ctx context.Context, run events.Run, last uint64, entries ...journal.Entry) (seq uint64, err error) {
	first := false
	l.once.Do(func() { first, l.run = true, run })
	if !first {
		return l.Log.Append(ctx, run, last, entries...)
	}
	if l.gone == nil {
		_, err = l.Log.Append(ctx, run, last, entries...)
		l.lost <- run
		return 0, errors.Join(errors.New("the connection was lost"), err)
	}
	l.gone()
	if ctx.Err() == nil {
		return l.Log.Append(ctx, run, last, entries...)
	}
	l.late = func(ctx context.Context) error {
		_, err := l.Log.Append(ctx, run, last, entries...)
		return err
	}
	return 0, ctx.Err()
}

// served is a server of one agent on a simulated bus, where nobody plans.
func served(t *testing.T, wrap func(journal.Log) journal.Log) *Server {
	t.Helper()
	bus := simtest.New(simtest.Options{})
	require.NoError(t, announce.NewDirectory(bus, nil).AnnounceProviders(t.Context(), "p", []string{"scripted"}))
	store := runlog.New(runlog.Options{Log: wrap(bus)})
	g, err := control.New(control.Config{Base: worker.Base{Store: store, Queue: bus, Feed: bus, Instance: "test"}, Timers: bus, KV: bus})
	require.NoError(t, err)
	g.Admission = control.Unbounded{}
	a, err := agentfile.ParseDefinition([]byte(`{"name": "a", "llm": {"provider": "scripted", "script": [{"text": "x"}]}}`), agentfile.JSON, agentfile.Options{})
	require.NoError(t, err)
	s, err := New(t.Context(), Options{Log: bus, Store: store, Control: g, Namespace: "default", Agent: &a})
	require.NoError(t, err)
	t.Cleanup(s.shutDown)
	return s
}

// failing is a log that cannot be read once where it is told so.
type failing struct {
	journal.Log
	fails atomic.Bool
}

func (l *failing) Read(ctx context.Context, run events.Run, after uint64) iter.Seq2[journal.Record, error] {
	if l.fails.CompareAndSwap(true, false) {
		return func(yield func(journal.Record, error) bool) {
			yield(journal.Record{}, errors.New("the connection was lost"))
		}
	}
	return l.Log.Read(ctx, run, after)
}

// stuck is a log that takes nothing where it is told so.
type stuck struct {
	journal.Log
	stuck atomic.Bool
}

func (l *stuck) Append(ctx context.Context, run events.Run, last uint64, entries ...journal.Entry) (uint64, error) {
	if l.stuck.Load() {
		<-ctx.Done()
		return 0, ctx.Err()
	}
	return l.Log.Append(ctx, run, last, entries...)
}

// The runs whose clients do not call again are cancelled in the time of one, and those that were
// asked long ago are left to their deadlines.
func TestRunsOfClientsThatHaveGone(t *testing.T) {
	t.Parallel()
	var log *stuck
	s := served(t, func(l journal.Log) journal.Log { log = &stuck{Log: l}; return log })
	var runs []events.Run
	for range 20 {
		runs = append(runs, begun(t, s))
		s.setOpen(runs[len(runs)-1], true)
	}
	s.open[runs[0].ID] = openRun{runs[0], time.Now().Add(-2 * openFor)}
	s.setOpen(runs[1], true)
	require.Len(t, s.open, 19)
	s.cancelOpen(t.Context())
	for _, run := range runs[1:] {
		requireCancelled(t, s, run)
	}
	for _, run := range runs {
		s.setOpen(run, true)
	}
	for range 40 {
		s.setOpen(begun(t, s), true)
	}
	log.stuck.Store(true)
	began := time.Now()
	s.cancelOpen(t.Context())
	require.Less(t, time.Since(began), time.Minute, "it waits for each run")
	require.Empty(t, s.open)
}

// begun is a run that was started.
func begun(t *testing.T, s *Server) events.Run {
	t.Helper()
	run := s.o.Store.Place(s.o.Namespace, s.o.Store.NewID())
	require.NoError(t, s.start(t.Context(), control.StartRequest{Agent: s.o.Agent, Task: "t", Mode: events.ModeTask, RunID: run.ID}))
	return run
}

// A log that cannot be read for a moment does not end a call.
func TestOutageWhileAClientIsAsked(t *testing.T) {
	t.Parallel()
	var log *failing
	s := served(t, func(l journal.Log) journal.Log { log = &failing{Log: l}; return log })
	run := begun(t, s)
	log.fails.Store(true)
	require.NoError(t, s.ask(t.Context(), &caller{can: true}, run))
	require.False(t, log.fails.Load(), "nothing was read")
}

func request() *mcp.CallToolRequest {
	return &mcp.CallToolRequest{Params: &mcp.CallToolParamsRaw{Name: "a", Arguments: json.RawMessage(`{"task": "t"}`)}}
}

// A client that goes while its run is being started takes it with it.
func TestClientThatGoesWhileItsRunBegins(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var log *impatient
	s := served(t, func(l journal.Log) journal.Log { log = &impatient{Log: l, gone: cancel}; return log })
	_, err := s.call(ctx, request())
	require.Error(t, err)
	requireCancelled(t, s, log.run)
}

func requireCancelled(t *testing.T, s *Server, id events.Run) {
	t.Helper()
	require.NotEmpty(t, id.ID, "nothing was started")
	run := s.o.Store.Acquire(id)
	defer s.o.Store.Release(run)
	run.Lock()
	defer run.Unlock()
	require.NoError(t, run.Refresh(t.Context()))
	require.Equal(t, events.Cancelled, run.Memory().State)
}

// A client that goes in the middle of the append that begins its run leaves none.
func TestClientThatGoesInTheMiddleOfAnAppend(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var log *lossy
	s := served(t, func(l journal.Log) journal.Log { log = &lossy{Log: l, gone: cancel}; return log })
	_, err := s.call(ctx, request())
	require.Error(t, err)
	if log.late != nil {
		require.NoError(t, log.late(t.Context()))
	}
	requireCancelled(t, s, log.run)
}

// A start whose outcome is unknown is repeated. It starts the run once, and the call follows it.
func TestStartOfUnknownOutcome(t *testing.T) {
	t.Parallel()
	log := &lossy{lost: make(chan events.Run, 1)}
	s := served(t, func(l journal.Log) journal.Log { log.Log = l; return log })
	done := make(chan *mcp.CallToolResult, 1)
	go func() {
		res, err := s.call(t.Context(), request())
		assert.NoError(t, err)
		done <- res
	}()
	run := <-log.lost
	require.Eventually(t, func() bool {
		_, err := s.o.Control.Cancel(t.Context(), run.Namespace, run.ID, events.By{})
		return err == nil
	}, time.Minute, 20*time.Millisecond)
	res := <-done
	require.NotNil(t, res)
	require.Equal(t, run.ID, res.Meta[MetaRun])
	require.Equal(t, "cancelled: the run was cancelled", res.Content[0].(*mcp.TextContent).Text)
}

// Calls that come while the server ends are refused, and the others waited for.
func TestCallsWhileTheServerEnds(t *testing.T) {
	t.Parallel()
	s := served(t, func(l journal.Log) journal.Log { return l })
	var callers sync.WaitGroup
	for range 8 {
		callers.Go(func() {
			for {
				if _, err := s.call(t.Context(), request()); err == errEnding {
					return
				}
			}
		})
	}
	s.shutDown()
	s.calls.Wait()
	callers.Wait()
	_, err := s.call(t.Context(), request())
	require.ErrorIs(t, err, errEnding)
}

// A run has the trace context of the call, or else of the HTTP request that brought it.
func TestTraceContext(t *testing.T) {
	t.Parallel()
	const trace, other = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "00-5bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	brought := &mcp.RequestExtra{Header: http.Header{"Traceparent": {other}}}
	for _, c := range []struct {
		meta  mcp.Meta
		extra *mcp.RequestExtra
		want  string
	}{{mcp.Meta{"traceparent": trace}, brought, trace}, {nil, brought, other}, {mcp.Meta{"traceparent": "00-x"}, nil, ""}} {
		ctx, cancel := context.WithCancel(t.Context())
		var log *impatient
		s := served(t, func(l journal.Log) journal.Log { log = &impatient{Log: l, gone: cancel}; return log })
		req := request()
		req.Params.Meta, req.Extra = c.meta, c.extra
		_, err := s.call(ctx, req)
		require.Error(t, err)
		cancel()
		found := false
		for rec, err := range log.Read(t.Context(), log.run, 0) {
			require.NoError(t, err)
			e, err := new(events.Codec).Decode(rec.Body)
			require.NoError(t, err)
			require.Equal(t, c.want, e.TraceParent)
			found = true
			break
		}
		require.True(t, found, "nothing was started")
	}
}
