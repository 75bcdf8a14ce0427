package e2e

import (
	"context"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/moorebus/moorebus/internal/natsbus"
	"github.com/moorebus/moorebus/internal/natstest"
	"github.com/moorebus/moorebus/internal/telemetry/otlptest"
	agents "github.com/moorebus/moorebus/pkg/agent"
	"github.com/moorebus/moorebus/pkg/llm"
	replies "github.com/moorebus/moorebus/pkg/llm/scripted"
)

// exporting is a bus with a load of runs, and a receiver of their spans.
type exporting struct {
	t    *testing.T
	url  string
	conn *nats.Conn
	*otlptest.Receiver
}

func startExporting(t *testing.T) *exporting {
	needsCommands(t)
	x := &exporting{t: t, url: natstest.Start(t, natstest.Options{}).URL, Receiver: otlptest.Start(t)}
	var err error
	x.conn, err = nats.Connect(x.url)
	require.NoError(t, err)
	t.Cleanup(x.conn.Close)
	require.NoError(t, natsbus.Init(t.Context(), x.conn, natsbus.InitOptions{Shards: 2}))
	return x
}

// telemetry starts an exporter that sends to a receiver.
func (x *exporting) telemetry(name, endpoint string, args ...string) *process {
	return launch(x.t, name, []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + x.t.TempDir(), "NATS_URL=" + x.url, "OTEL_EXPORTER_OTLP_ENDPOINT=" + endpoint,
		"OTEL_EXPORTER_OTLP_HEADERS=Authorization=Basic%20cGs6c2s%3D,x-langfuse-ingestion-version=4,api_key=phoenix-key",
	}, "moorebus", append([]string{"telemetry"}, args...)...)
}

// finish waits for a process that ends by itself.
func (x *exporting) finish(p *process) {
	x.t.Helper()
	defer p.reap(x.t)
	select {
	case <-p.done:
		require.Zero(x.t, p.cmd.ProcessState.ExitCode(), p.log.String())
	case <-time.After(time.Minute):
		require.Fail(x.t, "it did not end", p.log.String())
	}
}

// runs has runs end, several at once, until stop is called, which returns how many did.
func (x *exporting) runs() (stop func() int64) {
	model := llm.CallerFunc(func(_ context.Context, req llm.Request, _ func(llm.Chunk)) (llm.Response, error) {
		if req.Replies < 2 {
			return replies.Ask("count", "{}"), nil
		}
		return replies.Say("counted"), nil
	})
	a, err := agents.New("worker").LLM(model).Conn(x.conn).
		Tool(agents.Func("count", "Counts.", func(context.Context, struct{}) (string, error) { return "1", nil }, agents.Pure)).Build()
	require.NoError(x.t, err)
	ctx, cancel := context.WithCancel(x.t.Context())
	var ended atomic.Int64
	var all sync.WaitGroup
	for range 3 {
		all.Go(func() {
			for ctx.Err() == nil {
				if _, err := a.Run(x.t.Context(), "count"); err != nil {
					x.t.Error(err)
					return
				}
				ended.Add(1)
			}
		})
	}
	return sync.OnceValue(func() int64 { cancel(); all.Wait(); return ended.Load() })
}

// free frees the lease of a process that was killed, which the server would forget after 12 s.
func (x *exporting) free() {
	x.t.Helper()
	_, err := x.conn.Request("$KV.leases_telemetry.traces", nil, time.Minute)
	require.NoError(x.t, err)
}

// TestTelemetryKill9 kills the exporter again and again while runs go on: at random moments, and
// while it waits for the receiver's answer, which has the spans already. No span is missing
// afterwards, and none came with two contents.
func TestTelemetryKill9(t *testing.T) {
	t.Parallel()
	x := startExporting(t)
	first := x.telemetry("telemetry", x.HTTP, "--once") // keeps the log's beginning as its position
	x.finish(first)
	stop := x.runs()
	defer stop()
	taken := make(chan struct{})
	for i := range 40 {
		release, once := make(chan struct{}), sync.Once{}
		inRequest := i%2 == 0
		x.After(func() {
			if inRequest {
				once.Do(func() { taken <- struct{}{} })
				<-release
			}
		})
		p := x.telemetry("telemetry", x.HTTP)
		if inRequest {
			await(t, taken, "the receiver has spans")
		} else {
			before := x.Requests()
			require.Eventually(t, func() bool { return x.Requests() > before }, time.Minute, time.Millisecond)
			time.Sleep(rand.N(1500 * time.Millisecond)) // reason: any moment will do
		}
		p.kill()
		close(release)
		x.free()
	}
	x.After(nil)
	ended := stop()
	x.finish(x.telemetry("telemetry", x.HTTP, "--once"))

	whole := otlptest.Start(t)
	x.finish(x.telemetry("backfill", whole.HTTP, "--from", "1h", "--once"))
	want, got := whole.Spans(), x.Spans()
	require.EqualValues(t, 9*ended, len(want), "a run is 1 invoke_agent, 3 plan, 3 chat and 2 execute_tool")
	require.Len(t, got, len(want))
	for key, span := range want {
		require.True(t, proto.Equal(span, got[key]), key)
	}
	require.Empty(t, x.Wrong())
	t.Logf("%d runs, %d spans; %d came", ended, len(got), x.Received())
	require.Greater(t, x.Received(), len(got), "some were sent again, as a killed process cannot know better")
	for _, header := range x.Headers() {
		require.Equal(t, "Basic cGs6c2s=", header.Get("Authorization"), "as Langfuse wants it")
		require.Equal(t, "4", header.Get("X-Langfuse-Ingestion-Version"))
		require.Equal(t, "phoenix-key", header.Get("Api_key"), "as Phoenix wants it")
	}
}
