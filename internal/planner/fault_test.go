package planner_test

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/llmtest"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/moorebus/moorebus/pkg/llm/anthropic"
	"github.com/moorebus/moorebus/pkg/llm/openai"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// Whatever a model server does, the run goes on once it does better, or ends and
// says why; over real HTTP, with plain calls and streams.
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

// impatient tries a call that fails again at once, as often as is said.
func impatient(attempts int) llm.Policy {
	return llm.Policy{Base: 5 * time.Millisecond, Max: 20 * time.Millisecond, Attempts: attempts, RateLimitAttempts: attempts}
}

// speaking is a provider that speaks the format. One that hangs is given up soon; where
// none hangs that would only make a slow machine's own time look like a fault.
func (r *rig) speaking(wire llmtest.Wire, url string, hangs bool) llm.Caller {
	r.T.Helper()
	o := openai.Options{BaseURL: url + "/v1"}
	if hangs {
		o.Timeout, o.Silence = 3*time.Second, 600*time.Millisecond
	}
	if wire.Name() == (llmtest.OpenAI{}).Name() {
		return r.openAI(o)
	}
	caller, err := anthropic.New(anthropic.Options{BaseURL: url, Model: "m", Timeout: o.Timeout, Silence: o.Silence})
	require.NoError(r.T, err)
	r.T.Cleanup(caller.Close)
	return caller
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
	server := httptest.NewServer(model)
	defer server.Close()
	r := newBenchRig(t)
	cfg := r.config(r.speaking(wire, server.URL, fault.Hangs))
	cfg.NoStream, cfg.Retry = plain, impatient(attempts)
	r.run(cfg)
	run := r.begin()
	mem := r.AwaitEnd(run)
	failed := r.Count(run, events.TypeLLMAttemptFailed)
	if forever && !fault.StreamOnly {
		require.Equal(t, events.Errored, mem.State)
		require.Equal(t, string(fault.Kind), mem.Error.Code, mem.Error.Message)
		require.NotEmpty(t, mem.Error.Message)
		require.Positive(t, failed, "it was tried again before")
	} else {
		require.Equal(t, events.Done, mem.State, "%+v", mem.Error)
		require.Equal(t, "It is 42.", *mem.FinalAnswer, "whole, and once")
		require.True(t, fault.StreamOnly || failed > 0)
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
	r := newBenchRig(t)
	cfg := r.config(r.speaking(llmtest.OpenAI{}, "http://"+address, false))
	cfg.Retry = llm.Policy{Base: 5 * time.Millisecond, Max: 50 * time.Millisecond, Attempts: 1000}
	r.run(cfg)
	run := r.begin()
	r.Await(run, func(mem *reducer.Memory) bool { return len(mem.Control.Attempts) > 0 })
	again, err := net.Listen("tcp", address)
	require.NoError(t, err)
	server := &httptest.Server{Listener: again, Config: &http.Server{Handler: &llmtest.Server{Text: "It is 42."}, ReadHeaderTimeout: time.Minute}}
	server.Start()
	defer server.Close()
	require.Equal(t, events.Done, r.AwaitEnd(run).State)

	refused := newBenchRig(t)
	cfg = refused.config(refused.speaking(llmtest.OpenAI{}, "http://127.0.0.1:1", false))
	cfg.NoStream, cfg.Retry = true, impatient(3)
	refused.run(cfg)
	mem := refused.AwaitEnd(refused.begin())
	require.Equal(t, string(llm.KindNetwork), mem.Error.Code)
	require.Contains(t, mem.Error.Message, "refused")
}
