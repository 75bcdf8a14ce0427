package tool

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"reflect"
	"slices"
	"sync"
)

// Source gives a registry tools that come and go while it runs, such as those of
// a server that it is connected to.
type Source interface {
	// Name names the source, uniquely in its registry.
	Name() string
	// Pools are those that its tools may belong to; the same at any time.
	Pools() []string
	// Run serves the source until ctx ends and leaves nothing running. It calls put
	// with all its tools whenever they have changed, and with none when there are
	// none for now; the first time as soon as it is known which it is. Names that
	// others have are left out.
	Run(ctx context.Context, logger *slog.Logger, put func(tools []Tool))
}

// shelf is the tools of a registry at one time.
type shelf struct {
	tools map[string]*registered
	// changed is closed when definitions are not those of this shelf any more.
	changed chan struct{}
}

func (s *shelf) definitions() []Definition {
	defs := make([]Definition, 0, len(s.tools))
	for _, name := range slices.Sorted(maps.Keys(s.tools)) {
		defs = append(defs, s.tools[name].def)
	}
	return defs
}

func checkSources(sources []Source) error {
	var errs []error
	seen := map[string]bool{"": true}
	for _, s := range sources {
		if seen[s.Name()] {
			errs = append(errs, fmt.Errorf("source %q: has no name, or that of another one", s.Name()))
		}
		seen[s.Name()] = true
	}
	return errors.Join(errs...)
}

// Start runs the sources until stop is called, which waits for their end. Start
// itself waits for nothing, see [Registry.Settle]. The logger gets what happens to
// the sources. Call it once.
func (r *Registry) Start(ctx context.Context, logger *slog.Logger) (stop func()) {
	r.started.Store(true)
	running, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var all, settling sync.WaitGroup
	for _, s := range r.sources {
		settling.Add(1)
		settled := sync.OnceFunc(settling.Done)
		all.Go(func() {
			defer settled()
			defer r.replace(s.Name(), nil, logger)
			s.Run(running, logger, func(tools []Tool) {
				r.replace(s.Name(), tools, logger)
				settled()
			})
		})
	}
	go func() { settling.Wait(); close(r.settled) }()
	return func() { cancel(); all.Wait(); <-r.settled }
}

// Settle waits until each source has said which tools it has, or that it has none
// for now; or until ctx ends. It does not wait for sources that were not started.
func (r *Registry) Settle(ctx context.Context) {
	if len(r.sources) == 0 || !r.started.Load() {
		return
	}
	select {
	case <-r.settled:
	case <-ctx.Done():
	}
}

// Changed returns a channel that is closed when a source changes what
// [Registry.Definitions] returns. Ask for it first, then for the definitions.
func (r *Registry) Changed() <-chan struct{} { return r.current.Load().changed }

// replace puts tools in the place of those that the source gave before. A tool
// that is invalid or has the name of another one is left out, with a warning. One
// that was there before keeps its gate, so that its circuit outlives a reconnect.
func (r *Registry) replace(source string, tools []Tool, logger *slog.Logger) {
	r.changing.Lock()
	defer r.changing.Unlock()
	old := r.current.Load()
	next := &shelf{tools: make(map[string]*registered, len(old.tools)+len(tools)), changed: make(chan struct{})}
	for name, t := range old.tools {
		if t.source != source {
			next.tools[name] = t
		}
	}
	for _, t := range tools {
		made, err := r.register(t, source, next.tools)
		if err != nil {
			logger.Warn("a tool is left out", "source", source, "reason", err)
			continue
		}
		if before := old.tools[made.def.Name]; before != nil && before.source == source && before.def.Breaker == made.def.Breaker {
			made.gate = before.gate
		} else {
			made.gate = r.gateOf(made.def)
		}
		next.tools[made.def.Name] = made
	}
	if reflect.DeepEqual(old.definitions(), next.definitions()) {
		next.changed = old.changed
		r.current.Store(next)
		return
	}
	r.current.Store(next)
	close(old.changed)
}
