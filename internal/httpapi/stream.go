package httpapi

import (
	"encoding/json"
	"strconv"

	"github.com/moorebus/moorebus/internal/httpapi/sse"
	"github.com/moorebus/moorebus/internal/livetext"
)

// The server-sent events of the live feed.
const (
	eventChunk         = "chunk"
	eventToolCallDelta = "tool_call_delta"
)

// chunkEvent returns the name of the event for a chunk: one for text and reasoning, another
// for a part of a tool call. It is empty for anything else.
func chunkEvent(data []byte) string {
	if !json.Valid(data) {
		return ""
	}
	var c struct {
		Kind string `json:"kind"`
	}
	_ = json.Unmarshal(data, &c) // a value that is not an object has no kind
	switch c.Kind {
	case livetext.KindText, livetext.KindReasoning:
		return eventChunk
	case livetext.KindToolCall:
		return eventToolCallDelta
	}
	return ""
}

// sendChunk sends the part of a chunk that the client does not have yet.
func sendChunk(st *sse.Stream, heard *livetext.Listener, data []byte) error {
	news, ok := heard.News(data)
	if !ok {
		return nil
	}
	name := chunkEvent(news)
	if name == "" {
		return nil
	}
	return st.Event(name, "", sse.OneLine(news)) // chunks are not trusted
}

// sendState sends the state before the events from a number on. data may be nil.
func sendState(st *sse.Stream, data []byte, from uint64) error {
	if data == nil {
		return nil
	}
	return st.Event("state", strconv.FormatUint(max(from, 1)-1, 10), data)
}
