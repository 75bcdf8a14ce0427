package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/moorebus/moorebus/internal/control"
	"github.com/moorebus/moorebus/internal/host"
	"github.com/moorebus/moorebus/internal/natsbus"
	"github.com/moorebus/moorebus/internal/providers"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/tool/builtin"
)

// The load is agent-10: a scripted model calls a pure tool in each of ten steps
// and then answers. Both are there at once, so what is measured is Moorebus.

const (
	// startSlots is how many runs are started at once.
	startSlots = 64
	// patience is how long runs may take altogether before the benchmark gives up.
	patience = time.Minute
)

// stepAgent calls the tool in every step and then answers.
func stepAgent(steps int) (events.Agent, error) {
	script := make([]any, 0, steps+1)
	for i := range steps {
		script = append(script, map[string]any{"calls": []any{map[string]any{
			"name": builtin.Calculator, "arguments": map[string]string{"expression": fmt.Sprintf("%d * (17 + 4)", i+1)},
		}}})
	}
	script = append(script, map[string]string{"text": "All steps are done: {{observation -1}}."})
	raw, err := json.Marshal(script)
	if err != nil {
		return events.Agent{}, err
	}
	a := events.DefaultAgent()
	a.Name, a.LLM.Provider, a.LLM.Script, a.Tools = "bench", providers.Scripted, raw, []string{builtin.Calculator}
	a.Config.ReflectEveryNSteps, a.Config.MaxSteps = 0, steps+1
	return a.Resolve()
}

// transitions is how many events a run of that many steps has: the start, three
// for each step, the answer.
func transitions(steps int) int { return 3*steps + 2 }

// carry starts the runs, so many at once, waits until the last one is done, and
// returns their ids.
func carry(ctx context.Context, bus *natsbus.Bus, h *host.Host, runs, steps int) ([]string, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("%d runs were not done after %s", runs, patience))
	defer cancel()
	a, err := stepAgent(steps)
	if err != nil {
		return nil, err
	}
	ends, err := watchEnds(bus, runs)
	if err != nil {
		return nil, err
	}
	defer ends.stop()
	ids, err := startAll(ctx, runs, h, a)
	if err != nil {
		return nil, err
	}
	return ids, ends.wait(ctx, runs)
}

// ends tells of runs that end.
type ends struct {
	done   chan struct{}
	failed chan error
	stops  []func()
}

// watchEnds watches for the ends of that many runs.
func watchEnds(bus *natsbus.Bus, runs int) (*ends, error) {
	e := &ends{done: make(chan struct{}, runs), failed: make(chan error, 1)}
	fail := func(err error) {
		select {
		case e.failed <- err:
		default: // there is one already
		}
	}
	lost := func() { fail(errors.New("the feed lost something: it cannot be said when the runs ended")) }
	for to, fn := range map[events.State]func(journal.Record){
		events.Done:    func(journal.Record) { e.done <- struct{}{} },
		events.Errored: func(r journal.Record) { fail(fmt.Errorf("a run failed: %s %s", r.Subject, r.Body)) },
	} {
		stop, err := bus.Watch(journal.Filter{To: to}, fn, lost)
		if err != nil {
			e.stop()
			return nil, err
		}
		e.stops = append(e.stops, stop)
	}
	// The server knows of the watches before the first run is started.
	return e, bus.Conn().Flush()
}

func (e *ends) stop() {
	for _, stop := range e.stops {
		stop()
	}
}

func (e *ends) wait(ctx context.Context, runs int) error {
	for range runs {
		select {
		case <-e.done:
		case err := <-e.failed:
			return err
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

func startAll(ctx context.Context, runs int, h *host.Host, a events.Agent) ([]string, error) {
	ids := make([]string, runs)
	errs := make([]error, runs)
	slots := make(chan struct{}, startSlots)
	var all sync.WaitGroup
	for i := range runs {
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			started, err := h.Gateway().Start(ctx, events.DefaultNamespace, control.StartRequest{Agent: &a, Task: "Do the steps."})
			ids[i], errs[i] = started.RunID, err
		})
	}
	all.Wait()
	for _, err := range errs {
		if err != nil {
			return nil, err
		}
	}
	return ids, nil
}

// recordsOf reads a run as it is stored.
func recordsOf(ctx context.Context, bus *natsbus.Bus, id string) ([]journal.Record, error) {
	var records []journal.Record
	for rec, err := range bus.Read(ctx, events.NewRun(events.DefaultNamespace, id, bus.Shards()), 0) {
		if err != nil {
			return nil, err
		}
		records = append(records, rec)
	}
	return records, nil
}

// bodiesOf are the bodies of a run that is done: what the floor carries.
func bodiesOf(ctx context.Context, bus *natsbus.Bus, id string, steps int) (hops, error) {
	records, err := recordsOf(ctx, bus, id)
	if err != nil {
		return nil, err
	}
	if len(records) != transitions(steps) {
		return nil, fmt.Errorf("run %s has %d events, not %d: something had to be tried again", id, len(records), transitions(steps))
	}
	bodies := make(hops, len(records))
	for i, rec := range records {
		bodies[i] = rec.Body
	}
	return bodies, nil
}
