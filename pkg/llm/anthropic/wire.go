package anthropic

import (
	"bytes"
	"cmp"
	"encoding/json"

	"github.com/moorebus/moorebus/internal/llmhttp"
)

// The request and the reply as they go over the wire. The keys of a request stand
// in a fixed order, so that equal conversations have equal bytes.

type request struct {
	MaxTokens     int           `json:"max_tokens"`
	Messages      []message     `json:"messages"`
	Model         string        `json:"model"`
	OutputConfig  *outputConfig `json:"output_config,omitempty"`
	Temperature   *float64      `json:"temperature,omitempty"`
	TopP          *float64      `json:"top_p,omitempty"`
	StopSequences []string      `json:"stop_sequences,omitempty"`
	System        []block       `json:"system,omitempty"`
	Thinking      *thinking     `json:"thinking,omitempty"`
	ToolChoice    *toolChoice   `json:"tool_choice,omitempty"`
	Tools         []tool        `json:"tools,omitempty"`
	Stream        bool          `json:"stream,omitempty"`
}

type message struct {
	Content []block `json:"content"`
	Role    string  `json:"role"`
}

// block is a block of a message that is sent.
type block struct {
	ID           string          `json:"id,omitempty"`
	Input        json.RawMessage `json:"input,omitempty"`
	Name         string          `json:"name,omitempty"`
	Source       *source         `json:"source,omitempty"`
	Text         string          `json:"text,omitempty"`
	Title        string          `json:"title,omitempty"`
	ToolUseID    string          `json:"tool_use_id,omitempty"`
	IsError      bool            `json:"is_error,omitempty"`
	CacheControl *cacheControl   `json:"cache_control,omitempty"`
	Content      []block         `json:"content,omitempty"`
	Citations    json.RawMessage `json:"citations,omitempty"`
	Type         string          `json:"type"`
	// raw is sent in place of everything else: thinking goes back unchanged.
	raw json.RawMessage
}

// MarshalJSON writes the block.
func (b block) MarshalJSON() ([]byte, error) {
	if b.raw != nil {
		return b.raw, nil
	}
	type plain block
	return json.Marshal(plain(b))
}

// source is where an image or a document is.
type source struct {
	Data      string `json:"data,omitempty"`
	MediaType string `json:"media_type,omitempty"`
	Type      string `json:"type"`
	URL       string `json:"url,omitempty"`
}

type cacheControl struct {
	TTL  string `json:"ttl,omitempty"`
	Type string `json:"type"`
}

type thinking struct {
	BudgetTokens int    `json:"budget_tokens,omitempty"`
	Display      string `json:"display,omitempty"`
	Type         string `json:"type"`
}

type outputConfig struct {
	Effort string `json:"effort"`
}

type toolChoice struct {
	Name                   string `json:"name,omitempty"`
	DisableParallelToolUse bool   `json:"disable_parallel_tool_use,omitempty"`
	Type                   string `json:"type"`
}

type tool struct {
	InputSchema  json.RawMessage `json:"input_schema"`
	Name         string          `json:"name"`
	Description  string          `json:"description,omitempty"`
	CacheControl *cacheControl   `json:"cache_control,omitempty"`
	// raw is sent in place of everything else: a tool of the provider's own.
	raw json.RawMessage
}

// MarshalJSON writes the tool.
func (t tool) MarshalJSON() ([]byte, error) {
	if t.raw != nil {
		return t.raw, nil
	}
	type plain tool
	return llmhttp.JSON(plain(t)), nil
}

// answer is a message of the model.
type answer struct {
	Model   string `json:"model"`
	Content blocks `json:"content"`
	ending
	// Usage is nil where it is not stated.
	Usage *tokens `json:"usage"`
}

// used returns the usage, which may not be stated.
func (a answer) used() tokens {
	if a.Usage == nil {
		return tokens{}
	}
	return *a.Usage
}

// blocks is a message's content. Some servers write one text in place of the list, or
// texts in place of blocks.
type blocks []json.RawMessage

// UnmarshalJSON reads a list, or one element alone.
func (b *blocks) UnmarshalJSON(data []byte) error {
	all := []json.RawMessage{data}
	if data[0] == '[' {
		if err := json.Unmarshal(data, &all); err != nil {
			return err
		}
	}
	*b = nil
	for _, one := range all {
		switch {
		case string(one) == "null":
			continue
		case one[0] == '"':
			one = bytes.Join([][]byte{[]byte(`{"type":"text","text":`), one, []byte(`}`)}, nil)
		}
		*b = append(*b, bytes.Clone(one))
	}
	return nil
}

type ending struct {
	StopReason  string `json:"stop_reason"`
	StopDetails struct {
		Explanation string `json:"explanation"`
	} `json:"stop_details"`
}

// content is a block of the model's message, or a part of one.
type content struct {
	Type        string          `json:"type"`
	ID          string          `json:"id"`
	Name        string          `json:"name"`
	Input       json.RawMessage `json:"input"`
	Text        string          `json:"text"`
	Thinking    string          `json:"thinking"`
	Signature   string          `json:"signature"`
	PartialJSON string          `json:"partial_json"`
	// Summary is the text of a compaction.
	Summary json.RawMessage `json:"content"`
	// Citations are those of a block, and Citation one that is added to it.
	Citations json.RawMessage `json:"citations"`
	Citation  json.RawMessage `json:"citation"`
}

// event is one of a stream.
type event struct {
	Type    string          `json:"type"`
	Index   llmhttp.Number  `json:"index"`
	Message answer          `json:"message"`
	Block   json.RawMessage `json:"content_block"`
	Delta   struct {
		content
		ending
	} `json:"delta"`
	Usage tokens `json:"usage"`
}

// tokens is the usage; 0 where it is not stated. Input does not count what was
// written to the cache or read from it. Cost is in US dollars; some servers give it.
type tokens struct {
	Input   llmhttp.Number  `json:"input_tokens"`
	Written llmhttp.Number  `json:"cache_creation_input_tokens"`
	Read    llmhttp.Number  `json:"cache_read_input_tokens"`
	Output  llmhttp.Number  `json:"output_tokens"`
	Cost    *llmhttp.Number `json:"cost"`
	// Iterations are the passes that the provider made for the reply, such as one to compact
	// the conversation. The other counts do not include them.
	Iterations []tokens `json:"iterations"`
}

// none reports whether no tokens were used.
func (t tokens) none() bool { return t.Input+t.Written+t.Read+t.Output == 0 && len(t.Iterations) == 0 }

// billed is all that the reply used: the sum of its passes, if they are listed.
func (t tokens) billed() tokens {
	sum := tokens{Cost: t.Cost}
	for _, pass := range t.Iterations {
		sum.Input, sum.Written = sum.Input+pass.Input, sum.Written+pass.Written
		sum.Read, sum.Output = sum.Read+pass.Read, sum.Output+pass.Output
	}
	if t.Iterations = nil; sum.Input+sum.Written+sum.Read+sum.Output >= t.Input+t.Written+t.Read+t.Output {
		return sum
	}
	return t
}

// UnmarshalJSON reads an object; what it cannot read of it is 0.
func (t *tokens) UnmarshalJSON(raw []byte) error {
	type plain tokens
	_ = json.Unmarshal(raw, (*plain)(t)) // it reads on after a value of another form
	return nil
}

// latest takes what a later event says. The output is a sum that grows. Some servers state
// the input at the stream's beginning, others at its end; Ollama has an estimate at the
// beginning, which may be too high.
func (t *tokens) latest(now tokens) {
	t.Input, t.Written = cmp.Or(now.Input, t.Input), cmp.Or(now.Written, t.Written)
	t.Read, t.Output = cmp.Or(now.Read, t.Read), max(t.Output, now.Output)
	if now.Cost != nil {
		t.Cost = now.Cost
	}
	if len(now.Iterations) > 0 {
		t.Iterations = now.Iterations
	}
}

// plus takes the usage of another request for the same reply.
func (t *tokens) plus(other tokens) {
	t.Input, t.Written = t.Input+other.Input, t.Written+other.Written
	t.Read, t.Output = t.Read+other.Read, t.Output+other.Output
	switch {
	case t.Cost == nil:
		t.Cost = other.Cost
	case other.Cost != nil:
		sum := *t.Cost + *other.Cost
		t.Cost = &sum
	}
}
