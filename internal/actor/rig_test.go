package actor_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/actor"
	"github.com/moorebus/moorebus/internal/journaltest/simtest"
	"github.com/moorebus/moorebus/internal/reducertest"
	"github.com/moorebus/moorebus/internal/toolset"
	"github.com/moorebus/moorebus/internal/worker"
	"github.com/moorebus/moorebus/internal/worker/workertest"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/reducer"
	"github.com/moorebus/moorebus/pkg/tool"
)

// fn is a tool made of a function; it counts how often each call ran.
type fn struct {
	def tool.Definition
	run func(ctx context.Context, c tool.Call) (string, error)

	mu   sync.Mutex
	runs map[string]int
}

func (f *fn) Definition() tool.Definition { return f.def }

func (f *fn) Run(ctx context.Context, c tool.Call) (string, error) {
	f.mu.Lock()
	if f.runs == nil {
		f.runs = map[string]int{}
	}
	f.runs[c.ID]++
	f.mu.Unlock()
	return f.run(ctx, c)
}

func (f *fn) count(id string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.runs[id]
}

func pure(name, pool string, run func(ctx context.Context, c tool.Call) (string, error)) *fn {
	return &fn{def: tool.Definition{Name: name, Pool: pool, Effect: tool.Pure}, run: run}
}

func once(name string, run func(ctx context.Context, c tool.Call) (string, error)) *fn {
	return &fn{def: tool.Definition{Name: name, Effect: tool.Once}, run: run}
}

// says is a tool's function that gives the text.
func says(text string) func(context.Context, tool.Call) (string, error) {
	return func(context.Context, tool.Call) (string, error) { return text, nil }
}

// rig is a bench on which actors run. Nobody plans or observes but the test.
type rig struct {
	*workertest.Bench
	specs []events.ToolSpec
}

func bubble(t *testing.T, test func(t *testing.T, r *rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { test(t, &rig{Bench: workertest.New(t, simtest.Options{}, nil)}) })
}

// spawn runs an actor with the tools on a process of its own until the test ends.
func (r *rig) spawn(tools []tool.Tool, change ...func(*actor.Config)) *simtest.Process {
	r.T.Helper()
	p, _ := r.run(tools, change...)
	return p
}

// run is spawn for a test that stops the actor.
func (r *rig) run(tools []tool.Tool, change ...func(*actor.Config)) (p *simtest.Process, stop func()) {
	r.T.Helper()
	registry, err := toolset.New(tools...)
	require.NoError(r.T, err)
	p = r.Journal.NewProcess()
	cfg := actor.Config{
		Base: worker.Base{Instance: "1", Store: r.NewStore(p), Queue: p, Feed: p}, KV: p, Tools: registry, Blobs: p,
	}
	for _, c := range change {
		c(&cfg)
	}
	made, err := actor.New(cfg)
	require.NoError(r.T, err)
	if len(r.specs) == 0 {
		for _, pool := range registry.Pools() {
			r.specs = append(r.specs, actor.Specs(registry, pool)...)
		}
	}
	return p, r.GoOn(p, made.Run)
}

// plan opens a run and has it ask for the calls, each the name of a tool; their
// ids are c1, c2, …
func (r *rig) plan(names ...string) events.Run {
	r.T.Helper()
	start := reducertest.StartOf("do it", events.ModeTask)
	start.Tools = r.specs
	run := r.Start(start)
	reply := events.ToolCallReply{Confidence: 1}
	for i, name := range names {
		reply.Calls = append(reply.Calls, events.Call{ID: "c" + string(rune('1'+i)), Name: name, Arguments: "{}"})
	}
	if len(names) == 1 {
		r.Append(run, events.Planning, &events.LLMToolCall{ToolCallReply: reply})
	} else {
		r.Append(run, events.Planning, &events.LLMParallelToolCalls{ToolCallReply: reply})
	}
	return run
}

// outcome waits for the end of a single call and returns it.
func (r *rig) outcome(run events.Run) *events.ToolOutcome {
	r.T.Helper()
	r.AwaitState(run, events.Observing)
	all := r.Events(run)
	switch p := all[len(all)-1].Data.(type) {
	case *events.ToolSuccess:
		return p.Outcome
	case *events.ToolFailure:
		return p.Outcome
	}
	require.Fail(r.T, "no outcome", "%v", r.Types(run))
	return nil
}

// results waits for the end of a batch and returns its results by call.
func (r *rig) results(run events.Run) map[string]reducer.ToolResult {
	r.T.Helper()
	mem := r.AwaitState(run, events.Observing)
	all := map[string]reducer.ToolResult{}
	for _, result := range mem.ParallelResults {
		require.NotContains(r.T, all, result.ID, "a call has one result")
		all[result.ID] = result
	}
	return all
}

func quiet() { workertest.Quiet() }
