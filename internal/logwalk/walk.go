// Package logwalk reads an entire log once, on all cores, run by run.
package logwalk

import (
	"context"
	"fmt"
	"sync"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

// Walk reads the entire log once, on all cores: each reader takes a shard at a time
// and hands its records to workers, each run to one of them, so that a run's
// records stay in their order. Readers wait for workers that are behind, so at most
// aheadBatches*batchSize records a worker are in memory beside what it keeps.
type Walk struct {
	Log journal.Log
	// Namespace limits what is read, if it is not empty.
	Namespace string
	// Workers is how many goroutines read, and how many call Work.
	Workers int
	// Work takes the records of one worker until the channel is closed, and may give
	// each batch back to done. It is called once for each worker.
	Work func(ctx context.Context, input <-chan []Routed, done func([]Routed)) error
	// Misplaced gets what belongs to no run, shard by shard, from several goroutines;
	// nil: nobody does.
	Misplaced func([]Misplaced)

	// spare are batches that workers are done with.
	spare chan []Routed
}

// Misplaced is a message in the log that belongs to no run: its subject does not
// parse, or names another shard than the run's.
type Misplaced struct {
	Shard   int    `json:"shard"`
	Seq     uint64 `json:"seq"`
	Subject string `json:"subject"`
	Reason  string `json:"reason"`
}

// Routed is a record on its way to the worker that folds its run.
type Routed struct {
	Record  journal.Record
	Subject events.Subject
}

const (
	// batchSize is how many records go to a worker at a time: a channel operation a
	// record would cost as much as folding it.
	batchSize = 64
	// aheadBatches is how many batches may wait for a worker.
	aheadBatches = 16
)

// Run returns when all was read and the workers have returned, with the first
// error.
func (w *Walk) Run(ctx context.Context) error {
	inputs := make([]chan []Routed, w.Workers)
	for i := range inputs {
		inputs[i] = make(chan []Routed, aheadBatches)
	}
	w.spare = make(chan []Routed, len(inputs)*aheadBatches)
	g := NewGroup(ctx)
	for _, input := range inputs {
		g.Go(func(ctx context.Context) error { return w.Work(ctx, input, w.done) })
	}
	shards := make(chan int, w.Log.Shards())
	for shard := range w.Log.Shards() {
		shards <- shard
	}
	close(shards)
	var readers sync.WaitGroup
	for range min(w.Workers, w.Log.Shards()) {
		readers.Add(1)
		g.Go(func(ctx context.Context) error {
			defer readers.Done()
			for shard := range shards {
				if err := w.scan(ctx, shard, inputs); err != nil {
					return err
				}
			}
			return nil
		})
	}
	g.Go(func(context.Context) error {
		readers.Wait()
		for _, input := range inputs {
			close(input)
		}
		return nil
	})
	return g.Wait()
}

// batch returns an empty batch.
func (w *Walk) batch() []Routed {
	select {
	case spare := <-w.spare:
		return spare
	default:
		return make([]Routed, 0, batchSize)
	}
}

// done takes a batch back from a worker, which keeps its records if it wants them.
func (w *Walk) done(batch []Routed) {
	clear(batch)
	select {
	case w.spare <- batch[:0]:
	default:
	}
}

// scan reads a shard and hands each record to its run's worker. A run lies in one
// shard, so its records stay in their order.
func (w *Walk) scan(ctx context.Context, shard int, inputs []chan []Routed) error {
	var misplaced []Misplaced
	batches := make([][]Routed, len(inputs))
	send := func(to int) error {
		select {
		case inputs[to] <- batches[to]:
			batches[to] = nil
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	for rec, err := range w.Log.Scan(ctx, shard, journal.Filter{Namespace: w.Namespace}, 0) {
		if err != nil {
			return err
		}
		s, reason := Place(w.Log, shard, rec.Subject)
		if reason != "" {
			misplaced = append(misplaced, Misplaced{Shard: shard, Seq: rec.Seq, Subject: rec.Subject, Reason: reason})
			continue
		}
		to := events.ShardOf(s.Run.ID, len(inputs))
		if batches[to] == nil {
			batches[to] = w.batch()
		}
		if batches[to] = append(batches[to], Routed{rec, s}); len(batches[to]) == batchSize {
			if err := send(to); err != nil {
				return err
			}
		}
	}
	for to, batch := range batches {
		if len(batch) == 0 {
			continue
		}
		if err := send(to); err != nil {
			return err
		}
	}
	if w.Misplaced != nil {
		w.Misplaced(misplaced)
	}
	return nil
}

// Group runs functions until all have returned; the first error ends the context
// of the others.
type Group struct {
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup
	once   sync.Once
	err    error
}

// NewGroup returns a group whose functions get a context that ends with ctx.
func NewGroup(ctx context.Context) *Group {
	ctx, cancel := context.WithCancel(ctx)
	return &Group{ctx: ctx, cancel: cancel}
}

// Go runs fn in a goroutine.
func (g *Group) Go(fn func(ctx context.Context) error) {
	g.wg.Go(func() {
		if err := fn(g.ctx); err != nil {
			g.once.Do(func() { g.err = err })
			g.cancel()
		}
	})
}

// Wait returns when all have ended, with the first error.
func (g *Group) Wait() error {
	g.wg.Wait()
	g.cancel()
	return g.err
}

// Place returns the parsed subject of a record of a shard, or why it belongs to
// no run.
func Place(log journal.Log, shard int, subject string) (events.Subject, string) {
	s, err := events.ParseSubject(subject)
	if err == nil {
		err = s.CheckShard(log.Shards())
	}
	if err == nil && s.Run.Shard != shard {
		err = fmt.Errorf("subject %q: lies in shard %d", subject, shard)
	}
	if err != nil {
		return events.Subject{}, err.Error()
	}
	return s, ""
}
