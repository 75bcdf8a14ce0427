package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// game is one play in progress.
type game struct {
	o         options
	progress  io.Writer
	report    *report
	tools     *toolServer
	model     *modelServer
	fleet     *fleet
	bus       *bus
	faults    *os.File // when what was struck
	scenarios []*scenario
	feed      *feed
	traces    *traces
	metrics   *metrics
	hook      *hook
	clock     clock
	crowd     *crowd
	began     time.Time
}

// play plays the game of the options and reports. The error is about the game
// itself, such as a server that does not start; what is wrong with the log is
// in the report.
func play(ctx context.Context, o options, progress io.Writer) (*report, error) {
	if err := o.prepare(ctx); err != nil {
		return nil, err
	}
	g := &game{o: o, progress: progress, report: &report{o: o, faults: map[string]map[string]int{}}, began: time.Now()}
	g.say("seed %d, %d runs, data and logs in %s", o.seed, o.runs, o.dir)
	err := g.play(ctx)
	if ended := g.close(); ended != nil {
		g.report.found(ended.Error())
	}
	err = errors.Join(err, g.report.countRaces(o.dir))
	if err == nil && len(g.report.findings) == 0 && !o.keep {
		return g.report, os.RemoveAll(o.dir)
	}
	g.say("data and logs are kept in %s", o.dir)
	return g.report, err
}

// prepare makes the folder and builds the commands.
func (o *options) prepare(ctx context.Context) error {
	if o.dir == "" {
		dir, err := os.MkdirTemp("", "moorebus-chaos-")
		if err != nil {
			return err
		}
		o.dir = dir
	} else if err := os.MkdirAll(o.dir, 0o700); err != nil {
		return err
	}
	if o.bin != "" {
		return nil
	}
	o.bin = filepath.Join(o.dir, "bin")
	return build(ctx, o.bin)
}

func (g *game) say(format string, args ...any) {
	_, _ = fmt.Fprintf(g.progress, format+"\n", args...)
}

// phase notes how long the part of the game took that has just ended.
func (g *game) phase(name string) {
	g.report.phases = append(g.report.phases, phase{name, time.Since(g.began)})
	g.began = time.Now()
}

func (g *game) close() error {
	var err error
	if g.fleet != nil {
		err = g.fleet.stop()
	}
	if g.bus != nil {
		g.bus.conn.Close()
	}
	if g.model != nil {
		g.model.close()
	}
	if g.tools != nil {
		g.tools.close()
	}
	if g.traces != nil {
		g.traces.close()
	}
	if g.hook != nil {
		g.hook.Close()
	}
	if g.faults != nil {
		_ = g.faults.Close()
	}
	return err
}

func (g *game) play(ctx context.Context) error {
	if err := g.setUp(ctx); err != nil {
		return err
	}
	client := newClient(g.fleet.gateway)
	defer client.http.CloseIdleConnections()
	playing, over := context.WithCancel(ctx)
	g.feed = newFeed(client, g.report.found)
	g.crowd = newCrowd(playing, g.feed, g.report.found)
	g.feed.unknown = g.crowd.adopt
	var carriers []*carrier
	for _, p := range g.scenarios {
		carriers = append(carriers, newCarrier(p, client, g.feed, g.report.found))
	}
	g.crowd.add(carriers...)
	var following sync.WaitGroup
	following.Go(func() { g.feed.follow(playing) })
	if err := errors.Join(storeAgents(ctx, client), g.hook.put(ctx, client), g.clock.put(ctx, client), awaitExporter(ctx, g.bus)); err != nil {
		over()
		return err
	}
	following.Go(func() { g.metrics.watch(playing) })
	g.phase("set up")
	g.carryAll(playing, client, carriers)
	over()
	following.Wait()
	g.crowd.carrying.Wait()
	g.report.resumed, g.report.refused = g.feed.resumed, int(g.model.refused.Load())
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return g.inspect(ctx, client)
}

func (g *game) setUp(ctx context.Context) (err error) {
	g.scenarios = newScenarios(g.o, time.Now())
	if g.faults, err = os.Create(filepath.Join(g.o.dir, "faults.log")); err != nil {
		return err
	}
	if g.tools, err = newToolServer(g.o.dir); err != nil {
		return err
	}
	g.model = newModelServer(g.scenarios)
	file := func(actor int) (string, error) { return g.tools.writeFile(g.o.dir, actor) }
	if g.traces, err = newTraces(); err != nil {
		return err
	}
	g.hook = newHook(g.report.found)
	if g.fleet, err = newFleet(g.o, file, g.model.URL, g.traces.live.HTTP); err != nil {
		return err
	}
	g.metrics = newMetrics(g.fleet.workers)
	if err = g.fleet.start(ctx); err != nil {
		return err
	}
	g.bus, err = connect(g.fleet.urls, g.o.shards)
	return err
}

// carryAll carries all runs, the first part of the time under faults. It
// returns when all are over, or when the time is.
func (g *game) carryAll(ctx context.Context, client *client, carriers []*carrier) {
	slots := make(chan struct{}, g.o.inFlight)
	go func() {
		for _, c := range carriers {
			select {
			case slots <- struct{}{}:
			case <-ctx.Done():
				return
			}
			g.crowd.carry(c, func() { <-slots })
		}
	}()
	g.torment(ctx)
	if err := g.clock.stop(ctx, client, g.o.settleTime); err != nil && ctx.Err() == nil {
		g.report.found("schedule: " + err.Error())
	}
	g.phase("runs under faults")
	over, all := g.crowd.count()
	g.say("faults are over, %d of %d runs too", over, all)
	settling, stop := context.WithTimeout(ctx, g.o.settleTime)
	defer stop()
	if !g.crowd.finish(settling, g.bus) && ctx.Err() == nil {
		g.report.hanging(ctx, g.bus, g.crowd.all())
	}
	g.phase("the rest of the runs")
}

// torment brings faults until nine runs of ten are over, or the time is.
func (g *game) torment(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, g.o.faultTime)
	defer cancel()
	go func() {
		for pause(ctx, 100*time.Millisecond) {
			if over, all := g.crowd.count(); over*10 >= all*9 {
				cancel()
			}
		}
	}()
	var watching sync.WaitGroup
	defer watching.Wait()
	watching.Go(func() { g.watchSnapshots(ctx) })
	t := &tormentor{fleet: g.fleet, leader: g.bus.leader, healed: g.healed, died: g.report.found, count: g.report.faults}
	t.struck = func(process, kind string, down time.Duration) {
		_, _ = fmt.Fprintf(g.faults, "%s %s %s for %s\n", time.Now().UTC().Format(time.RFC3339Nano), kind, process, down)
	}
	t.torment(ctx, newSchedule(g.o))
	g.report.skipped = t.skipped
}

// verifyEvery is how often runs are verified that continue: a snapshot is there only
// as long as its run.
const verifyEvery = 4 * time.Second

// watchSnapshots verifies the runs now and then, until ctx ends. What it finds is
// wrong at any time; that the bus is away is not.
func (g *game) watchSnapshots(ctx context.Context) {
	for pause(ctx, verifyEvery) {
		g.report.snapshots = max(g.report.snapshots, g.bus.snapshots(ctx))
		verifying, stop := context.WithTimeout(ctx, 2*verifyEvery)
		out, code, err := g.fleet.output(verifying, "replay", "verify", "--all", "--strict")
		stop()
		switch {
		case err != nil:
		case code == 0:
			g.report.verified++
		case code == diverged:
			g.report.found("replay verify --all --strict while runs go on: " + out)
		}
	}
}

// The exit codes of replay verify for a log that is not as it must be, and for
// one that cannot be read now.
const (
	diverged = 3
	busAway  = 75
)

// healed waits until several servers are whole; one is as soon as it is up.
func (g *game) healed(ctx context.Context) {
	if g.o.cluster {
		g.bus.healed(ctx)
	}
}

// inspectTime bounds the audit.
const inspectTime = 2 * time.Minute

// inspect reads the log and the ledger and holds them to each other.
func (g *game) inspect(ctx context.Context, client *client) error {
	ctx, cancel := context.WithTimeout(ctx, inspectTime)
	defer cancel()
	if g.o.cluster {
		g.bus.healed(ctx)
	}
	out, code, err := g.fleet.output(ctx, "replay", "verify", "--all", "--strict")
	for code == busAway && pause(ctx, time.Second) { // buckets elect their own leaders
		out, code, err = g.fleet.output(ctx, "replay", "verify", "--all", "--strict")
	}
	if err != nil {
		return err
	}
	if code != 0 {
		g.report.found(fmt.Sprintf("replay verify --all --strict: exit %d: %s", code, out))
	}
	records, err := g.bus.records(ctx)
	if err != nil {
		return err
	}
	consumers, err := g.bus.consumers(ctx)
	if err != nil {
		return err
	}
	g.report.again = redeliveries(consumers, records)
	executed, err := g.tools.executions()
	if err != nil {
		return err
	}
	a := newAudit(g.report.found, executed)
	a.read(records)
	a.check(g.crowd.all())
	a.checkViews(ctx, client)
	a.checkResults(ctx, g.bus)
	g.metrics.check(ctx, a, g.report)
	g.hook.check(ctx, a, g.report)
	g.clock.check(a, g.report)
	if err := g.traces.check(ctx, g.fleet, a, g.report); err != nil {
		return err
	}
	g.report.tally(a)
	if g.o.outage && (a.outcomes["no_actor"] == 0 || a.outcomes["lone pool worked"] == 0) {
		g.report.found(fmt.Sprintf("the only actor of a pool was away for %s: %s", outageTime, counts(a.outcomes)))
	}
	g.phase("audit")
	return g.rebuild(ctx, a, out)
}
