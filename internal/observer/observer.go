// Package observer is the role that commits results. It owns the states Observing and
// Paging.
//
// It needs no credentials: it calls no model, runs no tool, and every event that it
// appends follows from the run's memory. Before it removes entries from working memory it
// stores them in the agent's storage.
package observer

import (
	"context"
	"sync"

	"github.com/moorebus/moorebus/internal/effects"
	"github.com/moorebus/moorebus/internal/ports"
	"github.com/moorebus/moorebus/internal/tokens"
	"github.com/moorebus/moorebus/internal/worker"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// Config configures an [Observer].
type Config struct {
	worker.Base
	// Snapshots keeps a snapshot of each run after about every SnapshotEvery events, and
	// after an eighth to a quarter of a run that has more than eight times as many. It is
	// taken beside the work when the run comes to Observing or waits for its user. Nil, or
	// 0: none are taken.
	Snapshots     ports.Snapshots
	SnapshotEvery int
	// Storage takes what is paged out of working memory. Nil: a run whose working memory
	// is full ends.
	Storage journal.Storage
	// Estimators measure working memory, by the names that agents use for them.
	// [tokens.Bytes4] is always available.
	Estimators tokens.Set
}

// DefaultSnapshotEvery is what the commands have for SnapshotEvery.
const DefaultSnapshotEvery = 100

// Observer is the role. Make it with [New], use it once.
type Observer struct {
	worker      *worker.Worker
	snapshotter *snapshotter
}

// New checks the configuration.
func New(cfg Config) (*Observer, error) {
	var err error
	if cfg.Base, err = cfg.WithDefaults("observer"); err != nil {
		return nil, err
	}
	snapshotter := newSnapshotter(cfg)
	pager := pager{storage: cfg.Storage, estimators: cfg.Estimators, logger: cfg.Logger}
	w, err := worker.New(worker.Config{
		Role: "observer", Base: cfg.Base,
		Inboxes: []journal.Inbox{
			{States: []events.State{events.Observing}, Pool: events.DefaultPool},
			{States: []events.State{events.Paging}, Pool: events.DefaultPool},
		},
		Handlers: map[effects.Kind]worker.Handler{
			effects.KindObserve: handler(snapshotter, pager.decide),
			effects.KindPage:    worker.HandlerFunc(pager.page),
		},
	})
	if err != nil {
		return nil, err
	}
	return &Observer{worker: w, snapshotter: snapshotter}, nil
}

// Run works until ctx ends.
func (o *Observer) Run(ctx context.Context) error {
	if o.snapshotter == nil {
		return o.worker.Run(ctx)
	}
	beside, stop := context.WithCancel(ctx)
	var taking sync.WaitGroup
	taking.Go(func() { o.snapshotter.run(beside) })
	defer taking.Wait()
	defer stop()
	return o.worker.Run(ctx)
}

// Step works on one delivery of Observing or Paging.
func (o *Observer) Step(ctx context.Context) error { return o.worker.Step(ctx) }

// handler makes a handler of a decision that needs no work, and tells the snapshotter, if
// there is one, of the run.
func handler(s *snapshotter, decide func(*reducer.Memory) events.Payload) worker.Handler {
	return worker.HandlerFunc(func(run events.Run, mem *reducer.Memory, _ effects.Effect) worker.Work {
		s.observed(run, mem)
		p := decide(mem)
		return func(context.Context) worker.Result { return worker.Done(p) }
	})
}
