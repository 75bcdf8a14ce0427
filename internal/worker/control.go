package worker

import (
	"context"
	"sync"
	"time"

	"github.com/moorebus/moorebus/internal/retry"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

// maxControlReads bounds the runs that are read side by side because of control events.
// A slow read of one run delays no other run.
const maxControlReads = 8

// controlReads says when a run is read again after its log could not be read.
var controlReads = retry.Policy{First: 500 * time.Millisecond, Factor: 2, Max: 5 * time.Second}

// controlWatcher reads held runs of which the feed announces control events. It reads the
// log, since the feed can be forged. It retries a failed read until it has read the run or
// the run is no longer held: the run's delivery is extended and does not come again, so
// nothing else would read it.
type controlWatcher struct {
	w     *Worker
	ctx   context.Context
	slots chan struct{}
	reads sync.WaitGroup

	mu sync.Mutex
	// reading are the runs that are being read, or wait for a slot. True: an event was
	// announced after the read began, which may have missed it.
	reading map[events.Run]bool
	ended   bool
}

// watchControl follows the control events of runs in flight. It cancels at once the work
// that they make obsolete, before its outcome is refused. Other runs in memory are
// forgotten: their next delivery may be older than the control event, and the cached run
// would be extended by the delivery alone. stop waits for the reads, but not after
// abandoned is closed.
func (w *Worker) watchControl(ctx context.Context) (stop func(abandoned <-chan struct{}), err error) {
	ctx, cancel := context.WithCancel(ctx)
	c := &controlWatcher{w: w, ctx: ctx, slots: make(chan struct{}, maxControlReads), reading: map[events.Run]bool{}}
	unwatch, err := w.cfg.Feed.Watch(journal.Filter{From: events.Control}, func(rec journal.Record) {
		if s, err := events.ParseSubject(rec.Subject); err == nil && w.cfg.Store.Forget(s.Run) {
			c.announced(s.Run)
		}
	}, func() {
		w.cfg.Store.ForgetIdle()
		for _, run := range w.cfg.Store.HeldRuns() {
			c.announced(run)
		}
	})
	if err != nil {
		cancel()
		return nil, err
	}
	return func(abandoned <-chan struct{}) {
		unwatch()
		cancel()
		c.mu.Lock()
		c.ended = true
		c.mu.Unlock()
		await(&c.reads, abandoned)
	}, nil
}

// announced reads a held run, of which a control event was announced.
func (c *controlWatcher) announced(id events.Run) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return
	}
	_, known := c.reading[id]
	if c.reading[id] = known; !known {
		c.reads.Go(func() { c.readRun(id) })
	}
}

// readRun reads a run until no event was announced during the read.
func (c *controlWatcher) readRun(id events.Run) {
	for again := true; again; again = c.mustReadAgain(id) {
		_ = controlReads.Do(c.ctx, func(ctx context.Context) error {
			select {
			case c.slots <- struct{}{}:
			case <-ctx.Done():
				return retry.Stop(ctx.Err())
			}
			defer func() { <-c.slots }()
			c.mu.Lock()
			c.reading[id] = false
			c.mu.Unlock()
			return c.w.refresh(ctx, id)
		}, nil)
	}
}

// mustReadAgain reports whether an event of the run was announced during the read. If
// not, the run is no longer being read.
func (c *controlWatcher) mustReadAgain(id events.Run) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ctx.Err() == nil && c.reading[id] {
		return true
	}
	delete(c.reading, id)
	return false
}

// refresh brings a run in flight to the log's head and cancels what it does not want any
// more. A run that is held with nothing in flight is about to begin something, which then
// does not begin. An error is one of reading the log.
func (w *Worker) refresh(ctx context.Context, id events.Run) error {
	run := w.cfg.Store.Held(id)
	if run == nil {
		return nil
	}
	defer w.cfg.Store.Release(run)
	run.Lock()
	defer run.Unlock()
	if err := run.Refresh(ctx); err != nil {
		w.cfg.Logger.Warn("a control event cannot be read yet", "run", id.ID, "reason", err)
		return err
	}
	w.inFlight.cancelUnwanted(run)
	return nil
}
