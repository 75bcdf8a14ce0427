package anthropic

import "encoding/json"

// The request and the reply as they go over the wire. The keys of a request stand
// in a fixed order, so that equal conversations have equal bytes.

type request struct {
	MaxTokens     int         `json:"max_tokens"`
	Messages      []message   `json:"messages"`
	Model         string      `json:"model"`
	Temperature   *float64    `json:"temperature,omitempty"`
	TopP          *float64    `json:"top_p,omitempty"`
	StopSequences []string    `json:"stop_sequences,omitempty"`
	System        []block     `json:"system,omitempty"`
	Thinking      *thinking   `json:"thinking,omitempty"`
	ToolChoice    *toolChoice `json:"tool_choice,omitempty"`
	Tools         []tool      `json:"tools,omitempty"`
	Stream        bool        `json:"stream,omitempty"`
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
	Text         string          `json:"text,omitempty"`
	ToolUseID    string          `json:"tool_use_id,omitempty"`
	IsError      bool            `json:"is_error,omitempty"`
	CacheControl *cacheControl   `json:"cache_control,omitempty"`
	Content      []block         `json:"content,omitempty"`
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

type cacheControl struct {
	Type string `json:"type"`
}

type thinking struct {
	Type         string `json:"type"`
	BudgetTokens int    `json:"budget_tokens"`
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
}

// answer is a message of the model.
type answer struct {
	Model   string            `json:"model"`
	Content []json.RawMessage `json:"content"`
	ending
	Usage tokens `json:"usage"`
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
}

// event is one of a stream.
type event struct {
	Type    string          `json:"type"`
	Index   int             `json:"index"`
	Message answer          `json:"message"`
	Block   json.RawMessage `json:"content_block"`
	Delta   struct {
		content
		ending
	} `json:"delta"`
	Usage tokens `json:"usage"`
}

// tokens is the usage; nil where it is not stated. Input does not count what was
// written to the cache or read from it.
type tokens struct {
	Input   *int `json:"input_tokens"`
	Written *int `json:"cache_creation_input_tokens"`
	Read    *int `json:"cache_read_input_tokens"`
	Output  *int `json:"output_tokens"`
}
