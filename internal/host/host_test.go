package host_test

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"iter"
	"log/slog"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/moorebus/moorebus/internal/announce"
	"github.com/moorebus/moorebus/internal/buckets"
	"github.com/moorebus/moorebus/internal/commandtest"
	"github.com/moorebus/moorebus/internal/control"
	"github.com/moorebus/moorebus/internal/host"
	"github.com/moorebus/moorebus/internal/journaltest/simtest"
	"github.com/moorebus/moorebus/internal/natsbus"
	"github.com/moorebus/moorebus/internal/ports"
	"github.com/moorebus/moorebus/internal/toolset"
	"github.com/moorebus/moorebus/pkg/embedded"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/moorebus/moorebus/pkg/llm/scripted"
	"github.com/moorebus/moorebus/pkg/tool"
	"github.com/moorebus/moorebus/pkg/tool/typed"
)

func TestMain(m *testing.M) {
	commandtest.FilesInMemory()
	// Those that run beside others wait for a server or a clock most of the time.
	if err := flag.Set("test.parallel", "8"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

type query struct {
	Q string `json:"q"`
}

// running runs and announces the host until the test ends, or stop is called.
func running(t *testing.T, o host.Options) (h *host.Host, stop func()) {
	t.Helper()
	h, err := host.New(o)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- h.Run(ctx) }()
	stop = func() {
		if cancel != nil {
			cancel()
			cancel = nil
			require.NoError(t, <-ended)
		}
	}
	t.Cleanup(stop)
	require.NoError(t, h.Announce(t.Context()))
	return h, stop
}

func TestHostRefusesToolsWithBadSchemas(t *testing.T) {
	t.Parallel()
	made, err := typed.New(tool.Definition{Name: "broken", Effect: tool.Pure}, func(context.Context, query) (string, error) { return "", nil })
	require.NoError(t, err)
	def := made.Definition()
	def.Schema = json.RawMessage(`{"type":"wrong"}`)
	registry, err := toolset.New(tool.Redefine(made, def))
	require.NoError(t, err)
	_, err = host.New(host.Options{
		Bus: simtest.New(simtest.Options{}), Tools: registry, Providers: map[string]llm.Caller{"mock": scripted.NewMock()},
	})
	require.ErrorContains(t, err, `tool "broken": schema: invalid JSON Schema`)
}

// An update that fails leaves no announcement.
func TestFailedUpdateIsWithdrawn(t *testing.T) {
	t.Parallel()
	bus := simtest.New(simtest.Options{})
	none, err := toolset.New()
	require.NoError(t, err)
	options := host.Options{Bus: bus, Tools: none, Providers: map[string]llm.Caller{"mock": scripted.NewMock()}}
	h, stop := running(t, options)
	stop()
	made, err := typed.New(tool.Definition{Name: "late", Description: "Comes late.", Effect: tool.Pure}, func(context.Context, query) (string, error) { return "", nil })
	require.NoError(t, err)
	options.Tools, err = toolset.New(made)
	require.NoError(t, err)
	options.Providers = map[string]llm.Caller{"other": scripted.NewMock()}
	_, err = h.Update(t.Context(), options)
	require.ErrorContains(t, err, "the roles have ended")
	tools, err := announce.NewDirectory(bus, nil).Tools(t.Context())
	require.NoError(t, err)
	require.Empty(t, tools)
	providers, err := announce.NewDirectory(bus, nil).Providers(t.Context())
	require.NoError(t, err)
	require.NotContains(t, providers, "other")
}

// TestDeadlineCancelsTheTool: a run comes to its deadline while a tool runs, on
// a real server.
func TestDeadlineCancelsTheTool(t *testing.T) {
	t.Parallel()
	began, ended := make(chan struct{}), make(chan error, 1)
	slow, err := typed.New(tool.Definition{Name: "slow", Description: "Takes its time.", Effect: tool.Once},
		func(ctx context.Context, _ query) (string, error) {
			close(began)
			select {
			case <-ctx.Done():
			case <-time.After(time.Minute):
			}
			ended <- ctx.Err()
			return "", ctx.Err()
		})
	require.NoError(t, err)
	mock := scripted.NewMock(llm.ToolCalls{Calls: []llm.Call{{ID: "a", Name: "slow", Arguments: `{"q":"x"}`}}})
	h := hostOnServer(t, slow, mock)

	def := events.DefaultAgent()
	def.Name, def.LLM.Provider, def.Tools = "patient", "mock", []string{"slow"}
	def.Budget = &events.Budget{MaxWallTime: events.Duration(2 * time.Second)}
	started, err := h.Gateway().Start(t.Context(), "", control.StartRequest{Agent: &def, Task: "wait"})
	require.NoError(t, err)
	<-began
	select {
	case err := <-ended:
		require.ErrorIs(t, err, context.Canceled)
	case <-time.After(50 * time.Second):
		require.Fail(t, "the tool goes on")
	}
	state := stateOf(t, h.Gateway(), started.RunID)
	require.Equal(t, events.Errored, state.State)
	var mem struct {
		Error struct {
			Code string `json:"code"`
		} `json:"error"`
	}
	require.NoError(t, json.Unmarshal(state.Memory, &mem))
	require.Equal(t, "budget_wall_time", mem.Error.Code)
	due := state.Started.Add(2 * time.Second)
	require.WithinRange(t, state.Updated, due.Add(-50*time.Millisecond), due.Add(20*time.Second))
}

// hostOnServer runs all roles on an embedded server.
func hostOnServer(t *testing.T, one tool.Tool, mock llm.Caller) *host.Host {
	t.Helper()
	quiet := slog.New(slog.DiscardHandler)
	server, err := embedded.Start(t.Context(), embedded.Options{Dir: t.TempDir(), Logger: quiet})
	require.NoError(t, err)
	t.Cleanup(server.Shutdown)
	conn, err := server.Connect()
	require.NoError(t, err)
	t.Cleanup(conn.Close)
	require.NoError(t, natsbus.Init(t.Context(), conn, natsbus.InitOptions{Memory: true}))
	bus, err := natsbus.Open(t.Context(), conn, natsbus.Options{Logger: quiet, RequestTimeout: time.Minute})
	require.NoError(t, err)
	registry, err := toolset.New(one)
	require.NoError(t, err)
	h, _ := running(t, host.Options{Bus: bus, Tools: registry, Providers: map[string]llm.Caller{"mock": mock}})
	return h
}

// counting counts what is asked of the log.
type counting struct {
	*natsbus.Bus
	reads, appends atomic.Int64
}

func (c *counting) Read(ctx context.Context, run events.Run, after uint64) iter.Seq2[journal.Record, error] {
	c.reads.Add(1)
	return c.Bus.Read(ctx, run, after)
}

func (c *counting) Head(ctx context.Context, run events.Run) (journal.Record, error) {
	c.reads.Add(1)
	return c.Bus.Head(ctx, run)
}

func (c *counting) Newest(ctx context.Context, shard int, filter journal.Filter) (journal.Record, error) {
	c.reads.Add(1)
	return c.Bus.Newest(ctx, shard, filter)
}

func (c *counting) Fetch(ctx context.Context, run events.Run, seq uint64) (journal.Record, error) {
	c.reads.Add(1)
	return c.Bus.Fetch(ctx, run, seq)
}

func (c *counting) Append(ctx context.Context, run events.Run, last uint64, entries ...journal.Entry) (uint64, error) {
	c.appends.Add(1)
	return c.Bus.Append(ctx, run, last, entries...)
}

func (c *counting) AppendThen(ctx context.Context, run events.Run, last uint64, then func(uint64), entries ...journal.Entry) (uint64, error) {
	c.appends.Add(1)
	return c.Bus.AppendThen(ctx, run, last, then, entries...)
}

// withholding is a bus that delivers nothing to the observer.
type withholding struct{ *counting }

func (w withholding) Consume(ctx context.Context, inbox journal.Inbox, slots int, handle func(journal.Delivery)) error {
	if slices.Contains(inbox.States, events.Observing) {
		<-ctx.Done()
		return nil
	}
	return w.counting.Consume(ctx, inbox, slots, handle)
}

// In one process a transition is one append, one delivery and one acknowledgement,
// which are asked for in one request; nothing is read. No transition waits for the
// delivery of a result.
func TestMessagesOfATransition(t *testing.T) {
	t.Parallel()
	server, err := embedded.Start(t.Context(), embedded.Options{Dir: t.TempDir()})
	require.NoError(t, err)
	t.Cleanup(server.Shutdown)
	conn, err := server.Connect()
	require.NoError(t, err)
	t.Cleanup(conn.Close)
	require.NoError(t, natsbus.Init(t.Context(), conn, natsbus.InitOptions{}))
	nats, err := natsbus.Open(t.Context(), conn, natsbus.Options{})
	require.NoError(t, err)
	bus := &counting{Bus: nats}

	const steps = 10
	var replies []any
	for i := range steps {
		replies = append(replies, scripted.Ask("echo", fmt.Sprintf(`{"text":"step %d"}`, i)))
	}
	echo, err := typed.New(tool.Definition{Name: "echo", Effect: tool.Pure}, func(_ context.Context, in struct {
		Text string `json:"text"`
	}) (string, error) {
		return in.Text, nil
	})
	require.NoError(t, err)
	tools, err := toolset.New(echo)
	require.NoError(t, err)
	h, _ := running(t, host.Options{
		Bus: withholding{bus}, Tools: tools, Providers: map[string]llm.Caller{"mock": scripted.NewMock(append(replies, scripted.Say("All of the steps are done."))...)},
	})
	done := make(chan struct{})
	unwatch, err := bus.Watch(journal.Filter{To: events.Done}, func(journal.Record) { close(done) }, func() {})
	require.NoError(t, err)
	t.Cleanup(unwatch)

	def := events.DefaultAgent()
	def.Name, def.LLM.Provider, def.Tools = "counted", "mock", []string{"echo"}
	def.Config.ReflectEveryNSteps, def.Config.MaxSteps = 0, steps+1
	require.Eventually(t, func() bool { // the gateway has looked whether somebody removed timers
		_, _, err := buckets.Position(t.Context(), nats, ports.RoleKey{Role: "gateway", Name: "timers"})
		return err == nil
	}, time.Minute, 10*time.Millisecond)
	before, looked := conn.Stats(), bus.reads.Load()
	_, err = h.Gateway().Start(t.Context(), events.DefaultNamespace, control.StartRequest{Agent: &def, Task: "Do the steps."})
	require.NoError(t, err)
	select {
	case <-done:
	case <-time.After(30 * time.Second):
		require.Fail(t, "the run did not end")
	}
	const transitions = 3*steps + 2
	sent := conn.Stats().OutMsgs - before.OutMsgs
	t.Logf("%d transitions: %d appends, %d reads, %d messages sent", transitions, bus.appends.Load(), bus.reads.Load()-looked, sent)
	require.EqualValues(t, transitions, bus.appends.Load())
	require.Equal(t, looked, bus.reads.Load())
	// The append, the acknowledgement, and the request that the next delivery into the
	// free slot needs; what is more is the start: its timer, the directory, heartbeats.
	const ofTheStart = 32
	require.LessOrEqual(t, sent, uint64(3*transitions+ofTheStart))
}
