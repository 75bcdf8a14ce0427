package reducer

import (
	"slices"
	"strconv"
	"strings"

	"github.com/moorebus/moorebus/pkg/events"
)

// ViewMessage is one message for the model. Calls carry the provider's own
// ids, as does CallID.
type ViewMessage struct {
	Role    string        `json:"role"`
	Content string        `json:"content"`
	Calls   []events.Call `json:"calls,omitempty"`
	CallID  string        `json:"call_id,omitempty"`
	Name    string        `json:"name,omitempty"`
}

// SummaryIntro stands before a summary in what the model sees.
const SummaryIntro = "Summary of the tool calls so far: "

// View returns what the model is sent: the system prompt if there is one, then
// the conversation in order. Every call in it is followed by its result, a
// call without a result is left out, and the context window counts messages
// without ever parting a call from its result.
func View(mem *Memory) []ViewMessage {
	c := &mem.Control
	view := make([]ViewMessage, 0, 2*len(c.Turns)+2)
	if mem.SystemPrompt != "" {
		view = append(view, ViewMessage{Role: "system", Content: mem.SystemPrompt})
	}
	first := mem.windowStart()
	// Calls from before the window stand before it, but never before the task.
	at := max(first, min(1, len(c.Turns)))
	for _, t := range c.Turns[first:at] {
		view = mem.appendTurn(view, t)
	}
	view = mem.appendLoaded(view, c.Turns[first:])
	for _, t := range c.Turns[at:] {
		view = mem.appendTurn(view, t)
	}
	return view
}

// windowStart is the first turn within the context window, which counts the
// user's and the assistant's messages.
func (mem *Memory) windowStart() int {
	size := 0
	if r := mem.ReactContext; r != nil {
		size = r.ContextWindowSize
	}
	turns := mem.Control.Turns
	if size == 0 {
		return 0
	}
	count := 0
	for i := len(turns) - 1; i >= 0; i-- {
		if turns[i].Content == "" {
			continue // calls alone belong to the message before them
		}
		if count++; count == size {
			return i
		}
	}
	return 0
}

// appendLoaded shows the calls of the context that the window does not, each as
// a reply of its own.
func (mem *Memory) appendLoaded(view []ViewMessage, window []Turn) []ViewMessage {
	r := mem.ReactContext
	if r == nil || len(r.ToolCallIDs) == 0 {
		return view
	}
	shown := make(map[string]bool, len(r.ToolCallIDs))
	for _, t := range window {
		for _, id := range t.Calls {
			shown[id] = true
		}
	}
	for _, id := range r.ToolCallIDs {
		if !shown[id] {
			view = mem.appendTurn(view, Turn{Kind: TurnReply, Calls: []string{id}})
		}
	}
	return view
}

func (mem *Memory) appendTurn(view []ViewMessage, t Turn) []ViewMessage {
	switch t.Kind {
	case TurnUser, TurnNote, TurnPaged:
		return append(view, ViewMessage{Role: "user", Content: t.Content})
	case TurnSummary:
		return append(view, ViewMessage{Role: "user", Content: SummaryIntro + t.Content})
	}
	reply := ViewMessage{Role: "assistant", Content: t.Content}
	var results []ViewMessage
	for _, id := range t.Calls {
		record := mem.ToolCalls[id]
		if record == nil || record.Result == nil {
			continue
		}
		provider := id
		if record.ProviderID != "" {
			provider = record.ProviderID
		}
		reply.Calls = append(reply.Calls, events.Call{ID: provider, Name: record.Name, Arguments: record.Parameters})
		results = append(results, ViewMessage{Role: "tool", Content: record.Result.Text(), CallID: provider, Name: record.Name})
	}
	if reply.Content == "" && len(reply.Calls) == 0 {
		return view
	}
	return append(append(view, reply), results...)
}

// Observations returns the raw results of the run's calls, in the order in
// which the calls were made.
func Observations(mem *Memory) []string {
	all := make([]string, 0, len(mem.Control.CallOrder))
	for _, id := range mem.Control.CallOrder {
		if record := mem.ToolCalls[id]; record != nil && record.Result != nil {
			all = append(all, record.Result.Text())
		}
	}
	return all
}

// NameCall returns the name that the log gives to a provider's call id: the id
// itself where it is new, else `<id>~<k>` with the lowest k that is new. known
// are the run's calls ([Control.CallOrder]) and those of the same reply.
func NameCall(known []string, provider string) string {
	if provider != "" && !slices.Contains(known, provider) {
		return provider
	}
	base := provider
	if base == "" {
		base = "call"
	}
	for k := 1; ; k++ {
		if id := base + "~" + strconv.Itoa(k); !slices.Contains(known, id) {
			return id
		}
	}
}

// EstimateTokens estimates the tokens of a text as a quarter of its bytes,
// rounded up: the rule of thumb `bytes/4`.
func EstimateTokens(text string) int { return (len(text) + 3) / 4 }

// WorkingMemoryTokens estimates the size of working memory.
func WorkingMemoryTokens(mem *Memory) int {
	total := 0
	for _, entry := range mem.WorkingMemory {
		total += EntryTokens(entry)
	}
	return total
}

// EntryTokens estimates the size of one entry.
func EntryTokens(entry MemoryEntry) int {
	return EstimateTokens(strings.Join(entry.Tags, " ")) + EstimateTokens(entry.Value)
}
