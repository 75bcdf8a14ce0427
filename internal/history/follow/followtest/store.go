// Package followtest has the plainest store there can be, as an oracle for others. It is for tests only.
package followtest

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/moorebus/moorebus/internal/history"
	"github.com/moorebus/moorebus/internal/history/follow"
	"github.com/moorebus/moorebus/pkg/events"
)

// ErrKilled is returned by a store that was killed.
var ErrKilled = errors.New("the store was killed")

// Store keeps everything in memory. It is safe for concurrent use.
type Store struct {
	// Kill, if not nil, is asked before and after each batch is stored whether the store dies there: the
	// batch is not stored, or is and nobody learns it.
	Kill func(stored bool) bool

	mu        sync.Mutex
	positions map[string]uint64
	runs      map[events.Run]history.Run
	texts     map[events.Run][]history.Text
	uses      map[history.Use]history.Sum
	periods   map[history.Period]history.Period
}

var _ follow.Store = (*Store)(nil)

// New returns an empty store.
func New() *Store {
	s := &Store{}
	s.reset()
	return s
}

func (s *Store) reset() {
	s.positions, s.runs, s.texts = map[string]uint64{}, map[events.Run]history.Run{}, map[events.Run][]history.Text{}
	s.uses, s.periods = map[history.Use]history.Sum{}, map[history.Period]history.Period{}
}

// Positions implements [follow.Store].
func (s *Store) Positions(context.Context) (map[string]uint64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.positions), nil
}

// Runs implements [follow.Store].
func (s *Store) Runs(_ context.Context, runs []events.Run) (rows []history.Run, _ error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, run := range runs {
		if row, there := s.runs[run]; there {
			rows = append(rows, row)
		}
	}
	return rows, nil
}

// Reset implements [follow.Store].
func (s *Store) Reset(context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reset()
	return nil
}

// Apply implements [follow.Store].
func (s *Store) Apply(_ context.Context, b history.Batch) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.positions[b.Stream] != b.From {
		return follow.ErrMoved
	}
	if s.Kill != nil && s.Kill(false) {
		return ErrKilled
	}
	s.positions[b.Stream] = b.To
	for _, c := range b.Runs {
		s.change(c)
	}
	for _, u := range b.Uses {
		key := history.Use{Namespace: u.Namespace, Hour: u.Hour, Kind: u.Kind, Name: u.Name}
		sum := s.uses[key]
		sum.Add(u.Sum)
		s.uses[key] = sum
	}
	for _, p := range b.Periods {
		key := history.Period{Namespace: p.Namespace, Hour: p.Hour}
		sum, there := s.periods[key]
		if !there {
			sum = key
		}
		sum.Add(p)
		s.periods[key] = sum
	}
	if s.Kill != nil && s.Kill(true) {
		return ErrKilled
	}
	return nil
}

func (s *Store) change(c history.Change) {
	run := events.Run{Shard: c.Run.Shard, Namespace: c.Run.Namespace, ID: c.Run.ID}
	if c.Anew || c.Gone {
		delete(s.texts, run)
	}
	if c.Gone {
		delete(s.runs, run)
		return
	}
	s.runs[run] = c.Run
	s.texts[run] = append(s.texts[run], c.Texts...)
}

// Content is all that a store has.
type Content struct {
	Runs    map[string]history.Run
	Texts   map[string][]history.Text
	Uses    []history.Use
	Periods []history.Period
}

// Content returns all that the store has, runs by their ids.
func (s *Store) Content() Content {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := Content{Runs: map[string]history.Run{}, Texts: map[string][]history.Text{}}
	for run, row := range s.runs {
		c.Runs[run.ID] = row
	}
	for run, texts := range s.texts {
		c.Texts[run.ID] = slices.Clone(texts)
	}
	for u, sum := range s.uses {
		u.Sum = sum
		c.Uses = append(c.Uses, u)
	}
	slices.SortFunc(c.Uses, func(a, b history.Use) int {
		return cmp.Or(order(a.Namespace, b.Namespace, a.Hour, b.Hour), cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name))
	})
	c.Periods = slices.SortedFunc(maps.Values(s.periods), func(a, b history.Period) int { return order(a.Namespace, b.Namespace, a.Hour, b.Hour) })
	return c
}

func order(a, b string, at, bt time.Time) int { return cmp.Or(cmp.Compare(a, b), at.Compare(bt)) }
