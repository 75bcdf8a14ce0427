package quotas

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/moorebus/moorebus/internal/control"
	"github.com/moorebus/moorebus/internal/control/runs"
	"github.com/moorebus/moorebus/internal/control/tally"
	"github.com/moorebus/moorebus/internal/feature/quotas/row"
	"github.com/moorebus/moorebus/internal/ports"
	"github.com/moorebus/moorebus/internal/refusal"
	"github.com/moorebus/moorebus/internal/retry"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/internal/worker"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

const (
	// readEvery is how old the quotas may be that a process uses.
	readEvery = 2 * time.Second
	// spentEvery is how old the sums may be that budgets are held against.
	spentEvery = time.Second
	// keepEvery is how often the one that leads stores the queue.
	keepEvery = 10 * time.Second
	// admitAtOnce is how many runs are admitted side by side.
	admitAtOnce = 32
	// retryAfter is the pause after a run that could not be admitted.
	retryAfter = time.Second
)

// lease is what the gateway holds that admits.
var lease = ports.RoleKey{Role: "gateway", Name: row.Lease}

// Admission keeps quotas, and admits queued runs by them. It is safe for concurrent use.
type Admission struct {
	// cfg has the bus. Its Leases choose who admits.
	cfg  control.Config
	c    *control.Controller
	runs *runs.Editor
	// reading has a place for whoever reads the quotas.
	reading chan struct{}
	wake    chan struct{}

	mu sync.Mutex
	// all are the quotas as they were at readAt.
	all    set
	readAt time.Time
	queue  *queue
	// follows says that the queue is made of the log, after up to where each shard was read.
	follows bool
	after   []uint64
	// usage is what namespaces with a budget used, spent those that have used it up.
	usage map[string]usage
	spent map[string]bool
}

// usage is what a namespace used in its day.
type usage struct {
	at, since time.Time
	used      tally.Use
}

// New returns the quotas of a bus, which the starts of the controller ask. Only [Admission.Run] admits.
func New(c *control.Controller) *Admission {
	a := &Admission{
		cfg: c.Config(), c: c, runs: c.Editor, reading: make(chan struct{}, 1), wake: make(chan struct{}, 1),
		queue: newQueue(), after: make([]uint64, c.Log.Shards()), usage: map[string]usage{}, spent: map[string]bool{},
	}
	if to := c.Store.Meter(); to != nil {
		to.Read(a.measure)
	}
	c.Admission = a
	return a
}

// use makes quotas those of this process.
func (a *Admission) use(all set) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.all, a.readAt = all, a.now()
	a.wakeUp()
}

func (a *Admission) now() time.Time { return a.runs.Store.Now() }

func (a *Admission) wakeUp() {
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

// current returns the quotas, at most two seconds old while the bus answers. One caller at a
// time reads them, for all who wait.
func (a *Admission) current(ctx context.Context) (set, error) {
	if all, fresh, _ := a.last(); fresh {
		return all, nil
	}
	select {
	case a.reading <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	defer func() { <-a.reading }()
	all, fresh, never := a.last()
	if fresh {
		return all, nil
	}
	read, _, err := a.read(ctx)
	switch {
	case refusal.Is(err, refusal.CodeUnavailable): // there are quotas, and what was read before does not hold
		return nil, err
	case errors.Is(err, journal.ErrDenied):
		return nil, refusal.New(refusal.Unavailable, refusal.CodeUnavailable, "this gateway may not read the quotas, so it starts no runs: print the permissions again with moorebus init --print-permissions")
	case err != nil && never:
		return nil, err
	case err != nil:
		return all, nil
	}
	a.use(read)
	return read, nil
}

// last returns the quotas as they were read last, whether they still hold, and whether they never were.
func (a *Admission) last() (all set, fresh, never bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	never = a.readAt.IsZero()
	return a.all, !never && a.now().Sub(a.readAt) < readEvery, never
}

// Queues is that of [control.Admission].
func (a *Admission) Queues(ctx context.Context, ns, agent string) (queued bool, err error) {
	all, err := a.current(ctx)
	if err != nil || len(all) == 0 {
		return false, err
	}
	q := all[ns]
	if q.Daily != nil {
		next, over, err := a.over(ctx, ns, q.Daily, spentEvery)
		if err != nil {
			return false, err
		}
		if over {
			a.count(row.Refused, ns, refusal.CodeBudgetExhausted)
			e := refusal.New(refusal.TooMany, refusal.CodeBudgetExhausted, "the namespace %s has used up its budget of the day, which ends at %s", ns, next.Format(time.RFC3339))
			e.RetryAfter = next.Sub(a.now())
			return false, e.With(map[string]any{"namespace": ns, "until": next})
		}
	}
	if !all.bounds(ns, agent) {
		return false, nil
	}
	most := q.Queued
	if most == 0 {
		most = DefaultQueued
	}
	a.mu.Lock()
	_, waiting := a.queue.counts(ns)
	a.mu.Unlock()
	if waiting >= most {
		a.count(row.Refused, ns, refusal.CodeTooManyQueued)
		e := refusal.New(refusal.TooMany, refusal.CodeTooManyQueued, "%d runs of the namespace %s are queued, and at most %d may be", waiting, ns, most)
		e.RetryAfter = retryAfter
		return false, e.With(map[string]any{"namespace": ns})
	}
	return true, nil
}

// over reports whether a namespace has used up the budget of its day, and when the next one
// begins. What it counts is at most so much behind the log.
func (a *Admission) over(ctx context.Context, ns string, d *Daily, behind time.Duration) (next time.Time, over bool, err error) {
	now := a.now()
	zone, err := time.LoadLocation(d.TimeZone)
	if err != nil {
		zone = time.UTC
	}
	year, month, day := now.In(zone).Date()
	since := time.Date(year, month, day, 0, 0, 0, 0, zone)
	next = time.Date(year, month, day+1, 0, 0, 0, 0, zone)
	a.mu.Lock()
	u := a.usage[ns]
	a.mu.Unlock()
	if !u.since.Equal(since) || now.Sub(u.at) >= behind {
		costs, err := a.c.Costs(ctx, ns, tally.ByHour, since)
		if err != nil {
			return next, false, err
		}
		u = usage{at: now, since: since, used: costs.Total}
	}
	over = d.Tokens > 0 && u.used.Input+u.used.Output >= d.Tokens ||
		d.CostUSD > 0 && u.used.CostUSD != nil && *u.used.CostUSD >= d.CostUSD
	unknown := !over && d.CostUSD > 0 && u.used.Unpriced > 0
	a.mu.Lock()
	a.usage[ns], a.spent[ns] = u, over || unknown
	a.mu.Unlock()
	if unknown {
		return next, false, refusal.New(refusal.Unprocessable, refusal.CodeNoPrice, "the namespace %s has a budget of the day in US dollars, and %d tokens of the day have no price: "+
			"bound tokens instead for this day, and give planners --prices FILE with an entry for each model, which may be 0, for the days to come", ns, u.used.Unpriced)
	}
	return next, over, nil
}

// Run follows the log and, while it has the lease, admits queued runs, until ctx ends. Before the first
// quota is stored it only looks for one now and then.
func (a *Admission) Run(ctx context.Context) error {
	if a.cfg.Leases == nil {
		return nil
	}
	return runs.UntilSetUp(ctx, a.cfg.Logger, "queued runs are not admitted by this gateway", func(ctx context.Context) error {
		for {
			_, revision, err := a.read(ctx)
			switch {
			case ctx.Err() != nil:
				return nil
			case errors.Is(err, journal.ErrDenied):
				return err
			case err == nil && revision > 0:
				return worker.RunAll(ctx, append(a.followers(ctx), a.lead, a.watch)...)
			}
			retry.Wait(ctx, readEvery)
		}
	})
}

// followers return what reads each shard, from where the stored queue ends, or where those
// before ended.
func (a *Admission) followers(ctx context.Context) (parts []func(context.Context) error) {
	if !a.follows {
		a.load(ctx)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.follows = true
	for shard, after := range a.after {
		parts = append(parts, func(ctx context.Context) error { return a.follow(ctx, shard, after) })
	}
	return parts
}

func (a *Admission) follow(ctx context.Context, shard int, after uint64) error {
	for rec, err := range a.runs.Log.Follow(ctx, shard, journal.Filter{}, after) {
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		a.apply(shard, rec)
	}
	return nil
}

// apply takes what a record says of runs that began in the queue. Few need to be decoded: the
// beginnings that woke nobody, and what happened to runs that wait.
func (a *Admission) apply(shard int, rec journal.Record) {
	s, err := events.ParseSubject(rec.Subject)
	var start *events.Start
	if err == nil && s.From == a.runs.Table.Initial() && s.To == events.Nobody {
		if e := a.runs.Decode(rec); e != nil {
			start, _ = e.Data.(*events.Start)
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.after[shard] = rec.Seq
	if err != nil {
		return
	}
	now, of := a.now(), name{s.Run.Namespace, s.Run.ID}
	if start != nil && start.Queued {
		a.queue.add(&entry{name: of, agent: start.Agent.Name, place: place(rec.Stored, start.Priority)}, now, a.all)
		a.wakeUp()
	}
	e := a.queue.runs[of]
	if e == nil || start != nil {
		return
	}
	switch {
	case a.runs.Table.Terminal(s.To):
		a.queue.remove(e, now, a.all)
		a.wakeUp()
	case e.phase == waits || e.phase == admitting:
		a.applyToQueued(e, rec, s.To, now)
	case s.To == events.WaitingForHuman || s.To == events.WaitingForUser:
		a.queue.move(e, rests, now, a.all)
		a.wakeUp()
	case s.To != events.Nobody:
		a.queue.move(e, works, now, a.all)
	}
}

func (a *Admission) applyToQueued(e *entry, rec journal.Record, to events.State, now time.Time) {
	event := a.runs.Decode(rec)
	if event == nil {
		return
	}
	switch event.Data.(type) {
	case *events.Admitted:
		phase := works
		if to == events.Nobody { // imported asleep, for the runs that were forked from it
			phase = rests
		}
		a.queue.move(e, phase, now, a.all)
	case *events.Paused:
		e.paused = true
		a.queue.leave(e)
	case *events.Resumed:
		e.paused = false
		if e.phase == waits {
			a.queue.join(e)
			a.wakeUp()
		}
	}
}

// watch reads the quotas and the budgets now and then, and wakes who admits.
func (a *Admission) watch(ctx context.Context) error {
	for retry.Wait(ctx, spentEvery) {
		all, err := a.current(ctx)
		if err != nil {
			continue
		}
		for ns, q := range all {
			if q.Daily != nil {
				_, _, _ = a.over(ctx, ns, q.Daily, spentEvery) // if it cannot be read now, what was read before holds
			}
		}
		a.mu.Lock()
		for ns := range a.spent {
			if all[ns].Daily == nil {
				delete(a.spent, ns)
				delete(a.usage, ns)
			}
		}
		a.mu.Unlock()
		a.wakeUp()
	}
	return nil
}

func (a *Admission) lead(ctx context.Context) error { return a.cfg.Leases.Lead(ctx, lease, a.admitAll) }

// admitAll admits runs until ctx ends. It begins when this process has read all that was in the
// log when it got the lease, so what the one before admitted is known.
func (a *Admission) admitAll(ctx context.Context) error {
	var all sync.WaitGroup
	defer all.Wait()
	ends := make([]uint64, len(a.after))
	for shard := range ends {
		for {
			end, err := a.runs.Log.Last(ctx, shard)
			if ends[shard] = end; err == nil {
				break
			}
			if !retry.Wait(ctx, retryAfter) {
				return nil
			}
		}
	}
	keeping := time.NewTicker(keepEvery)
	defer keeping.Stop()
	slots := make(chan struct{}, admitAtOnce)
	for ctx.Err() == nil {
		e := a.take(ends)
		if e != nil {
			slots <- struct{}{}
			all.Go(func() {
				defer func() { <-slots }()
				a.admit(ctx, e)
			})
			continue
		}
		select {
		case <-a.wake:
		case <-keeping.C:
			a.keep(ctx)
		case <-ctx.Done():
		}
	}
	return nil
}

// take takes the next run out of the queue; nil if none is to be admitted now.
func (a *Admission) take(ends []uint64) *entry {
	a.mu.Lock()
	defer a.mu.Unlock()
	for shard, end := range ends {
		if a.after[shard] < end {
			return nil
		}
	}
	now := a.now()
	e := a.queue.next(now, a.all, a.spent)
	if e != nil {
		a.queue.move(e, admitting, now, a.all)
	}
	return e
}

// admit admits a run. One that cannot be admitted goes back to its line after a pause.
func (a *Admission) admit(ctx context.Context, e *entry) {
	paused, over, err := false, false, error(nil)
	if d := a.daily(e.ns); d != nil {
		_, over, err = a.over(ctx, e.ns, d, 0)
	}
	if err == nil && !over {
		paused, err = a.append(ctx, e)
	}
	gone := runs.IsMissing(err) || refusal.Is(err, refusal.CodeRunEnded)
	if err != nil && !gone && ctx.Err() == nil {
		a.cfg.Logger.Warn("a queued run will be admitted later", "run", e.id, "reason", err)
	}
	if err != nil && !gone || paused {
		retry.Wait(ctx, retryAfter) // the record of a pause comes meanwhile
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.queue.runs[e.name] != e || e.phase != admitting: // the log was faster
	case gone:
		a.queue.remove(e, a.now(), a.all)
	case err != nil, over, paused:
		a.queue.move(e, waits, a.now(), a.all)
	default:
		a.queue.move(e, works, a.now(), a.all)
	}
	a.wakeUp()
}

func (a *Admission) daily(ns string) *Daily {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.all[ns].Daily
}

// append appends the event, unless the run is not queued any more, or paused.
func (a *Admission) append(ctx context.Context, e *entry) (paused bool, err error) {
	admitted := false
	_, err = a.runs.Change(ctx, e.ns, e.id, func(mem *reducer.Memory) ([]runlog.Draft, error) {
		admitted = false
		if paused = mem.Queued() && mem.Control.Paused; paused || !mem.Queued() {
			return nil, nil
		}
		admitted = true
		return runs.One(events.Control, &events.Admitted{})
	})
	if err == nil && admitted {
		a.count(row.Admitted, e.ns)
	}
	return paused, err
}
