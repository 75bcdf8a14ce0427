// Package sharedlog lets the followers of a log share one follower of each shard: a
// record is read once, however many wait for it, and wakes only its run's followers.
package sharedlog

import (
	"context"
	"iter"
	"log/slog"
	"sync"
	"time"

	"github.com/moorebus/moorebus/internal/journalcheck"
	"github.com/moorebus/moorebus/internal/retry"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

// Options say how followers share; the zero value is useful.
type Options struct {
	// Alone is how many followers of a shard follow by themselves before further
	// ones share: few of them cost less than reading everything. 0: 4; less
	// than 0: all share.
	Alone int
	// Waiting bounds what waits for one follower, in bytes of bodies; there are
	// 64 records at most. 0: 256 KiB. A follower that falls behind further reads again
	// at its own pace, as much at once as may wait or 256 records.
	Waiting int
	// Logger gets why the log cannot be read for the time being. Default: discarded.
	Logger *slog.Logger
	// Kept bounds the newest records that are kept of a shard while followers
	// share, in bytes: those that fall behind read them. 0: 8 MiB; less than 0: none.
	Kept int
	// Readers bounds how many followers read the log at once, each of which takes a
	// page of it. 0: 16.
	Readers int
}

// The most records that wait for one follower, and the pause after a failed read.
const (
	sharedRecords = 64
	sharedRetry   = 250 * time.Millisecond
)

// Log is a log whose followers share. Everything but [Log.Follow] is the log's own.
type Log struct {
	journal.Log
	opts Options
	hubs []*hub
}

// New returns the log with shared followers.
func New(log journal.Log, o Options) *Log {
	if o.Alone == 0 {
		o.Alone = 4
	}
	if o.Waiting <= 0 {
		o.Waiting = 256 << 10
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Kept == 0 {
		o.Kept = 8 << 20
	}
	if o.Readers <= 0 {
		o.Readers = 16
	}
	reading := make(chan struct{}, o.Readers)
	s := &Log{Log: log, opts: o, hubs: make([]*hub, log.Shards())}
	for shard := range s.hubs {
		s.hubs[shard] = &hub{
			log: log, logger: o.Logger, shard: shard, alone: o.Alone, reading: reading, recent: recent{bound: max(0, o.Kept)},
			byRun: map[runName]listeners{}, others: listeners{},
		}
	}
	return s
}

// Follow is [Log.Follow], with the same promises. What a follower does not take
// waits for it within the bounds of [Options].
func (s *Log) Follow(ctx context.Context, shard int, filter journal.Filter, after uint64) iter.Seq2[journal.Record, error] {
	if journalcheck.Shard(len(s.hubs), shard) != nil {
		return s.Log.Follow(ctx, shard, filter, after) // which says so
	}
	return func(yield func(journal.Record, error) bool) {
		h := s.hubs[shard]
		l := &listener{filter: filter, bound: s.opts.Waiting, cursor: after, wake: make(chan struct{}, 1)}
		leave, alone := h.enter(l)
		defer leave()
		if alone {
			s.Log.Follow(ctx, shard, filter, after)(yield)
			return
		}
		l.follow(ctx, h, yield)
	}
}

// runName is a run within its shard.
type runName struct{ namespace, id string }

type listeners map[*listener]struct{}

// hub follows a shard for its listeners, as long as there are any.
type hub struct {
	log    journal.Log
	logger *slog.Logger
	shard  int
	alone  int
	// reading has a place for each follower that may read the log at once.
	reading chan struct{}
	recent  recent

	mu sync.Mutex
	// followers counts all, those alone too.
	followers int
	// byRun are the listeners of one run, by its name, and others the rest.
	byRun  map[runName]listeners
	others listeners
	joined int
	// begun is closed once the hub's follower is ready: what a listener reads then and what it
	// gets leave no gap. stop ends the follower; nil: there is none.
	begun chan struct{}
	stop  context.CancelFunc
}

// enter counts a follower and says whether it follows by itself; else it listens
// from now on, until leave is called.
func (h *hub) enter(l *listener) (leave func(), alone bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.followers++
	if h.followers <= h.alone {
		return func() {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.followers--
		}, true
	}
	h.set(l.filter)[l] = struct{}{}
	h.joined++
	if h.stop == nil {
		ctx, stop := context.WithCancel(context.Background())
		h.stop, h.begun = stop, make(chan struct{})
		go h.run(ctx, h.begun)
	}
	l.begun = h.begun
	return func() { h.leave(l) }, false
}

// set returns the listeners that a filter belongs to.
func (h *hub) set(f journal.Filter) listeners {
	if f.Run == "" || f.Namespace == "" {
		return h.others
	}
	name := runName{f.Namespace, f.Run}
	if h.byRun[name] == nil {
		h.byRun[name] = listeners{}
	}
	return h.byRun[name]
}

func (h *hub) leave(l *listener) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.followers--
	delete(h.set(l.filter), l)
	if name := (runName{l.filter.Namespace, l.filter.Run}); len(h.byRun[name]) == 0 {
		delete(h.byRun, name)
	}
	if h.joined--; h.joined == 0 && h.stop != nil {
		h.stop()
		h.stop = nil
		h.recent.begin(0)
	}
}

// run follows the shard from its end, and passes records to the listeners.
func (h *hub) run(ctx context.Context, begun chan struct{}) {
	var last uint64
	err := retry.Policy{First: sharedRetry}.Do(ctx, func(ctx context.Context) (err error) {
		last, err = h.log.Last(ctx, h.shard)
		return err
	}, func(err error, _ time.Duration) { h.logFailure(ctx, err) })
	if err != nil || !h.begin(ctx, last) {
		return
	}
	close(begun)
	for rec, err := range h.log.Follow(ctx, h.shard, journal.Filter{}, last) {
		if err != nil {
			h.fail(ctx, err)
			return
		}
		h.tell(ctx, rec)
	}
}

// begin says that the next record comes right after a sequence number, unless another one
// follows by now.
func (h *hub) begin(ctx context.Context, after uint64) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if ctx.Err() != nil {
		return false
	}
	h.recent.begin(after)
	return true
}

// fail ends everybody's following; who comes next begins anew.
func (h *hub) fail(ctx context.Context, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if ctx.Err() != nil {
		return
	}
	h.stop()
	h.stop = nil
	for l := range h.others {
		l.fail(err)
	}
	for _, of := range h.byRun {
		for l := range of {
			l.fail(err)
		}
	}
}

// tell hands a record to those that want it.
func (h *hub) tell(ctx context.Context, rec journal.Record) {
	s, err := events.ParseSubject(rec.Subject)
	h.mu.Lock()
	defer h.mu.Unlock()
	if ctx.Err() != nil {
		return // another one follows for the current listeners
	}
	h.recent.add(rec) // before any listener gets it, so that a slow one finds it
	if err == nil {
		for l := range h.byRun[runName{s.Run.Namespace, s.Run.ID}] {
			l.tell(rec)
		}
	}
	for l := range h.others {
		l.tell(rec)
	}
}

// listener is a follower that shares.
type listener struct {
	filter journal.Filter
	bound  int
	begun  <-chan struct{}
	// cursor is the last record that was yielded, or needs not to be.
	cursor uint64
	wake   chan struct{}

	mu      sync.Mutex
	waiting []journal.Record
	size    int
	// behind says that there was more than may wait, and failed why nothing comes
	// any more.
	behind bool
	failed error
}

func (l *listener) tell(rec journal.Record) {
	if !l.filter.Match(rec.Subject) {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.behind:
		return
	case len(l.waiting) > 0 && (len(l.waiting) >= sharedRecords || l.size+len(rec.Body) > l.bound):
		l.waiting, l.size, l.behind = nil, 0, true
	default:
		l.waiting = append(l.waiting, rec)
		l.size += len(rec.Body)
	}
	l.wakeUp()
}

func (l *listener) fail(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.failed = err
	l.wakeUp()
}

func (l *listener) wakeUp() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// receive returns what waits, whether the log has more than that, and why nothing
// comes any more.
func (l *listener) receive() (waiting []journal.Record, behind bool, failed error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	waiting, behind = l.waiting, l.behind
	l.waiting, l.size, l.behind = nil, 0, false
	return waiting, behind, l.failed
}

// follow yields the records after the cursor: the stored ones from the log, the others as
// they arrive. Since the listener receives before it reads, there is no gap, and the cursor
// skips records that arrive both ways.
func (l *listener) follow(ctx context.Context, h *hub, yield func(journal.Record, error) bool) {
	select {
	case <-l.begun:
	case <-ctx.Done():
	}
	for behind := true; ctx.Err() == nil; {
		if behind && !l.read(ctx, h, yield) {
			return
		}
		var told []journal.Record
		var failed error
		told, behind, failed = l.receive()
		if !l.pass(told, yield) {
			return
		}
		switch {
		case behind, len(told) > 0:
		case failed != nil:
			yield(journal.Record{}, failed)
			return
		default:
			select {
			case <-l.wake:
			case <-ctx.Done():
			}
		}
	}
	yield(journal.Record{}, ctx.Err())
}

// pass yields records that arrived and were not read, and reports false when no more are
// wanted.
func (l *listener) pass(told []journal.Record, yield func(journal.Record, error) bool) bool {
	for _, rec := range told {
		if rec.Seq <= l.cursor {
			continue
		}
		if l.cursor = rec.Seq; !yield(rec, nil) {
			return false
		}
	}
	return true
}

// read yields what there is after the cursor, to the end: what is kept, and what lies
// before that from the log. It reports false when no more is wanted. What goes
// wrong passes, and is tried again.
func (l *listener) read(ctx context.Context, h *hub, yield func(journal.Record, error) bool) bool {
	for ctx.Err() == nil {
		var err error
		some, seen, kept := h.recent.after(l.cursor, l.filter, l.bound)
		if kept && seen == l.cursor {
			return true
		}
		if !kept {
			some, seen, err = l.fetch(ctx, h)
		}
		if !l.pass(some, yield) {
			return false
		}
		l.cursor = max(l.cursor, seen)
		if err != nil {
			h.logFailure(ctx, err)
			retry.Wait(ctx, sharedRetry)
		}
	}
	return true
}

// fetch reads the log after the cursor: as much as may be taken at once, and up to
// where that is all. Nothing of the log is held while the records are yielded: a
// reader that stalls keeps neither a page nor others from reading.
func (l *listener) fetch(ctx context.Context, h *hub) (some []journal.Record, seen uint64, err error) {
	select {
	case h.reading <- struct{}{}:
		defer func() { <-h.reading }()
	case <-ctx.Done():
		return nil, l.cursor, ctx.Err()
	}
	end := h.recent.lastSeq() // the log has it, so a read of everything brings it
	seen = l.cursor
	b := batch{bytes: l.bound}
	for rec, err := range h.log.Scan(ctx, h.shard, l.filter, l.cursor) {
		if err != nil {
			return b.records, seen, err
		}
		if seen = rec.Seq; b.add(rec) {
			return b.records, seen, nil
		}
	}
	return b.records, max(seen, end), nil
}

// logFailure logs a read that failed and is tried again.
func (h *hub) logFailure(ctx context.Context, err error) {
	if ctx.Err() == nil {
		h.logger.Warn("cannot read the log, trying again", "shard", h.shard, "reason", err)
	}
}
