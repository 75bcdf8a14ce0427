package planner

import (
	"encoding/json"
	"strings"

	"github.com/moorebus/moorebus/pkg/llm"
)

// ToolCallChunk is a piece of a call that the model is making, on the chunk subject
// beside the text: it has a kind, which text has not. Index is the call's place in
// the reply, from 0; Name may be empty after its first piece.
type ToolCallChunk struct {
	MessageID string `json:"message_id"`
	Kind      string `json:"kind"`
	Index     int    `json:"index"`
	Name      string `json:"name"`
	Text      string `json:"text"`
}

// ChunkToolCall is the kind of a [ToolCallChunk].
const ChunkToolCall = "tool_call"

// delta publishes a piece of a call.
func (s *streamer) delta(c llm.Chunk) {
	if s.quiet {
		return
	}
	data, err := json.Marshal(ToolCallChunk{
		MessageID: s.messageID, Kind: ChunkToolCall, Index: c.Index,
		Name: strings.ToValidUTF8(c.Name, "\uFFFD"), Text: c.Text,
	})
	if err != nil {
		return
	}
	_ = s.feed.PublishChunk(s.run, data) // nothing needs it to be correct
}
