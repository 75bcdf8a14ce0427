package recordline

import (
	"bytes"
	"slices"

	"github.com/moorebus/moorebus/pkg/events"
)

// refKeys are the keys under which events refer to the object store.
var refKeys = [][]byte{[]byte(`"ref"`), []byte(`"attachments"`), []byte(`"reasoning_ref"`)}

// Refs returns what a record refers to in the object store: large results, images and
// files. One that is no event refers to nothing.
func Refs(codec *events.Codec, body []byte) []events.Ref {
	if !slices.ContainsFunc(refKeys, func(key []byte) bool { return bytes.Contains(body, key) }) {
		return nil // decoding every record would cost more than reading it
	}
	e, err := codec.Decode(body)
	if err != nil {
		return nil
	}
	return events.RefsOf(e.Data)
}
