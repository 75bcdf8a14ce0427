package agent

import (
	"cmp"
	"context"
	"iter"
	"sync"

	"github.com/moorebus/moorebus/internal/runid"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// teller is called with each event of a run, after it was folded.
type teller func(mem *reducer.Memory, e *events.Event)

// follower follows a run and its sub-runs for one reader. Each run has a goroutine, which
// waits while the reader is maxBehind items behind.
type follower[T any] struct {
	of *Run
	// begin returns the teller that gets a run's events, and the function that ends it.
	begin func(f *follower[T], at events.Run) (tell teller, end func(), err error)

	running sync.WaitGroup
	mu      sync.Mutex
	items   []T
	// open counts the runs that are followed, failed is why one is no longer.
	open   int
	failed error
	// changed is closed and replaced when something above changes.
	changed chan struct{}
}

// maxBehind is how many items may wait for a reader.
const maxBehind = 4096

// follow yields what begin makes of the events of a run and its sub-runs.
func follow[T any](ctx context.Context, r *Run, begin func(*follower[T], events.Run) (teller, func(), error)) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		following, stop := context.WithCancel(ctx)
		f := &follower[T]{of: r, begin: begin, changed: make(chan struct{})}
		defer f.running.Wait()
		defer stop()
		f.add(following, r.at, events.Parent{})
		for {
			items, over, err := f.next(ctx)
			for _, item := range items {
				if !yield(item, nil) {
					return
				}
			}
			if err != nil {
				var none T
				yield(none, err)
			}
			if err != nil || over {
				return
			}
		}
	}
}

// next waits for items, the end of all runs, or an error.
func (f *follower[T]) next(ctx context.Context) (items []T, over bool, err error) {
	for {
		select {
		case <-f.of.gone: // before the end of the roles that it may bring
			return nil, false, errReleased
		default:
		}
		f.mu.Lock()
		items, f.items = f.items, nil
		over, err = f.open == 0, f.failed
		changed := f.changed
		if len(items) > 0 {
			f.announce()
		}
		f.mu.Unlock()
		if len(items) > 0 || over || err != nil {
			return items, over, err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, false, ctx.Err()
		case <-f.of.gone:
			return nil, false, errReleased
		case <-f.of.service.broken():
			return nil, false, cmp.Or(f.of.service.failed, errServerClosed)
		}
	}
}

// announce wakes those who wait for a change. The lock is held.
func (f *follower[T]) announce() {
	close(f.changed)
	f.changed = make(chan struct{})
}

// push adds an item.
func (f *follower[T]) push(item T) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.items = append(f.items, item)
	f.announce()
}

// offer adds an item unless the reader is far behind.
func (f *follower[T]) offer(item T) {
	f.mu.Lock()
	behind := len(f.items) >= maxBehind
	f.mu.Unlock()
	if !behind {
		f.push(item)
	}
}

// room waits until the reader is not far behind.
func (f *follower[T]) room(ctx context.Context) {
	for {
		f.mu.Lock()
		behind, changed := len(f.items) >= maxBehind, f.changed
		f.mu.Unlock()
		if !behind {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// add begins to follow a run: the reader's, or the one that answers a call of parent.
func (f *follower[T]) add(ctx context.Context, at events.Run, parent events.Parent) {
	f.mu.Lock()
	f.open++
	f.mu.Unlock()
	f.running.Go(func() {
		err := f.read(ctx, at, parent)
		f.mu.Lock()
		defer f.mu.Unlock()
		f.open--
		f.failed = cmp.Or(f.failed, err)
		f.announce()
	})
}

// read passes on the events of a run until it ends.
func (f *follower[T]) read(ctx context.Context, at events.Run, parent events.Parent) error {
	tell, end, err := f.begin(f, at)
	if err != nil {
		return err
	}
	defer end()
	s := f.of.service
	fold, known := runlog.NewFold(s.bus, s.machine, at), map[string]bool{}
	for rec, err := range s.bus.Follow(ctx, at.Shard, journal.Filter{Namespace: at.Namespace, Run: at.ID}, 0) {
		var e *events.Event
		if err == nil {
			e, err = fold.Apply(ctx, rec)
		}
		mem := fold.Memory()
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case runlog.Refused(err):
			continue // the run's end follows
		case err != nil:
			return err
		case parent.Run != "" && !mem.Control.Parent.Answers(parent.Run, parent.CallID):
			return nil // anybody may start a run with that id
		}
		tell(mem, e)
		for i := range mem.Control.Calls {
			if call := &mem.Control.Calls[i]; hasRun(mem, call) && !known[call.ID] {
				known[call.ID] = true
				f.add(ctx, s.host.Store().Place(at.Namespace, runid.Child(at.ID, call.ID)), events.Parent{Run: at.ID, CallID: call.ID})
			}
		}
		if s.machine.Table().Terminal(mem.State) {
			return nil
		}
		f.room(ctx)
	}
	return ctx.Err()
}

// hasRun reports whether a sub-run was started for the call. Its end may be known before its
// start.
func hasRun(mem *reducer.Memory, call *reducer.CallState) bool {
	record := mem.ToolCalls[call.ID]
	return call.Delegated() && (call.Started > 0 || record != nil && record.Run != "")
}
