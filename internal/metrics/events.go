package metrics

import (
	"cmp"

	"github.com/moorebus/moorebus/internal/codes"
	"github.com/moorebus/moorebus/internal/meter"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// chat is the operation's name by the GenAI conventions.
const chat = "chat"

// Appended counts an event that this process appended. mem is the run's memory before it. It
// is what runlog.Options.Appended wants: what follows from the log is counted from the log's
// own words, once for each event.
func (r *Registry) Appended(mem *reducer.Memory, e *events.Event) {
	agent := mem.Control.Agent.Name
	meter.Add(r, meter.Transitions, 1, string(e.From), string(e.To), string(e.Type()))
	switch p := e.Data.(type) {
	case *events.Start:
		agent = p.Agent.Name
		meter.Add(r, meter.Starts, 1, agent)
	case *events.Forked:
		meter.Add(r, meter.Starts, 1, agent)
	case *events.ToolSuccess:
		r.call(mem, p.Outcome)
	case *events.ToolFailure:
		r.call(mem, p.Outcome)
	case *events.ToolCallResult:
		r.call(mem, &p.ToolOutcome)
	case *events.LLMAttemptFailed:
		meter.Add(r, meter.Failures, 1, string(e.From), p.Kind)
	case *events.BudgetExceeded:
		meter.Add(r, meter.OverBudget, 1)
	case *events.Resumed:
		if p.Redrive {
			meter.Add(r, meter.Stalls, 1, "redriven")
		}
	case *events.FatalError:
		switch {
		case p.Poison != events.Poison{}:
			meter.Add(r, meter.Poisoned, 1)
		case p.Code == codes.Stalled:
			meter.Add(r, meter.Stalls, 1, "ended")
		}
	}
	if e.From != e.To && terminal(e.To) {
		meter.Add(r, meter.Ends, 1, agent, string(e.To), string(e.Type()))
	}
	if used := events.Billed(e.Data); used != nil {
		r.reply(mem, e.Data, used)
	}
}

// terminal reports whether a run that is in the state has ended.
func terminal(s events.State) bool {
	return s == events.Done || s == events.Errored || s == events.Cancelled
}

// call counts a call of a tool; nil: the event ends a batch.
func (r *Registry) call(mem *reducer.Memory, o *events.ToolOutcome) {
	if o == nil || o.CallID == "" {
		return
	}
	var name, pool string
	if call := mem.Call(o.CallID); call != nil {
		name, pool = call.Name, call.Pool
	} else if record := mem.ToolCalls[o.CallID]; record != nil {
		name = record.Name
	}
	meter.Add(r, meter.ToolTime, float64(max(0, o.LatencyMS))/1000, name, pool, o.Code)
}

// reply counts what a reply of a model used.
func (r *Registry) reply(mem *reducer.Memory, p events.Payload, used *events.Usage) {
	asked := events.Asked{Provider: mem.Control.Agent.LLM.Provider}
	if facts := events.FactsOf(p); facts != nil && facts.Asked != nil {
		asked = events.Asked{Provider: cmp.Or(facts.Asked.Provider, asked.Provider), Model: facts.Asked.Model}
	}
	asked.Provider = meter.ProviderName(asked.Provider)
	if used.Input > 0 || used.Output > 0 {
		meter.Add(r, meter.TokenUsage, float64(max(0, used.Input)), chat, asked.Provider, asked.Model, "input")
		meter.Add(r, meter.TokenUsage, float64(max(0, used.Output)), chat, asked.Provider, asked.Model, "output")
	}
	if used.Cached > 0 {
		meter.Add(r, meter.CachedTokens, float64(used.Cached), asked.Provider, asked.Model)
	}
	if used.CostUSD != nil && *used.CostUSD > 0 {
		meter.Add(r, meter.Cost, *used.CostUSD, asked.Provider, asked.Model)
	}
}
