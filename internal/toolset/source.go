package toolset

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/moorebus/moorebus/pkg/tool"
)

// Returning is a source that goes away and comes back, such as a server that is
// restarted. Its tools' names show that they belong to it, so a call of a missing tool
// can wait for the source.
type Returning interface {
	tool.Source
	// Claims reports whether a tool of that name would belong to this source.
	Claims(name string) bool
	// Patience is how long a call of a missing tool waits for the source.
	Patience() time.Duration
	// Up waits until the source is present and has provided its tools. If ctx ends
	// first, the error says why the source is away.
	Up(ctx context.Context) error
}

// shelf is the set of tools at one time.
type shelf struct {
	tools map[string]*registered
	// changed is closed when the definitions differ from those of this shelf.
	changed chan struct{}
}

func (s *shelf) definitions() []tool.Definition {
	defs := make([]tool.Definition, 0, len(s.tools))
	for _, name := range slices.Sorted(maps.Keys(s.tools)) {
		defs = append(defs, s.tools[name].def)
	}
	return defs
}

func checkSources(sources []tool.Source) error {
	var errs []error
	seen := map[string]bool{"": true}
	for _, s := range sources {
		if seen[s.Name()] {
			errs = append(errs, fmt.Errorf("source %q: every source needs its own name", s.Name()))
		}
		seen[s.Name()] = true
	}
	return errors.Join(errs...)
}

// Start runs the sources and returns at once; see [Registry.Ready]. stop ends them and
// waits for their end. The logger gets events of the sources and panics of tools. Call
// Start once.
func (r *Registry) Start(ctx context.Context, logger *slog.Logger) (stop func()) {
	running, cancel := context.WithCancel(context.WithoutCancel(ctx))
	r.logger.Store(logger)
	r.running.Store(true)
	var all, unready sync.WaitGroup
	for _, s := range r.sources {
		unready.Add(1)
		ready := sync.OnceFunc(unready.Done)
		all.Go(func() {
			defer ready()
			defer r.replace(s.Name(), nil, logger)
			s.Run(running, logger, func(tools []tool.Tool) {
				r.replace(s.Name(), tools, logger)
				ready()
			})
		})
	}
	go func() { unready.Wait(); close(r.ready) }()
	return func() { r.running.Store(false); cancel(); all.Wait(); <-r.ready }
}

// Ready waits until every source has named its tools, if only none, or until ctx ends.
// It reports whether all have. It does not wait for sources that are not running.
func (r *Registry) Ready(ctx context.Context) bool {
	if len(r.sources) == 0 || !r.running.Load() {
		return true
	}
	select {
	case <-r.ready:
		return true
	case <-ctx.Done():
		return false
	}
}

// Await waits for a missing tool whose [Returning] source is away, at most as long as
// the source's patience. It returns nil if there is nothing to wait for: the tool is
// present, its source is present without it, or no source claims it. The failure is
// unreachable, or cancelled if ctx has ended; nothing was sent.
func (r *Registry) Await(ctx context.Context, name string) *tool.Failure {
	if _, present := r.Lookup(name); present || !r.running.Load() {
		return nil
	}
	for _, source := range r.sources {
		s, ok := source.(Returning)
		if !ok || !s.Claims(name) {
			continue
		}
		waiting, stop := context.WithTimeout(ctx, s.Patience())
		defer stop()
		err := s.Up(waiting)
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return notStarted(ctx)
		}
		f := tool.Failf(tool.CodeUnreachable, "the tool %q is not there: %s", name, toUTF8(err.Error()))
		f.NotSent = true
		return f
	}
	return nil
}

// Changed returns a channel that is closed when a source changes the result of
// [Registry.Definitions]. Call Changed first, then Definitions.
func (r *Registry) Changed() <-chan struct{} { return r.current.Load().changed }

// replace replaces the tools of a source. It leaves out tools that are invalid or whose
// name belongs to another tool, or belonged to another source first: runs that started
// with that tool must not get this one. A warning is logged if the reasons are new. A
// tool that stays keeps its breaker, so its circuit outlives a reconnect.
func (r *Registry) replace(source string, tools []tool.Tool, logger *slog.Logger) {
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
			made.breaker = before.breaker
		} else {
			made.breaker = r.newBreaker(made.def)
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
	// maxLeft bounds the warnings about tools that are omitted at one time.
	maxLeft = 20
	// maxOwners bounds the names that are remembered, since sources may invent names.
	maxOwners = 20_000
)

// own assigns the name to the source, unless another source had it first, or claims it: a source
// that is not up yet would lose its tools to a quicker one.
func (r *Registry) own(name, source string) error {
	for _, other := range r.sources {
		if s, ok := other.(Returning); ok && s.Name() != source && s.Claims(name) {
			return fmt.Errorf("tool %q: the name belongs to %s; rename the tool", name, s.Name())
		}
	}
	owner, had := r.owners[name]
	if had && owner != source {
		return fmt.Errorf("tool %q: %s had this name first; rename or remove one", name, owner)
	}
	if !had && len(r.owners) < maxOwners {
		r.owners[name] = source
	}
	return nil
}
