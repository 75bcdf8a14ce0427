package agent

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/moorebus/moorebus/internal/approval"
	"github.com/moorebus/moorebus/internal/custom"
	"github.com/moorebus/moorebus/internal/host"
	"github.com/moorebus/moorebus/internal/toolset"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/moorebus/moorebus/pkg/tool"
)

// Work is what a [Handler] works with. It is valid until the handler returns.
type Work struct {
	// Memory is a copy of the run's memory.
	Memory *Memory
	// Tools are the run's tools.
	Tools *Tools
	// Model is the run's model. What a request leaves empty is that of the run: an empty
	// request asks what planning would ask. A run whose budget is used up gets an error.
	// The usage of these calls is not in the log; put it into the event to keep it.
	Model llm.Caller
	// CallID names the tool call that is to be made, in acting and parallel_acting.
	CallID string

	visit custom.Visit
	say   func(text string)
}

// newWork returns the work of a visit. end ends its live text.
func newWork(h *host.Host, tools *toolset.Registry, v custom.Visit) (w *Work, end func()) {
	say, end := h.Speak(v.Run)
	return &Work{
		Memory: v.Memory, Model: h.Model(v.Memory), CallID: v.CallID, visit: v, say: say,
		Tools: &Tools{visit: v, registry: tools, agent: v.Memory.Control.Agent.Name, policies: approval.New()},
	}, end
}

// Output sends live text to everyone who watches the run, see [LLMToken]. Who begins to watch later gets
// it from its beginning. It does not wait, is best effort, leaves nothing in the log, and does nothing
// after the handler has returned.
func (w *Work) Output(text string) { w.say(text) }

// Next does the own work of a built-in state and returns its event, for a handler that wraps
// it. It may be called once. After an error, such as that of a model that is to be asked
// again later, the handler returns the error.
func (w *Work) Next() (events.Payload, error) { return w.visit.Next() }

// Tools calls the tools of a run for a [Handler].
type Tools struct {
	visit    custom.Visit
	registry *toolset.Registry
	agent    string
	policies *approval.Policies

	mu    sync.Mutex
	calls int
}

// Names returns the names of the run's tools, sorted, without those of its blacklist.
func (t *Tools) Names() []string {
	var names []string
	for name := range t.visit.Memory.Tools {
		if !slices.Contains(t.visit.Memory.Blacklist, name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// Call calls a tool of this process and returns its result. The error is a *[tool.Failure].
// The call is not in the log, and it happens again if the handler is called again, under the
// same idempotency key if the handler makes the same calls in the same order. So only the
// run's own tools that are pure or idempotent and need no approval may be called.
func (t *Tools) Call(ctx context.Context, name, arguments string) (string, error) {
	t.mu.Lock()
	t.calls++
	mem := t.visit.Memory
	id := fmt.Sprintf("%s-%d-%d", mem.State, mem.Control.Armed, t.calls)
	t.mu.Unlock()
	info, known := mem.Tools[name]
	def, here := t.registry.Lookup(name)
	switch {
	case !known, slices.Contains(mem.Blacklist, name), !here:
		return "", tool.Failf(tool.CodeNotFound, "the handler cannot call %q: it is no tool of the run in this process", name)
	case !def.Definition().Effect.Repeatable():
		return "", tool.Failf("not_repeatable", "the handler cannot call %q: it must not run twice, so only the model may call it", name)
	}
	reason, asks, err := t.policies.Required(mem.Control.Agent.Approval, events.Call{ID: id, Name: name, Arguments: arguments}, info, mem.RunID)
	if err != nil || asks {
		return "", tool.Failf("needs_approval", "the handler cannot call %q: a human has to approve it (%s)", name, reason)
	}
	out := t.registry.Execute(ctx, tool.Call{Run: mem.RunID, ID: id, Name: name, Arguments: arguments})
	if out.Failure != nil {
		return "", out.Failure
	}
	return out.Result, nil
}
