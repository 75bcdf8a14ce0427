package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/moorebus/moorebus/internal/announce"
	"github.com/moorebus/moorebus/internal/cli"
	"github.com/moorebus/moorebus/internal/natsbus"
	"github.com/spf13/pflag"
)

// scaleSettings are what `bench scale` can be told.
type scaleSettings struct {
	bin, only string
	// calls are in flight at once, each answered after hold; together has the
	// endpoint wait for all of them first.
	calls    int
	hold     time.Duration
	together bool
	// prompt is the length of the text that each call sends.
	prompt int
	// shared runs are the work of the three planners.
	shared int
	// slots are the calls of a tool that one actor has at work, window how long each
	// number of actors is measured.
	slots  int
	window time.Duration
}

// scaleParts are the parts of the benchmark, by their name for --only.
var scaleParts = []part[scaleSettings]{
	{"calls", scaleCalls}, {"share", scaleShare}, {"actors", scaleActors},
}

// scaleBench is work that waits for models and tools.
func scaleBench() *benchmark {
	var s scaleSettings
	return &benchmark{
		name: "scale", short: "Work that waits: 10,000 model calls in one planner, three planners that share, one to four actors",
		flags: func(f *pflag.FlagSet) {
			f.StringVar(&s.bin, "bin", "", "directory of the built commands (default: they are built)")
			f.StringVar(&s.only, "only", "", "one part alone: calls, share or actors")
			f.IntVar(&s.calls, "calls", 10000, "model calls in flight in one planner; each takes a connection, so an open file there and one here")
			f.DurationVar(&s.hold, "hold", 2*time.Second, "how long the model takes to answer")
			f.BoolVar(&s.together, "together", true, "the model's time begins when all calls are there, so that a slow machine holds them too")
			f.IntVar(&s.prompt, "prompt", 0, "bytes of text that each of the calls sends")
			f.IntVar(&s.shared, "shared", 1500, "runs that three planners share")
			f.IntVar(&s.slots, "slots", 5, "calls of the 100 ms tool that one actor has at work")
			f.DurationVar(&s.window, "window", 6*time.Second, "how long each number of actors is measured")
		},
		run: func(ctx context.Context) ([]figure, error) {
			if s.calls < 1 || s.shared < 3 || s.slots < 1 || s.prompt < 0 || s.hold <= 0 || s.window <= 0 {
				return nil, cli.Usage("--calls, --slots, --hold and --window are more than nothing, --shared at least 3, --prompt at least 0")
			}
			return scale(ctx, s)
		},
	}
}

// scale builds the commands once and runs the parts.
func scale(ctx context.Context, s scaleSettings) ([]figure, error) {
	bin, remove, err := builtCommands(ctx, s.bin)
	if err != nil {
		return nil, err
	}
	defer remove()
	s.bin = bin
	return runParts(ctx, s.only, s, scaleParts)
}

func scaleFigure(of, what, unit string, value float64) figure {
	return figure{Bench: "scale", Case: of, What: what, Unit: unit, Value: value}
}

// askingAgent asks the model once and answers with what it says, as JSON.
// Its prompt has about that many bytes.
func askingAgent(prompt int) json.RawMessage {
	return fmt.Appendf(nil, `{"name":"bench","llm":{"provider":"openai"},"config":{"reflect_every_n_steps":0},"system_prompt":%q}`, strings.Repeat("a text ", prompt/7))
}

// otherFiles is what the benchmark has open beside the model's connections.
const otherFiles = 256

// maxPlannerMemory is the target for 10,000 calls, in bytes.
const maxPlannerMemory = 1.5e9

// scaleCalls starts runs while no planner is there, and then one planner, which
// calls the model for all of them at once.
func scaleCalls(ctx context.Context, s scaleSettings) (figures []figure, err error) {
	if limit, known := cli.OpenFiles(); known && uint64(s.calls+otherFiles) > limit {
		return nil, cli.Usage("--calls %d needs %d open files in this process and in the planner's, which may have %d: raise the limit (ulimit -n), or lower --calls",
			s.calls, s.calls+otherFiles, limit)
	}
	together := 0
	if s.together {
		together = s.calls
	}
	model, err := newEndpoint(s.hold, together)
	if err != nil {
		return nil, err
	}
	defer model.close()
	f, err := startFleet(ctx, s.bin, terms{group: true}, natsbus.InitOptions{MaxAckPending: 2 * s.calls})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.close()) }()
	// The gateway starts no run of a provider that nobody has.
	if err := announce.NewDirectory(f.bus, nil).AnnounceProviders(ctx, "bench", []string{"openai"}); err != nil {
		return nil, err
	}
	if _, err := f.runs(ctx, s.calls, askingAgent(s.prompt)); err != nil {
		return nil, err
	}
	began := time.Now()
	planner, err := f.start("planner", model.env(), "--concurrency", strconv.Itoa(s.calls))
	if err != nil {
		return nil, err
	}
	done, err := f.awaitEvents(ctx, uint64(2*s.calls), time.Minute)
	if err != nil {
		return nil, err
	}
	_, most, err := residentSet(planner.cmd.Process.Pid)
	if err != nil {
		return nil, err
	}
	at := fmt.Sprintf("%d calls, 1 planner", s.calls)
	peak := scaleFigure(at, "calls in flight at the peak", "", float64(model.peak.Load()))
	if s.together {
		peak = peak.least(float64(s.calls)) // else the first are answered before the last begin
	}
	return []figure{
		peak,
		scaleFigure(at, "memory of the planner at its peak", "MiB", most/bytesPerMiB).most(maxPlannerMemory / bytesPerMiB),
		scaleFigure(at, "memory per call", "KiB", most/1024/float64(s.calls)),
		scaleFigure(at, "time until all calls were in flight", "s", model.full().Sub(began).Seconds()),
		scaleFigure(at, "time until all runs were done", "s", done.Sub(began).Seconds()),
	}, nil
}
