package simtest

import (
	"sync"

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
	return p.watch(&watcher{chunks: run.ChunkSubject()}, func(v any) { fn(v.([]byte)) })
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
		if w.chunks == run.ChunkSubject() {
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
