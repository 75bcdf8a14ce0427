package verify

import (
	"bytes"
	"encoding/json"
	"fmt"

	"github.com/moorebus/moorebus/internal/jsondiff"
	"github.com/moorebus/moorebus/pkg/events"
)

// checkStable returns what an event loses when it is written again; empty if
// nothing. Our own bodies come out byte for byte. Others may be written
// differently and have to say the same, except for payloads of older versions,
// which are lifted.
func checkStable(codec *events.Codec, e *events.Event, body []byte) string {
	again, err := codec.Encode(e)
	if err != nil {
		return fmt.Sprintf("cannot be written again: %v", err)
	}
	if bytes.Equal(again, body) {
		return ""
	}
	second, err := codec.Decode(again)
	if err != nil {
		return fmt.Sprintf("cannot be read after it was written again: %v", err)
	}
	if third, err := codec.Encode(second); err != nil || !bytes.Equal(third, again) {
		return "is written differently each time"
	}
	if schema(body) != schema(again) {
		return ""
	}
	if changes := jsondiff.Compare(withoutTime(body), withoutTime(again), 1); len(changes) > 0 {
		return "is not the same when it is written again: " + changes[0].String()
	}
	return ""
}

func schema(body []byte) string {
	var envelope struct {
		DataSchema string `json:"dataschema"`
	}
	// The body was decoded before, so this cannot fail.
	_ = json.Unmarshal(body, &envelope)
	return envelope.DataSchema
}

// withoutTime leaves out the time, which others may write with fewer digits.
func withoutTime(body []byte) []byte {
	var members map[string]json.RawMessage
	if err := json.Unmarshal(body, &members); err != nil {
		return body
	}
	delete(members, "time")
	rest, err := json.Marshal(members)
	if err != nil {
		return body
	}
	return rest
}
