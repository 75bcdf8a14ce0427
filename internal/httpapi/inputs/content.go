package inputs

import (
	"encoding/base64"
	"errors"
	"fmt"

	"github.com/moorebus/moorebus/internal/agentfile/strict"
	"github.com/moorebus/moorebus/pkg/events"
)

// partKeys are the keys of one part of a message.
var partKeys = &inputKind{names: []string{"a part"}, keys: []inputKey{
	{name: "type", required: true, check: checkText}, {name: "text", check: checkText}, {name: "media_type", check: checkText},
	{name: "data", check: checkText}, {name: "url", check: checkText}, {name: "ref", check: checkKind(strict.Object, "a mapping")},
	{name: "name", check: checkText},
}}

// Content reads what a user says under a key: a string, or a list of parts. A list of texts
// alone is returned as text, any other as parts. What the parts hold is not checked, see
// [events.Part.Check].
func Content(key string, n *strict.Node) (text string, parts []events.Part, err error) {
	if n.Kind != strict.Array {
		return n.Text, nil, checkKind(strict.String, "a string or a list of parts")(key, n)
	}
	if len(n.Items) == 0 {
		return "", nil, fmt.Errorf("%s: is empty", key)
	}
	more := false
	for i, item := range n.Items {
		part, err := readPart(item)
		if err != nil {
			return "", nil, fmt.Errorf("%s[%d]: %w", key, i, err)
		}
		parts = append(parts, part)
		more = more || part.Type != events.PartText || part.Check() != nil
	}
	if !more {
		return events.TextOf(parts), nil, nil
	}
	return "", parts, nil
}

func readPart(n *strict.Node) (p events.Part, err error) {
	if n.Kind != strict.Object {
		return p, fmt.Errorf("is %s, want a mapping with a type", n.Kind)
	}
	o, err := partKeys.object(n)
	if err != nil {
		return p, err
	}
	p = events.Part{Type: o.text("type"), Text: o.text("text"), MediaType: o.text("media_type"), URL: o.text("url"), Name: o.text("name")}
	if data := o["data"]; data != nil {
		if p.Data, err = base64.StdEncoding.DecodeString(data.Text); err != nil {
			return p, errors.New("data: is not base64 (the standard alphabet, with padding)")
		}
	}
	if ref := o["ref"]; ref != nil {
		err = strict.DecodeAt(ref, "ref", &p.Ref)
	}
	return p, err
}

// checkContent checks what a user says.
func checkContent(key string, n *strict.Node) error {
	if n.Kind == strict.String {
		return checkText(key, n)
	}
	_, _, err := Content(key, n)
	return err
}
