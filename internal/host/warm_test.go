package host_test

import (
	"context"
	"fmt"
	"iter"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/control"
	"github.com/moorebus/moorebus/internal/host"
	"github.com/moorebus/moorebus/internal/natsbus"
	"github.com/moorebus/moorebus/pkg/embedded"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/moorebus/moorebus/pkg/llm/scripted"
	"github.com/moorebus/moorebus/pkg/tool"
	"github.com/moorebus/moorebus/pkg/tool/typed"
)

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

func (c *counting) Fetch(ctx context.Context, run events.Run, seq uint64) (journal.Record, error) {
	c.reads.Add(1)
	return c.Bus.Fetch(ctx, run, seq)
}

func (c *counting) Append(ctx context.Context, run events.Run, last uint64, entries ...journal.Entry) (uint64, error) {
	c.appends.Add(1)
	return c.Bus.Append(ctx, run, last, entries...)
}

// In one process a transition is one append, one delivery and one acknowledgement,
// which are asked for in one request; nothing is read.
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
	tools, err := tool.NewRegistry(echo)
	require.NoError(t, err)
	h, _ := running(t, host.Options{
		Bus: bus, Tools: tools, Providers: map[string]llm.Caller{"mock": scripted.NewMock(append(replies, scripted.Say("All of the steps are done."))...)},
	})
	done := make(chan struct{})
	unwatch, err := bus.Watch(journal.Filter{To: events.Done}, func(journal.Record) { close(done) }, func() {})
	require.NoError(t, err)
	t.Cleanup(unwatch)

	def := events.DefaultAgent()
	def.Name, def.LLM.Provider, def.Tools = "counted", "mock", []string{"echo"}
	def.Config.ReflectEveryNSteps, def.Config.MaxSteps = 0, steps+1
	before := conn.Stats()
	_, err = h.Gateway().Start(t.Context(), events.DefaultNamespace, control.StartRequest{Agent: &def, Task: "Do the steps."})
	require.NoError(t, err)
	select {
	case <-done:
	case <-time.After(30 * time.Second):
		require.Fail(t, "the run did not end")
	}
	const transitions = 3*steps + 2
	sent := conn.Stats().OutMsgs - before.OutMsgs
	t.Logf("%d transitions: %d appends, %d reads, %d messages sent", transitions, bus.appends.Load(), bus.reads.Load(), sent)
	require.EqualValues(t, transitions, bus.appends.Load())
	require.Zero(t, bus.reads.Load())
	// The append, the acknowledgement, and the request that the next delivery into the
	// free slot needs; what is more is the start: its timer, the directory, heartbeats.
	const ofTheStart = 32
	require.LessOrEqual(t, sent, uint64(3*transitions+ofTheStart))
}
