package scripted

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/moorebus/moorebus/pkg/llm"
)

// Script is a checked script. The zero value has no replies.
type Script struct {
	entries []entry
}

// Len is the number of replies.
func (s Script) Len() int { return len(s.entries) }

// entry is one reply: a failure, calls with text beside them, or text.
type entry struct {
	text       string
	calls      []llm.Call
	failure    *llm.Error
	confidence float64
	usage      llm.Usage
}

// Parse reads an agent's `llm` block with its script. It refuses unknown keys,
// entries that are none or several of text, calls and error, and references to
// observations that can never exist; the error says where, as in
// "script[2].calls[0]".
func Parse(settings json.RawMessage) (Script, error) {
	if len(settings) == 0 {
		settings = json.RawMessage("{}")
	}
	o, err := object("llm", settings, "provider", "text", "script", "temperature", "top_p", "seed", "max_tokens", "thinking_tokens", "stop", "state_prompts")
	if err != nil {
		return Script{}, err
	}
	if o["script"] == nil {
		return Script{}, errors.New("llm: the scripted provider needs a script (a list of replies)")
	}
	var list []json.RawMessage
	if err := decode("script", o["script"], &list); err != nil {
		return Script{}, err
	}
	s := Script{entries: make([]entry, len(list))}
	for i, raw := range list {
		if s.entries[i], err = parseEntry(fmt.Sprintf("script[%d]", i), raw); err != nil {
			return Script{}, err
		}
	}
	return s, nil
}

func parseEntry(where string, raw json.RawMessage) (entry, error) {
	o, err := object(where, raw, "text", "content", "calls", "error", "confidence", "usage")
	if err != nil {
		return entry{}, err
	}
	e := entry{confidence: 1}
	kinds := 0
	for _, key := range []string{"text", "calls", "error"} {
		if o[key] != nil {
			kinds++
		}
	}
	switch {
	case kinds != 1:
		return e, fmt.Errorf("%s: an entry is exactly one of text, calls and error", where)
	case o["content"] != nil && o["calls"] == nil:
		return e, fmt.Errorf("%s: content is the text beside calls; a reply in words is text", where)
	}
	for _, part := range []struct {
		key  string
		read func(string, json.RawMessage, *entry) error
	}{
		{"text", parseText},
		{"content", parseText},
		{"calls", parseCalls},
		{"error", parseFailure},
		{"confidence", parseConfidence},
		{"usage", parseUsage},
	} {
		if raw := o[part.key]; raw != nil {
			if err := part.read(where+"."+part.key, raw, &e); err != nil {
				return e, err
			}
		}
	}
	return e, nil
}

func parseConfidence(where string, raw json.RawMessage, e *entry) error {
	if err := decode(where, raw, &e.confidence); err != nil {
		return err
	}
	if e.confidence < 0 || e.confidence > 1 {
		return fmt.Errorf("%s: has to be between 0 and 1", where)
	}
	return nil
}

func parseText(where string, raw json.RawMessage, e *entry) error {
	if err := decode(where, raw, &e.text); err != nil {
		return err
	}
	if err := checkPlaceholders(e.text); err != nil {
		return fmt.Errorf("%s: %w", where, err)
	}
	return nil
}

func parseCalls(where string, raw json.RawMessage, e *entry) error {
	var list []json.RawMessage
	if err := decode(where, raw, &list); err != nil {
		return err
	}
	if len(list) == 0 {
		return fmt.Errorf("%s: is empty", where)
	}
	for i, raw := range list {
		c, err := parseCall(fmt.Sprintf("%s[%d]", where, i), raw)
		if err != nil {
			return err
		}
		e.calls = append(e.calls, c)
	}
	return nil
}

func parseCall(where string, raw json.RawMessage) (llm.Call, error) {
	var c llm.Call
	o, err := object(where, raw, "name", "arguments", "id")
	if err != nil {
		return c, err
	}
	if err := optional(where+".name", o["name"], &c.Name); err != nil {
		return c, err
	}
	if err := optional(where+".id", o["id"], &c.ID); err != nil {
		return c, err
	}
	if c.Name == "" {
		return c, fmt.Errorf("%s: needs a name", where)
	}
	if c.Arguments, err = arguments(o["arguments"]); err != nil {
		return c, fmt.Errorf("%s.arguments: %w", where, err)
	}
	return c, nil
}

// arguments gives a call's arguments as a model would write them: an object's
// own text without white space (numbers and the order of keys stay as they are),
// or a string as it is, so that a script can also play a model that writes
// invalid JSON. None at all is the empty object.
func arguments(raw json.RawMessage) (string, error) {
	if raw == nil {
		return "{}", nil
	}
	var text string
	switch bytes.TrimSpace(raw)[0] {
	case '{':
		var out bytes.Buffer
		if err := json.Compact(&out, raw); err != nil {
			return "", err
		}
		text = out.String()
	case '"':
		if err := json.Unmarshal(raw, &text); err != nil {
			return "", err
		}
	default:
		return "", errors.New("has to be an object, or a string that holds one")
	}
	return text, checkPlaceholders(text)
}

var errorKinds = []llm.ErrorKind{
	llm.KindRateLimited, llm.KindOverloaded, llm.KindNetwork, llm.KindAuth, llm.KindInvalid, llm.KindContextTooLong,
	llm.KindOther,
}

func parseFailure(where string, raw json.RawMessage, e *entry) error {
	if _, err := object(where, raw, "kind", "message", "retry_after_ms"); err != nil {
		return err
	}
	var f struct {
		Kind         llm.ErrorKind `json:"kind"`
		Message      string        `json:"message"`
		RetryAfterMS int64         `json:"retry_after_ms"`
	}
	if err := decode(where, raw, &f); err != nil {
		return err
	}
	if !slices.Contains(errorKinds, f.Kind) {
		return fmt.Errorf("%s.kind: %q is not one of %v", where, f.Kind, errorKinds)
	}
	const year = 365 * 24 * 60 * 60 * 1000
	if f.RetryAfterMS < 0 || f.RetryAfterMS > year {
		return fmt.Errorf("%s.retry_after_ms: has to be between 0 and a year", where)
	}
	if f.Message == "" {
		f.Message = "programmed error"
	}
	e.failure = &llm.Error{
		Kind: f.Kind, Message: f.Message, RetryAfter: time.Duration(f.RetryAfterMS) * time.Millisecond,
	}
	return nil
}

func parseUsage(where string, raw json.RawMessage, e *entry) error {
	if _, err := object(where, raw, "input", "output", "cached", "total", "cost_usd"); err != nil {
		return err
	}
	var u struct {
		Input   int      `json:"input"`
		Output  int      `json:"output"`
		Cached  int      `json:"cached"`
		Total   *int     `json:"total"`
		CostUSD *float64 `json:"cost_usd"`
	}
	if err := decode(where, raw, &u); err != nil {
		return err
	}
	if min(u.Input, u.Output, u.Cached) < 0 || (u.Total != nil && *u.Total < 0) ||
		(u.CostUSD != nil && *u.CostUSD < 0) {
		return fmt.Errorf("%s: must not be negative", where)
	}
	if u.Total != nil && u.Input == 0 && u.Output == 0 {
		u.Input = *u.Total // a script that only cares about the sum
	}
	if u.Total != nil && *u.Total != u.Input+u.Output {
		return fmt.Errorf("%s.total: has to be input plus output (%d)", where, u.Input+u.Output)
	}
	e.usage = llm.Usage{
		Input: u.Input, Output: u.Output, Cached: u.Cached, Total: u.Input + u.Output, CostUSD: u.CostUSD,
	}
	return nil
}

// object reads an object's members and refuses keys that are not allowed,
// letter by letter. A member that is null is as good as absent.
func object(where string, raw json.RawMessage, allowed ...string) (map[string]json.RawMessage, error) {
	var o map[string]json.RawMessage
	if err := decode(where, raw, &o); err != nil {
		return nil, err
	}
	if o == nil {
		return nil, fmt.Errorf("%s: has to be an object", where)
	}
	var unknown []string
	for key, value := range o {
		if !slices.Contains(allowed, key) {
			unknown = append(unknown, fmt.Sprintf("%q", key))
		}
		if string(value) == "null" {
			delete(o, key)
		}
	}
	if len(unknown) > 0 {
		slices.Sort(unknown)
		return nil, fmt.Errorf("%s: unknown key %s (allowed: %s)",
			where, strings.Join(unknown, ", "), strings.Join(allowed, ", "))
	}
	return o, nil
}

func optional(where string, raw json.RawMessage, to any) error {
	if raw == nil {
		return nil
	}
	return decode(where, raw, to)
}

func decode(where string, raw json.RawMessage, to any) error {
	err := json.Unmarshal(raw, to)
	var wrong *json.UnmarshalTypeError
	if errors.As(err, &wrong) {
		return fmt.Errorf("%s: has to be %s, not a JSON %s", where, wanted(wrong), wrong.Value)
	}
	if err != nil {
		return fmt.Errorf("%s: is not valid JSON: %w", where, err)
	}
	return nil
}

// wanted names a Go type in the words of JSON.
func wanted(wrong *json.UnmarshalTypeError) string {
	what := "a number"
	switch wrong.Type.Kind().String() {
	case "map", "struct":
		what = "an object"
	case "slice":
		what = "a list"
	case "string":
		what = "a string"
	case "int", "int64":
		what = "a whole number"
	}
	if wrong.Field != "" {
		what += " (" + wrong.Field + ")"
	}
	return what
}
