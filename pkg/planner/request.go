package planner

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// request is what the model is asked, made from memory alone.
func request(mem *reducer.Memory) llm.Request {
	agent := &mem.Control.Agent
	view := reducer.View(mem)
	messages := make([]llm.Message, len(view))
	for i, m := range view {
		messages[i] = llm.Message{Role: llm.Role(m.Role), Content: m.Content, CallID: m.CallID, Name: m.Name}
		for _, c := range m.Calls {
			messages[i].Calls = append(messages[i].Calls, llm.Call{ID: c.ID, Name: c.Name, Arguments: c.Arguments})
		}
	}
	return llm.Request{
		Run: mem.RunID, Purpose: llm.PurposePlan, Model: model(mem), Messages: messages, Tools: offered(mem),
		Sampling: sampling(agent.LLM), OutputSchema: agent.OutputSchema, Settings: settings(agent.LLM),
		Replies: mem.Control.Replies, Observations: reducer.Observations(mem),
	}
}

// model resolves the model's name: by task type, else the default one, else
// the provider's own.
func model(mem *reducer.Memory) string {
	models := mem.Control.Agent.Models
	if name, ok := models[mem.TaskType]; ok {
		return name
	}
	return models["default"]
}

// offered are the tools that the model may call, by name.
func offered(mem *reducer.Memory) []llm.Tool {
	tools := make([]llm.Tool, 0, len(mem.Tools))
	for _, name := range slices.Sorted(maps.Keys(mem.Tools)) {
		if slices.Contains(mem.Blacklist, name) {
			continue
		}
		info := mem.Tools[name]
		tools = append(tools, llm.Tool{Name: name, Description: info.Description, Schema: json.RawMessage(info.Schema)})
	}
	return tools
}

func sampling(l events.LLM) llm.Sampling {
	return llm.Sampling{Temperature: l.Temperature, TopP: l.TopP, Seed: l.Seed, MaxTokens: l.MaxTokens, Stop: l.Stop}
}

// settings is the agent's llm block for providers that read more of it than the
// request has fields for.
func settings(l events.LLM) json.RawMessage {
	if len(l.Script) == 0 {
		return nil
	}
	data, err := json.Marshal(l)
	if err != nil {
		return nil // it came out of JSON, so it goes back in
	}
	return data
}

// estimate is the size of a request in tokens, by the bytes/4 rule.
func estimate(req llm.Request) int {
	total := 0
	for _, m := range req.Messages {
		total += reducer.EstimateTokens(m.Content)
		for _, c := range m.Calls {
			total += reducer.EstimateTokens(c.Name + c.Arguments)
		}
	}
	for _, t := range req.Tools {
		total += reducer.EstimateTokens(t.Name + t.Description + string(t.Schema))
	}
	return total
}

// overBudget reserves the call that is about to be made: it says which limit
// that would exceed, if any. Output is reserved where the agent bounds it.
func overBudget(mem *reducer.Memory, input int, now time.Time) (code, message string) {
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
	if b.MaxCostUSD > 0 && used.Cost >= b.MaxCostUSD {
		return "budget_cost", fmt.Sprintf("the budget of $%g is used up: $%g used", b.MaxCostUSD, used.Cost)
	}
	over, _ := reducer.OverWallTime(mem, now)
	return over.Code, over.Message
}

// streamer publishes a reply in the making.
type streamer struct {
	feed      journal.Feed
	run       events.Run
	messageID string
	offset    int
}

// Chunk is a part of a model's text on the chunk subject. Offset counts the
// bytes of the text before it; a chunk with offset 0 starts the text again.
type Chunk struct {
	MessageID string `json:"message_id"`
	Offset    int    `json:"offset"`
	Text      string `json:"text"`
}

func (s *streamer) chunk(c llm.Chunk) {
	if c.Kind == llm.ChunkToolCall {
		s.delta(c)
		return
	}
	if c.Kind != llm.ChunkText || c.Text == "" {
		return
	}
	data, err := json.Marshal(Chunk{MessageID: s.messageID, Offset: s.offset, Text: c.Text})
	if err != nil {
		return
	}
	s.offset += len(c.Text)
	// Nothing needs chunks to be correct, so a bus that is away loses them.
	_ = s.feed.PublishChunk(s.run, data)
}

// clean makes text from outside fit for the log: valid UTF-8, and not endless.
func clean(text string) string { return cleanTo(4000, text) }

// cleanTo is clean with a limit in bytes.
func cleanTo(limit int, text string) string {
	text = strings.ToValidUTF8(text, "\uFFFD")
	if len(text) <= limit {
		return text
	}
	cut := limit
	for cut > 0 && !utf8.RuneStart(text[cut]) {
		cut--
	}
	return text[:cut] + "…"
}
