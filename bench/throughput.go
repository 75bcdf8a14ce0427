package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"sync"
	"time"

	"github.com/moorebus/moorebus/internal/cli"
	"github.com/moorebus/moorebus/internal/wire"
	"github.com/moorebus/moorebus/pkg/agent"
	"github.com/moorebus/moorebus/pkg/embedded"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/gateway"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/journal/natsbus"
	"github.com/moorebus/moorebus/pkg/tool"
	"github.com/moorebus/moorebus/pkg/tool/typed"
	"github.com/nats-io/nats.go"
	"github.com/spf13/pflag"
)

type settings struct {
	runs, steps, rounds int
	syncAlways          bool
}

// throughputBench is many runs at once, beside the bare loop.
func throughputBench() *benchmark {
	var s settings
	var fsync string
	return &benchmark{
		name: "throughput", short: "Transitions per second of many scripted runs, beside the bare deliver-append-ack loop",
		flags: func(f *pflag.FlagSet) {
			f.IntVar(&s.runs, "runs", 1000, "runs at once")
			f.IntVar(&s.steps, "steps", 10, "tool steps of each run")
			f.IntVar(&s.rounds, "rounds", 3, "rounds, Moorebus and floor in turn")
			f.StringVar(&fsync, "fsync", "relaxed", "when the log goes to the disk: always or relaxed")
		},
		run: func(ctx context.Context) ([]figure, error) {
			if fsync != "always" && fsync != "relaxed" || s.runs < 1 || s.steps < 1 || s.rounds < 1 {
				return nil, cli.Usage("--fsync is always or relaxed; --runs, --steps and --rounds are at least 1")
			}
			s.syncAlways = fsync == "always"
			return throughput(ctx, s)
		},
	}
}

// round is what one round measured of Moorebus.
type round struct {
	transitions       int
	rate              float64
	body              float64 // bytes of a body
	allocated, allocs float64 // bytes and objects per transition
}

// figures are a round's, beside the floor's transitions per second.
func (r round) figures(s settings, n int, floor float64) []figure {
	at := fmt.Sprintf("round %d, %d runs", n, s.runs)
	row := func(what, unit string, value float64) figure {
		return figure{Bench: "throughput", Case: at, What: what, Unit: unit, Value: value}
	}
	return []figure{
		row("transitions", "1/s", r.rate).beside(floor, "bare deliver, append, ack").least(0.6),
		row("body per transition", "B", r.body),
		row("allocated per transition, server included", "B", r.allocated),
		row("allocations per transition, server included", "", r.allocs),
	}
}

// startSlots is how many runs are started at once.
const startSlots = 64

// throughput runs the rounds on one embedded server in a temporary folder.
func throughput(ctx context.Context, s settings) ([]figure, error) {
	dir, err := os.MkdirTemp("", "moorebus-bench-")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	server, err := embedded.Start(ctx, embedded.Options{Dir: dir, SyncAlways: s.syncAlways})
	if err != nil {
		return nil, err
	}
	defer server.Shutdown()
	conn, err := server.Connect()
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	if err := natsbus.Init(ctx, conn, natsbus.InitOptions{}); err != nil {
		return nil, err
	}
	bus, err := natsbus.Open(ctx, conn, natsbus.Options{GroupCommit: natsbus.GroupCommitFor(s.syncAlways)})
	if err != nil {
		return nil, err
	}
	return rounds(ctx, s, conn, bus)
}

func rounds(ctx context.Context, s settings, conn *nats.Conn, bus *natsbus.Bus) ([]figure, error) {
	h, err := newHost(bus)
	if err != nil {
		return nil, err
	}
	hostCtx, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- h.Run(hostCtx) }()
	defer func() { stop(); <-ended }()
	if err := h.Announce(ctx); err != nil {
		return nil, err
	}
	var figures []figure
	for n := 1; n <= s.rounds; n++ {
		r, bodies, err := moorebusRound(ctx, s, h, bus)
		if err != nil {
			return nil, err
		}
		took, err := runFloor(ctx, conn, bodies, s.runs)
		if err != nil {
			return nil, err
		}
		figures = append(figures, r.figures(s, n, float64(r.transitions)/took.Seconds())...)
	}
	return figures, nil
}

type echoInput struct {
	Text string `json:"text"`
}

func newHost(bus *natsbus.Bus) (*agent.Host, error) {
	echo, err := typed.New(tool.Definition{Name: "echo", Description: "Gives the text back.", Effect: tool.Pure},
		func(_ context.Context, in echoInput) (string, error) { return in.Text, nil })
	if err != nil {
		return nil, err
	}
	registry, err := tool.NewRegistry(echo)
	if err != nil {
		return nil, err
	}
	providers, err := wire.Providers("", func(string) string { return "" })
	if err != nil {
		return nil, err
	}
	return agent.NewHost(agent.HostOptions{Bus: bus, Providers: providers, Tools: registry})
}

// benchAgent calls the tool in every step and then answers.
func benchAgent(steps int) (events.Agent, error) {
	script := make([]any, 0, steps+1)
	for i := range steps {
		script = append(script, map[string]any{"calls": []any{map[string]any{
			"name": "echo", "arguments": map[string]string{"text": fmt.Sprintf("this is step %d", i+1)},
		}}})
	}
	script = append(script, map[string]string{"text": "All steps are done: {{observation -1}}."})
	raw, err := json.Marshal(script)
	if err != nil {
		return events.Agent{}, err
	}
	a := events.DefaultAgent()
	a.Name, a.LLM.Provider, a.LLM.Script, a.Tools = "bench", wire.Scripted, raw, []string{"echo"}
	a.Config.ReflectEveryNSteps, a.Config.MaxSteps = 0, steps+1
	return a.Resolve()
}

// moorebusRound starts the runs at once and waits for the last one's end.
func moorebusRound(ctx context.Context, s settings, h *agent.Host, bus *natsbus.Bus) (round, hops, error) {
	a, err := benchAgent(s.steps)
	if err != nil {
		return round{}, nil, err
	}
	done := make(chan struct{}, s.runs)
	stop, err := bus.Watch(journal.Filter{To: events.Done}, func(journal.Record) { done <- struct{}{} }, func() {})
	if err != nil {
		return round{}, nil, err
	}
	defer stop()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	begin := time.Now()
	last, err := startAll(ctx, s.runs, h, a)
	if err != nil {
		return round{}, nil, err
	}
	for range s.runs {
		select {
		case <-done:
		case <-ctx.Done():
			return round{}, nil, ctx.Err()
		}
	}
	took := time.Since(begin)
	runtime.ReadMemStats(&after)
	bodies, err := bodiesOf(ctx, bus, h.Store().Place(events.DefaultNamespace, last))
	if err != nil {
		return round{}, nil, err
	}
	transitions := s.runs * len(bodies)
	r := round{
		transitions: transitions, rate: float64(transitions) / took.Seconds(),
		allocated: float64(after.TotalAlloc-before.TotalAlloc) / float64(transitions),
		allocs:    float64(after.Mallocs-before.Mallocs) / float64(transitions),
	}
	for _, body := range bodies {
		r.body += float64(len(body)) / float64(len(bodies))
	}
	return r, bodies, nil
}

func startAll(ctx context.Context, runs int, h *agent.Host, a events.Agent) (last string, err error) {
	ids := make([]string, runs)
	errs := make([]error, runs)
	slots := make(chan struct{}, startSlots)
	var all sync.WaitGroup
	for i := range runs {
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			started, err := h.Gateway().Start(ctx, events.DefaultNamespace, gateway.StartRequest{Agent: &a, Task: "Do the steps."})
			ids[i], errs[i] = started.RunID, err
		})
	}
	all.Wait()
	for _, err := range errs {
		if err != nil {
			return "", err
		}
	}
	return ids[runs-1], nil
}

// bodiesOf are the bodies of a run as it is stored: the floor's messages.
func bodiesOf(ctx context.Context, bus *natsbus.Bus, run events.Run) (hops, error) {
	var bodies hops
	for rec, err := range bus.Read(ctx, run, 0) {
		if err != nil {
			return nil, err
		}
		bodies = append(bodies, rec.Body)
	}
	return bodies, nil
}
