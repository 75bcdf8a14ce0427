// Package pools answers the calls of unserved pools, and remembers which tools and providers were
// announced.
package pools

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/moorebus/moorebus/internal/announce"
	"github.com/moorebus/moorebus/internal/codes"
	"github.com/moorebus/moorebus/internal/effects"
	"github.com/moorebus/moorebus/internal/runstart"
	"github.com/moorebus/moorebus/internal/toolcall"
	"github.com/moorebus/moorebus/internal/worker"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
	"github.com/moorebus/moorebus/pkg/tool"
)

// The bounds of the interval at which the directory is asked for the served pools, a fraction of
// Config.Wait.
const (
	minInterval = 50 * time.Millisecond
	maxInterval = time.Second
)

// Config configures [Pools]. Everything is required.
type Config struct {
	// Worker has the common settings of the workers that answer calls: role, instance,
	// store, queue, feed, concurrency, drain and logger.
	Worker   worker.Config
	Launcher *runstart.Launcher
	// Recall cancels the sub-run of a call and returns its id and its usage.
	Recall func(ctx context.Context, parent events.Run, call string) (id string, used reducer.TotalUsage, err error)
	// Wait is how long a pool must be without an actor before its calls are answered. 0: they
	// are never answered.
	Wait time.Duration
}

// Pools watches the pools of tools.
type Pools struct {
	cfg Config
	log *slog.Logger
	// unserved is since when each pool has no actor. Workers answer the calls of pools
	// that have been unserved for Config.Wait, until an actor is announced. Both maps belong
	// to the goroutine of Run, and others read unserved with mu. runs says that Run was called,
	// and looked is when it first knew the pools.
	mu       sync.Mutex
	runs     bool
	looked   time.Time
	unserved map[string]time.Time
	workers  map[string]context.CancelFunc
	running  sync.WaitGroup
}

// New returns Pools.
func New(cfg Config) *Pools {
	return &Pools{cfg: cfg, log: cfg.Worker.Logger, unserved: map[string]time.Time{}, workers: map[string]context.CancelFunc{}}
}

// lookTime bounds the look of a process that does not watch the pools.
const lookTime = 2 * time.Second

// Unserved returns the pools that no actor serves, as far as this process knows, and since when; the
// zero time: they had none when it first looked. A process without Run looks now.
func (p *Pools) Unserved(ctx context.Context) map[string]time.Time {
	if all, runs := p.seen(); runs {
		return all
	}
	all := map[string]time.Time{}
	ctx, stop := context.WithTimeout(ctx, lookTime)
	defer stop()
	pools, err := p.cfg.Launcher.Pools(ctx)
	if err != nil {
		p.log.Debug("which pools have actors is not known", "reason", err)
		return nil
	}
	for _, pool := range pools {
		if !pool.Living && pool.Name != events.ClientPool {
			all[pool.Name] = time.Time{}
		}
	}
	return all
}

// seen is what Run last saw; false: it was not called.
func (p *Pools) seen() (all map[string]time.Time, runs bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	all = map[string]time.Time{}
	for pool, since := range p.unserved {
		if since.Equal(p.looked) {
			since = time.Time{}
		}
		all[pool] = since
	}
	return all, p.runs
}

// Run answers the calls of unserved pools and remembers announcements until ctx ends.
func (p *Pools) Run(ctx context.Context) error {
	defer p.running.Wait()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	p.mu.Lock()
	p.runs = true
	p.mu.Unlock()
	interval := maxInterval
	if p.cfg.Wait > 0 {
		interval = min(max(p.cfg.Wait/4, minInterval), maxInterval)
	}
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	failing, failingToRemember := false, false
	m := newMemory()
	for {
		pools, err := p.cfg.Launcher.Pools(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err == nil:
			p.compare(ctx, pools, time.Now())
		case !failing:
			p.log.Warn("cannot read which pools have actors; calls of unserved pools wait until then", "reason", err)
		}
		failing = err != nil
		if err = p.remember(ctx, m); err != nil && !failingToRemember && ctx.Err() == nil {
			p.log.Warn("announcements cannot be remembered: run `moorebus init` and print the permissions again", "reason", err)
		}
		failingToRemember = err != nil
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// compare starts and ends workers as pools become unserved and served.
func (p *Pools) compare(ctx context.Context, pools []announce.Pool, now time.Time) {
	if p.looked.IsZero() {
		p.mu.Lock()
		p.looked = now
		p.mu.Unlock()
	}
	for _, pool := range pools {
		if pool.Name == events.ClientPool {
			continue // the gateway serves it anyway
		}
		if pool.Living {
			p.served(pool.Name)
			continue
		}
		since, known := p.unserved[pool.Name]
		if !known {
			since = now
			p.mu.Lock()
			p.unserved[pool.Name] = now
			p.mu.Unlock()
		}
		if p.cfg.Wait > 0 && p.workers[pool.Name] == nil && now.Sub(since) >= p.cfg.Wait {
			p.serve(ctx, pool.Name)
		}
	}
	for name := range p.unserved {
		if !slices.ContainsFunc(pools, func(pool announce.Pool) bool { return pool.Name == name }) {
			p.served(name) // the pool was removed
		}
	}
}

// served ends the worker of a pool that is served again.
func (p *Pools) served(pool string) {
	p.mu.Lock()
	delete(p.unserved, pool)
	p.mu.Unlock()
	if stop := p.workers[pool]; stop != nil {
		stop()
		delete(p.workers, pool)
		p.log.Info("a pool is served again", "pool", pool)
	}
}

// serve starts a worker that answers a pool's calls.
func (p *Pools) serve(ctx context.Context, pool string) {
	cfg := p.cfg.Worker
	cfg.Origin, cfg.Logger = events.Control, p.log.With("pool", pool)
	cfg.Inboxes = []journal.Inbox{{States: []events.State{events.Acting, events.ParallelActing}, Pool: pool}}
	cfg.Handlers = map[effects.Kind]worker.Handler{
		effects.KindTool: worker.HandlerFunc(p.Answer),
		effects.KindJoin: worker.HandlerFunc(EndBatch),
	}
	w, err := worker.New(cfg)
	if err != nil {
		cfg.Logger.Error("the calls of an unserved pool are not answered", "reason", err)
		return
	}
	cfg.Logger.Warn("a pool is unserved, so its calls are answered with no_actor", "waited", p.cfg.Wait)
	ctx, stop := context.WithCancel(ctx)
	p.workers[pool] = stop
	p.running.Go(func() {
		if err := w.Run(ctx); err != nil && ctx.Err() == nil {
			cfg.Logger.Error("the calls of an unserved pool are not answered", "reason", err)
		}
	})
}

// Answer is the [worker.HandlerFunc] that answers a call of an unserved pool. The answer says whether the call may have taken
// effect. The call's sub-run, if there is one, is cancelled first, and the answer has its usage.
func (p *Pools) Answer(run events.Run, mem *reducer.Memory, e effects.Effect) worker.Work {
	call := mem.Call(e.CallID)
	if call == nil {
		return done(&events.FatalError{Outcome: events.Outcome{Code: codes.NoCurrentCall, Message: "there is no tool call to run"}})
	}
	o := events.ToolOutcome{CallID: call.ID, Code: codes.NoActor, Observation: codes.ErrorPrefix + noActor(call, e)}
	batch := mem.Control.Batch
	if !call.Delegated() {
		return done(toolcall.Outcome(o, batch))
	}
	return func(ctx context.Context) worker.Result {
		child, used, err := p.cfg.Recall(ctx, run, o.CallID)
		if err != nil {
			return worker.Fail(err)
		}
		if child != "" {
			o.Run, o.Usage = child, toolcall.Usage(used)
		}
		return worker.Done(toolcall.Outcome(o, batch))
	}
}

// noActor returns the message for the model. A call that has not started was not run, but for a
// repeatable tool the log does not say whether it started.
func noActor(call *reducer.CallState, e effects.Effect) string {
	switch {
	case call.HandedOff:
		return fmt.Sprintf("%s has handed the conversation over; no actor serves its pool %q to say so", call.Name, call.Pool)
	case e.Started > 0:
		return fmt.Sprintf("the outcome of %s is unknown: its worker was lost after the call had started, and no other actor serves its pool %q. "+
			"It may or may not have taken effect; check before you call it again", call.Name, call.Pool)
	case e.Exhausted != "":
		return fmt.Sprintf("%s was given up: it %s, and no actor serves its pool %q any more", call.Name, e.Exhausted, call.Pool)
	case tool.Effect(call.Effect).Repeatable():
		return fmt.Sprintf("%s has no result: no actor serves its pool %q", call.Name, call.Pool)
	}
	return fmt.Sprintf("%s was not run: no actor serves its pool %q", call.Name, call.Pool)
}

// EndBatch is the [worker.HandlerFunc] that ends a batch which has all its results and no actor left to end it.
func EndBatch(events.Run, *reducer.Memory, effects.Effect) worker.Work {
	return done(reducer.AbandonedBatch())
}

func done(p events.Payload) worker.Work {
	return func(context.Context) worker.Result { return worker.Done(p) }
}

// memory is since when the remembered tools and providers have not been announced, as far as this
// process knows.
type memory struct {
	tools, providers map[string]time.Time
}

func newMemory() *memory {
	return &memory{tools: map[string]time.Time{}, providers: map[string]time.Time{}}
}

// rememberFor is how long a name is remembered after its last announcement: the time that a
// process may take to restart.
const rememberFor = 10 * time.Second

// remember stores newly announced names and removes those that have not been announced for a
// while. If another process was faster, the next call reads what that process stored.
func (p *Pools) remember(ctx context.Context, m *memory) error {
	tools, providers, before, err := p.cfg.Launcher.ReadDirectory(ctx)
	if err != nil && !errors.Is(err, journal.ErrNotReady) {
		return err
	}
	after := m.update(before, tools, providers, time.Now())
	if maps.Equal(after.First, before.First) && slices.Equal(after.Providers, before.Providers) {
		return nil
	}
	err = p.cfg.Launcher.Directory().PutOffers(ctx, after)
	if errors.Is(err, journal.ErrConflict) {
		return nil
	}
	return err
}

// update returns what to remember now.
func (m *memory) update(before announce.Offers, tools []events.ToolSpec, providers []string, now time.Time) announce.Offers {
	after := announce.Offers{First: make(map[string]string, len(before.First)), Revision: before.Revision}
	living := make(map[string][]string, len(tools)) // pools by tool
	for _, t := range tools {
		living[t.Name] = append(living[t.Name], t.Pool)
	}
	for name, pool := range before.First {
		if keep(m.tools, name, slices.Contains(living[name], pool), now) {
			after.First[name] = pool
		}
	}
	for name, pools := range living {
		if after.First[name] == "" {
			after.First[name] = slices.Min(pools)
		}
	}
	after.Providers = slices.Clone(providers)
	for _, name := range before.Providers {
		living := slices.Contains(providers, name)
		if keep(m.providers, name, living, now) && !living {
			after.Providers = append(after.Providers, name)
		}
	}
	slices.Sort(after.Providers)
	return after
}

// keep reports whether to remember a name: it is announced, or was a short time ago. gone is since
// when names have not been announced.
func keep(gone map[string]time.Time, name string, living bool, now time.Time) bool {
	since, known := gone[name]
	switch {
	case living:
		delete(gone, name)
		return true
	case !known:
		gone[name] = now
		return true
	case now.Sub(since) < rememberFor:
		return true
	}
	delete(gone, name)
	return false
}
