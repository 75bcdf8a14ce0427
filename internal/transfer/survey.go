package transfer

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/moorebus/moorebus/internal/tombstones"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

// survey says which runs the target had at the beginning of an import, and which have tombstones, so that
// the others need not be asked for. A nil survey knows nothing.
type survey struct {
	mu           sync.Mutex
	runs, stones map[events.Run]bool
}

// survey reads the entire target once.
func (m *importer) survey(ctx context.Context) (*survey, error) {
	s := &survey{runs: map[events.Run]bool{}}
	for shard := range m.to.Shards() {
		for rec, err := range m.to.Scan(ctx, shard, journal.Filter{}, 0) {
			if err != nil {
				return nil, err
			}
			if subject, err := events.ParseSubject(rec.Subject); err == nil {
				s.runs[subject.Run] = true
			}
		}
	}
	var err error
	s.stones, err = tombstones.Runs(ctx, m.to, m.to.Shards())
	return s, err
}

// has and buried report whether the target may have a run, and a tombstone of it.
func (s *survey) has(run events.Run) bool {
	if s == nil {
		return true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.runs[run]
}

func (s *survey) buried(run events.Run) bool { return s == nil || s.stones[run] }

// outdated reports whether a run that was absent is there now: an import that was cut off had an append on
// the way.
func (s *survey) outdated(run events.Run, err error) bool {
	if !errors.Is(err, journal.ErrConflict) || s.has(run) {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.runs[run] = true
	return true
}

// bring imports a run that was not refused.
func (m *importer) bring(ctx context.Context, result *ImportedRun) error {
	if result.settled {
		return nil
	}
	err := m.bringNow(ctx, result)
	if !m.known.outdated(m.target(result.Run), err) {
		return err
	}
	if *result, err = m.check(ctx, result.Run); err != nil {
		return err
	}
	if result.Fate == FateRefused {
		return fmt.Errorf("%s: %w", result.Reason, journal.ErrConflict)
	}
	return m.bring(ctx, result)
}
