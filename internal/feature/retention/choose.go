package retention

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/internal/tombstones"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

// choose decides which runs go.
func (p *purge) choose(ctx context.Context) error {
	named := make(map[*entry]bool, len(p.o.Runs))
	for _, run := range p.o.Runs {
		if err := p.name(ctx, run, named); err != nil {
			return err
		}
	}
	if err := p.checkNamed(ctx); err != nil {
		return err
	}
	if err := p.fallUnderLimits(ctx, named); err != nil {
		return err
	}
	if !p.o.ParentsOfKept {
		for e, fork := range p.forkedByStaying() {
			return fmt.Errorf("run %s stays and was forked from run %s: purge that one too, or say so: %w", fork.ID, e.run.ID, ErrNotPurged)
		}
	}
	p.forksFirst()
	return nil
}

// name chooses a run that was named, once.
func (p *purge) name(ctx context.Context, run events.Run, named map[*entry]bool) error {
	e := p.survey.runs[run]
	if e != nil {
		if !named[e] {
			named[e] = true
			p.chosen = append(p.chosen, e)
		}
		return nil
	}
	switch _, err := tombstones.Get(ctx, p.bus, run); {
	case err == nil:
		return fmt.Errorf("run %s was purged before: %w", run.ID, ErrNotPurged)
	case !errors.Is(err, journal.ErrNotFound):
		return err
	}
	return fmt.Errorf("run %s in namespace %s: %w: %w", run.ID, run.Namespace, journal.ErrNotFound, ErrNotPurged)
}

// limits chooses under the limits of the options. What has to stay is passed over
// and counts among what stays, so that younger runs go in its place.
type limits struct {
	*purge
	// forks are the runs that were forked from each run and stay.
	forks map[*entry]map[*entry]bool
	// bytes are those of all that stays.
	bytes int64
	// passed are the runs that would go if they had no forks.
	passed map[*entry]bool
}

// fallUnderLimits chooses, beside what was named, what ended before the time, and
// then what ended first until little enough stays.
func (p *purge) fallUnderLimits(ctx context.Context, named map[*entry]bool) error {
	l := &limits{purge: p, forks: map[*entry]map[*entry]bool{}, passed: map[*entry]bool{}}
	var ended []*entry
	for _, e := range p.survey.runs {
		if named[e] {
			continue
		}
		if parent := p.survey.runs[e.parent]; e.forked && parent != nil && !p.o.ParentsOfKept {
			if l.forks[parent] == nil {
				l.forks[parent] = map[*entry]bool{}
			}
			l.forks[parent][e] = true
		}
		if p.o.Namespace != "" && e.run.Namespace != p.o.Namespace {
			continue
		}
		l.bytes += e.bytes
		if e.state != "" {
			ended = append(ended, e)
		}
	}
	slices.SortFunc(ended, func(a, b *entry) int {
		return cmp.Or(a.at.Compare(b.at), cmp.Compare(a.run.ID, b.run.ID))
	})
	for _, e := range ended {
		if err := l.consider(ctx, e); err != nil {
			return err
		}
	}
	for _, e := range ended {
		if l.passed[e] {
			for fork := range l.forks[e] {
				p.keep(e, "run "+fork.run.ID+" was forked from it and stays")
				break
			}
		}
	}
	return nil
}

// consider chooses a run if it falls under a limit and may go, and then what it was
// forked from and could not go for its sake.
func (l *limits) consider(ctx context.Context, e *entry) error {
	if !e.at.Before(l.o.EndedBefore) && (l.o.KeepBytes <= 0 || l.bytes <= l.o.KeepBytes) {
		return nil
	}
	if len(l.forks[e]) > 0 {
		l.passed[e] = true
		return nil
	}
	delete(l.passed, e)
	reason, err := l.unended(ctx, e)
	if err != nil {
		return err
	}
	if reason != "" {
		l.keep(e, reason)
		return nil
	}
	l.chosen = append(l.chosen, e)
	l.bytes -= e.bytes
	parent := l.survey.runs[e.parent]
	if !e.forked || parent == nil {
		return nil
	}
	if delete(l.forks[parent], e); l.passed[parent] {
		return l.consider(ctx, parent)
	}
	return nil
}

// unended folds a run and returns why it has not ended, empty if it has: only its
// fold says so. Where a fork has no parent to be folded with, it is not known.
func (p *purge) unended(ctx context.Context, e *entry) (string, error) {
	ended, err := p.hasEnded(ctx, e)
	var gone *runlog.ParentGoneError
	switch {
	case errors.As(err, &gone):
		return err.Error() + ": purge it by its name", nil
	case err != nil:
		return "", err
	case !ended:
		return "its last event is not its end", nil
	}
	return "", nil
}

// checkNamed refuses named runs that have not ended. Of a fork whose parent is gone
// the last event alone says whether it has.
func (p *purge) checkNamed(ctx context.Context) error {
	for _, e := range p.chosen {
		ended, err := p.hasEnded(ctx, e)
		var gone *runlog.ParentGoneError
		if errors.As(err, &gone) {
			ended, err = p.survey.endsByItself(ctx, p.bus, p.codec, e)
		}
		if err != nil {
			return err
		}
		if !ended {
			return fmt.Errorf("run %s has not ended; cancel it first: %w", e.run.ID, ErrNotPurged)
		}
	}
	return nil
}

func (p *purge) hasEnded(ctx context.Context, e *entry) (bool, error) {
	run := p.store.Acquire(e.run)
	defer p.store.Release(run)
	run.Lock()
	defer run.Unlock()
	if err := run.Refresh(ctx); err != nil {
		return false, err
	}
	mem := run.Memory()
	e.state, e.at = mem.State, mem.Updated
	e.seq, e.events, e.hash = run.Seq(), mem.N, mem.Control.Head
	return run.Terminal(), nil
}

func (p *purge) keep(e *entry, reason string) {
	p.done.Kept = append(p.done.Kept, KeptRun{Run: e.run.ID, Space: e.run.Namespace, Reason: reason})
}

// forkedByStaying returns those of the chosen runs that runs which stay were forked
// from, each with one of those.
func (p *purge) forkedByStaying() map[*entry]events.Run {
	going := map[*entry]bool{}
	for _, e := range p.chosen {
		going[e] = true
	}
	forked := map[*entry]events.Run{}
	for run, e := range p.survey.runs {
		if going[e] || !e.forked {
			continue
		}
		for _, parent := range p.survey.line(run) {
			if going[parent] {
				forked[parent] = run
			}
		}
	}
	return forked
}

// forksFirst puts forks before what they were forked from, so that a purge that is
// cut off leaves no fork alone; else by their end.
func (p *purge) forksFirst() {
	depth := map[*entry]int{}
	for _, e := range p.chosen {
		depth[e] = len(p.survey.line(e.run))
	}
	slices.SortFunc(p.chosen, func(a, b *entry) int {
		return cmp.Or(cmp.Compare(depth[b], depth[a]), a.at.Compare(b.at), cmp.Compare(a.run.ID, b.run.ID))
	})
}
