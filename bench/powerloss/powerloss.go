// Package powerloss shows what a power loss takes from Moorebus. It records the system
// calls of an entire moorebus process under load, together with what clients and the world
// outside see: answers, events of the feed, effects of tools. From the trace it builds
// what a disk may hold if the power is lost at a moment of it: anything that was not
// flushed is there or not, in any combination. On each image a server has to start, and
// all that was seen before the moment has to be in its log.
//
// The load and the server are traced by one strace, so the acknowledgements, which the
// load writes to a file, have their places in the same order as the server's calls.
// Strace lets a thread continue only after it has written the call down, so a place after
// another one in the trace is never before it in time.
//
// It needs Linux and strace.
package powerloss

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"
)

// Options are the settings of a proof.
type Options struct {
	// Bin is the directory of the built commands moorebus and replay.
	Bin string
	// Fsync is the mode of the server, as moorebus dev takes it.
	Fsync string
	// Images is the number of moments, Seed chooses them and what survives.
	Images int
	Seed   uint64
	// Runs is the number of runs in each of the load's Lives.
	Runs, Lives int
	// Entries says what the file system promises of names.
	Entries Entries
	// GoOn has unfinished runs carried to their end on every image of that number; 0: on
	// none.
	GoOn int
	// Workers is how many images are checked at once.
	Workers int
	// Patience is how long a command, or the unfinished runs, may take on an image; default
	// two minutes.
	Patience time.Duration
	// Dir is a directory for everything, which stays. Images of failures are in it.
	Dir string
	// Progress is told what happens; nil: nobody is.
	Progress func(format string, args ...any)
}

// Report is what a proof found.
type Report struct {
	// Steps is the length of the trace, Pending the largest number of changes that were
	// not durable at a moment, Dropped the sum of those lost.
	Steps, Pending, Dropped int
	// Images were checked, on GoneOn of them the runs carried to their end. Seen is the
	// number of acknowledgements and effects that were looked for in all.
	Images, GoneOn, Seen int
	// Failures are the images with something wrong, by their number.
	Failures []Failure
}

// Failure is one image on which something is wrong.
type Failure struct {
	// Image is its number and Step its moment in the trace.
	Image, Step int
	// Problems say what is wrong, Dropped and Torn which changes were lost.
	Problems, Dropped, Torn []string
	// Dir holds the image as it was built, in data; "" if enough others are kept.
	Dir string
}

// maxKept is how many images of failures are kept.
const maxKept = 5

// moment is one power loss.
type moment struct {
	image, step int
	// inCall is a loss before the end of the step's call.
	inCall bool
}

// Run records a load, and checks the images of power losses during it. The error is one
// of the proof itself; what it finds is in the report.
func Run(ctx context.Context, o Options) (*Report, error) {
	if o.Progress == nil {
		o.Progress = func(string, ...any) {}
	}
	var err error
	if o.Dir, err = filepath.EvalSymlinks(o.Dir); err != nil {
		return nil, err
	}
	load := LoadOptions{
		Program: filepath.Join(o.Bin, "moorebus"), Data: filepath.Join(o.Dir, "traced"), Fsync: o.Fsync,
		Marks: filepath.Join(o.Dir, "marks"), Dir: filepath.Join(o.Dir, "load"), Runs: o.Runs, Lives: o.Lives,
	}
	steps, err := record(ctx, o.Dir, load)
	if err != nil {
		return nil, err
	}
	o.Progress("recorded %d steps", len(steps))
	p := &proof{o: o, report: &Report{Steps: len(steps)}, jobs: make(chan job)}
	p.checker = checker{moorebus: load.Program, replay: filepath.Join(o.Bin, "replay"), fsync: o.Fsync, patience: cmp.Or(o.Patience, patience)}
	ctx, p.cancel = context.WithCancel(ctx)
	defer p.cancel()
	var workers sync.WaitGroup
	for range o.Workers {
		workers.Go(func() {
			for j := range p.jobs {
				p.fail(p.check(ctx, j))
			}
		})
	}
	p.fail(p.replay(ctx, load, steps))
	close(p.jobs)
	workers.Wait()
	slices.SortFunc(p.report.Failures, func(a, b Failure) int { return cmp.Compare(a.Image, b.Image) })
	return p.report, p.err
}

// proof is a proof at work.
type proof struct {
	o       Options
	checker checker
	jobs    chan job
	cancel  func()

	mu     sync.Mutex
	report *Report
	err    error
}

// job is one image to check.
type job struct {
	moment moment
	loss   *loss
	seen   []mark
}

func (p *proof) fail(err error) {
	if err == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.err = errors.Join(p.err, err)
	p.cancel()
}

// moments chooses the power losses, in the order of the trace.
func (p *proof) moments(steps int) []moment {
	random := rand.New(rand.NewPCG(p.o.Seed, 0))
	all := make([]moment, p.o.Images)
	for i := range all {
		all[i] = moment{image: i + 1, step: random.IntN(steps), inCall: random.IntN(2) == 0}
	}
	slices.SortStableFunc(all, func(a, b moment) int { return cmp.Compare(a.step, b.step) })
	return all
}

// replay goes through the trace and gives the images out. At the end the model has to
// agree with the directory that the processes left.
func (p *proof) replay(ctx context.Context, load LoadOptions, steps []step) error {
	moments := p.moments(len(steps))
	r := newReplayer(newDisk(p.o.Entries), load.Data, load.Marks, steps)
	var seen []mark
	lose := func(m moment) error {
		more, err := parseMarks(r.seen[len(seen):])
		if err != nil {
			return err
		}
		seen = append(seen, more...)
		j := job{moment: m, loss: r.disk.lose(rand.New(rand.NewPCG(p.o.Seed, uint64(m.image)))), seen: slices.Clone(seen)}
		select {
		case p.jobs <- j:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	for i, s := range steps {
		if err := r.start(s); err != nil {
			return err
		}
		for ; len(moments) > 0 && moments[0].step == i && moments[0].inCall; moments = moments[1:] {
			if err := lose(moments[0]); err != nil {
				return err
			}
		}
		r.finish(s)
		for ; len(moments) > 0 && moments[0].step == i; moments = moments[1:] {
			if err := lose(moments[0]); err != nil {
				return err
			}
		}
	}
	left, err := readImage(load.Data)
	if err != nil {
		return err
	}
	if what := r.disk.differs(left); what != "" {
		return fmt.Errorf("the model is wrong: %s", what)
	}
	return nil
}

// check checks one image.
func (p *proof) check(ctx context.Context, j job) error {
	if ctx.Err() != nil {
		return nil
	}
	dir := filepath.Join(p.o.Dir, fmt.Sprintf("image-%d", j.moment.image))
	if err := j.loss.image.write(filepath.Join(dir, "data")); err != nil {
		return err
	}
	goOn := p.o.GoOn > 0 && j.moment.image%p.o.GoOn == 0
	problems, err := p.checker.check(ctx, dir, j.seen, goOn)
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	r := p.report
	r.Images++
	r.Seen += len(j.seen)
	r.Dropped += len(j.loss.dropped)
	r.Pending = max(r.Pending, j.loss.pending)
	if goOn {
		r.GoneOn++
	}
	if r.Images%50 == 0 {
		p.o.Progress("%d of %d images, %d with something wrong", r.Images, p.o.Images, len(r.Failures))
	}
	if len(problems) == 0 {
		return os.RemoveAll(dir)
	}
	f := Failure{Image: j.moment.image, Step: j.moment.step, Problems: problems[:min(len(problems), maxProblems)], Dropped: j.loss.dropped, Torn: j.loss.torn}
	kept := len(r.Failures) < maxKept
	if kept {
		f.Dir = dir
	}
	r.Failures = append(r.Failures, f)
	if err := os.RemoveAll(filepath.Join(dir, "data")); err != nil || !kept {
		return errors.Join(err, os.RemoveAll(dir))
	}
	return j.loss.image.write(filepath.Join(dir, "data"))
}
