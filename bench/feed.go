package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"time"

	"github.com/moorebus/moorebus/internal/cli"
	"github.com/moorebus/moorebus/internal/natsbus"
	"github.com/spf13/pflag"
)

// feedSettings are what `bench feed` can be told.
type feedSettings struct {
	bin, only, fsync string
	// rate is how many runs of 10 steps are started in a second, for window.
	rate   int
	window time.Duration
	// clients follow runs, or all events; watched is how many runs those of all
	// events see.
	clients, watched int
	// stalled clients read nothing while backlog runs continue, and the gateway waits
	// for them as long as writeTimeout.
	stalled, backlog int
	writeTimeout     time.Duration
}

// feedSteps is how many tool steps the runs of the feed have, feedEvents how many
// events that makes.
const (
	feedSteps  = 10
	feedEvents = 3*feedSteps + 2
)

// feedParts are the parts of the benchmark, by their name for --only.
var feedParts = []part[feedSettings]{
	{"tap", feedTap}, {"runs", feedRuns}, {"all", feedAll}, {"stalled", feedStalled},
}

// feedBench is what the log's readers see while it is written.
func feedBench() *benchmark {
	var s feedSettings
	return &benchmark{
		name: "feed", short: "Latency of a tap under load, 500 clients of event streams on one gateway, clients that stall",
		flags: func(f *pflag.FlagSet) {
			f.StringVar(&s.bin, "bin", "", "directory of the built commands (default: they are built)")
			f.StringVar(&s.only, "only", "", "one part alone: tap, runs, all or stalled")
			f.StringVar(&s.fsync, "fsync", "always", "when the log goes to the disk: always or relaxed")
			f.IntVar(&s.rate, "rate", 10, "runs of 32 events started in a second while the tap is measured")
			f.DurationVar(&s.window, "window", 10*time.Second, "how long the tap is measured")
			f.IntVar(&s.clients, "clients", 500, "clients of event streams at once")
			f.IntVar(&s.watched, "watched", 20, "runs that every client of all events sees")
			f.IntVar(&s.stalled, "stalled", 50, "clients that read nothing")
			f.DurationVar(&s.writeTimeout, "write-timeout", 5*time.Second, "how long the gateway waits for a client that reads nothing")
			f.IntVar(&s.backlog, "backlog", 12, "runs of 32 events and half a megabyte that go on while clients read nothing")
		},
		run: func(ctx context.Context) ([]figure, error) {
			if s.fsync != "always" && s.fsync != "relaxed" {
				return nil, cli.Usage("--fsync is always or relaxed")
			}
			if min(s.rate, s.clients, s.watched, s.stalled, s.backlog) < 1 || min(s.window, s.writeTimeout) <= 0 {
				return nil, cli.Usage("--rate, --clients, --watched, --stalled, --backlog, --window and --write-timeout are more than nothing")
			}
			return feed(ctx, s)
		},
	}
}

// feed builds the commands once and runs the parts.
func feed(ctx context.Context, s feedSettings) ([]figure, error) {
	bin, remove, err := builtCommands(ctx, s.bin)
	if err != nil {
		return nil, err
	}
	defer remove()
	s.bin = bin
	return runParts(ctx, s.only, s, feedParts)
}

func feedFigure(of, what, unit string, value float64) figure {
	return figure{Bench: "feed", Case: of, What: what, Unit: unit, Value: value}
}

// startFeed starts a fleet of one process for each role, with the tool `slow` of
// some time, whose gate is shut.
func (s feedSettings) startFeed(ctx context.Context, tool time.Duration) (*fleet, error) {
	e, err := newEndpoint(tool, shut)
	if err != nil {
		return nil, err
	}
	f, err := startFleet(ctx, s.bin, terms{syncAlways: s.fsync == "always", group: true}, natsbus.InitOptions{}, "--write-timeout", s.writeTimeout.String())
	if err != nil {
		e.close()
		return nil, err
	}
	f.tool = e
	file := filepath.Join(f.dir, "tools.yaml")
	if err = os.WriteFile(file, []byte(e.toolFile()), 0o600); err == nil {
		_, err = f.start("actor", nil, "--tools", file, "--concurrency", "1000")
	}
	if err == nil {
		err = f.startRoles([]string{"planner", "observer"})
	}
	if err != nil {
		return nil, errors.Join(err, f.close())
	}
	return f, nil
}
