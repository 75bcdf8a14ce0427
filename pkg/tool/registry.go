package tool

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

	"github.com/moorebus/moorebus/internal/retry"
)

// Options adjust a [Registry]. The zero value is ready for use.
type Options struct {
	// Now is the clock that latencies are measured with. Default time.Now.
	Now func() time.Time
	// Logger hears of panics (with their stack, which the model never sees).
	// Default: nobody does.
	Logger *slog.Logger
	// Gate makes the gate of a tool, nil for none. Default: no tool has one.
	Gate func(Definition) Gate
	// Sources give further tools while they run, see [Registry.Start].
	Sources []Source
}

// Outcome is what became of one call.
type Outcome struct {
	// Result is the text for the model, valid UTF-8; empty after a failure.
	Result string
	// Failure is nil on success.
	Failure *Failure
	// Latency is the time from the call to its outcome, retries included.
	Latency time.Duration
}

// Registry holds the tools of one process by name. Those that it is made of stay;
// those of its sources come and go. It is safe for concurrent use.
type Registry struct {
	now      func() time.Time
	logger   *slog.Logger
	newGate  func(Definition) Gate
	sources  []Source
	settled  chan struct{} // closed when each source has said which tools it has
	running  atomic.Bool   // the sources are
	changing sync.Mutex    // held by who replaces current
	// owners is which source had a name first, left what of a source is left out.
	owners  map[string]string
	left    map[string][]string
	current atomic.Pointer[shelf]
}

// registered is a tool whose definition was completed and checked once.
type registered struct {
	Tool
	def  Definition
	gate Gate
	// source is the name of the source that it came from, empty for none.
	source string
}

// Definition returns the tool's definition, defaults applied.
func (r *registered) Definition() Definition { return r.def }

// NewRegistry makes a registry of the tools. The error names every definition
// that is invalid and every name that occurs twice.
func NewRegistry(tools ...Tool) (*Registry, error) {
	return NewRegistryWith(Options{}, tools...)
}

// NewRegistryWith is [NewRegistry] with options.
func NewRegistryWith(opts Options, tools ...Tool) (*Registry, error) {
	r := &Registry{now: opts.Now, logger: opts.Logger, newGate: opts.Gate, sources: slices.Clone(opts.Sources), settled: make(chan struct{}), owners: map[string]string{}, left: map[string][]string{}}
	if r.now == nil {
		r.now = time.Now
	}
	if r.logger == nil {
		r.logger = slog.New(slog.DiscardHandler)
	}
	first := &shelf{tools: make(map[string]*registered, len(tools)), changed: make(chan struct{})}
	errs := []error{checkSources(r.sources)}
	for _, t := range tools {
		made, err := r.register(t, "", first.tools)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		made.gate = r.gateOf(made.def)
		first.tools[made.def.Name] = made
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	r.current.Store(first)
	return r, nil
}

// register completes and checks a tool that is to stand beside others.
func (r *Registry) register(t Tool, source string, beside map[string]*registered) (*registered, error) {
	def := t.Definition().WithDefaults()
	if err := def.Validate(); err != nil {
		return nil, err
	}
	if _, taken := beside[def.Name]; taken {
		return nil, fmt.Errorf("tool %q: two tools have this name; rename or remove one", def.Name)
	}
	return &registered{Tool: t, def: def, source: source}, nil
}

func (r *Registry) gateOf(def Definition) Gate {
	if r.newGate == nil {
		return nil
	}
	return r.newGate(def)
}

// Definitions returns the definitions of all tools that there are now, defaults
// applied, sorted by name.
func (r *Registry) Definitions() []Definition { return r.current.Load().definitions() }

// Lookup returns the tool of that name; its Definition has the defaults applied.
func (r *Registry) Lookup(name string) (Tool, bool) {
	t, ok := r.current.Load().tools[name]
	if !ok {
		return nil, false
	}
	return t, true
}

// SourceOf returns the name of the source that a tool came from, empty for a tool
// that the registry was made of, or that is not there.
func (r *Registry) SourceOf(name string) string {
	t, ok := r.current.Load().tools[name]
	if !ok {
		return ""
	}
	return t.source
}

// Pools returns the pools of all tools, also those that sources may give, sorted,
// each once. It is the same at any time.
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
func (r *Registry) Sources() []Source { return slices.Clone(r.sources) }

// Close lets go of what the tools hold between calls (idle connections). No
// call may be running.
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

// Execute runs the call and always has an outcome: an unknown name, a panic, a
// missed deadline and the end of ctx are failures with a code of their own.
//
// Each run of the tool has Definition.Timeout. A tool that ignores its context
// is given a moment to end and then left to end by itself: its goroutine stays,
// its result is dropped. A failed run is repeated up to Definition.Retries times,
// with growing pauses, where the failure is a passing one and a second run can
// do no harm: the tool is pure or idempotent, or nothing was sent. A tool that
// wants to be left alone for longer than the longest pause is not asked again, nor
// is one whose gate has closed. A call of a tool whose source is away waits for it,
// see [Registry.Await]. A tool of class once that was sent a call and did not answer
// it, by its timeout or because the connection broke, has the code outcome_unknown.
func (r *Registry) Execute(ctx context.Context, call Call) Outcome {
	start := r.now()
	result, failure := r.execute(ctx, call)
	out := Outcome{Result: result, Failure: failure, Latency: r.now().Sub(start)}
	if failure != nil {
		out.Result = ""
		failure.Message = toUTF8(failure.Message)
	}
	return out
}

func (r *Registry) execute(ctx context.Context, call Call) (string, *Failure) {
	if away := r.Await(ctx, call.Name); away != nil {
		return "", away
	}
	t, ok := r.current.Load().tools[call.Name]
	if !ok {
		return "", Failf(CodeNotFound, "tool %q not found", call.Name)
	}
	policy := pauses
	policy.Attempts = t.def.Retries + 1
	var result string
	var last *Failure
	waits := false
	err := policy.Do(ctx, func(ctx context.Context) error {
		waits = false
		var failure *Failure
		if result, failure = r.gated(ctx, t, call); failure == nil {
			return nil
		}
		if failure.Code != CodeCircuitOpen || last == nil {
			last = failure // what the tool itself said tells more than the closed gate
		}
		if failure != last || !mayRepeat(t.def.Effect, failure) {
			return retry.Stop(failure)
		}
		return retry.After(failure.RetryAfter, failure)
	}, func(error, time.Duration) { waits = true })
	switch {
	case err == nil:
		return toUTF8(result), nil
	case waits:
		return "", cancelledAfter(ctx, last)
	}
	return "", unanswered(t.def.Effect, last)
}

// toUTF8 replaces what is not UTF-8: results end up in JSON events.
func toUTF8(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }
