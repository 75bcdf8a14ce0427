package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/moorebus/moorebus/internal/cli"
	"github.com/spf13/pflag"
)

// userSettings are the flags of benchmarks that measure the commands as a user runs
// them: built binaries, default settings, HTTP.
type userSettings struct {
	repeat
	load
	bins, fsync, layouts, models []string
	server                       string
	lead                         bool
	// turns is how many cases were measured.
	turns int
}

func (s *userSettings) add(f *pflag.FlagSet, rounds int, layouts, fsync, models []string) {
	f.StringSliceVar(&s.bins, "bin", nil, "directories of built commands, which take turns; figures of further ones stand beside those of the first (default: the commands are built)")
	f.StringSliceVar(&s.layouts, "layout", layouts, "dev (one process) or split (a server and a process for each role), one case for each")
	f.StringSliceVar(&s.fsync, "fsync", fsync, "values of --fsync, passed on as they are, one case for each; default: the flag is not given")
	f.StringSliceVar(&s.models, "model", models, "scripted, or openai (an endpoint in this process that streams in OpenAI's format), one case for each")
	f.StringVar(&s.server, "server", serverAuto, "the server of split: moorebus (its command server), nats-server, cluster (three of nats-server that replicate and do not flush), or auto (moorebus if it has that command)")
	f.BoolVar(&s.lead, "lead", false, "pass --lead to dev")
	f.IntVar(&s.runs, "runs", 600, "runs of each round")
	f.IntVar(&s.atOnce, "at-once", 200, "runs in progress at any time: as one ends the next one starts")
	f.IntVar(&s.steps, "steps", 10, "tool steps of each run")
	f.IntVar(&s.warm, "warm-up", 50, "runs in each new process that are counted apart")
	s.repeat.add(f, rounds)
}

func (s *userSettings) check() error {
	if err := positive(s.runs, s.atOnce, s.steps, s.rounds); err != nil {
		return err
	}
	if s.warm < 0 {
		return cli.Usage("--warm-up is at least 0, not %d", s.warm)
	}
	for _, of := range []struct {
		flag         string
		given, known []string
	}{
		{"--layout", s.layouts, []string{layoutDev, layoutSplit}},
		{"--model", s.models, []string{modelScripted, modelOpenAI}},
		{"--server", []string{s.server}, []string{serverAuto, serverMoorebus, serverNATS, serverCluster}},
		{"--fsync", s.fsync, nil},
	} {
		if len(of.given) == 0 {
			return cli.Usage("%s names nothing", of.flag)
		}
		for _, name := range of.given {
			if of.known != nil && !slices.Contains(of.known, name) {
				return cli.Usage("%s is %s, not %q", of.flag, strings.Join(of.known, " or "), name)
			}
		}
	}
	return nil
}

const (
	layoutDev   = "dev"
	layoutSplit = "split"

	modelScripted = "scripted"
	modelOpenAI   = "openai"

	// fsyncDefault stands for a command without the flag.
	fsyncDefault = "default"
	fsyncRelaxed = "relaxed"
)

// httpBench is what a user sees: runs started over HTTP, ends read from the feed.
func httpBench() *benchmark {
	var s userSettings
	return &benchmark{
		name: "http", short: "The user's path: agent-10 started over HTTP, 200 at once, its ends read over SSE, fresh processes in each round",
		about: `Each round starts new processes on a new data directory in TMPDIR, stores agent-10 (10
calls of the calculator, then an answer), carries a few runs to get warm, and then keeps
--at-once runs in progress until --runs have ended. A run ends when its last event is
received from GET /v1/events?state=done. CPU per run is that of the processes of Moorebus
(of nats-server too), without the load and the model endpoint of this process.

Measure other binaries with --bin. Each directory holds moorebus, and for --layout split
gateway, planner, actor and observer; nats-server too, or it lies beside this program:

  go build -o old/ ./cmd/... github.com/nats-io/nats-server/v2
  go run ./bench http --bin old,new --layout dev --fsync default,relaxed --model scripted --rounds 3`,
		flags: func(f *pflag.FlagSet) {
			s.add(f, 3, []string{layoutDev, layoutSplit}, []string{fsyncDefault, fsyncRelaxed}, []string{modelScripted, modelOpenAI})
		},
		run: func(ctx context.Context) ([]figure, error) { return s.measureAll(ctx, "http") },
	}
}

// measureAll measures every case once in each round, so that all see the same moments
// of the machine.
func (s *userSettings) measureAll(ctx context.Context, bench string) ([]figure, error) {
	if err := s.check(); err != nil {
		return nil, err
	}
	remove, err := s.build(ctx)
	if err != nil {
		return nil, err
	}
	defer remove()
	return s.measure(ctx, func(ctx context.Context) (figures []figure, err error) {
		for _, model := range s.models {
			for _, fsync := range s.fsync {
				var dev []measured
				for _, layout := range s.layouts {
					c := userCase{layout: layout, fsync: fsync, model: model, server: s.server, lead: s.lead}
					each, err := s.inTurn(ctx, c)
					if err != nil {
						return nil, fmt.Errorf("%s: %w", c, err)
					}
					if layout == layoutDev {
						dev = each
					}
					figures = append(figures, s.figures(bench, c, each, dev)...)
				}
			}
		}
		return figures, nil
	})
}

// build builds the commands if no directory has them, until remove.
func (s *userSettings) build(ctx context.Context) (remove func(), err error) {
	if len(s.bins) > 0 {
		return func() {}, nil
	}
	bin, removeBin, err := builtCommands(ctx, "")
	if err != nil {
		return nil, err
	}
	s.bins = []string{bin}
	return func() { s.bins = nil; removeBin() }, nil
}

// inTurn measures one case with the commands of each directory.
func (s *userSettings) inTurn(ctx context.Context, c userCase) ([]measured, error) {
	each := make([]measured, len(s.bins))
	s.turns++
	for k := range s.bins {
		// Who is first in one round is last in the next one.
		i := k
		if s.turns%2 == 0 {
			i = len(s.bins) - 1 - k
		}
		c.bin = s.bins[i]
		m, err := s.one(ctx, c)
		if err != nil {
			return nil, err
		}
		each[i] = m
	}
	return each, nil
}

// one measures one case in fresh processes on a fresh data directory.
func (s *userSettings) one(ctx context.Context, c userCase) (m measured, err error) {
	site, err := openUserSite(ctx, c)
	if err != nil {
		return m, err
	}
	defer func() { err = errors.Join(err, site.close()) }()
	if err := site.store(ctx, c.model, s.steps); err != nil {
		return m, err
	}
	if err := site.awaitRoles(ctx); err != nil {
		return m, err
	}
	if s.warm > 0 {
		warm := s.load
		warm.runs = s.warm
		if m.warm, err = site.carry(ctx, warm); err != nil {
			return m, fmt.Errorf("warm-up: %w%s", err, site.said())
		}
	}
	before, err := site.cpu()
	if err != nil {
		return m, err
	}
	if m.carried, err = site.carry(ctx, s.load); err != nil {
		return m, fmt.Errorf("%w%s", err, site.said())
	}
	m.names, m.cpu, err = site.cpuSince(before)
	return m, err
}

// measured is one case of one round.
type measured struct {
	carried, warm carriedLoad
	// cpu is what the processes computed, named in names, while the runs were carried.
	cpu   []time.Duration
	names []string
}

// splitShare is what split is held to, of one process's rate in the same round;
// steadyShare is what the least of several fresh processes is held to, of their median.
const (
	splitShare  = 0.7
	steadyShare = 0.85
)

// figures shows what the commands of each directory did in a case. dev is what they did
// in one process, if that was measured.
func (s *userSettings) figures(bench string, c userCase, each, dev []measured) (all []figure) {
	for i, m := range each {
		at := c.String()
		if i > 0 {
			at += fmt.Sprintf(", --bin %d", i+1)
		}
		row := rows(bench, at)
		rate := row("runs", "1/s", m.carried.rate())
		rate.Steady = true
		perRun := func(d time.Duration) float64 { return d.Seconds() * 1e3 / float64(s.runs) }
		var cpu time.Duration
		for _, d := range m.cpu {
			cpu += d
		}
		work := row("CPU per run", "ms", perRun(cpu))
		switch {
		case i > 0:
			rate = rate.beside(each[0].carried.rate(), "the first --bin")
			var first time.Duration
			for _, d := range each[0].cpu {
				first += d
			}
			work = work.beside(perRun(first), "the first --bin")
		case c.layout == layoutSplit && dev != nil:
			rate = rate.beside(dev[i].carried.rate(), "one process").least(splitShare)
		}
		all = append(all, rate, work)
		if len(m.cpu) > 1 {
			for k, d := range m.cpu {
				all = append(all, row("CPU per run, "+m.names[k], "ms", perRun(d)))
			}
		}
		all = append(all,
			row("a run, median", "ms", m.carried.quantile(0.5)), row("a run, p99", "ms", m.carried.quantile(0.99)))
		if s.warm > 0 {
			all = append(all, row("warm-up runs", "1/s", m.warm.rate()))
		}
	}
	return all
}
