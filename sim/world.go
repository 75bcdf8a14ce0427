package sim

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/moorebus/moorebus/internal/actor"
	"github.com/moorebus/moorebus/internal/approval"
	"github.com/moorebus/moorebus/internal/control"
	"github.com/moorebus/moorebus/internal/effects"
	"github.com/moorebus/moorebus/internal/feature/all"
	quotas "github.com/moorebus/moorebus/internal/feature/quotas/row"
	"github.com/moorebus/moorebus/internal/feature/schedules"
	"github.com/moorebus/moorebus/internal/feature/webhooks"
	"github.com/moorebus/moorebus/internal/journaltest/simtest"
	"github.com/moorebus/moorebus/internal/kv"
	"github.com/moorebus/moorebus/internal/observer"
	"github.com/moorebus/moorebus/internal/planner"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/internal/schema"
	"github.com/moorebus/moorebus/internal/textprotocol"
	"github.com/moorebus/moorebus/internal/toolcall"
	"github.com/moorebus/moorebus/internal/worker"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/moorebus/moorebus/pkg/reducer"
)

const (
	// patience is how long everything may take, in virtual time.
	patience = 12 * time.Hour
	// jitter keeps apart what would happen at once.
	jitter = 5 * time.Millisecond
)

// Both hold nothing of a run, and compiling is dear.
var (
	validator = schema.New(schema.Options{})
	policies  = approval.New()
)

// world is one scenario while it runs.
type world struct {
	scenario *scenario
	journal  *simtest.Journal
	audit    *auditor
	ran      executions
	scripts  llm.Described
	crashes  atomic.Int64
	// aim decides on crashes instead of the scenario, if it is set.
	aim func(simtest.Moment) bool

	// loses reports whether the bus loses the deliveries of an event; may be nil.
	loses func(*events.Event) bool

	// answering reports whether a person hears a gateway's answer; may be nil.
	answering func(at *process) bool

	mu sync.Mutex
	// gateways are those that are up, by process.
	gateways map[int]*process
	places   []chan killSpec // one for each process
	// lost is the event of each run whose delivery is lost.
	lost map[string]string
	// batches counts what batches of several runs came to.
	batches map[string]int
	// fetched counts what fetches came to.
	fetched map[string]int
	// followed counts, by kind, the effects that were decided without a delivery.
	followed map[string]int
	// people are all who have a run, by the run's id.
	people map[string]*person
	forks  int
	// owners are those who put schedules.
	owners []*owner
	// receivers are those of webhooks.
	receivers []*receiver
}

// process is one process while it lives.
type process struct {
	w       *world
	spec    *processSpec
	sim     *simtest.Process
	gateway *control.Controller
	// scheduler and hooks are a gateway's.
	scheduler *schedules.Scheduler
	hooks     *webhooks.Hooks
	// observer decides what follows, if the process does so.
	observer *observer.Observer
	// crew leads runs, if the process does so.
	crew worker.Crew
	// life counts how often it was started, ids the ids that it made.
	life int
	ids  atomic.Uint64
}

type runner func(ctx context.Context) error

func newWorld(scenario *scenario) *world {
	w := &world{
		scenario: scenario, audit: newAuditor(scenario.calm()), ran: executions{count: map[string]int{}, by: map[string]*process{}}, scripts: newScripts(),
		gateways: map[int]*process{}, places: make([]chan killSpec, len(scenario.Processes)),
		lost: map[string]string{}, batches: map[string]int{}, fetched: map[string]int{}, followed: map[string]int{}, people: map[string]*person{},
	}
	if scenario.LoseOneIn > 0 {
		w.loses = w.losesOne
	}
	w.audit.inWork = func(key string) bool {
		// A duplicate is a delivery that the bus was told not to make again.
		return scenario.Faults.Duplicate == 0 && w.ran.inWork(key)
	}
	w.crashes.Store(int64(scenario.MostCrashes))
	w.journal = simtest.New(simtest.Options{
		Shards: scenario.Shards, Revision: scenario.revision(), Seed: scenario.Seed, Faults: scenario.Faults, AckWait: scenario.AckWait, Jitter: jitter,
		Crash: w.crash, Observer: w.audit, GroupCommit: scenario.GroupCommit, AppendTime: scenario.AppendTime, Grouped: w.grouped,
	})
	for i := range w.places {
		w.places[i] = make(chan killSpec)
	}
	for i := range scenario.Hooks {
		w.receivers = append(w.receivers, newReceiver(w, &scenario.Hooks[i]))
	}
	if scenario.Queues {
		_, err := w.journal.Put(context.Background(), quotas.Bucket, kv.Item{Key: quotas.Bucket.Keys, Value: []byte(`{"_":{"active":1}}`)})
		w.require(err)
	}
	return w
}

// require is for what only a mistake in the simulation can break.
func (w *world) require(err error) {
	if err != nil {
		panic(fmt.Sprintf("the simulation itself is wrong: %v", err))
	}
}

// part is a part of a duration, by the seed and the key.
func (w *world) part(d time.Duration, kind string, key ...any) time.Duration {
	return time.Duration(float64(d) * simtest.Chance(w.scenario.Seed, kind, key...))
}

func (w *world) crash(at simtest.Moment) bool {
	if w.aim != nil {
		return w.aim(at)
	}
	if w.scenario.CrashBatches && at.Together < 2 {
		return false
	}
	return at.Process != w.journal.Process && w.strikes(at.Point, at.Run.ID, at.Nth, at.Attempt)
}

// strikes reports whether a crash point strikes.
func (w *world) strikes(point, run string, what any, attempt int) bool {
	if w.scenario.CrashOneIn == 0 || w.aim != nil {
		return false
	}
	oneIn := float64(w.scenario.CrashOneIn)
	if w.scenario.CrashBatches {
		oneIn /= 8 // batches of several runs are few
	}
	return simtest.Chance(w.scenario.Seed, point, run, what, attempt) < 1/oneIn && w.crashes.Add(-1) >= 0
}

// run plays the scenario to its end, in a bubble.
func (w *world) run(meanwhile func(ctx context.Context)) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	var running sync.WaitGroup
	for i := range w.scenario.Processes {
		running.Go(func() { w.place(ctx, i) })
	}
	running.Go(func() { w.kill(ctx) })
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.storeAgents(ctx)
		meanwhile(ctx)
		w.awaitSubruns(ctx)
		w.awaitNotices(ctx)
		w.awaitAcks(ctx)
	}()
	select {
	case <-done:
	case <-w.audit.broken:
		cancel()
		<-done
	}
	cancel()
	running.Wait()
}

// grouped counts a batch.
func (w *world) grouped(b simtest.Batch) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.batches[b.Outcome]++
}

// place runs a process, again and again.
func (w *world) place(ctx context.Context, i int) {
	for life := 0; ctx.Err() == nil; life++ {
		sleep(ctx, w.process(ctx, i, life))
	}
}

// process runs a process's roles until it dies or is ended, and returns how long
// it is away then.
func (w *world) process(ctx context.Context, i, life int) (away time.Duration) {
	p := &process{w: w, spec: &w.scenario.Processes[i], sim: w.journal.NewProcess(), life: life}
	away = p.spec.Down
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var running sync.WaitGroup
	defer running.Wait()
	for _, run := range p.runners(i) {
		running.Go(func() {
			err := run(ctx)
			if err != nil && !errors.Is(err, simtest.ErrCrashed) {
				w.audit.violate("", "role", "a role ended: %v", err)
			}
		})
	}
	if p.gateway != nil {
		w.up(i, p)
		defer w.up(i, nil)
	}
	select {
	case <-ctx.Done():
	case <-p.sim.Dead():
	case k := <-w.places[i]:
		if !k.Gently {
			p.sim.Kill()
		}
		if k.For > 0 {
			away = k.For
		}
	}
	cancel()
	return away
}

func (w *world) up(i int, p *process) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.gateways, i)
	if p != nil {
		w.gateways[i] = p
	}
}

// reached returns a process whose gateway is up, the number-th of them; nil if
// there is none.
func (w *world) reached(number int) *process {
	w.mu.Lock()
	defer w.mu.Unlock()
	var all []*process
	for i := range w.scenario.Processes {
		if p := w.gateways[i]; p != nil && p.alive() {
			all = append(all, p)
		}
	}
	if len(all) == 0 {
		return nil
	}
	return all[number%len(all)]
}

func (p *process) runners(number int) []runner {
	store := p.store(number)
	var all []runner
	for _, role := range p.spec.Roles {
		if !p.spec.Shared {
			store = p.store(number)
		}
		all = append(all, p.role(role, fmt.Sprint(number), store))
	}
	return all
}

// store keeps runs, and makes ids that follow from the seed: which faults befall
// a fork depends on its id.
func (p *process) store(number int) *runlog.Store {
	seed := p.w.scenario.Seed
	return runlog.New(runlog.Options{Log: p.log(), Snapshots: p.snapshots(), Capacity: p.spec.Capacity, NewID: func() string {
		return fmt.Sprintf("%08x-%s-7%03x-9%03x-%012x", uint32(seed>>16), p.w.seedPart(), number, p.life, p.ids.Add(1))
	}})
}

// seedPart is what ids that processes make have of the seed.
func (w *world) seedPart() string { return fmt.Sprintf("%04x", uint16(w.scenario.Seed)) }

func (p *process) role(role, instance string, store *runlog.Store) runner {
	var made interface{ Run(context.Context) error }
	var err error
	base := worker.Base{Instance: instance, Store: store, Queue: p.queue(), Feed: p.sim, Concurrency: p.spec.Concurrency}
	if p.spec.Follows {
		base.Follow = p.follow
	}
	if p.spec.Leads && role != roleGateway {
		base.Crew = &p.crew
	}
	switch role {
	case rolePlanner:
		made, err = planner.New(planner.Config{
			Base: base, KV: p.sim, Timers: p.sim,
			Providers: map[string]llm.Caller{"scripted": llm.CallerFunc(p.model)}, Text: textprotocol.Wrap,
			Validator: validator, Approval: policies,
		})
	case roleActor:
		made, err = actor.New(actor.Config{
			Base: base, KV: p.sim, Blobs: p.sim,
			Tools: p.tools(), Pools: p.spec.Pools, Peers: p.sim, Approval: policies,
		})
	case roleObserver:
		p.observer, err = observer.New(observer.Config{
			Base: base, Snapshots: p.snapshots(), SnapshotEvery: p.w.scenario.SnapshotEvery, KV: p.sim,
		})
		made = p.observer
	case roleGateway:
		config := control.Config{
			Base: base, Timers: p.sim, KV: p.sim,
			Validator: validator, CheckApproval: policies.Check, StallAfter: p.w.scenario.Stall, PoolWait: p.w.scenario.PoolWait,
		}
		if p.w.scenario.Queues || len(p.w.scenario.Hooks) > 0 {
			config.Leases = p.sim
		}
		if len(p.w.scenario.Schedules) > 0 {
			config.Alarms = p.sim
		}
		p.gateway, err = control.New(config)
		p.w.require(err)
		settings := webhooks.Settings{Retries: again, Transport: posting{p}}
		p.scheduler, p.hooks = schedules.New(p.gateway), webhooks.New(p.gateway, settings) // for requests
		features := all.Features().With("webhooks", webhooks.Made(settings)).On(p.gateway)
		return func(ctx context.Context) error { return worker.RunAll(ctx, p.gateway.Run, features.Run) }
	case roleSubagent:
		made, err = p.subagents(base)
	}
	p.w.require(err)
	return made.Run
}

// follow is that of a process with every role, and counts what it decides.
func (p *process) follow(run events.Run, mem *reducer.Memory, e effects.Effect) (events.Payload, string) {
	payload, source := toolcall.Follow(p.observer.Follow)(run, mem, e)
	if payload != nil {
		p.w.mu.Lock()
		defer p.w.mu.Unlock()
		p.w.followed[string(e.Kind)]++
	}
	return payload, source
}

// kill ends processes as planned.
func (w *world) kill(ctx context.Context) {
	kills := slices.SortedFunc(slices.Values(w.scenario.Kills), func(a, b killSpec) int { return int(a.At - b.At) })
	began := time.Now()
	for _, k := range kills {
		sleep(ctx, k.At-time.Since(began))
		w.end(ctx, k)
	}
}

// end ends a process, if it is up.
func (w *world) end(ctx context.Context, k killSpec) {
	select {
	case w.places[k.Process] <- k:
	case <-time.After(time.Second): // it is down already
	case <-ctx.Done():
	}
}

// awaitAcks waits until no delivery is outstanding: whatever was left to be
// acknowledged is harmless.
func (w *world) awaitAcks(ctx context.Context) {
	for w.journal.Outstanding() > 0 && ctx.Err() == nil {
		sleep(ctx, 5*time.Second)
	}
	if n := w.journal.Outstanding(); n > 0 && w.audit.violation() == nil {
		w.audit.violate("", "acknowledged", "%d deliveries are not acknowledged after %s", n, patience)
	}
}

func sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// bubble runs f in virtual time. A bubble that cannot continue is an error.
func bubble(t *testing.T, f func()) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("the bubble does not end: %v", p)
		}
	}()
	synctest.Test(t, func(*testing.T) { f() })
	return nil
}

// simulate plays a scenario and returns the first thing that went wrong.
func simulate(t *testing.T, scenario *scenario) (w *world, v *violation) {
	w = newWorld(scenario)
	if err := bubble(t, func() {
		w = newWorld(scenario)
		w.run(w.populate)
		if w.audit.violation() != nil {
			return
		}
		for _, id := range slices.Sorted(maps.Keys(w.people)) {
			w.audit.finish(w.people[id].spec, w.people[id].cancelled, w.ran.of)
		}
		for _, o := range w.owners {
			o.check()
		}
	}); err != nil {
		return w, &violation{Invariant: "bubble", Detail: err.Error()}
	}
	if v := w.audit.violation(); v != nil {
		return w, v
	}
	return w, w.remembered()
}

func contains[T comparable](all []T, one T) bool { return slices.Contains(all, one) }

// placed is where a run's log is.
func (w *world) placed(id string) events.Run {
	return events.NewRun(events.DefaultNamespace, id, w.scenario.Shards)
}
