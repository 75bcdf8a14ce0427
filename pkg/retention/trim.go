package retention

import "context"

// removeEvents removes the records of the chosen runs. A server may need a time for
// each run that grows with the whole log, so those at the front of a shard, before
// the first record that stays, go at once. The others go one by one, and before
// them: a run is never there in part, and a fork goes before what it was forked
// from, also if this is cut off.
func (p *purge) removeEvents(ctx context.Context) error {
	fronts, related := p.fronts(), p.related()
	due := make([]bool, len(fronts))
	for _, e := range p.chosen {
		if e.seq < fronts[e.run.Shard] && !related[e] {
			due[e.run.Shard] = true
			continue
		}
		if _, err := p.bus.Purge(ctx, e.run, e.seq); err != nil {
			return err
		}
	}
	for shard, front := range fronts {
		if !due[shard] {
			continue
		}
		if _, err := p.bus.Trim(ctx, shard, front); err != nil {
			return err
		}
	}
	return nil
}

// fronts returns the number of each shard's first record that stays, or of the one
// that comes next. What is appended meanwhile has a larger one.
func (p *purge) fronts() []uint64 {
	going := make(map[*entry]bool, len(p.chosen))
	for _, e := range p.chosen {
		going[e] = true
	}
	fronts := make([]uint64, len(p.survey.end))
	for shard, end := range p.survey.end {
		fronts[shard] = end + 1
		if stray := p.survey.stray[shard]; stray > 0 {
			fronts[shard] = stray
		}
	}
	for _, e := range p.survey.runs {
		if !going[e] {
			fronts[e.run.Shard] = min(fronts[e.run.Shard], e.first)
		}
	}
	return fronts
}

// related returns the chosen runs that are forks, and what they were forked from.
func (p *purge) related() map[*entry]bool {
	all := map[*entry]bool{}
	for _, e := range p.chosen {
		if line := p.survey.line(e.run); len(line) > 1 {
			for _, relative := range line {
				all[relative] = true
			}
		}
	}
	return all
}
