package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/moorebus/moorebus/internal/cli"
	"github.com/moorebus/moorebus/pkg/embedded"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/spf13/pflag"
)

// longSettings are the flags of bench long.
type longSettings struct {
	repeat
	user           userSettings // its bins
	lengths        []int
	atOnce, events int
	finished       []int
}

// longBench is what the length of a run and the number of finished runs cost a user.
func longBench() *benchmark {
	var s longSettings
	var reads int
	return &benchmark{
		name: "long", short: "Over HTTP: CPU per transition of long runs beside short ones, and reading a finished run beside many others",
		long: true,
		flags: func(f *pflag.FlagSet) {
			f.StringSliceVar(&s.user.bins, "bin", nil, "directory of built commands (default: they are built)")
			f.IntSliceVar(&s.lengths, "events", []int{10, 1000, 10_000}, "lengths of runs, in events; the first is what the others stand beside")
			f.IntVar(&s.atOnce, "at-once", 2, "runs in progress at any time")
			f.IntVar(&s.events, "total", 20_000, "events of all runs of one length, at least")
			f.IntSliceVar(&s.finished, "finished", []int{10_000}, "how many finished runs there are while runs are read; 100000 takes a minute to store")
			f.IntVar(&reads, "reads", 300, "runs that are read, one after another")
			s.repeat.add(f, 3)
		},
		run: func(ctx context.Context) (all []figure, err error) {
			if err := errors.Join(positive(s.rounds, s.atOnce, s.events, reads), positive(s.lengths...)); err != nil {
				return nil, err
			}
			if len(s.user.bins) > 1 {
				return nil, cli.Usage("--bin names one directory here")
			}
			remove, err := s.user.build(ctx)
			if err != nil {
				return nil, err
			}
			defer remove()
			if all, err = s.measure(ctx, s.perTransition); err != nil {
				return nil, err
			}
			for _, n := range s.finished {
				figures, err := s.readBeside(ctx, n, reads)
				if err != nil {
					return nil, err
				}
				all = append(all, figures...)
			}
			return all, nil
		},
	}
}

// longShare is what a transition of a long run may cost, by one of a short run: below and
// from so many events on.
const (
	longShare, veryLongShare = 1.15, 1.3
	veryLong                 = 5000
)

// perTransition measures each length in a fresh process.
func (s *longSettings) perTransition(ctx context.Context) (figures []figure, err error) {
	var short float64
	for i, length := range s.lengths {
		steps := max(1, (length-1)/3)
		micros, err := s.transitionsOf(ctx, steps)
		if err != nil {
			return nil, fmt.Errorf("runs of %d events: %w", length, err)
		}
		f := rows("long", fmt.Sprintf("runs of %d events, %d at once, fsync relaxed", transitions(steps), s.atOnce))("CPU per transition", "µs", micros)
		switch {
		case i == 0:
			short = micros
		case length >= veryLong:
			f = f.beside(short, "the shortest runs").most(veryLongShare)
		default:
			f = f.beside(short, "the shortest runs").most(longShare)
		}
		figures = append(figures, f)
	}
	return figures, nil
}

// transitionsOf is the CPU time in microseconds that a transition takes in runs of so many
// steps. The model is scripted: a request over HTTP has all messages of its task, so it grows with
// the run, and writing it would soon be most of what is measured.
func (s *longSettings) transitionsOf(ctx context.Context, steps int) (micros float64, err error) {
	site, err := openUserSite(ctx, userCase{bin: s.user.bins[0], layout: layoutDev, fsync: fsyncRelaxed, model: modelScripted})
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, site.close()) }()
	if err := errors.Join(site.store(ctx, modelScripted, 3), site.awaitRoles(ctx)); err != nil {
		return 0, err
	}
	if _, err := site.carry(ctx, load{runs: 100, atOnce: s.atOnce}); err != nil {
		return 0, err
	}
	if err := site.store(ctx, modelScripted, steps); err != nil {
		return 0, err
	}
	runs := max(s.atOnce, s.events/transitions(steps))
	before, err := site.cpu()
	if err != nil {
		return 0, err
	}
	if _, err := site.carry(ctx, load{runs: runs, atOnce: s.atOnce}); err != nil {
		return 0, fmt.Errorf("%w%s", err, site.said())
	}
	_, spent, err := site.cpuSince(before)
	if err != nil {
		return 0, err
	}
	return float64(spent[0].Nanoseconds()) / 1e3 / float64(runs*transitions(steps)), nil
}

// readLimit is how long reading a finished run may take, in milliseconds.
const readLimit = 1.5

// readBeside reads finished runs over HTTP, chosen at random among n, from a process that
// has seen none of them.
func (s *longSettings) readBeside(ctx context.Context, n, reads int) (figures []figure, err error) {
	dir, err := dataDir(false)
	if err != nil {
		return nil, err
	}
	ids, err := fillFinished(ctx, dataOf(dir), n, reads)
	if err != nil {
		return nil, err
	}
	site, err := startUserSite(ctx, userCase{bin: s.user.bins[0], layout: layoutDev, fsync: fsyncRelaxed, model: modelScripted}, dir)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, site.close()) }()
	took := carriedLoad{}
	for _, id := range ids {
		var state struct{ State string }
		began := time.Now()
		if err := site.request(ctx, http.MethodGet, "/v1/runs/"+id, nil, http.StatusOK, &state); err != nil {
			return nil, err
		}
		took.each = append(took.each, time.Since(began))
		if state.State != string(events.Done) {
			return nil, fmt.Errorf("run %s is in %q", id, state.State)
		}
	}
	row := rows("long", fmt.Sprintf("reading finished runs beside %d others", n))
	return []figure{
		row("GET of a run, median", "ms", took.quantile(0.5)).most(readLimit),
		row("GET of a run, p99", "ms", took.quantile(0.99)),
	}, nil
}

// fillFinished stores n finished runs of 5 events, and returns the ids of some of them in
// no order.
func fillFinished(ctx context.Context, data string, n, some int) (ids []string, err error) {
	s, err := openSite(ctx, embedded.Options{Dir: data, StartTimeout: time.Minute})
	if err != nil {
		return nil, err
	}
	defer s.close()
	m, err := s.recast(ctx, 1)
	if err != nil {
		return nil, err
	}
	every, k := max(1, n/some), 0
	err = m.pour(ctx, s.conn, s.bus, n, func(run events.Run) {
		if k++; k%every == 0 && len(ids) < some {
			ids = append(ids, run.ID)
		}
	})
	if err != nil {
		return nil, err
	}
	rand.Shuffle(len(ids), func(i, j int) { ids[i], ids[j] = ids[j], ids[i] })
	return ids, settle(ctx, s.conn, s.bus)
}
