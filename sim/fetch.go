package sim

import (
	"context"
	"errors"

	"github.com/moorebus/moorebus/internal/journaltest/simtest"
	"github.com/moorebus/moorebus/internal/ports"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

// What fetches come to: the record, a fault, or nothing, since the scenario's log
// can only be read.
const (
	fetchDone   = "fetched"
	fetchAway   = "away"
	fetchHidden = "scenarios without"
)

// log is the process's log, which gives out single records only if the scenario
// says so.
func (p *process) log() journal.Log {
	if !p.w.scenario.Fetches {
		return struct {
			journal.Log
			ports.Revised
		}{p.sim, p.sim}
	}
	return fetching{p.sim, p.w}
}

// fetching counts what is fetched.
type fetching struct {
	*simtest.Process
	w *world
}

func (f fetching) Fetch(ctx context.Context, run events.Run, seq uint64) (journal.Record, error) {
	rec, err := f.Process.Fetch(ctx, run, seq)
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	switch {
	case err == nil:
		f.w.fetched[fetchDone]++
	case errors.Is(err, simtest.ErrFetchAway):
		f.w.fetched[fetchAway]++
	}
	return rec, err
}
