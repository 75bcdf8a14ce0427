package observer

import (
	"context"
	"log/slog"
	"sync"

	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

const (
	// maxWaitingRuns is how many runs may wait for the snapshotter; more are
	// dropped, and have their snapshot taken at the next turn.
	maxWaitingRuns = 256
	// maxNoted is of how many runs the snapshotter knows how many events they had.
	maxNoted = 4096
	// The snapshotter keeps the runs that it took last, within these bounds, so
	// that it reads their tails only.
	keptRuns  = 64
	keptBytes = 64 << 20
)

// snapshotter takes snapshots of runs beside the observer's work. It reads and
// folds the log for itself, so that no lock and no transition of a run ever waits
// for it.
type snapshotter struct {
	snapshots journal.Snapshots
	feed      journal.Feed
	store     *runlog.Store
	every     uint64
	logger    *slog.Logger

	// waiting holds each run once: what is taken is always the latest. noted is how
	// many events runs had when they were seen last.
	mu      sync.Mutex
	waiting map[events.Run]bool
	noted   map[events.Run]uint64
	queue   chan events.Run
}

// newSnapshotter returns nil where no snapshots are to be taken.
func newSnapshotter(cfg Config) *snapshotter {
	if cfg.Snapshots == nil || cfg.SnapshotEvery <= 0 || cfg.Store.Machine().FoldName() == "" {
		return nil
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return &snapshotter{
		snapshots: cfg.Snapshots, feed: cfg.Feed, every: uint64(cfg.SnapshotEvery), logger: cfg.Logger,
		store: runlog.New(runlog.Options{
			Log: cfg.Store.Log(), Machine: cfg.Store.Machine(), Snapshots: cfg.Snapshots, Logger: cfg.Logger,
			Capacity: keptRuns, MaxBytes: keptBytes,
		}),
		waiting: make(map[events.Run]bool), noted: make(map[events.Run]uint64), queue: make(chan events.Run, maxWaitingRuns),
	}
}

// look takes note of a run that came to Observing. It never blocks.
func (s *snapshotter) look(run events.Run, mem *reducer.Memory) {
	if s == nil {
		return
	}
	s.note(run, mem.N, false)
	if mem.N/s.every > lastLook(mem)/s.every {
		s.want(run)
	}
}

// lastLook returns how many events of its own the run had when it was looked at the
// last time, 0 if it was not.
func lastLook(mem *reducer.Memory) uint64 {
	return max(mem.Control.Observed, 1) - 1
}

// note remembers that a run had n events. It returns how many it had at the note
// before; if there is none, how many it would have if it only was asked something
// and answered since.
func (s *snapshotter) note(run events.Run, n uint64, ended bool) (before uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before, known := s.noted[run]
	if !known {
		before = n - min(n, 2)
	}
	if ended {
		delete(s.noted, run)
		return before
	}
	if !known && len(s.noted) >= maxNoted {
		for other := range s.noted { // any one
			delete(s.noted, other)
			break
		}
	}
	s.noted[run] = n
	return before
}

// want puts a run into the queue, unless it is there or the queue is full.
func (s *snapshotter) want(run events.Run) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.waiting[run] {
		return
	}
	select {
	case s.queue <- run:
		s.waiting[run] = true
	default:
	}
}

// run takes snapshots until ctx ends; what waits then is dropped.
func (s *snapshotter) run(ctx context.Context) {
	stop := s.watch()
	defer stop()
	for {
		select {
		case <-ctx.Done():
			return
		case run := <-s.queue:
			s.mu.Lock()
			delete(s.waiting, run)
			s.mu.Unlock()
			if err := s.take(ctx, run); err != nil && ctx.Err() == nil {
				s.logger.Warn("no snapshot was taken", "run", run.ID, "reason", err)
			}
		}
	}
}

// watch takes note of runs that end, to let go of their snapshots, and of those that
// wait for their user, since a chat without tools never comes to Observing; as far
// as the feed brings them.
func (s *snapshotter) watch() (stop func()) {
	var stops []func()
	table := s.store.Machine().Table()
	for _, state := range table.States() {
		if !table.Terminal(state) && state != events.WaitingForUser {
			continue
		}
		stop, err := s.feed.Watch(journal.Filter{To: state}, s.heard, func() {})
		if err != nil {
			s.logger.Warn("snapshots of runs that end are kept, and none taken of runs that wait", "state", state, "reason", err)
			continue
		}
		stops = append(stops, stop)
	}
	return func() {
		for _, stop := range stops {
			stop()
		}
	}
}

// heard takes note of an event that ends a run or has it wait. Whether it does is
// for the fold to say.
func (s *snapshotter) heard(rec journal.Record) {
	subject, err := events.ParseSubject(rec.Subject)
	if err != nil || subject.CheckShard(s.store.Log().Shards()) != nil {
		return
	}
	e, err := s.store.Machine().Codec().Decode(rec.Body)
	if err != nil {
		return
	}
	ended := s.store.Machine().Table().Terminal(subject.To)
	before := s.note(subject.Run, e.N, ended)
	// Shorter runs have none.
	if ended && e.N > s.every || !ended && e.N/s.every > before/s.every {
		s.want(subject.Run)
	}
}

// take brings the run to the log's head and stores its snapshot, or lets go of it
// if the run has ended.
func (s *snapshotter) take(ctx context.Context, id events.Run) error {
	run := s.store.Acquire(id)
	defer s.store.Release(run)
	run.Lock()
	defer run.Unlock()
	if err := run.Refresh(ctx); err != nil {
		return err
	}
	if run.Terminal() {
		return s.snapshots.DeleteSnapshot(ctx, id)
	}
	snapshot, err := run.Snapshot()
	if err != nil {
		return err
	}
	if err := s.snapshots.PutSnapshot(ctx, id, snapshot); err != nil {
		return err
	}
	// Another observer may have let go of it before it was there.
	if err := run.Refresh(ctx); err != nil || !run.Terminal() {
		return err
	}
	return s.snapshots.DeleteSnapshot(ctx, id)
}
