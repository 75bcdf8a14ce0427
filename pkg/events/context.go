package events

import (
	"fmt"
	"strings"
)

// Edits of the model's context, of working memory and of storage.
const (
	TypeContextWindowExpanded   Type = "ContextWindowExpanded"
	TypeToolCallsAddedToContext Type = "ToolCallsAddedToContext"
	TypeWorkingMemoryAdded      Type = "WorkingMemoryAdded"
	TypeWorkingMemoryRemoved    Type = "WorkingMemoryRemoved"
	TypeStorageSaved            Type = "StorageSaved"
	TypeStorageLoaded           Type = "StorageLoaded"
)

var contextRows = []row{
	define("The model sees more of the conversation.", func(p *ContextWindowExpanded) string { return p.summary(fmt.Sprintf("by %d messages", p.Increment)) }),
	define("The model sees earlier calls again.", func(p *ToolCallsAddedToContext) string { return p.summary(strings.Join(p.CallIDs, ", ")) }),
	define("An entry is added to working memory.", func(p *WorkingMemoryAdded) string { return p.summary() }),
	define("An entry is removed from working memory.", func(p *WorkingMemoryRemoved) string { return strings.Join(p.Tags, ", ") }),
	define("An entry was written to storage.", func(p *StorageSaved) string { return p.summary() }),
	define("Entries were read from storage into working memory.", func(p *StorageLoaded) string {
		return fmt.Sprintf("%s: %d entries", strings.Join(p.Tags, ", "), len(p.Entries))
	}),
}

// ReservedPrefix begins the names of Moorebus' own tools: no other tool may have
// such a name.
const ReservedPrefix = "moorebus_"

// ContextReply is what an event that edits the model's context holds in addition to the
// edit if the model asked for it, by a call of one of Moorebus's
// tools: the call and its answer. Such calls are no tool calls of the run: they
// are shown to the model while the current loop lasts and stand nowhere else.
type ContextReply struct {
	Content string `json:"content"`
	// MessageID names the reply on the live feed, and its text where there is any.
	MessageID string `json:"message_id,omitempty"`
	// Calls are answered by Results, each by one.
	Calls      []Call   `json:"calls"`
	Results    []Answer `json:"results"`
	Confidence float64  `json:"confidence"`
	Model      string   `json:"model"`
	Usage      Usage    `json:"usage"`
	// Part says that the reply has further calls: their events follow in the same
	// append, and the last one of them is what counts as the reply and has its
	// text and its usage.
	Part bool `json:"part,omitempty"`
	Facts
	// Chunks are the timing of the text, see [Chunks].
	Chunks Chunks `json:"chunks,omitempty"`
}

// ReplyOf returns what a payload holds of a reply of the model that edited its own
// context; nil for an edit from outside and for every other payload.
func ReplyOf(p Payload) *ContextReply {
	switch p := p.(type) {
	case *ContextWindowExpanded:
		return p.ContextReply
	case *ToolCallsAddedToContext:
		return p.ContextReply
	}
	return nil
}

// ContextWindowExpanded widens what the model sees by a number of messages.
type ContextWindowExpanded struct {
	Increment int `json:"increment"`
	// NextTurn says that the run waited for its user, so that the edit is for the
	// turn that begins next.
	NextTurn bool `json:"next_turn,omitempty"`
	// ContextReply is nil where the edit came from outside.
	*ContextReply
}

func (*ContextWindowExpanded) eventType() Type { return TypeContextWindowExpanded }

// ToolCallsAddedToContext shows the model earlier calls again.
type ToolCallsAddedToContext struct {
	CallIDs []string `json:"call_ids"`
	// NextTurn is that of [ContextWindowExpanded].
	NextTurn bool `json:"next_turn,omitempty"`
	// ContextReply is nil where the edit came from outside.
	*ContextReply
}

func (*ToolCallsAddedToContext) eventType() Type { return TypeToolCallsAddedToContext }

// Entry is a piece of working memory or storage under a sorted set of tags.
type Entry struct {
	Tags  []string `json:"tags"`
	Value string   `json:"value"`
}

// WorkingMemoryAdded puts an entry into working memory, replacing one with the
// same tags.
type WorkingMemoryAdded struct{ Entry }

func (*WorkingMemoryAdded) eventType() Type { return TypeWorkingMemoryAdded }

// WorkingMemoryRemoved removes the entry with exactly these tags.
type WorkingMemoryRemoved struct {
	Tags []string `json:"tags"`
}

func (*WorkingMemoryRemoved) eventType() Type { return TypeWorkingMemoryRemoved }

// StorageSaved says that an entry was written to storage.
type StorageSaved struct{ Entry }

func (*StorageSaved) eventType() Type { return TypeStorageSaved }

// StorageLoaded says what was found in storage under Tags; it is copied into
// working memory.
type StorageLoaded struct {
	Tags    []string `json:"tags"`
	Entries []Entry  `json:"entries"`
}

func (*StorageLoaded) eventType() Type { return TypeStorageLoaded }
