// Package gauges returns to a scrape the queued work of the bus, its workers, and the size of the
// log. It asks the bus at most once in [Every], however many scrapers there are.
package gauges

import (
	"context"
	"errors"
	"log/slog"
	"strconv"
	"sync"
	"time"

	"github.com/moorebus/moorebus/internal/announce"
	"github.com/moorebus/moorebus/internal/meter"
	"github.com/moorebus/moorebus/internal/ports"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

const (
	// Every is how long an answer of the bus is given again.
	Every = 5 * time.Second
	// sampled is how many of the waiting events of a state their runs are read for.
	sampled = 32
)

// Config configures [Gauges].
type Config struct {
	// Fleet returns the queued work. Required, like Store.
	Fleet     ports.Fleet
	Directory *announce.Directory
	Store     *runlog.Store
	// States are those that workers take deliveries of.
	States []events.State
	// Size estimates the next request of a run to its model, in tokens. It is called under the
	// run's lock. Nil: nothing is estimated.
	Size   func(mem *reducer.Memory) int
	Logger *slog.Logger
}

// Gauges are the answers. They are safe for concurrent use.
type Gauges struct {
	cfg Config

	mu     sync.Mutex
	asked  time.Time
	points []point
	failed string
}

type point struct {
	of     *meter.Metric
	value  float64
	values meter.Values
}

// New returns Gauges.
func New(cfg Config) *Gauges { return &Gauges{cfg: cfg} }

// Read emits the gauges. It asks the bus if the last answer is old, until ctx ends. What the
// bus does not tell is omitted.
func (g *Gauges) Read(ctx context.Context, emit meter.Emit) {
	for _, p := range g.now(ctx) {
		emit(p.of, p.value, p.values)
	}
}

func (g *Gauges) now(ctx context.Context) []point {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.asked.IsZero() && time.Since(g.asked) < Every {
		return g.points
	}
	g.points = nil
	err := errors.Join(g.readBacklogs(ctx), g.readLog(ctx))
	g.asked = time.Now()
	seen := 1.0
	if err != nil {
		seen = 0
	}
	g.add(meter.Observed, seen)
	g.say(err)
	return g.points
}

// say logs a failure when it begins or changes.
func (g *Gauges) say(err error) {
	failed := ""
	if err != nil {
		failed = err.Error()
	}
	if failed != "" && failed != g.failed {
		g.cfg.Logger.Warn("the metrics of waiting work are incomplete", "reason", failed)
	}
	g.failed = failed
}

func (g *Gauges) add(m *meter.Metric, value float64, of ...string) {
	p := point{of: m, value: value}
	copy(p.values[:], of)
	g.points = append(g.points, p)
}

func (g *Gauges) readBacklogs(ctx context.Context) error {
	all, err := g.cfg.Fleet.Backlogs(ctx, g.cfg.States)
	if err != nil {
		return err
	}
	var tokens float64
	var failed error
	for _, b := range all {
		state := string(b.State)
		g.add(meter.Waiting, float64(b.Waiting), state, b.Pool)
		g.add(meter.InFlight, float64(b.InFlight), state, b.Pool)
		age := 0.0
		if !b.Oldest.IsZero() {
			age = max(0, time.Since(b.Oldest).Seconds())
		}
		g.add(meter.Oldest, age, state, b.Pool)
		if b.State == events.Planning || b.State == events.Reflecting {
			size, err := g.estimate(ctx, b)
			tokens += size
			failed = errors.Join(failed, err)
		}
	}
	if failed == nil && g.cfg.Size != nil {
		g.add(meter.Tokens, tokens)
	}
	return errors.Join(failed, g.readWorkers(ctx, all))
}

// estimate is the size of the requests that a state's waiting events ask for: that of the
// oldest ones, and for the others their mean.
func (g *Gauges) estimate(ctx context.Context, b ports.Backlog) (float64, error) {
	if b.Waiting == 0 || g.cfg.Size == nil {
		return 0, nil
	}
	seen, sum := 0, 0
	for shard, after := range b.Delivered {
		some := 0
		for rec, err := range g.cfg.Store.Log().Scan(ctx, shard, journal.Filter{To: b.State}, after) {
			if err != nil {
				return 0, err
			}
			size, err := g.size(ctx, rec)
			if err != nil {
				return 0, err
			}
			seen, sum = seen+1, sum+size
			if some++; some >= max(1, sampled/len(b.Delivered)) {
				break
			}
		}
	}
	if seen == 0 {
		return 0, nil // they were delivered meanwhile
	}
	return float64(sum) / float64(seen) * float64(b.Waiting), nil
}

// size is that of the request of a record's run, 0 if the run cannot be folded.
func (g *Gauges) size(ctx context.Context, rec journal.Record) (int, error) {
	subject, err := events.ParseSubject(rec.Subject)
	if err != nil {
		return 0, nil // it belongs to no run
	}
	run := g.cfg.Store.Acquire(subject.Run)
	defer g.cfg.Store.Release(run)
	if err := run.LockContext(ctx); err != nil {
		return 0, err
	}
	defer run.Unlock()
	if run.Seq() < rec.Seq {
		if err := run.Refresh(ctx); err != nil {
			return 0, ctx.Err()
		}
	}
	return g.cfg.Size(run.Memory()), nil
}

// readWorkers counts the live workers. Planners, and actors of pools that have work, are
// counted if there are none, too.
func (g *Gauges) readWorkers(ctx context.Context, all []ports.Backlog) error {
	live, err := g.cfg.Directory.Workers(ctx)
	if err != nil {
		return err
	}
	type kind struct{ role, pool string }
	count := map[kind]int{{role: "planner"}: 0}
	for _, b := range all {
		if b.Pool != "" && b.Pool != events.AgentsPool && b.Pool != events.ClientPool {
			count[kind{"actor", b.Pool}] = 0
		}
	}
	for _, w := range live {
		count[kind{w.Role, w.Pool}]++
	}
	for k, n := range count {
		g.add(meter.Workers, float64(n), k.role, k.pool)
	}
	return nil
}

func (g *Gauges) readLog(ctx context.Context) error {
	shards, err := g.cfg.Fleet.ShardSizes(ctx)
	if err != nil {
		return err
	}
	for shard, s := range shards {
		name := strconv.Itoa(shard)
		g.add(meter.LogBytes, float64(s.Bytes), name)
		g.add(meter.LogLimit, float64(s.MaxBytes), name)
		g.add(meter.LogRecords, float64(s.Records), name)
	}
	return nil
}
