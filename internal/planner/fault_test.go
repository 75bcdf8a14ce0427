package planner_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/approval"
	"github.com/moorebus/moorebus/internal/llmtest"
	"github.com/moorebus/moorebus/internal/natsbus"
	"github.com/moorebus/moorebus/internal/planner"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/internal/schema"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/moorebus/moorebus/pkg/llm/anthropic"
	"github.com/moorebus/moorebus/pkg/llm/openai"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// impatient are settings under which a call that fails is tried again at once, as
// often as is said.
func impatient(noStream bool, attempts int) func(*openai.Options, *planner.Config) {
	return func(_ *openai.Options, c *planner.Config) {
		c.NoStream = noStream
		c.Retry = llm.Policy{Base: 5 * time.Millisecond, Max: 20 * time.Millisecond, Attempts: attempts, RateLimitAttempts: attempts}
	}
}

// hasty settings end a call that hangs. Where no call hangs they would only make a
// slow machine's own time look like a fault.
func hasty(o *openai.Options, _ *planner.Config) {
	o.Timeout, o.Silence = 3*time.Second, 600*time.Millisecond
}

// Whatever a model server does, the run goes on once it does better, or ends and
// says why; over a real bus, and with plain calls and streams.
func TestModelServerFaults(t *testing.T) {
	t.Parallel()
	for _, wire := range []llmtest.Wire{llmtest.OpenAI{}, llmtest.Anthropic{}} {
		for _, plain := range []bool{true, false} {
			for _, fault := range llmtest.Faults() {
				if plain && (fault.StreamOnly || wire.Name() != (llmtest.OpenAI{}).Name()) {
					continue // streams fall back to plain calls, so those are met, too
				}
				for _, forever := range []bool{false, true} {
					t.Run(fmt.Sprintf("%s/%s/plain=%v/forever=%v", wire.Name(), fault.Name, plain, forever), func(t *testing.T) {
						t.Parallel()
						meetFault(t, wire, fault, plain, forever)
					})
				}
			}
		}
	}
}

// runPlannerOn runs a planner on a model server that speaks the format.
func runPlannerOn(t *testing.T, wire llmtest.Wire, bus *natsbus.Bus, url string, change ...func(*openai.Options, *planner.Config)) {
	t.Helper()
	if wire.Name() == (llmtest.OpenAI{}).Name() {
		runPlanner(t, bus, "1", url, 4, change...)
		return
	}
	var o openai.Options
	cfg := planner.Config{
		Instance: "1", Store: runlog.New(runlog.Options{Log: bus}), Queue: bus, Feed: bus, Directory: bus,
		Validator: schema.New(schema.Options{}), Approval: approval.New(), Concurrency: 4,
	}
	for _, c := range change {
		c(&o, &cfg)
	}
	caller, err := anthropic.New(anthropic.Options{BaseURL: url, Model: "m", Timeout: o.Timeout, Silence: o.Silence})
	require.NoError(t, err)
	runPlannerOf(t, caller, cfg)
}

func meetFault(t *testing.T, wire llmtest.Wire, fault llmtest.Fault, plain, forever bool) {
	// A stream that breaks is followed by a plain request in the same call, so two
	// faulty ones are one failed attempt at least.
	model := &llmtest.Server{Wire: wire, Fault: fault, Faulty: 2, Text: "It is 42."}
	if plain {
		model.Faulty = 1
	}
	attempts := 100 // a healthy reply may be late for a hasty caller; it is asked for again
	if forever {
		model.Faulty, attempts = -1, 3
	}
	change := []func(*openai.Options, *planner.Config){impatient(plain, attempts)}
	if fault.Hangs {
		change = append(change, hasty)
	}
	server := httptest.NewServer(model)
	defer server.Close()
	bus := stormBus(t)
	store := runlog.New(runlog.Options{Log: bus})
	run := startRun(t, store)
	runPlannerOn(t, wire, bus, server.URL, change...)
	mem := awaitEnd(t, store, run)
	failed := 0
	for _, entry := range mem.Trace {
		if entry.Event == string(events.TypeLLMAttemptFailed) {
			failed++
		}
	}
	switch {
	case forever && !fault.StreamOnly:
		require.Equal(t, events.Errored, mem.State)
		require.Equal(t, string(fault.Kind), mem.Error.Code, mem.Error.Message)
		require.NotEmpty(t, mem.Error.Message)
		require.Positive(t, failed, "it was tried again before")
	default:
		require.Equal(t, events.Done, mem.State, "%+v", mem.Error)
		require.Equal(t, "It is 42.", *mem.FinalAnswer, "whole, and once")
		if !fault.StreamOnly {
			require.Positive(t, failed)
		}
	}
	require.Positive(t, model.Requests())
	require.LessOrEqual(t, model.Requests(), 2*(failed+1), "no request is made that no attempt accounts for")
}

// A server that is not there refuses the connection; the run goes on when it is.
func TestModelServerThatIsNotThere(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	address := listener.Addr().String()
	require.NoError(t, listener.Close())
	bus := stormBus(t)
	store := runlog.New(runlog.Options{Log: bus})
	runPlanner(t, bus, "1", "http://"+address, 4, impatient(false, 3), func(_ *openai.Options, c *planner.Config) {
		c.Retry.Attempts, c.Retry.Max = 1000, 50*time.Millisecond
	})
	run := startRun(t, store)
	awaitRun(t, store, run, func(mem *reducer.Memory) bool { return len(mem.Control.Attempts) > 0 })
	again, err := net.Listen("tcp", address)
	require.NoError(t, err)
	server := &http.Server{Handler: &llmtest.Server{Text: "It is 42."}, ReadHeaderTimeout: time.Second}
	served := make(chan error, 1)
	go func() { served <- server.Serve(again) }()
	defer func() {
		require.NoError(t, server.Shutdown(context.Background()))
		require.ErrorIs(t, <-served, http.ErrServerClosed)
	}()
	require.Equal(t, events.Done, awaitEnd(t, store, run).State)

	refused := func() *reducer.Memory {
		bus := stormBus(t)
		store := runlog.New(runlog.Options{Log: bus})
		runPlanner(t, bus, "1", "http://127.0.0.1:1", 4, impatient(true, 3))
		return awaitEnd(t, store, startRun(t, store))
	}
	mem := refused()
	require.Equal(t, string(llm.KindNetwork), mem.Error.Code)
	require.Contains(t, mem.Error.Message, "refused")
}
