package planner

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/moorebus/moorebus/internal/contextedit"
	"github.com/moorebus/moorebus/internal/effects"
	"github.com/moorebus/moorebus/internal/tokens"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// views are reused slices for views of memory.
var views = sync.Pool{New: func() any { return new([]reducer.ViewMessage) }}

// viewKept is the largest reused slice, in messages.
const viewKept = 256

// request returns the request to the model. It depends on memory alone.
func request(mem *reducer.Memory) llm.Request {
	agent := &mem.Control.Agent
	return llm.Request{
		Run: mem.RunID, Purpose: llm.PurposePlan, Model: model(mem), Messages: messages(mem), Tools: offered(mem),
		Sampling: sampling(agent.LLM), OutputSchema: agent.OutputSchema, Settings: mem.Settings(),
		Replies: mem.Control.Replies, Observations: observations(mem), Memory: textMemory(mem),
	}
}

// messages returns the conversation as the model sees it.
func messages(mem *reducer.Memory) []llm.Message {
	room := views.Get().(*[]reducer.ViewMessage)
	view := reducer.View((*room)[:0], mem)
	messages := make([]llm.Message, len(view))
	calls := make([]llm.Call, 0, len(view)/2) // each call has its result in the view
	for i := range view {
		m, before := &view[i], len(calls)
		messages[i] = llm.Message{
			Role: llm.Role(m.Role), Content: m.Content, CallID: m.CallID, Name: m.Name, Failed: m.Failed, Reasoning: m.Reasoning, Raw: m.Raw,
		}
		for _, c := range m.Calls {
			calls = append(calls, llm.Call{ID: c.ID, Name: c.Name, Arguments: c.Arguments})
		}
		if len(m.Calls) > 0 {
			messages[i].Calls = calls[before:len(calls):len(calls)]
		}
	}
	if cap(view) <= viewKept {
		clear(view[:cap(view)]) // what is not used holds no text
		*room = view
		views.Put(room)
	}
	return messages
}

// observations returns the raw results of the run's calls, in the order of the calls, for an
// agent whose script refers to them. They grow with the run.
func observations(mem *reducer.Memory) []string {
	if len(mem.Control.Agent.LLM.Script) == 0 {
		return nil
	}
	all := make([]string, 0, len(mem.Control.CallOrder))
	for _, id := range mem.Control.CallOrder {
		if record := mem.ToolCalls[id]; record != nil && record.Result != nil {
			all = append(all, record.Result.Text())
		}
	}
	return all
}

// model returns the model's name: by task type, else the default, else empty for the
// provider's own.
func model(mem *reducer.Memory) string {
	models := mem.Control.Agent.Models
	if name, ok := models[mem.TaskType]; ok {
		return name
	}
	return models["default"]
}

// offered returns the tools that the model may call, by name.
func offered(mem *reducer.Memory) []llm.Tool {
	tools := make([]llm.Tool, 0, len(mem.Tools))
	for _, name := range slices.Sorted(maps.Keys(mem.Tools)) {
		if slices.Contains(mem.Blacklist, name) {
			continue
		}
		info := mem.Tools[name]
		tools = append(tools, llm.Tool{Name: name, Description: info.Description, Schema: json.RawMessage(info.Schema)})
	}
	if contextedit.Offered(mem) {
		tools = append(tools, contextedit.Tools(mem)...)
	}
	return tools
}

func sampling(l events.LLM) llm.Sampling {
	return llm.Sampling{Temperature: l.Temperature, TopP: l.TopP, Seed: l.Seed, MaxTokens: l.MaxTokens, Stop: l.Stop, ThinkingTokens: l.ThinkingTokens}
}

// estimate is the size of a request in tokens, 0 where no budget asks for it.
func (p *Planner) estimate(mem *reducer.Memory, req llm.Request) int {
	if mem.Budget == nil {
		return 0
	}
	return estimate(p.cfg.Estimators.Or(mem.Config.TokenEstimator), req)
}

// estimate is the size of a request in tokens.
func estimate(count tokens.Estimator, req llm.Request) int {
	total := count(string(req.OutputSchema))
	for _, m := range req.Messages {
		total += count(m.Content) + count(string(m.Reasoning))
		for _, c := range m.Calls {
			total += count(c.Name + c.Arguments)
		}
	}
	for _, t := range req.Tools {
		total += count(t.Name + t.Description + string(t.Schema))
	}
	return total + estimateMemory(count, req.Memory)
}

// overBudget returns which limit the next call would exceed, if any. Output is reserved if
// the agent bounds it. cost is the price of that and the input, in US dollars.
func overBudget(mem *reducer.Memory, input int, cost float64, now time.Time) (code, message string) {
	b := mem.Budget
	if b == nil {
		return "", ""
	}
	used := mem.TotalUsage
	output := mem.Control.Agent.LLM.MaxTokens
	for _, limit := range []struct {
		name              string
		max, used, needed int
	}{
		{"input_tokens", b.MaxInputTokens, used.Input, input},
		{"output_tokens", b.MaxOutputTokens, used.Output, max(output, 1)},
		{"total_tokens", b.MaxTotalTokens, used.Total, input + output},
	} {
		if limit.max > 0 && limit.used+limit.needed > limit.max {
			return "budget_" + limit.name, fmt.Sprintf("the budget of %d %s is used up: %d used, the next call needs about %d",
				limit.max, strings.ReplaceAll(limit.name, "_", " "), limit.used, limit.needed)
		}
	}
	if b.MaxCostUSD > 0 && used.Cost+cost > b.MaxCostUSD || b.MaxCostUSD > 0 && used.Cost >= b.MaxCostUSD {
		return "budget_cost", fmt.Sprintf("the budget of $%g is used up: $%g used, the next call costs about $%g",
			b.MaxCostUSD, dollars(used.Cost), dollars(cost))
	}
	over, _ := effects.OverWallTime(mem, now)
	return over.Code, over.Message
}

// clean makes text from outside fit for the log: valid UTF-8 of bounded length.
func clean(text string) string { return contextedit.Clip(4000, text) }
