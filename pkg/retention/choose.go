package retention

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

// choose decides which runs go.
func (p *purge) choose(ctx context.Context) error {
	named := map[events.Run]bool{}
	for _, run := range p.o.Runs {
		if err := p.name(ctx, run); err != nil {
			return err
		}
		named[run] = true
	}
	p.fallUnderLimits()
	if err := p.foldEnds(ctx, named); err != nil {
		return err
	}
	if !p.o.ParentsOfKept {
		if err := p.spareParents(named); err != nil {
			return err
		}
	}
	p.forksFirst()
	return nil
}

// name chooses a run that was named.
func (p *purge) name(ctx context.Context, run events.Run) error {
	e := p.survey.runs[run]
	if e != nil {
		if !slices.Contains(p.chosen, e) {
			p.chosen = append(p.chosen, e)
		}
		return nil
	}
	switch _, err := p.bus.Tombstone(ctx, run); {
	case err == nil:
		return fmt.Errorf("run %s was purged before: %w", run.ID, ErrNotPurged)
	case !errors.Is(err, journal.ErrNotFound):
		return err
	}
	return fmt.Errorf("run %s in namespace %s: %w: %w", run.ID, run.Namespace, journal.ErrNotFound, ErrNotPurged)
}

// fallUnderLimits chooses what ended before the time, and then what ended first
// until little enough stays.
func (p *purge) fallUnderLimits() {
	var ended []*entry
	var bytes int64
	for _, e := range p.survey.runs {
		if slices.Contains(p.chosen, e) || p.o.Namespace != "" && e.run.Namespace != p.o.Namespace {
			continue
		}
		bytes += e.bytes
		if e.state != "" {
			ended = append(ended, e)
		}
	}
	slices.SortFunc(ended, func(a, b *entry) int {
		return cmp.Or(a.at.Compare(b.at), cmp.Compare(a.run.ID, b.run.ID))
	})
	for _, e := range ended {
		if e.at.Before(p.o.EndedBefore) || p.o.KeepBytes > 0 && bytes > p.o.KeepBytes {
			p.chosen = append(p.chosen, e)
			bytes -= e.bytes
		}
	}
}

// foldEnds folds the chosen runs: only that says whether a run has ended. One that
// was named and has not is an error, any other one is kept.
func (p *purge) foldEnds(ctx context.Context, named map[events.Run]bool) error {
	var ended []*entry
	for _, e := range p.chosen {
		terminal, err := p.hasEnded(ctx, e)
		if err != nil {
			return err
		}
		switch {
		case terminal:
			ended = append(ended, e)
		case named[e.run]:
			return fmt.Errorf("run %s has not ended; cancel it first: %w", e.run.ID, ErrNotPurged)
		default:
			p.keep(e, "its last event is not its end")
		}
	}
	p.chosen = ended
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

// spareParents keeps what runs that stay were forked from.
func (p *purge) spareParents(named map[events.Run]bool) error {
	spared := p.forkedByStaying()
	var chosen []*entry
	for _, e := range p.chosen {
		fork, spare := spared[e]
		switch {
		case !spare:
			chosen = append(chosen, e)
		case named[e.run]:
			return fmt.Errorf("run %s stays and was forked from run %s: purge that one too, or say so: %w", fork.ID, e.run.ID, ErrNotPurged)
		default:
			p.keep(e, "run "+fork.ID+" was forked from it and stays")
		}
	}
	p.chosen = chosen
	return nil
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
