package worker

import (
	"context"
	"sync"
	"time"

	"github.com/moorebus/moorebus/internal/retry"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

// looksAtOnce bounds the runs that are read side by side because of control events: a
// slow read of one does not hold up what others were told.
const looksAtOnce = 8

// lookAgain says when a run is read again that could not be read.
var lookAgain = retry.Policy{First: 500 * time.Millisecond, Factor: 2, Max: 5 * time.Second}

// controlWatcher reads the runs that the feed says have control events, if somebody
// holds them. They are read in the log, since the feed can be forged. A read that fails is
// tried again until the run was seen or nobody holds it: the run's delivery is extended
// and does not come again, so nothing else would look.
type controlWatcher struct {
	w     *Worker
	ctx   context.Context
	slots chan struct{}
	looks sync.WaitGroup

	mu sync.Mutex
	// looking are the runs that are being read. True: the run was named meanwhile, and
	// the read may be past that already.
	looking map[events.Run]bool
	ended   bool
}

// watchControl follows the control events of runs in flight, so that what they
// make obsolete is cancelled at once rather than when its outcome is refused. Other
// runs that are in memory are forgotten: their next delivery may be older than the
// control event, and what is in memory would be brought to the delivery alone. stop
// waits for the looks under way, but not after deaf is closed.
func (w *Worker) watchControl(ctx context.Context) (stop func(deaf <-chan struct{}), err error) {
	ctx, cancel := context.WithCancel(ctx)
	c := &controlWatcher{w: w, ctx: ctx, slots: make(chan struct{}, looksAtOnce), looking: map[events.Run]bool{}}
	unwatch, err := w.cfg.Feed.Watch(journal.Filter{From: events.Control}, func(rec journal.Record) {
		if s, err := events.ParseSubject(rec.Subject); err == nil {
			w.cfg.Store.Forget(s.Run)
			c.named(s.Run)
		}
	}, func() {
		w.cfg.Store.ForgetIdle()
		for _, run := range w.cfg.Store.HeldRuns() {
			c.named(run)
		}
	})
	if err != nil {
		cancel()
		return nil, err
	}
	return func(deaf <-chan struct{}) {
		unwatch()
		cancel()
		c.mu.Lock()
		c.ended = true
		c.mu.Unlock()
		await(&c.looks, deaf)
	}, nil
}

// named has a run read that may have control events.
func (c *controlWatcher) named(id events.Run) {
	run := c.w.cfg.Store.Held(id)
	if run == nil {
		return
	}
	c.w.cfg.Store.Release(run)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return
	}
	_, known := c.looking[id]
	if c.looking[id] = known; !known {
		c.looks.Go(func() { c.look(id) })
	}
}

// look reads a run until it was not named meanwhile.
func (c *controlWatcher) look(id events.Run) {
	for again := true; again; again = c.namedAgain(id) {
		_ = lookAgain.Do(c.ctx, func(ctx context.Context) error {
			select {
			case c.slots <- struct{}{}:
			case <-ctx.Done():
				return retry.Stop(ctx.Err())
			}
			defer func() { <-c.slots }()
			return c.w.refresh(ctx, id)
		}, nil)
	}
}

// namedAgain reports whether a run was named while it was read; if not, it is no longer
// looked at.
func (c *controlWatcher) namedAgain(id events.Run) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ctx.Err() == nil && c.looking[id] {
		c.looking[id] = false
		return true
	}
	delete(c.looking, id)
	return false
}

// refresh brings a run in flight to the log's head, and cancels what it does not
// want any more. A run that is held with nothing in flight is about to begin something,
// which then does not begin. An error is one of reading the log.
func (w *Worker) refresh(ctx context.Context, id events.Run) error {
	run := w.cfg.Store.Held(id)
	if run == nil {
		return nil
	}
	defer w.cfg.Store.Release(run)
	run.Lock()
	defer run.Unlock()
	if err := run.Refresh(ctx); err != nil {
		w.cfg.Logger.Warn("a control event is seen later", "run", id.ID, "reason", err)
		return err
	}
	w.inFlight.cancelUnwanted(run)
	return nil
}
