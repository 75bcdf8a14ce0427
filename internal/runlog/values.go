package runlog

import (
	"context"
	"sync"

	"github.com/moorebus/moorebus/pkg/events"
)

// bindings are the contexts whose values the work on runs sees.
type bindings struct {
	mu    sync.RWMutex
	byRun map[events.Run]*binding
}

// binding is one context, the run that was bound to it, and the runs that inherited it.
type binding struct {
	values context.Context
	owner  events.Run
	heirs  map[events.Run]struct{}
}

// Bind gives the work that this process does on a run the values of ctx, but not its end.
// Sub-runs inherit them. It holds until the run has ended, as far as the store knows, or
// until [Store.Unbind].
func (s *Store) Bind(id events.Run, ctx context.Context) {
	s.bound.mu.Lock()
	defer s.bound.mu.Unlock()
	if s.bound.byRun == nil {
		s.bound.byRun = map[events.Run]*binding{}
	}
	s.bound.byRun[id] = &binding{values: context.WithoutCancel(ctx), owner: id, heirs: map[events.Run]struct{}{}}
}

// Unbind reverts [Store.Bind], also for the runs that inherited the values. For a run that
// inherited its values it affects that run only.
func (s *Store) Unbind(id events.Run) {
	s.bound.mu.Lock()
	defer s.bound.mu.Unlock()
	b := s.bound.byRun[id]
	if b == nil {
		return
	}
	delete(s.bound.byRun, id)
	delete(b.heirs, id)
	if b.owner != id {
		return
	}
	for heir := range b.heirs {
		if s.bound.byRun[heir] == b {
			delete(s.bound.byRun, heir)
		}
	}
}

// WithValues returns ctx with the values that are bound to the run, which take precedence.
// The run's lock must not be held.
func (s *Store) WithValues(ctx context.Context, r *Run) context.Context {
	s.bound.mu.RLock()
	none, b := len(s.bound.byRun) == 0, s.bound.byRun[r.ID]
	s.bound.mu.RUnlock()
	if b == nil && !none {
		b = s.inherit(r)
	}
	if b == nil {
		return ctx
	}
	return valued{Context: ctx, values: b.values}
}

// inherit binds a sub-run to what its parent is bound to.
func (s *Store) inherit(r *Run) *binding {
	r.Lock()
	parent := r.mem.Control.Parent
	r.Unlock()
	if parent == nil {
		return nil
	}
	s.bound.mu.Lock()
	defer s.bound.mu.Unlock()
	b := s.bound.byRun[s.Place(r.ID.Namespace, parent.Run)]
	if b != nil {
		b.heirs[r.ID] = struct{}{}
		s.bound.byRun[r.ID] = b
	}
	return b
}

// valued is a context that has the values of another one too.
type valued struct {
	context.Context
	values context.Context
}

// Value asks the other context first.
func (v valued) Value(key any) any {
	if value := v.values.Value(key); value != nil {
		return value
	}
	return v.Context.Value(key)
}
