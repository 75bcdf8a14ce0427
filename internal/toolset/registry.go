// Package toolset holds the tools of one process by name and runs their calls.
//
// A call always has an outcome. An unknown name, a panic, a missed deadline and the end
// of the context are failures with their own codes. Tools that a process is built
// with stay. Tools of sources come and go while the sources run.
package toolset

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/moorebus/moorebus/internal/codes"
	"github.com/moorebus/moorebus/internal/retry"
	"github.com/moorebus/moorebus/pkg/tool"
)

// Options configure a [Registry]. The zero value is ready to use.
type Options struct {
	// Breakers keep calls from tools that are down, see [tool.Breaker].
	Breakers bool
	// Approval is the policy of all tools that have no policy.
	Approval *tool.Approval
	// Sources provide further tools while they run, see [Registry.Start].
	Sources []tool.Source
}

// Outcome is the result of one call.
type Outcome struct {
	// Result is the text for the model, in valid UTF-8. It is empty after a failure.
	Result string
	// Failure is nil after a success.
	Failure *tool.Failure
	// Latency is the time from the call to its outcome, retries included.
	Latency time.Duration
}

// Registry holds tools by name. It is safe for concurrent use.
type Registry struct {
	logger   atomic.Pointer[slog.Logger]
	breakers bool
	approval *tool.Approval
	sources  []tool.Source
	ready    chan struct{} // closed when every source has named its tools
	running  atomic.Bool   // sources are running

	changing sync.Mutex // held while current is replaced
	// owners has the first source of each name; left has, by source, why its tools were
	// omitted last.
	owners  map[string]string
	left    map[string][]string
	current atomic.Pointer[shelf]
}

// registered is a tool with its complete and valid definition.
type registered struct {
	tool.Tool
	def     tool.Definition
	breaker *breaker // nil: it has none
	// source is the name of the tool's source, or empty.
	source string
}

func (r *registered) Definition() tool.Definition { return r.def }

// Unwrap returns the tool under its own definition.
func (r *registered) Unwrap() tool.Tool { return r.Tool }

// New makes a registry of the tools. The error names every invalid definition and every
// duplicate name.
func New(tools ...tool.Tool) (*Registry, error) { return NewWith(Options{}, tools...) }

// NewWith is [New] with options.
func NewWith(o Options, tools ...tool.Tool) (*Registry, error) {
	r := &Registry{breakers: o.Breakers, approval: o.Approval, sources: slices.Clone(o.Sources), ready: make(chan struct{}), owners: map[string]string{}, left: map[string][]string{}}
	r.logger.Store(slog.New(slog.DiscardHandler))
	first := &shelf{tools: make(map[string]*registered, len(tools)), changed: make(chan struct{})}
	errs := []error{checkSources(r.sources)}
	for _, t := range tools {
		made, err := r.register(t, "", first.tools)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		made.breaker = r.newBreaker(made.def)
		first.tools[made.def.Name] = made
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	r.current.Store(first)
	return r, nil
}

// register completes and validates a tool that joins others.
func (r *Registry) register(t tool.Tool, source string, others map[string]*registered) (*registered, error) {
	def := t.Definition().WithDefaults()
	if def.Approval == nil {
		def.Approval = r.approval
	}
	if err := def.Validate(); err != nil {
		return nil, err
	}
	if _, taken := others[def.Name]; taken {
		return nil, fmt.Errorf("tool %q: two tools have this name; rename or remove one", def.Name)
	}
	return &registered{Tool: t, def: def, source: source}, nil
}

// Definitions returns the definitions of the present tools, with defaults, sorted by name.
func (r *Registry) Definitions() []tool.Definition { return r.current.Load().definitions() }

// Lookup returns the tool of that name. Its Definition has the defaults applied.
func (r *Registry) Lookup(name string) (tool.Tool, bool) {
	t, ok := r.current.Load().tools[name]
	if !ok {
		return nil, false
	}
	return t, true
}

// SourceOf returns the name of the source of a tool. It is empty for a missing tool and
// for one that the registry was made with.
func (r *Registry) SourceOf(name string) string {
	if t, ok := r.current.Load().tools[name]; ok {
		return t.source
	}
	return ""
}

// Pools returns the pools of all present tools and of all sources, sorted, without
// duplicates.
func (r *Registry) Pools() []string {
	var pools []string
	for _, t := range r.current.Load().tools {
		pools = append(pools, t.def.Pool)
	}
	for _, s := range r.sources {
		pools = append(pools, s.Pools()...)
	}
	slices.Sort(pools)
	return slices.Compact(pools)
}

// Sources returns the sources that the registry was made with.
func (r *Registry) Sources() []tool.Source { return slices.Clone(r.sources) }

// Close releases what the tools hold between calls, such as idle connections. No call
// may be running.
func (r *Registry) Close() error {
	var errs []error
	tools := r.current.Load().tools
	for _, name := range slices.Sorted(maps.Keys(tools)) {
		if c, ok := tools[name].Tool.(io.Closer); ok {
			errs = append(errs, c.Close())
		}
	}
	return errors.Join(errs...)
}

// Execute runs the call and returns its outcome.
//
// Each run of the tool may take Definition.Timeout. A tool that ignores its context gets
// a short grace period. Then its goroutine is abandoned and its result dropped.
//
// A failed run is repeated up to Definition.Retries times, with growing pauses, if the
// failure is temporary and a second run is harmless: the tool is pure or idempotent, or
// the request was not sent. A tool that asks for a longer wait than the longest pause is
// not run again, and neither is a tool whose circuit has opened. A call that cannot begin because
// this machine lacks files, processes or memory is tried again until the tool's timeout,
// whatever its class is.
//
// A call of a tool whose source is away waits for the source, see [Registry.Await]. If a
// tool of class once was sent a call and gave no answer, because of its timeout or a
// broken connection, the code is outcome_unknown.
func (r *Registry) Execute(ctx context.Context, call tool.Call) Outcome {
	start := time.Now()
	result, failure := r.execute(ctx, call)
	if failure != nil {
		result, failure.Message = "", toUTF8(failure.Message)
	}
	return Outcome{Result: result, Failure: failure, Latency: time.Since(start)}
}

func (r *Registry) execute(ctx context.Context, call tool.Call) (string, *tool.Failure) {
	if away := r.Await(ctx, call.Name); away != nil {
		return "", away
	}
	t, ok := r.current.Load().tools[call.Name]
	if !ok {
		return "", tool.Failf(tool.CodeNotFound, "tool %q not found", call.Name)
	}
	policy := pauses
	policy.Attempts = t.def.Retries + 1
	var result string
	var last *tool.Failure
	pausing := false
	err := policy.Do(ctx, func(ctx context.Context) error {
		pausing = false
		var failure *tool.Failure
		if result, failure = r.guarded(ctx, t, call); failure == nil {
			return nil
		}
		if failure.Code != codes.CircuitOpen || last == nil {
			last = failure // the tool's own failure says more than the open circuit
		}
		if failure != last || Short(failure) || !mayRepeat(t.def.Effect, failure) {
			return retry.Stop(failure)
		}
		return retry.After(failure.RetryAfter, failure)
	}, func(error, time.Duration) { pausing = true })
	switch {
	case err == nil && !utf8.ValidString(result):
		return "", tool.Failf(tool.CodeFailed, "the call of %q ended, but its result is not UTF-8 text; have the tool return text in UTF-8", call.Name)
	case err == nil:
		return result, nil
	case pausing:
		return "", cancelledAfter(ctx, last)
	}
	return "", unanswered(t.def.Effect, last)
}

// guarded runs the tool once if its breaker admits it.
func (r *Registry) guarded(ctx context.Context, t *registered, call tool.Call) (string, *tool.Failure) {
	if t.breaker == nil {
		return r.began(ctx, t, call)
	}
	leave, refused := t.breaker.enter()
	if refused != nil {
		return "", refused
	}
	result, failure := r.began(ctx, t, call)
	leave(failure)
	return result, failure
}

// began runs the tool once, and waits with that until this machine has what a run needs to begin:
// files, processes and memory. It waits as long as the tool may run.
func (r *Registry) began(ctx context.Context, t *registered, call tool.Call) (result string, failure *tool.Failure) {
	policy := pauses
	policy.Budget = t.def.Timeout
	pausing := false
	_ = policy.Do(ctx, func(ctx context.Context) error { // the outcome is the last run's
		pausing = false
		result, failure = r.attempt(ctx, t, call)
		if failure == nil {
			return nil
		}
		if !Short(failure) {
			return retry.Stop(failure)
		}
		return failure
	}, func(_ error, delay time.Duration) {
		pausing = true
		r.logger.Load().Warn("a call cannot begin and is tried again: this machine lacks files, processes or memory",
			"tool", call.Name, "run", call.Run, "call", call.ID, "reason", failure.Message, "retry_in", delay)
	})
	if pausing && failure != nil {
		return "", cancelledAfter(ctx, failure)
	}
	return result, failure
}

// Short reports whether a call did not begin because this machine lacked something. That says
// nothing about the tool.
func Short(f *tool.Failure) bool { return f.NotSent && retry.Short(f.Err) }

// toUTF8 replaces invalid UTF-8 in the words of a failure, since they are stored in JSON.
func toUTF8(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }
