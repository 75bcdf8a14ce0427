package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"
)

// game is one play in progress.
type game struct {
	o        options
	progress io.Writer
	report   *report
	tools    *toolServer
	model    *modelServer
	fleet    *fleet
	bus      *bus
	faults   *os.File // when what was struck
	plans    []*plan
	carriers []*carrier
	// over counts the runs that have ended.
	over  atomic.Int64
	began time.Time
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
	feed := newFeed(client, g.plans, g.report.found)
	playing, over := context.WithCancel(ctx)
	var following sync.WaitGroup
	following.Go(func() { feed.follow(playing) })
	for _, p := range g.plans {
		g.carriers = append(g.carriers, newCarrier(p, client, feed, g.report.found))
	}
	g.phase("set up")
	g.carryAll(playing)
	over()
	following.Wait()
	g.report.resumed = feed.resumed
	if ctx.Err() != nil {
		return ctx.Err()
	}
	err := g.inspect(ctx, client)
	g.phase("audit")
	return err
}

func (g *game) setUp(ctx context.Context) (err error) {
	g.plans = newPlans(g.o, time.Now())
	if g.faults, err = os.Create(filepath.Join(g.o.dir, "faults.log")); err != nil {
		return err
	}
	if g.tools, err = newToolServer(g.o.dir); err != nil {
		return err
	}
	file, err := g.tools.writeFile(g.o.dir)
	if err != nil {
		return err
	}
	g.model = newModelServer(g.plans)
	if g.fleet, err = newFleet(g.o, file, g.model.URL); err != nil {
		return err
	}
	if err = g.fleet.start(ctx); err != nil {
		return err
	}
	g.bus, err = connect(g.fleet.urls)
	return err
}

// carryAll carries all runs, the first part of the time under faults. It
// returns when all are over, or when the time is.
func (g *game) carryAll(ctx context.Context) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var carrying sync.WaitGroup
	slots := make(chan struct{}, g.o.inFlight)
	carrying.Go(func() {
		for _, c := range g.carriers {
			select {
			case slots <- struct{}{}:
			case <-ctx.Done():
				return
			}
			carrying.Go(func() {
				defer func() { <-slots }()
				c.carry(ctx)
				g.over.Add(1)
			})
		}
	})
	done := make(chan struct{})
	go func() { carrying.Wait(); close(done) }()
	g.torment(ctx)
	g.phase("runs under faults")
	g.say("faults are over, %d of %d runs too", g.over.Load(), g.o.runs)
	select {
	case <-done:
	case <-time.After(g.o.settleTime):
		g.report.hanging(ctx, g.bus, g.carriers)
	case <-ctx.Done():
	}
	stop()
	<-done
	g.phase("the rest of the runs")
}

// torment brings faults until nine runs of ten are over, or the time is.
func (g *game) torment(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, g.o.faultTime)
	defer cancel()
	go func() {
		for pause(ctx, 100*time.Millisecond) {
			if g.over.Load()*10 >= int64(g.o.runs)*9 {
				cancel()
			}
		}
	}()
	t := &tormentor{fleet: g.fleet, leader: g.bus.leader, healed: g.healed, died: g.report.found, count: g.report.faults}
	t.struck = func(process, kind string, down time.Duration) {
		_, _ = fmt.Fprintf(g.faults, "%s %s %s for %s\n", time.Now().UTC().Format(time.RFC3339Nano), kind, process, down)
	}
	t.torment(ctx, newSchedule(g.o))
	g.report.skipped = t.skipped
}

// healed waits until several servers are whole; one is as soon as it is up.
func (g *game) healed(ctx context.Context) {
	if g.o.cluster {
		g.bus.healed(ctx)
	}
}

// inspectTime bounds the audit.
const inspectTime = time.Minute

// inspect reads the log and the ledger and holds them to each other.
func (g *game) inspect(ctx context.Context, client *client) error {
	ctx, cancel := context.WithTimeout(ctx, inspectTime)
	defer cancel()
	out, code, err := g.fleet.output(ctx, "replay", "verify", "--all", "--strict")
	if err != nil {
		return err
	}
	if code != 0 {
		g.report.found(fmt.Sprintf("replay verify --all --strict: exit %d: %s", code, out))
	}
	if g.o.cluster {
		g.bus.healed(ctx)
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
	a.check(g.carriers)
	a.checkViews(ctx, client)
	a.checkResults(ctx, g.bus)
	g.report.tally(a)
	return nil
}
