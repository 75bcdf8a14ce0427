// Package runlog holds runs in memory, as folded from their logs. It loads them, caches the
// recently used ones, and is the only way to append to them.
//
// A [Run] is used under its lock, so within a process one thing at a time happens to a
// run's memory. Between processes the log's condition decides: [Run.Commit] drafts its
// events against the memory and appends them on condition that nothing else was appended
// meanwhile. After a lost race it reads the tail and drafts them again. The memory is
// always a prefix of the log, up to its sequence number.
package runlog

import (
	"container/list"
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/moorebus/moorebus/internal/meter"
	"github.com/moorebus/moorebus/internal/ports"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// Options configure a [Store].
type Options struct {
	// Log is where the runs are. Required.
	Log journal.Log
	// Machine folds them; nil for the default one.
	Machine *reducer.Machine
	// Snapshots save reading a long run from its beginning; nil: every run is
	// read from there.
	Snapshots ports.Snapshots
	// Logger gets what was decided about runs, on level info, and why a snapshot is not used.
	// Default: discarded.
	Logger *slog.Logger
	// Meter counts what happens to runs. Default: nothing is counted.
	Meter meter.Meter
	// Appended is called for each event that this process appended, before the memory folds
	// it, or after that if the log's answer was lost, under the run's lock. It may read both but not keep them, and must not block.
	// Default: nothing is called.
	Appended func(mem *reducer.Memory, e *events.Event)
	// Capacity is how many unused runs are kept. Default 4096.
	Capacity int
	// MaxBytes bounds the unused runs by the length of their events' bodies, in bytes. A
	// run takes two to three times that in memory. Default 64 MiB.
	MaxBytes int64
	// Clock returns the time of new events. Default time.Now.
	Clock func() time.Time
	// NewID makes ids of new events. Default UUIDv7.
	NewID func() string
}

// Store holds runs. It is safe for concurrent use and may be shared by all
// roles of a process: what one of them appended the next one need not read.
type Store struct {
	log       journal.Log
	machine   *reducer.Machine
	snapshots ports.Snapshots
	logger    *slog.Logger
	capacity  int
	maxBytes  int64
	clock     func() time.Time
	newID     func() string
	bound     bindings
	meter     meter.Meter
	appended  func(mem *reducer.Memory, e *events.Event)

	mu   sync.Mutex
	runs map[events.Run]*Run
	// idle are the runs that are not held, least recently used first. idleBytes is their
	// size.
	idle      *list.List
	idleBytes int64
}

// builtIn makes the machine of the stores that are given none. They share it: nothing changes
// a machine.
var builtIn = sync.OnceValue(func() *reducer.Machine { return reducer.NewMachine(reducer.MachineOptions{}) })

// New returns a store.
func New(o Options) *Store {
	s := &Store{
		log: o.Log, machine: o.Machine, snapshots: o.Snapshots, logger: o.Logger, capacity: o.Capacity, maxBytes: o.MaxBytes, clock: o.Clock, newID: o.NewID, meter: o.Meter, appended: o.Appended,
		runs: map[events.Run]*Run{}, idle: list.New(),
	}
	if s.machine == nil {
		s.machine = builtIn()
	}
	if s.logger == nil {
		s.logger = slog.New(slog.DiscardHandler)
	}
	if s.capacity <= 0 {
		s.capacity = 4096
	}
	if s.maxBytes <= 0 {
		s.maxBytes = 64 << 20
	}
	if s.appended == nil {
		s.appended = func(*reducer.Memory, *events.Event) {}
	}
	if s.clock == nil {
		s.clock = time.Now
	}
	if s.newID == nil {
		s.newID = NewID
	}
	return s
}

// NewID returns a new UUIDv7 in its lower-case text form.
func NewID() string {
	id, err := uuid.NewV7()
	if err != nil {
		// The system's random source failed: ids would not be unique.
		panic("no randomness for ids: " + err.Error())
	}
	return id.String()
}

// MaxBody returns the largest body of an event that the log takes now, in bytes.
func (s *Store) MaxBody() int { return s.log.MaxBody() }

// envelopeRoom is what an event's envelope may take of the largest body.
const envelopeRoom = 8 << 10

// MaxPayload returns the largest payload of an event that fits into the log now, in bytes.
func (s *Store) MaxPayload() int { return s.MaxBody() - envelopeRoom }

// Log returns the store's log.
func (s *Store) Log() journal.Log { return s.log }

// Machine returns the store's machine.
func (s *Store) Machine() *reducer.Machine { return s.machine }

// Pins returns the hash that the Start of a new run is to pin: that of [reducer.Table.Pins], or the
// table's own if the log says that all builds on the bus know it.
func (s *Store) Pins(p *events.Start) string {
	if s.Agreed() {
		return s.machine.Table().Hash()
	}
	return s.machine.Table().Pins(p)
}

// Agreed reports whether the log says that all builds on the bus know the table's revision.
func (s *Store) Agreed() bool {
	log, says := s.log.(ports.Revised)
	return says && log.Revision() >= reducer.Revision
}

// Meter returns what counts what this process does; nil: nothing is counted.
func (s *Store) Meter() meter.Meter { return s.meter }

// startTime returns the time for what is measured, if anything is.
func (s *Store) startTime() (now time.Time) {
	if s.meter != nil {
		now = time.Now()
	}
	return now
}

// Now returns the store's time, NewID a new id.
func (s *Store) Now() time.Time { return s.clock() }

// NewID returns a new id.
func (s *Store) NewID() string { return s.newID() }

// Place returns the run with its shard.
func (s *Store) Place(namespace, id string) events.Run {
	return events.NewRun(namespace, id, s.log.Shards())
}

// Acquire returns the run, to be given back with [Store.Release]. All holders of a run get
// the same one.
func (s *Store) Acquire(id events.Run) *Run {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.runs[id]
	found := "hit"
	if r == nil {
		found = "miss"
		fold := NewFold(s.log, s.machine, id)
		r = &Run{ID: id, store: s, lock: make(runLock, 1), fold: fold, mem: fold.mem}
		s.runs[id] = r
	}
	meter.Add(s.meter, meter.Cache, 1, found)
	s.noLongerIdle(r)
	r.holders++
	return r
}

// noLongerIdle removes a run from the idle ones.
func (s *Store) noLongerIdle(r *Run) {
	if r.idle != nil {
		s.idle.Remove(r.idle)
		s.idleBytes -= r.idleSize
		r.idle = nil
	}
}

// Held returns the run if it is held now, and adds a holder; nil otherwise.
func (s *Store) Held(id events.Run) *Run {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.runs[id]
	if r == nil || r.holders == 0 {
		return nil
	}
	r.holders++
	return r
}

// First returns the event with which this process itself began a run, as it is stored. It
// must not be changed. Nil: another process began the run, or the run is not in memory.
func (s *Store) First(id events.Run) *events.Event {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r := s.runs[id]; r != nil {
		return r.first.Load()
	}
	return nil
}

// HeldRuns returns the runs that are held now.
func (s *Store) HeldRuns() []events.Run {
	s.mu.Lock()
	defer s.mu.Unlock()
	var held []events.Run
	for id, r := range s.runs {
		if r.holders > 0 {
			held = append(held, id)
		}
	}
	return held
}

// Forget drops a run that is not held, so that the next one to acquire it reads it to its
// head. It is for runs in which another process may have appended something that no
// delivery brings. It reports whether the run is held, and therefore kept.
func (s *Store) Forget(id events.Run) (held bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.runs[id]
	if r == nil || r.holders > 0 {
		return r != nil
	}
	s.noLongerIdle(r)
	delete(s.runs, id)
	return false
}

// ForgetIdle forgets every run that is not held.
func (s *Store) ForgetIdle() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.idle.Len() > 0 {
		oldest := s.idle.Front().Value.(*Run)
		s.noLongerIdle(oldest)
		delete(s.runs, oldest.ID)
	}
}

// Release gives a run back. Runs that have ended, or of which nothing was found, are
// dropped. The others are kept until they are the least recently used.
func (s *Store) Release(r *Run) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.holders--; r.holders > 0 {
		return
	}
	if r.ended.Load() || r.size.Load() == 0 {
		delete(s.runs, r.ID)
		return
	}
	r.idle, r.idleSize = s.idle.PushBack(r), r.size.Load()
	s.idleBytes += r.idleSize
	for s.idle.Len() > s.capacity || s.idleBytes > s.maxBytes {
		oldest := s.idle.Front().Value.(*Run)
		s.noLongerIdle(oldest)
		delete(s.runs, oldest.ID)
	}
}

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
