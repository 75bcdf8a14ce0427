package worker

import (
	"context"
	"sync"
	"time"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

const (
	// maxHints is how many runs may wait to be looked at by name.
	maxHints = 1024
	// looksAtOnce bounds the runs that are looked at side by side: a slow read
	// of one does not hold up what others were told.
	looksAtOnce = 8
	// A look that failed is tried again after firstLook, and after twice as long
	// each time up to lastLook.
	firstLook, lastLook = 500 * time.Millisecond, 5 * time.Second
)

// hints are the runs that the feed says have control events. They are looked at
// in the log, since the feed can be forged. A run stays a hint until it was seen
// or nobody holds it: its delivery is extended and does not come again, so that
// nothing else would look.
type hints struct {
	wake chan struct{}

	mu   sync.Mutex
	runs map[events.Run]*look
	due  []events.Run
	all  bool
}

// look is how far the look at one run is: it waits for its turn or its time, or
// is under way.
type look struct {
	underWay bool
	// again says that the run was named while the look was under way, which may
	// have read past that already.
	again  bool
	failed int
}

func newHints() *hints {
	return &hints{wake: make(chan struct{}, 1), runs: map[events.Run]*look{}}
}

// add notes a run; one that waits already is looked at once.
func (h *hints) add(run events.Run) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.runs[run] == nil && len(h.runs) >= maxHints {
		h.all = true
	} else {
		h.note(run)
	}
	h.signal()
}

// addAll notes that any run may have control events.
func (h *hints) addAll() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.all = true
	h.signal()
}

func (h *hints) note(run events.Run) {
	if l := h.runs[run]; l != nil {
		l.again = l.underWay
		return
	}
	h.runs[run] = &look{}
	h.due = append(h.due, run)
}

func (h *hints) signal() {
	select {
	case h.wake <- struct{}{}:
	default:
	}
}

// take returns the runs to look at, each of which is to be handed to looked.
func (h *hints) take(held func() []events.Run) []events.Run {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.all {
		h.all = false
		for _, run := range held() {
			h.note(run)
		}
	}
	runs := h.due
	h.due = nil
	for _, run := range runs {
		h.runs[run].underWay = true
	}
	return runs
}

// looked takes what a look came to; one that failed comes up again by itself.
func (h *hints) looked(run events.Run, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	l := h.runs[run]
	again := l.again
	l.underWay, l.again = false, false
	switch {
	case err != nil:
		// After the end of the watch this wakes nobody.
		time.AfterFunc(min(firstLook<<min(l.failed, 8), lastLook), func() { h.comeUp(run) })
		l.failed++
	case again:
		l.failed = 0
		h.due = append(h.due, run)
		h.signal()
	default:
		delete(h.runs, run)
	}
}

func (h *hints) comeUp(run events.Run) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.due = append(h.due, run)
	h.signal()
}

// watchControl follows the control events of runs in flight, so that what they
// make obsolete is cancelled at once rather than when its outcome is refused. Other
// runs that are in memory are forgotten: their next delivery may be older than the
// control event, and what is in memory would be brought to the delivery alone. stop
// waits for the looks under way, but not after deaf is closed.
func (w *Worker) watchControl(ctx context.Context) (stop func(deaf <-chan struct{}), err error) {
	h := newHints()
	unwatch, err := w.cfg.Feed.Watch(journal.Filter{From: events.Control}, func(rec journal.Record) {
		if s, err := events.ParseSubject(rec.Subject); err == nil {
			w.cfg.Store.Forget(s.Run)
			h.add(s.Run)
		}
	}, func() {
		w.cfg.Store.ForgetIdle()
		h.addAll()
	})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	var finished sync.WaitGroup
	finished.Go(func() { w.follow(ctx, h) })
	return func(deaf <-chan struct{}) { unwatch(); cancel(); await(&finished, deaf) }, nil
}

// follow looks at the runs of the hints until ctx ends, and returns when the last
// look has.
func (w *Worker) follow(ctx context.Context, h *hints) {
	var looks sync.WaitGroup
	defer looks.Wait()
	slots := make(chan struct{}, looksAtOnce)
	for {
		select {
		case <-h.wake:
		case <-ctx.Done():
			return
		}
		for _, run := range h.take(w.cfg.Store.HeldRuns) {
			select {
			case slots <- struct{}{}:
			case <-ctx.Done():
				return
			}
			looks.Go(func() {
				defer func() { <-slots }()
				h.looked(run, w.observe(ctx, run))
			})
		}
	}
}

// observe brings a run in flight to the log's head, and cancels what it does not
// want any more. A run that is held without a flight is about to begin one, which
// then does not begin. An error is one of reading the log.
func (w *Worker) observe(ctx context.Context, id events.Run) error {
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
	w.flights.reconcile(run)
	return nil
}
