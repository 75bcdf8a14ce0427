package llm

import (
	"iter"
	"strings"
)

// Thought is a thinking pass under the text protocol: words for the thinking log, and
// the state that the model chose.
type Thought struct {
	Meta
	Content string
	// NextState is thinking or executing.
	NextState string
	// Note says why NextState differs from what the model wrote, or is empty.
	Note string
}

// Invalid is a reply that cannot be read. Content is the reply, byte for byte. Reason
// tells the model what was expected, and where.
type Invalid struct {
	Meta
	Content string
	Reason  string
}

func (Thought) isResponse() {}
func (Invalid) isResponse() {}

// Memory is what the text protocol shows in addition to the conversation. Other callers
// ignore it.
type Memory struct {
	// State is thinking or executing. Any other state counts as thinking, and the
	// reply's note says so.
	State string
	// Entries are working memory, oldest first.
	Entries []MemoryEntry
	// Thoughts are the thinking log, oldest first.
	Thoughts []LogEntry
	// Prompts are the agent's own, by state. The prompt for both states is under base.
	Prompts map[string]string
}

// MemoryEntry is an entry of working memory.
type MemoryEntry struct {
	Tags  []string
	Value string
}

// LogEntry is an entry of the thinking log.
type LogEntry struct {
	Name    string
	Content string
}

// Chunks returns the chunks of a complete reply: each part of its reasoning that can be
// read, its text word by word, then each call with its name and all of its arguments. The
// ChunkText texts together are the reply's text. Callers with ready replies (scripted, recorded) stream with it.
func Chunks(r Response) iter.Seq[Chunk] {
	text, calls := parts(r)
	return func(yield func(Chunk) bool) {
		for _, part := range r.About().Reasoning {
			if part.Text != "" && !yield(Chunk{Kind: ChunkReasoning, Text: part.Text}) {
				return
			}
		}
		for word := range strings.SplitAfterSeq(text, " ") {
			if word != "" && !yield(Chunk{Kind: ChunkText, Text: word}) {
				return
			}
		}
		for i, c := range calls {
			if !yield(Chunk{Kind: ChunkToolCall, Index: i, Name: c.Name, Text: c.Arguments}) {
				return
			}
		}
	}
}

func parts(r Response) (text string, calls []Call) {
	switch r := r.(type) {
	case Text:
		return r.Content, nil
	case ToolCalls:
		return r.Content, r.Calls
	case Structured:
		return r.Content, nil
	}
	return "", nil
}

// Price is what a model costs, in US dollars for a million tokens. Input that
// was read from the provider's cache costs CachedInput.
type Price struct {
	Input       float64
	CachedInput float64
	Output      float64
}

// Cost returns what the tokens cost, in US dollars.
func (p Price) Cost(u Usage) float64 {
	cached := min(max(u.Cached, 0), u.Input)
	return (float64(u.Input-cached)*p.Input + float64(cached)*p.CachedInput + float64(u.Output)*p.Output) / 1e6
}

// Prices returns the price of a model, or false if it is unknown. Provider is the name
// that agents use.
type Prices interface {
	Price(provider, model string) (Price, bool)
}
