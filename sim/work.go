package sim

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"time"

	"github.com/moorebus/moorebus/internal/journaltest/simtest"
	"github.com/moorebus/moorebus/internal/toolset"
	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/moorebus/moorebus/pkg/llm/scripted"
	"github.com/moorebus/moorebus/pkg/tool"
)

// The crash points of what happens outside of the log.
const (
	beforeEffect = "before-effect"
	afterEffect  = "after-effect"
)

var anyObject = json.RawMessage(`{"type":"object"}`)

// toolDefinitions are of every class and in three pools.
var toolDefinitions = []tool.Definition{
	{Name: "look", Effect: tool.Pure, Pool: "default", Schema: anyObject},
	{Name: "fetch", Effect: tool.Idempotent, Pool: "web", Schema: anyObject},
	{Name: "pay", Effect: tool.Once, Pool: "web", Risk: "high", Schema: anyObject},
	{Name: "mail", Effect: tool.Once, Pool: "default", Risk: "medium", Schema: anyObject},
	{Name: "broken", Effect: tool.Pure, Pool: "default", Schema: anyObject},
	{Name: "panics", Effect: tool.Once, Pool: "math", Schema: anyObject},
	{Name: "slow", Effect: tool.Idempotent, Pool: "web", Schema: anyObject},
	{Name: "sum", Effect: tool.Pure, Pool: "math", Schema: anyObject},
	{Name: "ask", Effect: tool.Pure, Pool: "default", Schema: anyObject, Asks: true},
	{Name: "forbidden", Effect: tool.Once, Pool: "math", Schema: anyObject},
}

var errGone = errors.New("the process is dead")

// simulatedTool takes its time and is counted.
type simulatedTool struct {
	p   *process
	def tool.Definition
}

func (s simulatedTool) Definition() tool.Definition { return s.def }

func (s simulatedTool) Run(ctx context.Context, c tool.Call) (string, error) {
	if !s.p.reaches(beforeEffect, c.Run, c.ID) {
		return "", errGone
	}
	s.p.w.executed(s.def, c)
	s.p.w.ran.begin(c.IdempotencyKey(), s.p)
	defer s.p.w.ran.begin(c.IdempotencyKey(), nil)
	long := s.p.w.part(3*time.Second, "tool", c.Run, c.ID)
	if c.Name == "slow" {
		long += 20 * time.Second
	}
	if !s.p.waits(ctx, long) {
		return "", errGone
	}
	if !s.p.reaches(afterEffect, c.Run, c.ID) {
		return "", errGone
	}
	switch c.Name {
	case "broken":
		return "", errors.New("it is broken")
	case "panics":
		panic("it panics")
	}
	return "result of " + c.ID, nil
}

func (p *process) tools() *toolset.Registry {
	var all []tool.Tool
	for i, def := range toolDefinitions {
		if p.spec.Half > 0 && i%2 == p.spec.Half-1 {
			continue
		}
		if len(p.spec.Pools) == 0 || contains(p.spec.Pools, def.Pool) {
			all = append(all, simulatedTool{p, def})
		}
	}
	registry, err := toolset.New(append(all, p.memoryTools()...)...)
	p.w.require(err)
	return registry
}

// model answers from the run's script, in its own time.
func (p *process) model(ctx context.Context, req llm.Request, stream func(llm.Chunk)) (llm.Response, error) {
	if !p.reaches(beforeEffect, req.Run, req.Replies) {
		return nil, errGone
	}
	if !p.waits(ctx, 100*time.Millisecond+p.w.part(2*time.Second, "model", req.Run, req.Replies)) {
		return nil, errGone
	}
	var reply llm.Response
	var err error
	if req.Purpose == llm.PurposeReflect {
		reply, err = p.w.reflection(req)
	} else {
		reply, err = p.w.scripts.Call(ctx, req, stream)
	}
	if !p.reaches(afterEffect, req.Run, req.Replies) {
		return nil, errGone
	}
	return reply, err
}

// reflection fails now and then.
func (w *world) reflection(req llm.Request) (llm.Response, error) {
	if simtest.Chance(w.scenario.Seed, "reflection", req.Run, req.Replies) < 0.3 {
		return nil, &llm.Error{Kind: llm.KindOverloaded, Message: "not now"}
	}
	return llm.Text{Meta: llm.Meta{Confidence: 1}, Content: "It was like this."}, nil
}

// reaches reports whether the process is alive at an effect, and gets past it.
func (p *process) reaches(point, run string, what any) bool {
	if !p.alive() {
		return false
	}
	if !p.w.scenario.CrashBatches && p.w.strikes(point, run, what, 0) {
		p.sim.Kill()
		return false
	}
	return true
}

// waits reports whether the process lives on for the time, and ctx too.
func (p *process) waits(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return p.alive()
	case <-ctx.Done():
	case <-p.sim.Dead():
	}
	return false
}

func (p *process) alive() bool {
	select {
	case <-p.sim.Dead():
		return false
	default:
		return true
	}
}

// executions counts what the tools did, by run and call.
type executions struct {
	mu    sync.Mutex
	count map[string]int
	// by is who executes a call now.
	by map[string]*process
}

func (x *executions) begin(key string, p *process) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.by[key] = p
}

func (x *executions) inWork(key string) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.by[key] != nil && x.by[key].alive()
}

// kill ends the process that executes a call.
func (x *executions) kill(key string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if p := x.by[key]; p != nil {
		p.sim.Kill()
	}
}

func (x *executions) add(key string) int {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.count[key]++
	return x.count[key]
}

func (x *executions) of(key string) int {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.count[key]
}

// executed counts an execution. A tool that must not run twice does so only
// after a human said so.
func (w *world) executed(def tool.Definition, c tool.Call) {
	w.audit.allowed(def, c)
	times := w.ran.add(c.IdempotencyKey())
	if most := 1 + w.audit.repeats(c.Run, c.ID); def.Effect == tool.Once && times > most {
		w.audit.violate(c.Run, "once", "%s %s of run %s was executed %d times", c.Name, c.ID, c.Run, times)
	}
	if c.Name == "forbidden" {
		w.audit.violate(c.Run, "blacklist", "%s was executed, which is blacklisted", c.Name)
	}
}

func newScripts() llm.Described { return scripted.New() }
