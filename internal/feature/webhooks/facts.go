package webhooks

import (
	"context"
	"errors"

	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/moorebus/moorebus/internal/control/runs"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// fact is what the first event of a run says of it.
type fact struct{ agent, parent string }

// facts reads and remembers first events.
type facts struct {
	a     *runs.Editor
	known *lru.Cache[events.Run, fact]
}

// factsKept is how many runs are remembered, each about 200 bytes.
const factsKept = 4096

func newFacts(a *runs.Editor) *facts {
	known, err := lru.New[events.Run, fact](factsKept)
	if err != nil {
		panic(err) // the size is a constant
	}
	return &facts{a, known}
}

// of returns the facts of a run. The error is that of the log; a run that was purged has none.
func (f *facts) of(ctx context.Context, run events.Run) (fact, error) {
	known, ok := f.known.Get(run)
	if ok {
		return known, nil
	}
	at, depth := run, 0
	for ; depth <= reducer.MaxForks; depth++ {
		rec, err := record(ctx, f.a.Log, at, 0)
		if errors.Is(err, journal.ErrNotFound) {
			return known, nil
		}
		if err != nil {
			return known, err
		}
		e := f.a.Decode(rec)
		if e == nil {
			break
		}
		switch p := e.Data.(type) {
		case *events.Start:
			known.agent = p.Agent.Name
			if p.Parent != nil && at == run {
				known.parent = p.Parent.Run
			}
		case *events.Forked:
			if p.Agent == nil {
				at = f.a.Store.Place(run.Namespace, p.Run)
				continue
			}
			known.agent = p.Agent.Name
		}
		break
	}
	f.known.Add(run, known)
	return known, nil
}

// record returns the first record of a run after a sequence number, or [journal.ErrNotFound].
func record(ctx context.Context, log journal.Log, run events.Run, after uint64) (journal.Record, error) {
	for rec, err := range log.Read(ctx, run, after) {
		return rec, err
	}
	return journal.Record{}, journal.ErrNotFound
}
