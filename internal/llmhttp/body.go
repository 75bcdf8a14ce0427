package llmhttp

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
)

// Write returns a request's body: body as JSON, over what the table of models adds for
// this server, and below [Options.ExtraBody]. Objects are merged key by key. Equal
// requests have equal bytes.
func (c *Client) Write(model string, body any) ([]byte, error) {
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(body); err != nil {
		return nil, Invalid(fmt.Sprintf("the request cannot be written as JSON: %v", err))
	}
	written := bytes.TrimSpace(out.Bytes())
	written = merge(written, c.Capabilities(model).Body, false)
	return merge(written, c.extra, true), nil
}

// merge puts the keys of one object into another. Where both have a key, objects are
// merged, and of other values that of more counts if it wins. The order of keys stays;
// new keys follow.
func merge(into, more json.RawMessage, wins bool) json.RawMessage {
	if len(more) == 0 {
		return into
	}
	old, isObject := members(into)
	added, areObjects := members(more)
	if !isObject || !areObjects {
		if wins {
			return more
		}
		return into
	}
	for _, m := range added {
		at := slices.IndexFunc(old, func(o member) bool { return o.key == m.key })
		if at < 0 {
			old = append(old, m)
			continue
		}
		old[at].value = merge(old[at].value, m.value, wins)
	}
	var out bytes.Buffer
	out.WriteByte('{')
	for i, m := range old {
		if i > 0 {
			out.WriteByte(',')
		}
		key, _ := json.Marshal(m.key) // a string always encodes
		out.Write(key)
		out.WriteByte(':')
		out.Write(m.value)
	}
	out.WriteByte('}')
	return out.Bytes()
}

type member struct {
	key   string
	value json.RawMessage
}

// members returns the members of an object in order, and whether it is one.
func members(object json.RawMessage) (all []member, ok bool) {
	dec := json.NewDecoder(bytes.NewReader(object))
	if first, err := dec.Token(); err != nil || first != json.Delim('{') {
		return nil, false
	}
	for dec.More() {
		key, err := dec.Token()
		if err != nil {
			return nil, false
		}
		var m member
		m.key, _ = key.(string) // the keys of an object are strings
		if err := dec.Decode(&m.value); err != nil {
			return nil, false
		}
		all = append(all, m)
	}
	return all, true
}
