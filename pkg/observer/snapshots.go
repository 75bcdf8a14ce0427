package observer

import (
	"context"
	"log/slog"
	"sync"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
	"github.com/moorebus/moorebus/pkg/runlog"
)

const (
	// maxWaitingRuns is how many runs may wait for the snapshotter; more are
	// dropped, and have their snapshot taken at the next turn.
	maxWaitingRuns = 256
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

	// waiting holds each run once: what is taken is always the latest.
	mu      sync.Mutex
	waiting map[events.Run]bool
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
		waiting: make(map[events.Run]bool), queue: make(chan events.Run, maxWaitingRuns),
	}
}

// look takes note of a run that came to Observing. It never blocks.
func (s *snapshotter) look(run events.Run, mem *reducer.Memory) {
	if s != nil && mem.N/s.every > lastLook(mem)/s.every {
		s.want(run)
	}
}

// lastLook returns how many events the run had when it left Observing the last
// time, 0 if it was never there. The trace has an entry for each event but those
// that were not legal.
func lastLook(mem *reducer.Memory) uint64 {
	for i := len(mem.Trace) - 1; i >= 0; i-- {
		if mem.Trace[i].State == string(events.Observing) {
			return uint64(i)
		}
	}
	return 0
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
	stop := s.watchEnds()
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

// watchEnds lets go of the snapshots of runs that end, as far as the feed brings
// them. Shorter runs have none.
func (s *snapshotter) watchEnds() (stop func()) {
	var stops []func()
	table, codec := s.store.Machine().Table(), s.store.Machine().Codec()
	for _, state := range table.States() {
		if !table.Terminal(state) {
			continue
		}
		stop, err := s.feed.Watch(journal.Filter{To: state}, func(rec journal.Record) {
			subject, err := events.ParseSubject(rec.Subject)
			if err != nil || subject.CheckShard(s.store.Log().Shards()) != nil {
				return
			}
			if e, err := codec.Decode(rec.Body); err == nil && e.N > s.every {
				s.want(subject.Run)
			}
		}, func() {})
		if err != nil {
			s.logger.Warn("snapshots of runs that end are kept", "reason", err)
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
	return s.snapshots.PutSnapshot(ctx, id, snapshot)
}
