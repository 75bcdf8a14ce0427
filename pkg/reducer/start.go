package reducer

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"github.com/moorebus/moorebus/pkg/events"
)

var startRules = []rule{
	{
		typ: events.TypeStart, moves: []move{{events.Idle, events.Planning}}, from: own,
		check: checkStart, legality: 4, fold: foldStart,
		ways: only(plain(events.Planning), nobody),
		route: func(_ *Memory, p events.Payload) (events.State, string) {
			if p.(*events.Start).Queued {
				return events.Nobody, events.DefaultPool
			}
			return events.Planning, events.DefaultPool
		},
		form: func(_ *Memory, e *events.Event) int {
			p := e.Data.(*events.Start)
			return startSince(p)
		},
		trace: traced(func(p *events.Start) string { return events.Shown(p.Task, p.Parts) }),
	},
	{
		// Where a fork leads its parent's memory says, see [Machine.checkFork].
		typ: events.TypeForked, from: own, ways: anyRedrive, route: forkRoute,
		check: func(_ *Memory, e *events.Event) error {
			p := e.Data.(*events.Forked)
			return checkTools(p.Agent, p.Tools)
		}, legality: 3,
		steps: forkSteps, fold: foldForked,
		form: func(_ *Memory, e *events.Event) int {
			p := e.Data.(*events.Forked)
			return max(modelsSince(p.Agent), toolsSince(p.Tools), providerToolsSince(p.Agent))
		},
		trace: traced(func(f *events.Forked) string { return "forked from " + f.Run + " at " + strconv.FormatUint(f.At, 10) }),
	},
	{
		typ: events.TypeHandedOff, stays: true, in: []events.State{events.Acting}, from: own, agents: true,
		ways:  only(Edge{To: events.Nobody, Pool: events.AgentsPool}),
		route: func(*Memory, events.Payload) (events.State, string) { return events.Nobody, events.AgentsPool },
		check: checkHandOff, legality: 3, fold: foldHandedOff,
		form: func(_ *Memory, e *events.Event) int {
			p := e.Data.(*events.HandedOff)
			return max(modelsSince(&p.Agent), toolsSince(p.Tools), providerToolsSince(&p.Agent))
		},
		trace: traced(func(h *events.HandedOff) string { return "to " + h.Agent.Name + " " + h.Reason }),
	},
}

// modelsSince is the revision that brought the form of an agent's models.
func modelsSince(a *events.Agent) int {
	if a == nil || a.PlainModels() {
		return 1
	}
	return 4
}

// providerTools is the revision that brought tools which the model's provider carries out. An
// older build would ask the model without them.
const providerTools = 7

// providerToolsSince is the revision that brought the form of an agent's tools of its provider.
func providerToolsSince(a *events.Agent) int {
	if a != nil && len(a.ProviderTools) > 0 {
		return providerTools
	}
	return 1
}

// startSince is the revision that brought the form of a start.
func startSince(p *events.Start) int {
	return max(queueSince(p), toolsSince(p.Tools), providerToolsSince(&p.Agent))
}

// queueSince is the revision that brought the form of a queued start.
func queueSince(p *events.Start) int {
	if p.Queued || p.Priority != "" {
		return 6
	}
	return 1
}

func checkStart(_ *Memory, e *events.Event) error {
	p := e.Data.(*events.Start)
	if p.Mode != events.ModeTask && p.Mode != events.ModeChat {
		return fmt.Errorf("mode %q is neither task nor chat", p.Mode)
	}
	if !p.Priority.Valid() {
		return fmt.Errorf("priority %q is not high, normal or low", p.Priority)
	}
	return checkTools(&p.Agent, p.Tools)
}

func foldStart(mem *Memory, e *events.Event) {
	p := e.Data.(*events.Start)
	mem.Task, mem.TaskType, mem.Mode = p.Task, p.TaskType, p.Mode
	if mem.TaskType == "" {
		mem.TaskType = "default"
	}
	mem.pin(p.Agent, p.AgentHash, p.Tools)
	mem.Control.StorageAgent = p.Agent.Name
	mem.Started = e.Time
	mem.Control.TableHash, mem.Control.Parent, mem.Control.TraceParent = p.TableHash, p.Parent, e.TraceParent
	mem.Control.Labels = p.Labels
	if p.Queued {
		mem.Control.Admission = &Admission{Queued: true, Priority: p.Priority}
	}
	for key, value := range p.Custom {
		mem.Keep(key, value)
	}
	mem.addUser(e, cmp.Or(p.MessageID, e.ID), p.Task, p.Parts)
	mem.openContext(e)
}

// pin makes the definition and the tools those of the run.
func (mem *Memory) pin(a events.Agent, hash string, tools []events.ToolSpec) {
	mem.SystemPrompt, mem.Config, mem.Budget = a.SystemPrompt, a.Config, a.Budget
	mem.Blacklist = append([]string{}, a.Blacklist...)
	mem.Tools = make(map[string]ToolInfo, len(tools))
	for _, t := range tools {
		mem.Tools[t.Name] = ToolInfo{
			Description: t.Description, Schema: schemaText(t.Schema), Effect: t.Effect, Pool: t.Pool, Risk: t.Risk, Asks: t.Asks,
			Client: t.Client, Timeout: t.Timeout, Approval: t.Approval,
		}
	}
	c := &mem.Control
	c.Agent, c.AgentHash = a, hash
	mem.settings = nil
	mem.beginText()
	// What memory shows under its own names need not stand here twice.
	c.Agent.SystemPrompt, c.Agent.Blacklist = "", nil
}

// schemaText is a schema as its event's body has it: without white space, and
// empty where there is none. What was drafted and what was read fold alike.
func schemaText(schema json.RawMessage) string {
	var b bytes.Buffer
	if json.Compact(&b, schema) != nil || b.String() == "null" {
		return ""
	}
	return b.String()
}

func (mem *Memory) openContext(e *events.Event) {
	mem.forgetInternal(nil)
	mem.ReactContext = &ReactContext{
		ContextWindowSize: mem.Config.ContextWindowSize, ToolCallIDs: []string{}, StartedAt: e.Time,
	}
}

// checkHandOff says whether a call may have the run go over to another agent: it is
// the last one of its reply, so that no agent's call goes out under another one.
func checkHandOff(mem *Memory, e *events.Event) error {
	p := e.Data.(*events.HandedOff)
	call, err := mem.openCall(p.CallID)
	switch {
	case err != nil:
		return err
	case mem.Control.Batch || len(mem.Control.Queued) > 0:
		return errors.New("is asked for beside other calls")
	case !call.Delegated():
		return errors.New("is asked for by a call of another pool")
	case call.HandedOff:
		return errors.New("stands there twice")
	case p.Agent.Name == "" || p.AgentHash == "":
		return errors.New("names no agent")
	}
	return checkTools(&p.Agent, p.Tools)
}

// foldHandedOff makes another agent's definition that of the run. The conversation, the
// memory and its storage, the counts, the mode, the budget and how deep agents may
// call agents stay the run's. The safety cap is the new agent's and counts from
// here, so that it never ends the run before the new agent's max_steps do: steps go
// on, and each hand-off takes one.
func foldHandedOff(mem *Memory, e *events.Event) {
	p := e.Data.(*events.HandedOff)
	budget, depth := mem.Budget, mem.Config.MaxDepth
	mem.pinAnother(p.Agent, p.AgentHash, p.Tools)
	mem.Budget, mem.Config.MaxDepth = budget, depth
	mem.Control.SinceUser.Changes = 0
	mem.Call(p.CallID).HandedOff = true
}

// pinAnother is pin in the middle of a loop, whose context is made what it would be
// under the new definition: its window, and which calls belong to it.
func (mem *Memory) pinAnother(a events.Agent, hash string, tools []events.ToolSpec) {
	window, text := mem.Config.ContextWindowSize, mem.speaksText()
	mem.pin(a, hash, tools)
	r := mem.ReactContext
	if r == nil {
		return
	}
	if mem.Config.ContextWindowSize != window {
		r.ContextWindowSize = mem.Config.ContextWindowSize
		r.changeEdits(func(e *Edit) { e.Widened = 0 })
	}
	switch {
	case mem.speaksText() && !text:
		// The window alone decides; what was said of shown calls goes with them.
		r.ContextWindowSize, r.ToolCallIDs, r.Edits = mem.Config.ContextWindowSize, []string{}, nil
		mem.forgetInternal(nil)
	case text && !mem.speaksText():
		mem.addCallsToContext(mem.loopCalls())
	}
}

// loopCalls are the calls that the model made in the current loop, as far as no
// summary stands for them.
func (mem *Memory) loopCalls() []string {
	var ids []string
	for _, t := range mem.Control.Turns {
		for _, id := range t.Calls {
			if record := mem.ToolCalls[id]; record != nil && !record.Timestamp.Before(mem.ReactContext.StartedAt) {
				ids = append(ids, id)
			}
		}
	}
	return ids
}
