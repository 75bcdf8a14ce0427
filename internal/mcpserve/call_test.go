package mcpserve

import (
	"context"
	"encoding/json"
	"sync"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/pkg/agentfile"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/gateway"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/journal/simulated"
	"github.com/moorebus/moorebus/pkg/runlog"
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
		seq, err = 0, journal.ErrInDoubt
	})
	return seq, err
}

// served is a server of one agent on a simulated bus, where nobody plans.
func served(t *testing.T, wrap func(journal.Log) journal.Log) *Server {
	t.Helper()
	bus := simulated.New(simulated.Options{})
	require.NoError(t, bus.AnnounceProviders(t.Context(), "p", []string{"scripted"}))
	store := runlog.New(runlog.Options{Log: wrap(bus)})
	g, err := gateway.New(gateway.Config{Store: store, Queue: bus, Feed: bus, Timers: bus, Directory: bus, Agents: bus, Instance: "test"})
	require.NoError(t, err)
	a, err := agentfile.ParseDefinition([]byte(`{"name": "a", "llm": {"provider": "scripted", "script": [{"text": "x"}]}}`), agentfile.JSON, agentfile.Options{})
	require.NoError(t, err)
	s, err := New(t.Context(), Options{Log: bus, Store: store, Gateway: g, Namespace: "default", Agent: &a})
	require.NoError(t, err)
	t.Cleanup(s.end)
	return s
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
	require.NotEmpty(t, log.run.ID, "nothing was started")
	run := s.o.Store.Acquire(log.run)
	defer s.o.Store.Release(run)
	run.Lock()
	defer run.Unlock()
	require.NoError(t, run.Refresh(t.Context()))
	require.Equal(t, events.Cancelled, run.Memory().State)
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
	s.end()
	s.calls.Wait()
	callers.Wait()
	_, err := s.call(t.Context(), request())
	require.ErrorIs(t, err, errEnding)
}
