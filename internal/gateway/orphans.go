package gateway

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/moorebus/moorebus/internal/toolcall"
	"github.com/moorebus/moorebus/internal/worker"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
	"github.com/moorebus/moorebus/pkg/tool"
)

// How often the directory is asked which pools live: a few times in the time
// that a pool is waited for, within these bounds.
const (
	defaultPoolWait = 30 * time.Second
	quickestLook    = 50 * time.Millisecond
	slowestLook     = time.Second
)

// orphans are the pools that nobody serves. For each that was without a living
// actor for long enough there is a stand-in, which ends as soon as an actor is
// announced. All of it belongs to the goroutine of watchPools.
type orphans struct {
	g *Gateway
	// missed is since when nobody was seen to serve a pool.
	missed   map[string]time.Time
	standIns map[string]context.CancelFunc
	running  sync.WaitGroup
}

// watchPools answers the calls of pools that nobody serves until ctx ends, and remembers
// what is announced.
func (g *Gateway) watchPools(ctx context.Context) error {
	o := &orphans{g: g, missed: map[string]time.Time{}, standIns: map[string]context.CancelFunc{}}
	defer o.running.Wait()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	ticker := time.NewTicker(min(max(g.cfg.PoolWait/4, quickestLook), slowestLook))
	defer ticker.Stop()
	failing := false
	remembered, m := error(nil), newMemories()
	for {
		pools, err := g.cfg.Directory.Pools(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && !failing:
			g.cfg.Logger.Warn("cannot tell which pools live; calls of others wait until that is known", "reason", err)
		case err == nil:
			o.look(ctx, pools, time.Now())
		}
		failing = err != nil
		was := remembered
		if remembered = g.remember(ctx, m); remembered != nil && was == nil && ctx.Err() == nil {
			g.cfg.Logger.Warn("announcements cannot be remembered: run `moorebus init`, and give the users their permissions anew", "reason", remembered)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// look compares the pools with what was seen before.
func (o *orphans) look(ctx context.Context, pools []journal.Pool, now time.Time) {
	for _, pool := range pools {
		if pool.Living {
			o.back(pool.Name)
			continue
		}
		if o.missed[pool.Name].IsZero() {
			o.missed[pool.Name] = now
		}
		if o.standIns[pool.Name] == nil && now.Sub(o.missed[pool.Name]) >= o.g.cfg.PoolWait {
			o.standIn(ctx, pool.Name)
		}
	}
	for name := range o.missed {
		if !slices.ContainsFunc(pools, func(p journal.Pool) bool { return p.Name == name }) {
			o.back(name) // it was removed
		}
	}
}

func (o *orphans) back(pool string) {
	delete(o.missed, pool)
	if stop := o.standIns[pool]; stop != nil {
		stop()
		delete(o.standIns, pool)
		o.g.cfg.Logger.Info("a pool is served again", "pool", pool)
	}
}

// standIn begins to answer a pool's calls.
func (o *orphans) standIn(ctx context.Context, pool string) {
	cfg := o.g.cfg
	log := cfg.Logger.With("pool", pool)
	w, err := worker.New(worker.Config{
		Role: role, Instance: cfg.Instance, Store: cfg.Store, Queue: cfg.Queue, Feed: cfg.Feed, Origin: events.Control,
		Inboxes: []journal.Inbox{{States: []events.State{events.Acting, events.ParallelActing}, Pool: pool}},
		Handlers: map[reducer.Kind]worker.Handler{
			reducer.KindTool: worker.HandlerFunc(o.g.answerNoActor),
			reducer.KindJoin: worker.HandlerFunc(endAbandoned),
		},
		Concurrency: cfg.Concurrency, Drain: cfg.Drain, Logger: log,
	})
	if err != nil {
		log.Error("calls of a pool that nobody serves are not answered", "reason", err)
		return
	}
	log.Debug("nobody serves a pool, its calls are answered without it", "after", cfg.PoolWait)
	ctx, stop := context.WithCancel(ctx)
	o.standIns[pool] = stop
	o.running.Go(func() {
		if err := w.Run(ctx); err != nil && ctx.Err() == nil {
			log.Error("calls of a pool that nobody serves are not answered", "reason", err)
		}
	})
}

// answerNoActor answers a call of a pool that nobody serves. A call that an actor
// had started may have taken effect, and the answer says so. The run that was to answer
// it, if there is one, is cancelled before, and the answer says what it has used.
func (g *Gateway) answerNoActor(run events.Run, mem *reducer.Memory, e reducer.Effect) worker.Work {
	call := mem.Call(e.CallID)
	if call == nil {
		return done(&events.FatalError{Outcome: events.Outcome{Code: reducer.CodeNoCurrentCall, Message: "there is no tool call to run"}})
	}
	text := fmt.Sprintf("%s was not run: no actor serves its pool %q", call.Name, call.Pool)
	switch { // what has not started was not run, but for a repeatable tool the log does not say
	case call.HandedOff:
		text = fmt.Sprintf("%s has handed the conversation over; no actor serves its pool %q to say so", call.Name, call.Pool)
	case e.Started > 0:
		text = fmt.Sprintf("the outcome of %s is unknown: its worker was lost after the call had started, and no other actor serves its pool %q. "+
			"It may or may not have taken effect; check before you call it again", call.Name, call.Pool)
	case e.Exhausted != "":
		text = fmt.Sprintf("%s was given up: it %s, and no actor serves its pool %q any more", call.Name, e.Exhausted, call.Pool)
	case tool.Effect(call.Effect).Repeatable():
		text = fmt.Sprintf("%s has no result: no actor serves its pool %q", call.Name, call.Pool)
	}
	o := events.ToolOutcome{CallID: call.ID, Code: reducer.CodeNoActor, Observation: reducer.ErrorPrefix + text}
	batch := mem.Control.Batch
	if !call.Delegated() {
		return done(toolcall.Outcome(o, batch))
	}
	return func(ctx context.Context) worker.Result {
		child, used, err := g.recall(ctx, run, o.CallID)
		if err != nil {
			return worker.Fail(err)
		}
		if child != "" {
			o.Run, o.Usage = child, toolcall.Usage(used)
		}
		return worker.Done(toolcall.Outcome(o, batch))
	}
}

// endAbandoned ends a batch whose results are all in and that no actor is left to
// end.
func endAbandoned(events.Run, *reducer.Memory, reducer.Effect) worker.Work {
	return done(reducer.AbandonedBatch())
}

func done(p events.Payload) worker.Work {
	return func(context.Context) worker.Result { return worker.Done(p) }
}
