package follow

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"strconv"
	"sync"
	"time"

	"github.com/moorebus/moorebus/internal/logwalk"
	"github.com/moorebus/moorebus/internal/retry"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// Options configure a [Follower].
type Options struct {
	Log     journal.Log
	Machine *reducer.Machine
	Store   Store
	// Streams are the names of the log's shards, each with the time at which its stream was made. A store
	// of other streams is built anew. Others are streams that somebody else reads into the store.
	Streams, Others []string
	// Blob reads what was too large for the log, or returns journal.ErrNotFound. Nil: nothing does, and
	// texts have what their events have.
	Blob func(ctx context.Context, ref events.Ref) ([]byte, error)
	// Purged yields the runs that were purged from the log, without those that an archive has. Nil: none
	// are.
	Purged func(ctx context.Context) iter.Seq2[events.Run, error]
	// Records and Bytes bound a batch: a row is stored once in each batch that has events of its run. Default 8192
	// and 8 MiB.
	Records, Bytes int
	// Sweep is how often purged runs are looked for. Default a minute.
	Sweep  time.Duration
	Logger *slog.Logger
}

// Follower keeps a store up to date with the log. Between batches it holds nothing of a run. Its methods are
// safe for concurrent use, but only one of Run and CatchUp may work.
type Follower struct {
	o     Options
	rates rates

	mu sync.Mutex
	// at is up to where each shard is in the store, nil before the store was asked. following says that
	// only this follower moves it. moved is closed and replaced when it changes.
	at        []uint64
	following bool
	moved     chan struct{}
	// hurry is closed while somebody waits: the number is waiting.
	waiting int
	hurry   chan struct{}
	// applying is held by who applies a batch of the shard.
	applying []sync.Mutex
}

// New returns a follower.
func New(o Options) *Follower {
	if o.Records <= 0 {
		o.Records = 8192
	}
	if o.Bytes <= 0 {
		o.Bytes = 8 << 20
	}
	if o.Sweep <= 0 {
		o.Sweep = time.Minute
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return &Follower{o: o, moved: make(chan struct{}), hurry: make(chan struct{}), applying: make([]sync.Mutex, o.Log.Shards())}
}

// again is how soon a follower goes on after an error of the log or the store.
var again = retry.Policy{First: 100 * time.Millisecond, Factor: 2, Max: 10 * time.Second}

// Run brings the store to the end of the log and keeps it there until ctx ends.
func (f *Follower) Run(ctx context.Context) {
	for failures := 1; ; failures++ {
		began := time.Now()
		err := f.follow(ctx)
		if ctx.Err() != nil {
			return
		}
		if time.Since(began) > again.Max {
			failures = 1
		}
		delay := again.Delay(failures)
		f.o.Logger.Warn("the history of runs stops, and is tried again", "reason", err, "retry_in", delay)
		if !retry.Wait(ctx, delay) {
			return
		}
	}
}

// CatchUp brings the store to the end that the log has now.
func (f *Follower) CatchUp(ctx context.Context) error { return f.each(ctx, f.scan) }

// follow reads all shards until one fails or ctx ends.
func (f *Follower) follow(ctx context.Context) error {
	return f.each(ctx, func(ctx context.Context, shard int) error {
		if err := f.scan(ctx, shard); err != nil {
			return err
		}
		return f.live(ctx, shard)
	}, f.sweeps)
}

// each calls read for all shards at once, and what else is to be done meanwhile.
func (f *Follower) each(ctx context.Context, read func(ctx context.Context, shard int) error, also ...func(context.Context) error) error {
	if err := f.open(ctx); err != nil {
		return err
	}
	defer f.leave()
	g := logwalk.NewGroup(ctx)
	for shard := range f.applying {
		g.Go(func(ctx context.Context) error { return read(ctx, shard) })
	}
	for _, do := range also {
		g.Go(do)
	}
	return g.Wait()
}

// open asks the store where it is. A store of another log is emptied.
func (f *Follower) open(ctx context.Context) error {
	positions, err := f.o.Store.Positions(ctx)
	if err != nil {
		return err
	}
	for _, other := range f.o.Others {
		delete(positions, other)
	}
	at, known := make([]uint64, f.o.Log.Shards()), 0
	for shard := range at {
		position, there := positions[f.o.Streams[shard]]
		last, err := f.o.Log.Last(ctx, shard)
		if err != nil {
			return err
		}
		if there && position <= last {
			at[shard] = position
			known++
		}
	}
	if known < len(positions) {
		f.o.Logger.Info("the history of runs is of another log, and is built anew")
		if err := f.o.Store.Reset(ctx); err != nil {
			return err
		}
		clear(at)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.at, f.following = at, true
	f.changed()
	return nil
}

// leave notes that the store may move without this follower.
func (f *Follower) leave() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.following = false
	f.changed()
}

// changed wakes those who wait for a position. f.mu is locked.
func (f *Follower) changed() {
	close(f.moved)
	f.moved = make(chan struct{})
}

// follows reports whether this follower writes the store.
func (f *Follower) follows() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.following
}

func (f *Follower) position(shard int) uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.at[shard]
}

// batch is a part of a shard that is applied at once.
type batch struct {
	records []journal.Record
	size    int
}

// add adds a record, and reports whether the batch is full.
func (b *batch) add(o *Options, rec journal.Record) bool {
	b.records, b.size = append(b.records, rec), b.size+len(rec.Body)
	return len(b.records) >= o.Records || b.size >= o.Bytes
}

// scan applies what a shard has, in batches that are as large as they may be.
func (f *Follower) scan(ctx context.Context, shard int) error {
	var b batch
	for rec, err := range f.o.Log.Scan(ctx, shard, journal.Filter{}, f.position(shard)) {
		if err != nil {
			return err
		}
		if b.add(&f.o, rec) {
			if err := f.apply(ctx, shard, b.records); err != nil {
				return err
			}
			b = batch{}
		}
	}
	return f.apply(ctx, shard, b.records)
}

// linger is how long after the last batch the next one begins while nobody waits: a row costs the same for one
// event as for many.
const linger = 50 * time.Millisecond

// lingers waits until a batch may follow one that began at a time, is full, or somebody waits.
func (f *Follower) lingers(ctx context.Context, began time.Time, full <-chan struct{}) {
	f.mu.Lock()
	hurry := f.hurry
	f.mu.Unlock()
	wait := time.NewTimer(linger - time.Since(began))
	defer wait.Stop()
	select {
	case <-wait.C:
	case <-full:
	case <-hurry:
	case <-ctx.Done():
	}
}

// wants adds to how many wait for the store.
func (f *Follower) wants(n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch f.waiting += n; {
	case f.waiting == 0:
		f.hurry = make(chan struct{})
	case f.waiting == n:
		close(f.hurry)
	}
}

// live applies what a shard gets: in a batch is what came since the last one.
func (f *Follower) live(ctx context.Context, shard int) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var mu sync.Mutex
	var next batch // mu is of it
	some, many, room := make(chan struct{}, 1), make(chan struct{}, 1), make(chan struct{}, 1)
	var began time.Time
	var reading sync.WaitGroup
	defer reading.Wait()
	defer stop()
	reading.Go(func() {
		defer stop()
		for rec, err := range f.o.Log.Follow(ctx, shard, journal.Filter{}, f.position(shard)) {
			if err != nil {
				return // ctx has ended
			}
			mu.Lock()
			full := next.add(&f.o, rec)
			mu.Unlock()
			signal(some)
			if !full {
				continue
			}
			signal(many)
			select { // an old signal lets one record more into the batch
			case <-room:
			case <-ctx.Done():
				return
			}
		}
	})
	for {
		select {
		case <-some:
		case <-ctx.Done():
			return ctx.Err()
		}
		f.lingers(ctx, began, many)
		began = time.Now()
		mu.Lock()
		b := next
		next = batch{}
		mu.Unlock()
		signal(room)
		if err := f.apply(ctx, shard, b.records); err != nil {
			return err
		}
	}
}

// signal notes something in a channel that has room for one.
func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// WaitAtMost is how long [Follower.Wait] waits.
const WaitAtMost = 2 * time.Second

// poll is how often a follower that does not run asks the store where it is.
const poll = 50 * time.Millisecond

// Behind is how many records of the log the store lacks.
type Behind struct {
	Records uint64
	// Unknown says that nobody knows.
	Unknown bool
}

// String returns the value of the header Moorebus-Behind; empty: the store lacks nothing.
func (b Behind) String() string {
	switch {
	case b.Unknown:
		return "unknown"
	case b.Records == 0:
		return ""
	}
	return strconv.FormatUint(b.Records, 10)
}

// Wait waits until the store has what the log has now, for [WaitAtMost] and until ctx ends. It returns what the
// store lacks then.
func (f *Follower) Wait(ctx context.Context) Behind {
	ctx, stop := context.WithTimeout(ctx, WaitAtMost)
	defer stop()
	ends := make([]uint64, len(f.applying))
	for shard := range ends { // the last records that are there: later ones may have been purged
		newest, err := f.o.Log.Newest(ctx, shard, journal.Filter{})
		if err != nil && !errors.Is(err, journal.ErrNotFound) {
			return Behind{Unknown: true}
		}
		ends[shard] = newest.Seq
	}
	f.wants(1)
	defer f.wants(-1)
	for {
		f.mu.Lock()
		at, following, moved := f.at, f.following, f.moved
		behind := Behind{Unknown: at == nil}
		for shard := range at {
			behind.Records += ends[shard] - min(ends[shard], at[shard])
		}
		f.mu.Unlock()
		if behind == (Behind{}) {
			return behind
		}
		var look <-chan time.Time
		if !following {
			look = time.After(poll)
		}
		select {
		case <-ctx.Done():
			return behind
		case <-moved:
		case <-look:
			f.look(ctx)
		}
	}
}

// look asks the store where it is, for a follower that does not run.
func (f *Follower) look(ctx context.Context) {
	positions, err := f.o.Store.Positions(ctx)
	f.mu.Lock()
	defer f.mu.Unlock()
	if err != nil || f.following {
		return
	}
	f.at = make([]uint64, len(f.applying))
	for shard := range f.at {
		f.at[shard] = positions[f.o.Streams[shard]]
	}
}

// reached notes that a shard is in the store up to a position.
func (f *Follower) reached(shard int, to uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.at[shard] = to
	f.changed()
}

func wrap(shard int, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("shard %d: %w", shard, err)
}
