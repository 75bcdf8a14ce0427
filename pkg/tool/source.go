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
	running, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var all, settling sync.WaitGroup
	r.running.Store(true)
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
	return func() { r.running.Store(false); cancel(); all.Wait(); <-r.settled }
}

// Settle waits until each source has said which tools it has, or that it has none
// for now; or until ctx ends. It reports whether all have; sources that do not run
// are not waited for.
func (r *Registry) Settle(ctx context.Context) bool {
	if len(r.sources) == 0 || !r.running.Load() {
		return true
	}
	select {
	case <-r.settled:
		return true
	case <-ctx.Done():
		return false
	}
}

// Changed returns a channel that is closed when a source changes what
// [Registry.Definitions] returns. Ask for it first, then for the definitions.
func (r *Registry) Changed() <-chan struct{} { return r.current.Load().changed }

// replace puts tools in the place of those that the source gave before. A tool
// that is invalid, has the name of another one, or one that another source had
// first, is left out, with a warning where that is not what was left out before:
// runs that were started with the other one must not get it. One that was there
// before keeps its gate, so that its circuit outlives a reconnect.
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
	var left []string
	for _, t := range tools {
		made, err := r.register(t, source, next.tools)
		if err == nil {
			err = r.own(made.def.Name, source)
		}
		if err != nil {
			left = append(left, err.Error())
			continue
		}
		if before := old.tools[made.def.Name]; before != nil && before.source == source && before.def.Breaker == made.def.Breaker {
			made.gate = before.gate
		} else {
			made.gate = r.gateOf(made.def)
		}
		next.tools[made.def.Name] = made
	}
	if !slices.Equal(left, r.left[source]) {
		r.left[source] = left
		for _, reason := range left[:min(len(left), maxLeft)] {
			logger.Warn("a tool is left out", "source", source, "reason", reason, "left_out", len(left))
		}
	}
	if reflect.DeepEqual(old.definitions(), next.definitions()) {
		next.changed = old.changed
		r.current.Store(next)
		return
	}
	r.current.Store(next)
	close(old.changed)
}

const (
	// maxLeft is how many of the tools that are left out are logged at a time.
	maxLeft = 20
	// maxOwners is how many names are remembered; sources may have ever other ones.
	maxOwners = 20_000
)

// own makes the source the one that has the name first, unless another one is.
func (r *Registry) own(name, source string) error {
	owner, had := r.owners[name]
	if had && owner != source {
		return fmt.Errorf("tool %q: %s had this name first; rename or remove one", name, owner)
	}
	if !had && len(r.owners) < maxOwners {
		r.owners[name] = source
	}
	return nil
}
