package observer

import (
	"context"
	"log/slog"
	"sync"

	"github.com/moorebus/moorebus/internal/ports"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

const (
	// maxWaitingRuns is how many runs may wait for a snapshot. Further ones are dropped;
	// their snapshot is taken the next time.
	maxWaitingRuns = 256
	// maxNoted bounds the runs whose number of events the snapshotter remembers.
	maxNoted = 4096
	// A run that other processes work on is read into the snapshotter's store, with these bounds, so
	// that it does not displace runs at work here.
	keptRuns  = 64
	keptBytes = 64 << 20
)

// snapshotter takes snapshots of runs in the background, from the memory that the
// process's roles share. The run is locked while that is encoded: a millisecond or two for
// 1,000 events. A fold of the snapshotter's own would read, check and decode each event once
// more, which costs a seventh of a long run's transitions.
type snapshotter struct {
	snapshots ports.Snapshots
	feed      journal.Feed
	// store has the runs that come to Observing in this process, others the runs that are known only
	// from the feed.
	store, others *runlog.Store
	every         uint64
	logger        *slog.Logger

	// waiting are the runs in the queue, each once, with the store to read it from. noted is how many events runs
	// had when they were last seen.
	mu      sync.Mutex
	waiting map[events.Run]*runlog.Store
	noted   map[events.Run]uint64
	queue   chan events.Run
}

// newSnapshotter returns nil where no snapshots are to be taken.
func newSnapshotter(cfg Config) *snapshotter {
	if cfg.Snapshots == nil || cfg.SnapshotEvery <= 0 || cfg.Store.Machine().FoldName() == "" {
		return nil
	}
	return &snapshotter{
		snapshots: cfg.Snapshots, feed: cfg.Feed, every: uint64(cfg.SnapshotEvery), logger: cfg.Logger, store: cfg.Store,
		others: runlog.New(runlog.Options{
			Log: cfg.Store.Log(), Machine: cfg.Store.Machine(), Snapshots: cfg.Snapshots, Logger: cfg.Logger,
			Capacity: keptRuns, MaxBytes: keptBytes,
		}),
		waiting: make(map[events.Run]*runlog.Store), noted: make(map[events.Run]uint64), queue: make(chan events.Run, maxWaitingRuns),
	}
}

// observed queues a run that came to Observing, if its snapshot is due. It never blocks.
func (s *snapshotter) observed(run events.Run, mem *reducer.Memory) {
	if s == nil {
		return
	}
	s.note(run, mem.N, false)
	if s.due(lastObserved(mem), mem.N) {
		s.enqueue(run, s.store)
	}
}

// due reports whether a run that had before events, and now has n, gets a snapshot: at each
// multiple of every, and from 8*every on at fewer of them, so that an eighth to a quarter of
// the run lies between two. A snapshot costs as much as the run is long, so a run's snapshots
// cost about the same for each event, however long it is.
func (s *snapshotter) due(before, n uint64) bool {
	between := s.every
	for n/8 >= between { // 8*between could overflow
		between *= 2
	}
	return n/between > before/between
}

// lastObserved returns how many own events the run had when it was last in
// Observing, 0 if it never was.
func lastObserved(mem *reducer.Memory) uint64 {
	return max(mem.Control.Observed, 1) - 1
}

// note remembers that a run has n events. It returns how many it had at the note before. If
// there is none, it assumes one question and its answer since then.
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

// enqueue puts a run into the queue, unless it is there or the queue is full.
func (s *snapshotter) enqueue(run events.Run, from *runlog.Store) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.waiting[run] != nil {
		return
	}
	select {
	case s.queue <- run:
		s.waiting[run] = from
	default:
	}
}

// run takes snapshots until ctx ends. The rest of the queue is dropped.
func (s *snapshotter) run(ctx context.Context) {
	stop := s.watch()
	defer stop()
	for {
		select {
		case <-ctx.Done():
			return
		case run := <-s.queue:
			s.mu.Lock()
			from := s.waiting[run]
			delete(s.waiting, run)
			s.mu.Unlock()
			if err := s.refresh(ctx, run, from); err != nil && ctx.Err() == nil {
				s.logger.Warn("no snapshot was taken", "run", run.ID, "reason", err)
			}
		}
	}
}

// watch follows, on the feed, runs that end, to delete their snapshots, and runs that wait
// for their user, since a chat without tools never comes to Observing.
func (s *snapshotter) watch() (stop func()) {
	var stops []func()
	table := s.store.Machine().Table()
	for _, state := range table.States() {
		if !table.Terminal(state) && state != events.WaitingForUser {
			continue
		}
		stop, err := s.feed.Watch(journal.Filter{To: state}, s.onFeed, func() {})
		if err != nil {
			s.logger.Warn("the feed cannot be watched: snapshots of ended runs are kept, and waiting runs get none", "state", state, "reason", err)
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

// onFeed queues a run that ends, or waits for its user, by its event on the feed. The log
// decides whether that is true.
func (s *snapshotter) onFeed(rec journal.Record) {
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
	// Shorter runs have no snapshot.
	if ended && e.N > s.every || !ended && s.due(before, e.N) {
		s.enqueue(subject.Run, s.others)
	}
}

// refresh stores a run's snapshot, or deletes it if the run has ended.
func (s *snapshotter) refresh(ctx context.Context, id events.Run, from *runlog.Store) error {
	ended, err := s.ended(ctx, id)
	if err != nil {
		return err
	}
	if !ended {
		snapshot, err := take(ctx, id, from)
		if err != nil {
			return err
		}
		if err := s.snapshots.PutSnapshot(ctx, id, snapshot); err != nil {
			return err
		}
		// Another observer may have tried to delete it before it was stored.
		if ended, err = s.ended(ctx, id); err != nil || !ended {
			return err
		}
	}
	return s.snapshots.DeleteSnapshot(ctx, id)
}

// ended reports whether the run's last record ends it. Whether that record is legal does not
// matter: a run can continue without its snapshot.
func (s *snapshotter) ended(ctx context.Context, id events.Run) (bool, error) {
	head, err := s.store.Log().Head(ctx, id)
	if err != nil {
		return false, err
	}
	subject, err := events.ParseSubject(head.Subject)
	return err == nil && s.store.Machine().Table().Terminal(subject.To), nil
}

// take reads the run to its head and returns its snapshot.
func take(ctx context.Context, id events.Run, from *runlog.Store) (ports.Snapshot, error) {
	run := from.Acquire(id)
	defer from.Release(run)
	run.Lock()
	defer run.Unlock()
	if err := run.Refresh(ctx); err != nil {
		return ports.Snapshot{}, err
	}
	return run.Snapshot()
}
