package gateway

import "encoding/json"

// The server-sent events of the live feed.
const (
	eventChunk         = "chunk"
	eventToolCallDelta = "tool_call_delta"
)

// chunkEvent names the event that a chunk goes out as: text has no kind, a piece of
// a tool call has one. Empty for what is neither.
func chunkEvent(data []byte) string {
	if !json.Valid(data) {
		return ""
	}
	var c struct {
		Kind string `json:"kind"`
	}
	_ = json.Unmarshal(data, &c) // what is no object has no kind
	switch c.Kind {
	case "":
		return eventChunk
	case "tool_call":
		return eventToolCallDelta
	}
	return ""
}
