package control

import (
	"context"
	"errors"
	"maps"
	"sync"

	"github.com/moorebus/moorebus/internal/control/list"
	"github.com/moorebus/moorebus/internal/history/notes"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/internal/runstart"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

// SetLabels changes the labels that a run is shown with, by a merge patch: nil removes a label. It returns all
// that the run has then. The run's log stays as it is.
func (c *Controller) SetLabels(ctx context.Context, ns, id string, patch map[string]*string) (events.Labels, error) {
	var at events.Run
	var own events.Labels
	if err := c.View(ctx, ns, id, func(run *runlog.Run) error {
		at, own = run.ID, run.Memory().Control.Labels
		return nil
	}); err != nil {
		return nil, err
	}
	for {
		before, revision, err := notes.Labels(ctx, c.cfg.KV, at)
		if errors.Is(err, journal.ErrNotFound) {
			before, err = own, nil
		}
		if err != nil {
			return nil, err
		}
		after := events.Labels{}
		maps.Copy(after, before)
		for key, value := range patch {
			if value == nil {
				delete(after, key)
			} else {
				after[key] = *value
			}
		}
		if err := runstart.CheckLabels(after); err != nil {
			return nil, err
		}
		if maps.Equal(before, after) {
			return after, nil
		}
		if err := notes.PutLabels(ctx, c.cfg.KV, at, after, revision); !errors.Is(err, journal.ErrConflict) {
			return after, err
		}
	}
}

// labels returns the labels that a run is shown with: those that were noted, else its own. A gateway whose
// user may not read notes shows its own.
func (c *Controller) labels(ctx context.Context, ns, id string, own events.Labels) (events.Labels, error) {
	at, err := c.Place(ns, id)
	if err != nil {
		return nil, err
	}
	noted, _, err := notes.Labels(ctx, c.cfg.KV, at)
	switch {
	case errors.Is(err, journal.ErrNotFound), errors.Is(err, journal.ErrDenied):
		return own, nil
	case err != nil:
		return nil, err
	}
	return noted, nil
}

// noteReaders is how many notes are read at once for a list.
const noteReaders = 16

// Runs lists runs as [list.Lister.Runs] does, with the labels that were noted.
func (c *Controller) Runs(ctx context.Context, ns string, q list.Query) (list.Page, error) {
	page, err := c.Lister.Runs(ctx, ns, q)
	if err != nil {
		return page, err
	}
	errs := make([]error, noteReaders)
	var all sync.WaitGroup
	for reader := range errs {
		all.Go(func() {
			for i := reader; i < len(page.Runs) && errs[reader] == nil; i += noteReaders {
				r := &page.Runs[i]
				r.Labels, errs[reader] = c.labels(ctx, ns, r.RunID, r.Labels)
			}
		})
	}
	all.Wait()
	return page, errors.Join(errs...)
}
