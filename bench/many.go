package main

import (
	"context"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/moorebus/moorebus/internal/cli"
	"github.com/moorebus/moorebus/internal/feature/retention"
	"github.com/moorebus/moorebus/internal/filelog"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/internal/transfer"
	"github.com/moorebus/moorebus/pkg/embedded"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/spf13/pflag"
)

type manySettings struct {
	finished, lone, runs, rounds, archive int
}

// manyBench is what runs cost beside a great many that have ended.
func manyBench() *benchmark {
	var s manySettings
	return &benchmark{
		name: "many", short: "Runs beside 50,000 finished ones (--finished) and on an empty log, restart, memory, archive",
		flags: func(f *pflag.FlagSet) {
			f.IntVar(&s.finished, "finished", 50_000, "finished runs of 5 events in the stream")
			f.IntVar(&s.lone, "lone", 100, "runs of 5 events one after another in each round")
			f.IntVar(&s.runs, "runs", 200, "agent-10 runs at once in each round")
			f.IntVar(&s.rounds, "rounds", 3, "rounds, full and empty log in turn")
			f.IntVar(&s.archive, "archive", 500, "the oldest runs that are archived and purged at the end; 0: none")
		},
		run: func(ctx context.Context) ([]figure, error) {
			if min(s.finished, s.lone, s.runs, s.rounds) < 1 || s.archive < 0 {
				return nil, cli.Usage("--finished, --lone, --runs and --rounds are at least 1, --archive is at least 0")
			}
			return many(ctx, s)
		},
	}
}

// comparison is the measurement: a log with the finished runs, and an empty one.
type comparison struct {
	manySettings
	dir         string
	full, empty *site
	// five and ten are agents of one and of ten tool steps, sample some of the
	// finished runs.
	five, ten events.Agent
	sample    []events.Run
	figures   []figure
}

// sampled is how many finished runs are read.
const sampled = 500

func many(ctx context.Context, s manySettings) ([]figure, error) {
	dir, err := os.MkdirTemp("", "moorebus-bench-")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	c := &comparison{manySettings: s, dir: dir}
	if c.five, err = stepAgent(1); err != nil {
		return nil, err
	}
	if c.ten, err = stepAgent(10); err != nil {
		return nil, err
	}
	defer c.close()
	for _, part := range []func(context.Context) error{c.fill, c.restart, c.compare, c.purge} {
		if err := part(ctx); err != nil {
			return nil, err
		}
	}
	return c.figures, nil
}

func (c *comparison) close() {
	for _, s := range []*site{c.full, c.empty} {
		if s != nil {
			s.close()
		}
	}
	c.full, c.empty = nil, nil
}

func (c *comparison) row(what, unit string, value float64) figure {
	return figure{Bench: "many", Case: fmt.Sprintf("%d finished runs", c.finished), What: what, Unit: unit, Value: value}
}

func (c *comparison) add(f ...figure) { c.figures = append(c.figures, f...) }

// data is the directory of the full log.
func (c *comparison) data() string { return filepath.Join(c.dir, "full") }

// fill stores the finished runs, and stops the server.
func (c *comparison) fill(ctx context.Context) error {
	s, err := openSite(ctx, embedded.Options{Dir: c.data()})
	if err != nil {
		return err
	}
	defer s.close()
	m, err := s.recast(ctx, 1)
	if err != nil {
		return err
	}
	began := time.Now()
	every := max(1, c.finished/sampled)
	n := 0
	err = m.pour(ctx, s.conn, s.bus, c.finished, func(run events.Run) {
		if n++; n%every == 0 {
			c.sample = append(c.sample, run)
		}
	})
	if err != nil {
		return err
	}
	c.add(c.row("stored while the log was filled", "events/s", float64(c.finished*len(m.steps))/time.Since(began).Seconds()))
	return settle(ctx, s.conn, s.bus)
}

// restart starts the server on the full log, once as it was left and once without
// its index, as after a crash at the worst moment.
func (c *comparison) restart(ctx context.Context) error {
	if err := removeIndexes(c.data()); err != nil {
		return err
	}
	took, err := c.start(ctx)
	if err != nil {
		return err
	}
	c.add(c.row("restart without the index of the log", "s", took.Seconds()))
	c.full.close()
	c.full = nil
	before := memoryUse()
	if took, err = c.start(ctx); err != nil {
		return err
	}
	after := memoryUse()
	disk, err := diskUse(c.data())
	if err != nil {
		return err
	}
	per := float64(c.finished)
	c.add(
		c.row("restart", "s", took.Seconds()).most(30),
		c.row("heap per run after the restart", "B", float64(after.heap-before.heap)/per),
		c.row("resident memory of the process after the restart", "MB", float64(after.resident)/1e6),
		c.row("disk per run", "B", float64(disk)/per),
	)
	return nil
}

// removeIndexes removes what the server has in files of streams beside their
// messages.
func removeIndexes(dir string) error {
	return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Name() == "index.db" {
			err = os.Remove(path)
		}
		return err
	})
}

// start starts the server on the full log; it answers when this returns.
func (c *comparison) start(ctx context.Context) (time.Duration, error) {
	began := time.Now()
	s, err := openSite(ctx, embedded.Options{Dir: c.data(), StartTimeout: 5 * time.Minute})
	c.full = s
	return time.Since(began), err
}

// memory is what the process uses, in bytes.
type memory struct{ heap, resident int64 }

// memoryUse collects the garbage first.
func memoryUse() memory {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	use := memory{heap: int64(m.HeapAlloc)}
	if text, err := os.ReadFile("/proc/self/statm"); err == nil {
		var size, resident int64
		if _, err := fmt.Sscan(string(text), &size, &resident); err == nil {
			use.resident = resident * int64(os.Getpagesize())
		}
	}
	return use
}

// compare does the same on both logs, in turn.
func (c *comparison) compare(ctx context.Context) error {
	var err error
	if c.empty, err = openSite(ctx, embedded.Options{Dir: filepath.Join(c.dir, "empty")}); err != nil {
		return err
	}
	const full, empty = 0, 1
	var began, alone, together, read [2][]float64
	var old []float64
	for at, s := range []*site{c.full, c.empty} {
		took, err := timed(func() error { return s.staff(ctx) })
		if err != nil {
			return err
		}
		began[at] = append(began[at], took.Seconds()*1e3)
		if _, err := s.carry(ctx, c.runs, c.five); err != nil { // to get warm
			return err
		}
	}
	for range c.rounds {
		for at, s := range []*site{c.full, c.empty} {
			var last events.Run
			for range c.lone {
				took, err := timed(func() (err error) { last, err = s.one(ctx, c.five); return err })
				if err != nil {
					return err
				}
				alone[at] = append(alone[at], took.Seconds()*1e3)
			}
			took, err := timed(func() (err error) { _, err = s.carry(ctx, c.runs, c.ten); return err })
			if err != nil {
				return err
			}
			together[at] = append(together[at], float64(c.runs)/took.Seconds())
			for range c.lone {
				took, err := timed(func() error { return cold(ctx, s, last) })
				if err != nil {
					return err
				}
				read[at] = append(read[at], took.Seconds()*1e3)
			}
		}
		for range c.lone {
			took, err := timed(func() error { return cold(ctx, c.full, c.sample[rand.IntN(len(c.sample))]) })
			if err != nil {
				return err
			}
			old = append(old, took.Seconds()*1e3)
		}
	}
	c.add(
		c.row("start all roles", "ms", median(began[full])).beside(median(began[empty]), "empty log"),
		c.row("one run of 5 events, median", "ms", median(alone[full])).beside(median(alone[empty]), "empty log").most(2),
		c.row(fmt.Sprintf("%d runs of agent-10 at once", c.runs), "runs/s", median(together[full])).beside(median(together[empty]), "empty log").least(0.5),
		c.row("read and fold the newest run, median", "ms", median(read[full])).beside(median(read[empty]), "empty log").most(2),
		// The server reads a block of its file for it, which is about 8 MB.
		c.row("read and fold an old run, median", "ms", median(old)),
	)
	return nil
}

// cold folds a run that is in no memory.
func cold(ctx context.Context, s *site, run events.Run) error {
	store := runlog.New(runlog.Options{Log: s.bus})
	r := store.Acquire(run)
	defer store.Release(r)
	r.Lock()
	defer r.Unlock()
	if err := r.Refresh(ctx); err != nil {
		return err
	}
	if !r.Terminal() {
		return fmt.Errorf("run %s has not ended", run.ID)
	}
	return nil
}

func timed(do func() error) (time.Duration, error) {
	began := time.Now()
	err := do()
	return time.Since(began), err
}

// purge archives and removes the oldest runs.
func (c *comparison) purge(ctx context.Context) error {
	if c.archive == 0 {
		return nil
	}
	c.full.dismiss()
	c.empty.close()
	c.empty = nil
	before, beforeDisk, err := c.use()
	if err != nil {
		return err
	}
	archive := filepath.Join(c.dir, "archive.jsonl")
	o := retention.PurgeOptions{Grace: time.Millisecond, Archive: func(write func(transfer.Sink) error) error {
		return filelog.NewFile(archive, func(w *filelog.Writer) error { return write(w) })
	}}
	if c.archive >= c.finished {
		o.EndedBefore = time.Now()
	} else if o.Runs, err = c.oldest(ctx); err != nil {
		return err
	}
	var done retention.Purged
	took, err := timed(func() error { done, err = retention.Purge(ctx, c.full.bus, o); return err })
	if err != nil {
		return err
	}
	c.full.close()
	if _, err := c.start(ctx); err != nil {
		return err
	}
	after, afterDisk, err := c.use()
	if err != nil {
		return err
	}
	info, err := os.Stat(archive)
	if err != nil {
		return err
	}
	n := float64(len(done.Runs))
	c.add(
		c.row("archive and purge", "runs/s", n/took.Seconds()),
		c.row("archive per run", "B", float64(info.Size())/n),
	)
	// Few runs give back less than what comes and goes meanwhile.
	if c.archive*5 >= c.finished {
		c.add(
			c.row("heap that a purged run gives back", "B", float64(before.heap-after.heap)/n),
			c.row("disk that a purged run gives back", "B", float64(beforeDisk-afterDisk)/n),
		)
	}
	return nil
}

// use is the memory and the disk that the full log takes.
func (c *comparison) use() (memory, int64, error) {
	disk, err := diskUse(c.data())
	return memoryUse(), disk, err
}

// oldest returns the finished runs that came first.
func (c *comparison) oldest(ctx context.Context) ([]events.Run, error) {
	var runs []events.Run
	for rec, err := range c.full.bus.Scan(ctx, 0, anything, 0) {
		if err != nil {
			return nil, err
		}
		s, err := events.ParseSubject(rec.Subject)
		if err != nil {
			return nil, err
		}
		if strings.HasPrefix(string(s.From), string(events.Idle)) {
			if runs = append(runs, s.Run); len(runs) == c.archive {
				break
			}
		}
	}
	return runs, nil
}
