package replay

import (
	"context"
	"sync"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

// walk reads the whole log once, on all cores: each reader takes a shard at a time
// and hands its records to workers, each run to one of them, so that a run's
// records stay in their order. Readers wait for workers that are behind, so at most
// aheadBatches*batchSize records a worker are in memory beside what it keeps.
type walk struct {
	log       journal.Log
	namespace string
	workers   int
	// work takes the records of one worker until the channel is closed, and may give
	// each batch back to done. It is called once for each worker.
	work func(ctx context.Context, input <-chan []routed, done func([]routed)) error
	// strays gets what belongs to no run, shard by shard, from several goroutines;
	// nil: nobody does.
	strays func([]Stray)

	// spare are batches that workers are done with.
	spare chan []routed
}

// routed is a record on its way to the worker that folds its run.
type routed struct {
	rec     journal.Record
	subject events.Subject
}

const (
	// batchSize is how many records go to a worker at a time: a channel operation a
	// record would cost as much as folding it.
	batchSize = 64
	// aheadBatches is how many batches may wait for a worker.
	aheadBatches = 16
)

// run returns when all was read and the workers have returned, with the first
// error.
func (w *walk) run(ctx context.Context) error {
	inputs := make([]chan []routed, w.workers)
	for i := range inputs {
		inputs[i] = make(chan []routed, aheadBatches)
	}
	w.spare = make(chan []routed, len(inputs)*aheadBatches)
	g := newGroup(ctx)
	for _, input := range inputs {
		g.run(func(ctx context.Context) error { return w.work(ctx, input, w.done) })
	}
	shards := make(chan int, w.log.Shards())
	for shard := range w.log.Shards() {
		shards <- shard
	}
	close(shards)
	var readers sync.WaitGroup
	for range min(w.workers, w.log.Shards()) {
		readers.Add(1)
		g.run(func(ctx context.Context) error {
			defer readers.Done()
			for shard := range shards {
				if err := w.scan(ctx, shard, inputs); err != nil {
					return err
				}
			}
			return nil
		})
	}
	g.run(func(context.Context) error {
		readers.Wait()
		for _, input := range inputs {
			close(input)
		}
		return nil
	})
	return g.wait()
}

// batch returns an empty batch.
func (w *walk) batch() []routed {
	select {
	case spare := <-w.spare:
		return spare
	default:
		return make([]routed, 0, batchSize)
	}
}

// done takes a batch back from a worker, which keeps its records if it wants them.
func (w *walk) done(batch []routed) {
	clear(batch)
	select {
	case w.spare <- batch[:0]:
	default:
	}
}

// scan reads a shard and hands each record to its run's worker. A run lies in one
// shard, so its records stay in their order.
func (w *walk) scan(ctx context.Context, shard int, inputs []chan []routed) error {
	var strays []Stray
	batches := make([][]routed, len(inputs))
	send := func(to int) error {
		select {
		case inputs[to] <- batches[to]:
			batches[to] = nil
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	for rec, err := range w.log.Scan(ctx, shard, journal.Filter{Namespace: w.namespace}, 0) {
		if err != nil {
			return err
		}
		s, reason := place(w.log, shard, rec.Subject)
		if reason != "" {
			strays = append(strays, Stray{Shard: shard, Seq: rec.Seq, Subject: rec.Subject, Reason: reason})
			continue
		}
		to := events.ShardOf(s.Run.ID, len(inputs))
		if batches[to] == nil {
			batches[to] = w.batch()
		}
		if batches[to] = append(batches[to], routed{rec, s}); len(batches[to]) == batchSize {
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
	if w.strays != nil {
		w.strays(strays)
	}
	return nil
}

// group runs functions until all have returned; the first error ends the context
// of the others.
type group struct {
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup
	once   sync.Once
	err    error
}

func newGroup(ctx context.Context) *group {
	ctx, cancel := context.WithCancel(ctx)
	return &group{ctx: ctx, cancel: cancel}
}

func (g *group) run(fn func(ctx context.Context) error) {
	g.wg.Go(func() {
		if err := fn(g.ctx); err != nil {
			g.once.Do(func() { g.err = err })
			g.cancel()
		}
	})
}

// wait returns the first error.
func (g *group) wait() error {
	g.wg.Wait()
	g.cancel()
	return g.err
}
