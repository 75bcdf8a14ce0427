package simtest

import (
	"context"
	"errors"
	"fmt"
	"sort"
	"sync"
	"time"

	"github.com/moorebus/moorebus/internal/journalcheck"
	"github.com/moorebus/moorebus/internal/ports"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

// watcher passes what it is offered to one goroutine, in order.
type watcher struct {
	filter journal.Filter
	chunks string
	// asks is true for who hears the questions of listeners.
	asks bool

	mu      sync.Mutex
	waiting []any
	wake    chan struct{}
}

// offer takes a record that the journal stores, while its lock is held.
func (w *watcher) offer(rec journal.Record) {
	if w.chunks == "" && !w.asks && w.filter.Match(rec.Subject) {
		w.push(rec)
	}
}

func (w *watcher) push(v any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.waiting = append(w.waiting, v)
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

func (w *watcher) take() []any {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := w.waiting
	w.waiting = nil
	return all
}

// Watch calls fn for the records of all shards that match, as they are stored.
// Nothing is lost.
func (p *Process) Watch(filter journal.Filter, fn func(journal.Record), _ func()) (stop func(), err error) {
	return p.watch(&watcher{filter: filter}, func(v any) { fn(v.(journal.Record)) })
}

// WatchChunks calls fn for the run's chunks as they come.
func (p *Process) WatchChunks(run events.Run, fn func(data []byte)) (stop func(), err error) {
	return p.watch(&watcher{chunks: runKey(run.Namespace, run.ID)}, func(v any) { fn(v.([]byte)) })
}

func (p *Process) watch(w *watcher, fn func(any)) (stop func(), err error) {
	if err := p.alive(); err != nil {
		return nil, err
	}
	w.wake = make(chan struct{}, 1)
	p.j.mu.Lock()
	p.j.watchers[w] = struct{}{}
	p.j.mu.Unlock()
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-quit:
				return
			case <-p.dead:
				return
			case <-w.wake:
				for _, v := range w.take() {
					fn(v)
				}
			}
		}
	}()
	var once sync.Once
	return func() {
		once.Do(func() {
			p.j.mu.Lock()
			delete(p.j.watchers, w)
			p.j.mu.Unlock()
			close(quit)
		})
		<-done
	}, nil
}

// PublishChunk sends a part of a model's text to whoever listens now.
func (p *Process) PublishChunk(run events.Run, data []byte) error {
	if err := p.alive(); err != nil {
		return err
	}
	data = append([]byte{}, data...)
	p.j.mu.Lock()
	defer p.j.mu.Unlock()
	for w := range p.j.watchers {
		if w.chunks == runKey(run.Namespace, run.ID) {
			w.push(data)
		}
	}
	return nil
}

// AskCatchUp asks for what a run's model said so far.
func (p *Process) AskCatchUp(run events.Run) error {
	if err := p.alive(); err != nil {
		return err
	}
	p.j.mu.Lock()
	defer p.j.mu.Unlock()
	for w := range p.j.watchers {
		if w.asks {
			w.push(run)
		}
	}
	return nil
}

// WatchAsks calls fn for the runs that somebody asks about.
func (p *Process) WatchAsks(fn func(run events.Run)) (stop func(), err error) {
	return p.watch(&watcher{asks: true}, func(v any) { fn(v.(events.Run)) })
}

var _ ports.Fetcher = (*Process)(nil)

// ErrFetchAway is what a fetch answers by [Faults.Fetch].
var ErrFetchAway = errors.New("simulated fault: nobody answers the fetch")

// Fetch returns the record with that sequence number in the run's shard. By
// [Faults.Delay] it takes up to a hundredth of MaxDelay, and by [Faults.Fetch] it
// fails after that.
func (p *Process) Fetch(ctx context.Context, run events.Run, seq uint64) (journal.Record, error) {
	rec, err := p.fetch(ctx, run, seq)
	if err != nil {
		return journal.Record{}, fmt.Errorf("fetch record %d: %w", seq, err)
	}
	return rec, nil
}

func (p *Process) fetch(ctx context.Context, run events.Run, seq uint64) (journal.Record, error) {
	if err := p.readable(ctx, journalcheck.Run(p.Shards(), run)); err != nil {
		return journal.Record{}, err
	}
	rec, key, found := p.j.lookAt(run.Shard, seq)
	if !found {
		return journal.Record{}, journal.ErrNotFound
	}
	o := p.j.opts
	if o.happens(o.Faults.Delay, "fetch delay", key...) {
		if err := p.hold(ctx, o.part(o.Faults.MaxDelay/100, "fetch delay for", key...)); err != nil {
			return journal.Record{}, err
		}
	}
	if o.happens(o.Faults.Fetch, "fetch", key...) {
		return journal.Record{}, ErrFetchAway
	}
	return rec, nil
}

// lookAt returns a shard's record, and what names this try to fetch it: the
// record's run, its place there, and how often it was fetched.
func (j *Journal) lookAt(shard int, seq uint64) (rec journal.Record, key []any, found bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	s := j.shards[shard]
	if seq == 0 || seq > uint64(len(s.records)) {
		return journal.Record{}, nil, false
	}
	rec = s.records[seq-1]
	of, _ := runOf(rec.Subject)
	at := try{of, sort.SearchInts(s.runs[of], int(seq-1))}
	j.fetches[at]++
	return rec, []any{at.run, at.nth, j.fetches[at]}, true
}

// hold waits. It returns early when the process dies or the context ends, and why.
func (p *Process) hold(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-p.dead:
		return ErrCrashed
	case <-ctx.Done():
		return ctx.Err()
	}
}
