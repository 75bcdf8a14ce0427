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
	"github.com/moorebus/moorebus/internal/kv"
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
	// taken in the background when the run comes to Observing or waits for its user. Nil, or
	// 0: none are taken.
	Snapshots     ports.Snapshots
	SnapshotEvery int
	// KV takes what is paged out of working memory. Nil: a run whose working memory is full ends.
	KV kv.Store
	// Estimators measure working memory, by the names that agents use for them.
	// [tokens.Bytes4] is always available.
	Estimators tokens.Set
}

// On returns the configuration with all that a bus gives an observer, but for snapshots.
func (c Config) On(bus journal.Bus) Config {
	c.Queue, c.Feed, c.KV = bus, bus, bus
	return c
}

// DefaultSnapshotEvery is what the commands have for SnapshotEvery.
const DefaultSnapshotEvery = 100

// role names the observer in the source of its events.
const role = "observer"

// Observer is the role. Make it with [New], use it once.
type Observer struct {
	worker      *worker.Worker
	snapshotter *snapshotter
	pager       pager
	source      string
}

// New checks the configuration.
func New(cfg Config) (*Observer, error) {
	var err error
	if cfg.Base, err = cfg.WithDefaults(role); err != nil {
		return nil, err
	}
	o := &Observer{
		snapshotter: newSnapshotter(cfg), source: worker.Source(role, cfg.Instance),
		pager: pager{kv: cfg.KV, estimators: cfg.Estimators, logger: cfg.Logger},
	}
	o.worker, err = worker.New(worker.Config{
		Role: role, Base: cfg.Base,
		Inboxes: []journal.Inbox{
			{States: []events.State{events.Observing}, Pool: events.DefaultPool},
			{States: []events.State{events.Paging}, Pool: events.DefaultPool},
		},
		Handlers: map[effects.Kind]worker.Handler{
			effects.KindObserve: worker.HandlerFunc(o.observe),
			effects.KindPage:    worker.HandlerFunc(o.pager.page),
		},
	})
	return o, err
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

// Ready returns nil if the bus has the consumers that the role needs.
func (o *Observer) Ready(ctx context.Context) error { return o.worker.Ready(ctx) }

// observe plans Observing.
func (o *Observer) observe(run events.Run, mem *reducer.Memory, e effects.Effect) worker.Work {
	p, _ := o.Follow(run, mem, e)
	return func(context.Context) worker.Result { return worker.Done(p) }
}

// Follow is the [worker.Follow] of Observing: it returns the event that the observer
// appends for a memory in that state, and the observer's source. For other effects it
// returns none.
func (o *Observer) Follow(run events.Run, mem *reducer.Memory, e effects.Effect) (p events.Payload, source string) {
	if e.Kind != effects.KindObserve {
		return nil, ""
	}
	o.snapshotter.observed(run, mem)
	return o.pager.decide(mem), o.source
}
