package host_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/control"
	"github.com/moorebus/moorebus/internal/host"
	"github.com/moorebus/moorebus/internal/natsbus"
	"github.com/moorebus/moorebus/internal/natstest"
	"github.com/moorebus/moorebus/internal/refusal"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/internal/toolset"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/moorebus/moorebus/pkg/tool"
	"github.com/moorebus/moorebus/pkg/tool/typed"
)

type amount struct {
	KiB  int  `json:"kib"`
	Code bool `json:"code"`
}

// smallBus opens a bus on a server that takes messages of 256 KiB, and returns what init said.
func smallBus(t *testing.T) (*natsbus.Bus, string) {
	t.Helper()
	server := natstest.Start(t, natstest.Options{More: "max_payload: 262144"})
	conn, err := nats.Connect(server.URL)
	require.NoError(t, err)
	t.Cleanup(conn.Close)
	var said strings.Builder
	require.NoError(t, natsbus.Init(t.Context(), conn, natsbus.InitOptions{Memory: true, Say: func(line string) { said.WriteString(line) }}))
	found := natsbus.Check(t.Context(), conn, natsbus.Options{Logger: slog.New(slog.DiscardHandler), Monitor: server.Monitor})
	require.True(t, slices.ContainsFunc(found, func(f natsbus.Finding) bool {
		return f.Level == natsbus.Warning && strings.Contains(f.What, "an event may have 240 KiB")
	}), "%v", found)
	bus, err := natsbus.Open(t.Context(), conn, natsbus.Options{Logger: slog.New(slog.DiscardHandler), RequestTimeout: time.Minute})
	require.NoError(t, err)
	return bus, said.String()
}

// A server that takes smaller messages than usual limits events. What a tool returns beyond
// the limit goes to the bucket, and the tool does not run again for it.
func TestSmallMaxPayload(t *testing.T) {
	t.Parallel()
	bus, said := smallBus(t)
	require.Contains(t, said, "an event may have 240 KiB instead of 960 KiB")

	var ran, asked atomic.Int64
	produce, err := typed.New(tool.Definition{Name: "produce", Description: "Produces text.", Effect: tool.Pure},
		func(_ context.Context, in amount) (string, error) {
			ran.Add(1)
			text := strings.Repeat("x", in.KiB<<10)
			if in.Code {
				return "", tool.Failf(text, "no")
			}
			return text, nil
		})
	require.NoError(t, err)
	registry, err := toolset.New(produce)
	require.NoError(t, err)
	results := []string{`{"kib":100,"code":false}`, `{"kib":200,"code":false}`, `{"kib":256,"code":false}`, `{"kib":700,"code":false}`, `{"kib":300,"code":true}`}
	model := llm.CallerFunc(func(context.Context, llm.Request, func(llm.Chunk)) (llm.Response, error) {
		switch n := int(asked.Add(1)); {
		case n <= len(results):
			return llm.ToolCalls{Calls: []llm.Call{{ID: fmt.Sprint("c", n), Name: "produce", Arguments: results[n-1]}}}, nil
		case n == len(results)+1:
			return llm.Text{Content: strings.Repeat("y", 300<<10)}, nil
		}
		return llm.Text{Content: "It is done, and all of it."}, nil
	})
	h, _ := running(t, host.Options{Bus: bus, Tools: registry, Providers: map[string]llm.Caller{"model": model}, Logger: slog.New(slog.DiscardHandler)})

	def := events.DefaultAgent()
	def.Name, def.LLM.Provider, def.Tools, def.Config.ReflectEveryNSteps = "produces", "model", []string{"produce"}, 0
	_, err = h.Gateway().Start(t.Context(), "", control.StartRequest{Agent: &def, Task: strings.Repeat("z", 300<<10)})
	require.True(t, refusal.Is(err, refusal.CodeTooLarge), "%v", err)
	require.ErrorContains(t, err, "larger than 240 KiB")

	started, err := h.Gateway().Start(t.Context(), "", control.StartRequest{Agent: &def, Task: "Produce."})
	require.NoError(t, err)
	wanted := []string{"ok 0", "ok 200", "ok 256", "ok 700", "too_large 0", "reply too_large", "done"}
	require.Equal(t, wanted, outcomes(t, bus, started.RunID))
	require.EqualValues(t, len(results), ran.Load(), "each call runs once")
}

// outcomes follows a run to its end and returns the outcomes of its calls, each with the size
// of what was stored of it in KiB, and its refused replies.
func outcomes(t *testing.T, bus *natsbus.Bus, id string) (all []string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	run := runlog.New(runlog.Options{Log: bus}).Place(events.DefaultNamespace, id)
	codec := new(events.Codec)
	for rec, err := range bus.Follow(ctx, run.Shard, journal.Filter{Namespace: run.Namespace, Run: id}, 0) {
		require.NoError(t, err, "the run does not end: %v", all)
		e, err := codec.Decode(rec.Body)
		require.NoError(t, err)
		var o *events.ToolOutcome
		switch p := e.Data.(type) {
		case *events.ToolSuccess:
			o = p.Outcome
		case *events.ToolFailure:
			o = p.Outcome
		case *events.ReplyInvalid:
			all = append(all, "reply "+p.Results[0].Code)
		case *events.LLMAttemptFailed:
			require.Fail(t, "an attempt failed", p.Message)
		case *events.LLMFinalAnswer:
			return append(all, "done")
		case *events.FatalError:
			require.Fail(t, "the run failed", p.Message)
		}
		if o == nil {
			continue
		}
		size := 0
		if o.Ref != nil {
			data, err := bus.Blob(ctx, *o.Ref)
			require.NoError(t, err)
			size = len(data) >> 10
		}
		all = append(all, fmt.Sprint(o.Code, " ", size))
	}
	return all
}

// A server whose messages are too small for Moorebus is refused.
func TestTooSmallMaxPayload(t *testing.T) {
	t.Parallel()
	server := natstest.Start(t, natstest.Options{More: "max_payload: 65536"})
	conn, err := nats.Connect(server.URL)
	require.NoError(t, err)
	t.Cleanup(conn.Close)
	err = natsbus.Init(t.Context(), conn, natsbus.InitOptions{Memory: true})
	require.ErrorContains(t, err, "up to 65536 bytes (max_payload), and Moorebus needs 262144 at least: set max_payload: 1MB")
	_, err = natsbus.Open(t.Context(), conn, natsbus.Options{})
	require.ErrorContains(t, err, "set max_payload: 1MB")
}
