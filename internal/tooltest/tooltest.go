// Package tooltest is the suite that every tool adapter passes.
//
// An adapter's test fills in a [Suite] with its own tools, backed by the real
// thing (a process, an HTTP server), and calls [Suite.Run]. Cases that are nil
// are not part of that adapter: a calculator cannot be made to hang.
package tooltest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/codes"
	"github.com/moorebus/moorebus/internal/toolset"
	"github.com/moorebus/moorebus/pkg/tool"
)

// promptly is how soon after its context ends a call has to be over. It would take
// forever; what it takes of this is up to the machine.
const promptly = 10 * time.Second

// Case is one tool with arguments that make it do what the case is about.
type Case struct {
	Tool      tool.Tool
	Arguments string
	// Want is the exact result (Success), or a part of the failure's message.
	Want string
	// Code is the failure's code, where the case is a failure.
	Code string
}

// Hang is a tool that runs until it is stopped.
type Hang struct {
	Case
	// Started returns once the tool is seen to be at work.
	Started func(ctx context.Context) error
	// Quiet tells whether nothing is left of the work: no process, no request.
	Quiet func() bool
}

// Suite is what an adapter has to show. Success and Failure are required.
type Suite struct {
	Success func(t *testing.T) Case
	Failure func(t *testing.T) Case
	// Panics is a tool of the adapter that panics.
	Panics func(t *testing.T) Case
	// Hangs is a tool that would take forever.
	Hangs func(t *testing.T) Hang
	// ShowsKey is a tool whose result is the idempotency key that it was given.
	ShowsKey func(t *testing.T) Case
}

// Run runs the suite.
func (s Suite) Run(t *testing.T) {
	t.Run("definition", s.definition)
	t.Run("success", s.success)
	t.Run("failure", s.failure)
	t.Run("ended context", s.endedContext)
	t.Run("concurrent", s.concurrent)
	if s.Panics != nil {
		t.Run("panic", s.panics)
	}
	if s.Hangs != nil {
		t.Run("cancel", s.cancel)
		t.Run("timeout", s.timeout)
	}
	if s.ShowsKey != nil {
		t.Run("idempotency key", s.key)
	}
}

func (c Case) call() tool.Call {
	return tool.Call{Run: "run-1", ID: "call_1", Name: c.Tool.Definition().Name, Arguments: c.Arguments}
}

func (c Case) registry(t *testing.T) *toolset.Registry {
	t.Helper()
	r, err := toolset.New(c.Tool)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, r.Close()) })
	return r
}

func (s Suite) definition(t *testing.T) {
	c := s.Success(t)
	def := c.Tool.Definition()
	require.NoError(t, def.Validate())
	_ = c.registry(t).Execute(t.Context(), c.call())
	require.Equal(t, def, c.Tool.Definition(), "a definition must not change")
}

func (s Suite) success(t *testing.T) {
	c := s.Success(t)
	out := c.registry(t).Execute(t.Context(), c.call())
	require.Nil(t, out.Failure)
	require.Equal(t, c.Want, out.Result)
	require.Positive(t, out.Latency)
}

func (s Suite) failure(t *testing.T) {
	c := s.Failure(t)
	r := c.registry(t)
	_, err := c.Tool.Run(t.Context(), c.call())
	require.Error(t, err)
	out := r.Execute(t.Context(), c.call())
	require.NotNil(t, out.Failure)
	require.Equal(t, c.Code, out.Failure.Code)
	require.Contains(t, out.Failure.Message, c.Want)
	require.Empty(t, out.Result)
	require.True(t, utf8.ValidString(out.Failure.Message))
}

func (s Suite) endedContext(t *testing.T) {
	c := s.Success(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	out := c.registry(t).Execute(ctx, c.call())
	require.NotNil(t, out.Failure)
	require.Equal(t, codes.Cancelled, out.Failure.Code)
}

func (s Suite) concurrent(t *testing.T) {
	c := s.Success(t)
	r := c.registry(t)
	var wg sync.WaitGroup
	results := make([]toolset.Outcome, 16)
	for i := range results {
		wg.Go(func() {
			call := c.call()
			call.ID = fmt.Sprintf("call_%d", i)
			results[i] = r.Execute(t.Context(), call)
		})
	}
	wg.Wait()
	for _, out := range results {
		require.Nil(t, out.Failure)
		require.Equal(t, c.Want, out.Result)
	}
}

func (s Suite) panics(t *testing.T) {
	c := s.Panics(t)
	out := c.registry(t).Execute(t.Context(), c.call())
	require.NotNil(t, out.Failure)
	require.Equal(t, codes.Panic, out.Failure.Code)
	require.Contains(t, out.Failure.Message, c.Want)
	require.NotContains(t, out.Failure.Message, ".go:", "the model must not see a stack")
}

func (s Suite) cancel(t *testing.T) {
	h := s.Hangs(t)
	r := h.registry(t)
	reason := errors.New("the user said stop")
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	done := make(chan toolset.Outcome, 1)
	go func() { done <- r.Execute(ctx, h.call()) }()
	require.NoError(t, h.Started(t.Context()))
	cancelled := time.Now()
	cancel(reason)
	out := <-done
	require.Less(t, time.Since(cancelled), promptly)
	require.NotNil(t, out.Failure)
	require.Equal(t, codes.Cancelled, out.Failure.Code)
	require.Contains(t, out.Failure.Message, reason.Error())
	h.requireQuiet(t)
}

func (s Suite) timeout(t *testing.T) {
	h := s.Hangs(t)
	h.Tool = hurried{h.Tool, h.Tool.Definition()}
	r := h.registry(t)
	start := time.Now()
	out := r.Execute(t.Context(), h.call())
	require.Less(t, time.Since(start), hurry+promptly)
	require.NotNil(t, out.Failure)
	want := tool.CodeTimeout
	if !h.Tool.Definition().WithDefaults().Effect.Repeatable() {
		want = codes.OutcomeUnknown
	}
	require.Equal(t, want, out.Failure.Code)
	h.requireQuiet(t)
}

func (h Hang) requireQuiet(t *testing.T) {
	t.Helper()
	require.Eventually(t, h.Quiet, 30*time.Second, 10*time.Millisecond, "the tool left something running")
}

func (s Suite) key(t *testing.T) {
	c := s.ShowsKey(t)
	r := c.registry(t)
	for range 2 {
		out := r.Execute(t.Context(), c.call())
		require.Nil(t, out.Failure)
		require.Equal(t, c.call().IdempotencyKey(), out.Result)
	}
}

// hurry is the timeout of a [hurried] tool.
const hurry = 300 * time.Millisecond

// hurried is a tool with a short timeout.
type hurried struct {
	tool.Tool
	def tool.Definition
}

// Definition returns the tool's definition with the short timeout.
func (h hurried) Definition() tool.Definition {
	h.def.Timeout = hurry
	return h.def
}

// Close passes on, so that the registry can close what it was given.
func (h hurried) Close() error {
	if c, ok := h.Tool.(interface{ Close() error }); ok {
		return c.Close()
	}
	return nil
}
