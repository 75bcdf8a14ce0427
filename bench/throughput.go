package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"sync"
	"time"

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
)

type settings struct {
	runs, steps, rounds int
	syncAlways          bool
}

// figure is one round: Moorebus, then the floor.
type figure struct {
	Round       int     `json:"round"`
	Runs        int     `json:"runs"`
	Transitions int     `json:"transitions"`
	Rate        float64 `json:"transitions_per_second"`
	FloorRate   float64 `json:"floor_per_second"`
	Ratio       float64 `json:"ratio"`
	BodyBytes   float64 `json:"body_bytes_per_transition"`
	AllocBytes  float64 `json:"allocated_bytes_per_transition"`
	Allocs      float64 `json:"allocations_per_transition"`
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
	bus, err := natsbus.Open(ctx, conn, natsbus.Options{})
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
	for round := 1; round <= s.rounds; round++ {
		f, bodies, err := moorebusRound(ctx, s, h, bus)
		if err != nil {
			return nil, err
		}
		took, err := runFloor(ctx, conn, bodies, s.runs)
		if err != nil {
			return nil, err
		}
		f.Round = round
		f.FloorRate = float64(f.Transitions) / took.Seconds()
		f.Ratio = f.Rate / f.FloorRate
		figures = append(figures, f)
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
func moorebusRound(ctx context.Context, s settings, h *agent.Host, bus *natsbus.Bus) (figure, hops, error) {
	a, err := benchAgent(s.steps)
	if err != nil {
		return figure{}, nil, err
	}
	done := make(chan struct{}, s.runs)
	stop, err := bus.Watch(journal.Filter{To: events.Done}, func(journal.Record) { done <- struct{}{} }, func() {})
	if err != nil {
		return figure{}, nil, err
	}
	defer stop()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	begin := time.Now()
	last, err := startAll(ctx, s.runs, h, a)
	if err != nil {
		return figure{}, nil, err
	}
	for range s.runs {
		select {
		case <-done:
		case <-ctx.Done():
			return figure{}, nil, ctx.Err()
		}
	}
	took := time.Since(begin)
	runtime.ReadMemStats(&after)
	bodies, err := bodiesOf(ctx, bus, h.Store().Place(events.DefaultNamespace, last))
	if err != nil {
		return figure{}, nil, err
	}
	transitions := s.runs * len(bodies)
	f := figure{
		Runs: s.runs, Transitions: transitions, Rate: float64(transitions) / took.Seconds(),
		AllocBytes: float64(after.TotalAlloc-before.TotalAlloc) / float64(transitions),
		Allocs:     float64(after.Mallocs-before.Mallocs) / float64(transitions),
	}
	for _, body := range bodies {
		f.BodyBytes += float64(len(body)) / float64(len(bodies))
	}
	return f, bodies, nil
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
