package sim

import (
	"context"
	"encoding/json"
	"time"

	"github.com/moorebus/moorebus/internal/agentfile"
	"github.com/moorebus/moorebus/internal/agentstore"
	"github.com/moorebus/moorebus/internal/feature/schedules"
	"github.com/moorebus/moorebus/internal/runid"
	"github.com/moorebus/moorebus/internal/subagent"
	"github.com/moorebus/moorebus/internal/worker"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// Agents that are called as tools, and what must hold of the runs that answer.

const roleSubagent = "subagent"

// agentTools are the agents that simulated runs can call; agentScripts is what their
// models say.
var agentTools = []subagent.Tool{
	{Agent: "helper"}, {Agent: "chief"}, {Agent: "loser"}, {Agent: "endless", Timeout: 40 * time.Second, Risk: "high"}, {Handoff: "heir"},
}

var agentScripts = map[string][]scriptEntry{
	"helper":  {calls("look"), {"text": lastWords, "usage": map[string]int{"input": 20, "output": 10}}},
	"chief":   {calls("helper", "sum", "loser"), calls("helper"), {"text": lastWords}},
	"loser":   {failing("auth")},
	"endless": {calls("slow")},
	"heir":    heirs(),
}

var agentNames = []string{"helper", "chief", "loser", "endless"}

const handsOver = "transfer_to_heir"

// heirs is what a model says that continues in a conversation, after however many
// replies: something to be paid for, and its last words.
func heirs() []scriptEntry {
	var all []scriptEntry
	for range 30 {
		all = append(all, calls("pay"), scriptEntry{"text": lastWords})
	}
	return all
}

// subagents is the role in one of the processes.
func (p *process) subagents(base worker.Base) (*subagent.Subagents, error) {
	return subagent.New(subagent.Config{
		Base: base, KV: p.sim, Timers: p.sim, Blobs: p.sim,
		Tools: agentTools, Validator: validator, CheckApproval: policies.Check, Approval: policies,
	})
}

// storeAgents stores the definitions of the agents that can be called.
func (w *world) storeAgents(ctx context.Context) {
	for name, entries := range agentScripts {
		a := events.DefaultAgent()
		a.Name, a.LLM.Provider = name, "scripted"
		a.Config.ReflectEveryNSteps = 0
		if name == "endless" {
			approveAlways(&a) // and nobody does
		}
		a.Tools = []string{"look", "sum", "slow", "pay", "helper", "loser"}
		var err error
		a.LLM.Script, err = json.Marshal(append(entries[:len(entries):len(entries)], scriptEntry{"text": lastWords}, scriptEntry{"text": lastWords}))
		w.require(err)
		w.require(agentstore.Put(ctx, w.journal, events.DefaultNamespace, name, agentfile.Marshal(a)))
	}
}

// awaitSubruns waits until every run that answers a call or that a schedule started has ended: at
// the latest its timer ends one that nobody waits for any more.
func (w *world) awaitSubruns(ctx context.Context) {
	for ctx.Err() == nil && w.audit.violation() == nil {
		going := w.audit.subruns()
		if len(going) == 0 {
			return
		}
		sleep(ctx, 5*time.Second)
	}
	for _, id := range w.audit.subruns() {
		v := w.audit.view(id)
		w.audit.violate(id, "sub-runs", "after %s the sub-run is in %s at event %d", patience, v.state, v.n)
	}
}

// subruns are the runs that no person started and that have not ended.
func (a *auditor) subruns() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	var going []string
	for id, r := range a.runs {
		if (r.mem.Control.Parent != nil || r.mem.Custom[schedules.OriginKey] != nil) && !a.terminal(r) {
			going = append(going, id)
		}
	}
	return going
}

// waiters checks the run's calls that wait for others, and its parent's if it has one:
// whoever waits has a sub-run that continues, or whose end is about to be delivered.
func (a *auditor) waiters(r *auditedRun) {
	a.waiting(r)
	if p := r.mem.Control.Parent; p != nil {
		a.waiting(a.run(p.Run))
	}
}

func (a *auditor) waiting(r *auditedRun) {
	if a.terminal(r) || r.mem.Control.Poison != nil {
		return
	}
	for i := range r.mem.Control.Calls {
		call := &r.mem.Control.Calls[i]
		if !call.Waits() {
			continue
		}
		subrun := a.runs[runid.Child(r.mem.RunID, call.ID)]
		switch {
		case subrun == nil || subrun.mem.N == 0:
			a.note(r.mem.RunID, "sub-runs", "call %s waits for a run that is not there", call.ID)
		case a.terminal(subrun) && !subrun.lost && subrun.open[subrun.mem.N] == "":
			a.note(r.mem.RunID, "sub-runs", "call %s waits for run %s, whose end was taken and not answered", call.ID, subrun.mem.RunID)
		}
	}
}

// answeredBy reports whether a call's result is that of a run which is done.
func (a *auditor) answeredBy(record *reducer.ToolCallRecord) bool {
	return record.Name == handsOver || record.Run != "" && a.run(record.Run).mem.State == events.Done
}

func failing(kind string) scriptEntry { return scriptEntry{"error": map[string]string{"kind": kind}} }

func approveAlways(a *events.Agent) { a.Approval = &events.Approval{Policy: events.ApproveAlways} }

func calls(names ...string) scriptEntry {
	all := make([]scriptEntry, len(names))
	for i, name := range names {
		all[i] = scriptEntry{"name": name, "arguments": map[string]int{"n": i}}
		if name == handsOver {
			delete(all[i], "arguments")
		}
		if contains(agentNames, name) {
			all[i]["arguments"] = map[string]string{"task": "Do a part of it."}
		}
	}
	return scriptEntry{"calls": all}
}
