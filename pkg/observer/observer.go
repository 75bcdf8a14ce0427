// Package observer is the role that commits results: it owns the states
// Observing and Paging.
//
// It needs no credentials at all: it calls no model, runs no tool, and every
// event that it appends follows from the run's memory alone.
package observer

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
	"github.com/moorebus/moorebus/pkg/runlog"
	"github.com/moorebus/moorebus/pkg/worker"
)

// Config configures an [Observer].
type Config struct {
	// Instance names the process. Required, as are Store, Queue and Feed.
	Instance string
	Store    *runlog.Store
	Queue    journal.Queue
	Feed     journal.Feed
	// Concurrency is how many deliveries are in work at once. Default 64.
	Concurrency int
	Drain       time.Duration
	// Snapshots keeps a snapshot of each run after about every SnapshotEvery
	// events, taken beside the work when the run comes to Observing or waits for its
	// user. Nil, or 0: none are taken.
	Snapshots     journal.Snapshots
	SnapshotEvery int
	Logger        *slog.Logger
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
	if cfg.Store == nil {
		return nil, errors.New("observer: Store is required")
	}
	snapshotter := newSnapshotter(cfg)
	w, err := worker.New(worker.Config{
		Role: "observer", Instance: cfg.Instance, Store: cfg.Store, Queue: cfg.Queue, Feed: cfg.Feed,
		Inboxes: []journal.Inbox{
			{States: []events.State{events.Observing}, Pool: events.DefaultPool},
			{States: []events.State{events.Paging}, Pool: events.DefaultPool},
		},
		Handlers: map[reducer.Kind]worker.Handler{
			reducer.KindObserve: handler(snapshotter, observe),
			reducer.KindPage:    handler(nil, page),
		},
		Concurrency: cfg.Concurrency, Drain: cfg.Drain, Logger: cfg.Logger,
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

// handler makes a handler of a decision that takes no work, and shows the run to
// the snapshotter if there is one.
func handler(s *snapshotter, decide func(*reducer.Memory) events.Payload) worker.Handler {
	return worker.HandlerFunc(func(run events.Run, mem *reducer.Memory, _ reducer.Effect) worker.Work {
		s.look(run, mem)
		p := decide(mem)
		return func(context.Context) worker.Result { return worker.Done(p) }
	})
}

// observe commits what the fold holds and says where the run goes from here.
// While calls of the same reply are still queued nothing is compressed between
// them.
func observe(mem *reducer.Memory) events.Payload {
	every, size := mem.Config.ReflectEveryNSteps, reducer.WorkingMemoryTokens(mem)
	switch {
	case len(mem.Control.Queued) > 0:
		return &events.Continue{}
	case mem.Config.HardLimit > 0 && mem.Config.PagingLimit > 0 && size > mem.Config.HardLimit:
		return &events.NeedsPaging{} // before a reflection that is due at every step
	case every > 0 && mem.Step > 0 && mem.Step%every == 0:
		return &events.NeedsReflection{}
	case mem.Config.PagingLimit > 0 && size > mem.Config.PagingLimit:
		return &events.NeedsPaging{}
	}
	return &events.Continue{}
}

// page sends entries out of working memory until it takes at most 80 % of the
// paging limit: the oldest first, of equal age the largest. That is always
// below the hard limit too, since any entry may go.
func page(mem *reducer.Memory) events.Payload {
	entries := slices.Clone(mem.WorkingMemory)
	slices.SortStableFunc(entries, func(a, b reducer.MemoryEntry) int {
		return cmp.Or(cmp.Compare(a.N, b.N), cmp.Compare(reducer.EntryTokens(b), reducer.EntryTokens(a)))
	})
	size := reducer.WorkingMemoryTokens(mem)
	goal := mem.Config.PagingLimit * 8 / 10
	done := &events.PageDone{}
	for _, entry := range entries {
		if size <= goal {
			break
		}
		size -= reducer.EntryTokens(entry)
		done.Paged = append(done.Paged, events.Entry{Tags: entry.Tags, Value: entry.Value})
	}
	return done
}
