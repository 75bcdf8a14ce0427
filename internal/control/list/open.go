package list

import (
	"context"

	"github.com/moorebus/moorebus/pkg/events"
)

// OpenRun is a run that has not ended. Outside says that it waits for a reply of its client, which
// is its model.
type OpenRun struct {
	Run     events.Run
	Outside bool
}

// OpenRuns returns the runs of all namespaces that have not ended, in no order. The first call reads
// the entire log.
func (l *Lister) OpenRuns(ctx context.Context) ([]OpenRun, error) {
	_, ends, err := l.index.missing(ctx)
	if err == nil {
		err = l.index.catchUp(ctx, ends)
	}
	if err != nil {
		return nil, err
	}
	l.index.mu.RLock()
	defer l.index.mu.RUnlock()
	var open []OpenRun
	for _, space := range l.index.namespaces {
		for _, r := range space.runs {
			if r.suspect || !l.a.Table.Terminal(r.info.State) {
				waits := r.info.State == events.Planning || r.info.State == events.Reflecting
				open = append(open, OpenRun{r.run, waits && r.outside})
			}
		}
	}
	return open, nil
}
