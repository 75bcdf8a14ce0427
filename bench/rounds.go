package main

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"time"

	"github.com/moorebus/moorebus/internal/cli"
	"github.com/spf13/pflag"
)

// repeat says how often each case is measured.
type repeat struct {
	rounds int
	detail bool
}

func (r *repeat) add(f *pflag.FlagSet, rounds int) {
	f.IntVar(&r.rounds, "rounds", rounds, "rounds of each case, each on a fresh server; the median is shown")
	f.BoolVar(&r.detail, "detail", false, "show every round before the median")
}

// measure measures a case in every round. one returns the same figures each time.
func (r repeat) measure(ctx context.Context, one func(context.Context) ([]figure, error)) ([]figure, error) {
	var each [][]figure
	var shown []figure
	for n := range r.rounds {
		figures, err := one(ctx)
		if err != nil {
			return nil, err
		}
		each = append(each, figures)
		if r.detail {
			for _, f := range figures {
				f.Case += fmt.Sprintf(", round %d", n+1)
				shown = append(shown, f)
			}
		}
	}
	return append(shown, medians(each)...), nil
}

// positive returns a usage error unless all of the numbers are 1 or more.
func positive(numbers ...int) error {
	if len(numbers) == 0 {
		return cli.Usage("a list of numbers is empty")
	}
	for _, n := range numbers {
		if n < 1 {
			return cli.Usage("numbers of runs, steps, rounds, slots and shards are at least 1, not %d", n)
		}
	}
	return nil
}

// spent is what some work took of this process.
type spent struct {
	took           time.Duration
	objects, bytes float64 // allocated
	cpu            float64 // microseconds of this process, 0 where they are not known
}

// meter measures work, on a heap without the garbage of what was before.
func meter(work func() error) (spent, error) {
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	computed, unknown := cpuTime(os.Getpid())
	begin := time.Now()
	err := work()
	did := spent{took: time.Since(begin)}
	if until, _ := cpuTime(os.Getpid()); unknown == nil {
		did.cpu = float64((until - computed).Microseconds())
	}
	runtime.ReadMemStats(&after)
	did.objects, did.bytes = float64(after.Mallocs-before.Mallocs), float64(after.TotalAlloc-before.TotalAlloc)
	return did, err
}

// perSecond is the rate of n things in that time.
func (s spent) perSecond(n int) float64 { return float64(n) / s.took.Seconds() }
