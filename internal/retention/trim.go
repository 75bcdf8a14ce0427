package retention

import "context"

// removeEvents removes the records of the chosen runs. A server may need a time for
// each run that grows with the whole log, so those at the front of a shard, before
// the first record that stays, go at once. A run is never there in part, and a fork
// goes before what it was forked from, also if this is cut off: so runs that reach
// over the front, forks and their parents go before that and one by one, and what
// stands behind it goes last, since it may take long.
func (p *purge) removeEvents(ctx context.Context) error {
	fronts, err := p.fronts(ctx)
	if err != nil {
		return err
	}
	due, related := make([]bool, len(fronts)), p.related()
	var behind []*entry
	for _, e := range p.chosen {
		switch front := fronts[e.run.Shard]; {
		case !related[e] && e.seq < front:
			due[e.run.Shard] = true
		case !related[e] && e.first > front:
			behind = append(behind, e)
		default:
			if err := p.removeRun(ctx, e); err != nil {
				return err
			}
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
	for _, e := range behind {
		if err := p.removeRun(ctx, e); err != nil {
			return err
		}
	}
	return nil
}

func (p *purge) removeRun(ctx context.Context, e *entry) error {
	_, err := p.bus.Purge(ctx, e.run, e.seq)
	return err
}

// fronts returns the number of each shard's first record that stays, or of the one
// that comes next. What is appended meanwhile has a larger one. It is 0 where the
// survey has not seen every record, so that it is not known what stands there.
func (p *purge) fronts(ctx context.Context) ([]uint64, error) {
	going := make(map[*entry]bool, len(p.chosen))
	for _, e := range p.chosen {
		going[e] = true
	}
	fronts := make([]uint64, len(p.survey.end))
	for shard, end := range p.survey.end {
		n, last, err := p.bus.Records(ctx, shard)
		switch first := p.survey.ofNoRun[shard]; {
		case err != nil:
			return nil, err
		case n != p.survey.records[shard]+(last-end):
		case first > 0:
			fronts[shard] = first
		default:
			fronts[shard] = end + 1
		}
	}
	for _, e := range p.survey.runs {
		if !going[e] {
			fronts[e.run.Shard] = min(fronts[e.run.Shard], e.first)
		}
	}
	return fronts, nil
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
