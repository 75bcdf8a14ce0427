package subagent_test

import (
	"context"
	"encoding/json"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/agentfile"
	"github.com/moorebus/moorebus/internal/agentstore"
	"github.com/moorebus/moorebus/internal/control"
	"github.com/moorebus/moorebus/internal/host"
	"github.com/moorebus/moorebus/internal/journaltest/simtest"
	"github.com/moorebus/moorebus/internal/runid"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/internal/subagent"
	"github.com/moorebus/moorebus/internal/toolset"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/moorebus/moorebus/pkg/llm/scripted"
	"github.com/moorebus/moorebus/pkg/reducer"
	"github.com/moorebus/moorebus/pkg/tool"
)

// rig is an installation in virtual time: every role in one process that can be
// killed, on a log that outlives it.
type rig struct {
	t       *testing.T
	journal *simtest.Journal
	options host.Options
	tools   []subagent.Tool

	host    *host.Host
	process *simtest.Process
	stop    func()
	// asked counts the calls of the tool `work`.
	mu    sync.Mutex
	asked int
}

// bubble runs a test with agents that can be called.
func bubble(t *testing.T, tools []subagent.Tool, test func(t *testing.T, r *rig)) {
	t.Helper()
	bubbleOn(t, simtest.Options{}, tools, test)
}

// bubbleOn is bubble on a log of one's own.
func bubbleOn(t *testing.T, o simtest.Options, tools []subagent.Tool, test func(t *testing.T, r *rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := &rig{t: t, journal: simtest.New(o), tools: tools}
		registry, err := toolset.New(worker{r, "work", "default"}, worker{r, "web", "web"})
		require.NoError(t, err)
		r.options = host.Options{
			Providers: map[string]llm.Caller{"scripted": scripted.New()}, Tools: registry, Subagents: tools,
		}
		r.begin()
		defer func() { r.stop() }()
		test(t, r)
	})
}

// onceAfter has the process die right after the first append of such a record.
func onceAfter(wanted func(journal.Record) bool) func(simtest.Moment) bool {
	var once sync.Once
	return func(m simtest.Moment) (dies bool) {
		if m.Point == simtest.AfterAppend && wanted(m.Record) {
			once.Do(func() { dies = true })
		}
		return dies
	}
}

// worker is a tool that takes a minute.
type worker struct {
	r          *rig
	name, pool string
}

func (w worker) Definition() tool.Definition {
	return tool.Definition{Name: w.name, Pool: w.pool, Effect: tool.Pure, Risk: "high", Timeout: time.Hour}
}

func (w worker) Run(ctx context.Context, _ tool.Call) (string, error) {
	w.r.mu.Lock()
	w.r.asked++
	w.r.mu.Unlock()
	timer := time.NewTimer(time.Minute)
	defer timer.Stop()
	select {
	case <-timer.C:
		return "worked", nil
	case <-ctx.Done():
		return "", ctx.Err()
	}
}

// begin starts the process.
func (r *rig) begin() {
	r.t.Helper()
	r.beginOn(r.journal.NewProcess(), nil)
}

// beginOn starts it on a process of the log; change, if not nil, its options.
func (r *rig) beginOn(p *simtest.Process, change func(*host.Options)) {
	r.t.Helper()
	o := r.options
	o.Bus, o.Tombstones = p, p
	if change != nil {
		change(&o)
	}
	h, err := host.New(o)
	require.NoError(r.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- h.Run(ctx) }()
	r.host, r.process = h, p
	r.stop = func() {
		cancel()
		<-ended // a process that was killed ends as it can
	}
	r.wait(time.Second) // for what it announces
}

// kill ends the process at once, and starts another one after the time.
func (r *rig) kill(down time.Duration) {
	r.process.Kill()
	r.stop()
	r.wait(down)
	r.begin()
}

// wait lets virtual time pass, in the bubble.
func (r *rig) wait(d time.Duration) { time.Sleep(d) } // in the bubble

// define stores an agent whose model says what the script has.
func (r *rig) define(name, script string, change ...func(*events.Agent)) events.Agent {
	r.t.Helper()
	a := events.DefaultAgent()
	a.Name, a.LLM.Provider, a.LLM.Script = name, "scripted", json.RawMessage(script)
	a.Config.ReflectEveryNSteps = 0
	a.Tools = []string{"work", "web"}
	for _, t := range r.tools {
		a.Tools = append(a.Tools, t.Definition().Name)
	}
	for _, c := range change {
		c(&a)
	}
	require.NoError(r.t, agentstore.Put(r.t.Context(), r.journal, "default", name, agentfile.Marshal(a)))
	return a
}

// start starts a run of a stored agent.
func (r *rig) start(name string) events.Run {
	r.t.Helper()
	started, err := r.host.Gateway().Start(r.t.Context(), "", control.StartRequest{AgentName: name, Task: "Do it."})
	require.NoError(r.t, err)
	return events.NewRun("default", started.RunID, 1)
}

// memory is the run's as the log has it.
func (r *rig) memory(run events.Run) *reducer.Memory {
	r.t.Helper()
	fold, err := runlog.FoldAt(r.t.Context(), r.journal, reducer.NewMachine(reducer.MachineOptions{}), run, 1<<60)
	require.NoError(r.t, err)
	return fold.Memory()
}

// child is the run that answers a call.
func child(run events.Run, call string) events.Run {
	return events.NewRun(run.Namespace, runid.Child(run.ID, call), 1)
}

// ends waits for the run's end, up to a time.
func (r *rig) ends(run events.Run, within time.Duration) *reducer.Memory {
	r.t.Helper()
	table := reducer.DefaultTable()
	for began := time.Now(); ; r.wait(time.Second) {
		mem := r.memory(run)
		if table.Terminal(mem.State) {
			return mem
		}
		require.Less(r.t, time.Since(began), within, "the run is in %s: %v", mem.State, mem.Trace)
	}
}

// result is what a call of the run came to.
func result(t *testing.T, mem *reducer.Memory, call string) string {
	t.Helper()
	require.Contains(t, mem.ToolCalls, call)
	require.NotNil(t, mem.ToolCalls[call].Result, "%s has no result", call)
	return mem.ToolCalls[call].Result.Text()
}

// code is that of a call's result.
func code(mem *reducer.Memory, call string) string {
	for _, h := range mem.History {
		if h.Tool.ID == call {
			return h.Code
		}
	}
	return ""
}

const (
	asksHelper = `[{"calls":[{"name":"helper","arguments":{"task":"help"}}]},{"text":"Helped: {{observation -1}}"}]`
	answers    = `[{"text":"Here is help.","usage":{"input":30,"output":12}}]`
	works      = `[{"calls":[{"name":"work"}]},{"text":"The work is done."}]`
)

var helper = []subagent.Tool{{Agent: "helper"}}
