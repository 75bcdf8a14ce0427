// Package inputs parses the inputs of a run from JSON. Names and keys may be in kebab, snake,
// camel or Pascal case.
package inputs

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/moorebus/moorebus/internal/agentfile/strict"
	"github.com/moorebus/moorebus/internal/control"
	"github.com/moorebus/moorebus/internal/refusal"
	"github.com/moorebus/moorebus/pkg/events"
)

// maxInputs bounds one request's inputs.
const maxInputs = 256

// inputKind is one type of input: its names, its keys, and its reader.
type inputKind struct {
	// names are in kebab case; snake, camel and Pascal case are accepted too.
	names []string
	keys  []inputKey
	read  func(name string, o inputObject) (control.Input, error)
}

// inputKey is a key in snake case and the check of its value. Camel case is accepted too.
type inputKey struct {
	name     string
	required bool
	check    func(key string, n *strict.Node) error
}

// The keys of several inputs.
var (
	timestampKey = inputKey{name: "timestamp", check: checkTimestamp}
	messageKey   = inputKey{name: "message_id", check: checkMessageID}
	callKeys     = []inputKey{{name: "tool_call_id", check: checkAny}, {name: "call_id", check: checkAny}}
)

// inputKinds is the table of all inputs.
var inputKinds = []*inputKind{
	{
		names: []string{"user-message"}, read: readUserMessage,
		keys: []inputKey{messageKey, {name: "content", required: true, check: checkContent}, timestampKey},
	},
	{
		names: []string{"expand-context-window", "context-window-expanded"}, read: readExpand,
		keys: []inputKey{{name: "increment", check: checkIncrement}, timestampKey},
	},
	{
		names: []string{"add-tool-calls-to-context", "tool-calls-added-to-context"}, read: readAddCalls,
		keys: []inputKey{{name: "tool_call_ids", check: checkAny}, {name: "call_ids", check: checkAny}, timestampKey},
	},
	{
		names: []string{"llm-chunk"}, read: readChunk,
		keys: []inputKey{
			{name: "message_id", required: true, check: checkMessageID}, {name: "chunk", required: true, check: checkKind(strict.String, "a string")},
			{name: "offset", check: checkCount}, timestampKey,
		},
	},
	{
		names: []string{"llm-message-complete"}, read: readReply,
		keys: []inputKey{
			{name: "message_id", required: true, check: checkMessageID}, {name: "content", check: checkKind(strict.String, "a string")},
			{name: "calls", check: checkKind(strict.Array, "a list")}, {name: "key", check: checkText},
			{name: "model", check: checkKind(strict.String, "a string")}, {name: "usage", check: checkKind(strict.Object, "a mapping")}, timestampKey,
		},
	},
	{
		names: []string{"tool-call-started"}, read: readStarted,
		keys: slices.Concat(callKeys, []inputKey{
			{name: "name", check: checkKind(strict.String, "a string")}, {name: "parameters", check: checkKind(strict.String, "a string")}, timestampKey,
		}),
	},
	{
		names: []string{"tool-call-result"}, read: readToolResult,
		keys: slices.Concat(callKeys, []inputKey{
			{name: "result", check: checkResult}, {name: "success", check: checkKind(strict.Bool, "true or false")},
			{name: "observation", check: checkKind(strict.String, "a string")}, {name: "code", check: checkKind(strict.String, "a string")},
			{name: "latency_ms", check: checkCount}, timestampKey,
		}),
	},
}

// resultKeys are the keys of a result.
var resultKeys = &inputKind{names: []string{"result"}, keys: []inputKey{
	{name: "is_success", required: true, check: checkAny}, {name: "content", check: checkAny}, {name: "error", check: checkAny},
}}

// inputNames finds a kind by any of its names.
var inputNames = indexInputs()

func indexInputs() map[string]*inputKind {
	byName := map[string]*inputKind{}
	for _, kind := range inputKinds {
		for _, name := range kind.names {
			snake := strings.ReplaceAll(name, "-", "_")
			camel := camelCase(snake)
			for _, form := range []string{name, snake, camel, strings.ToUpper(camel[:1]) + camel[1:]} {
				byName[form] = kind
			}
		}
	}
	return byName
}

func camelCase(snake string) string {
	var b strings.Builder
	for i, word := range strings.Split(snake, "_") {
		if i > 0 {
			word = strings.ToUpper(word[:1]) + word[1:]
		}
		b.WriteString(word)
	}
	return b.String()
}

// Parse parses a JSON array of inputs. The error is a refusal of kind Invalid whose
// message names the first input that is wrong by its index, from 0.
func Parse(data []byte) ([]control.Input, error) {
	node, err := strict.ParseJSON(data)
	if err != nil {
		return nil, refusal.New(refusal.Invalid, refusal.CodeBadRequest, "%s", err.Error())
	}
	switch {
	case node.Kind != strict.Array:
		return nil, refusal.New(refusal.Invalid, refusal.CodeBadRequest, "the body is %s, want a list of inputs", node.Kind)
	case len(node.Items) > maxInputs:
		return nil, refusal.New(refusal.Invalid, refusal.CodeBadInput, "there are %d inputs; one request may have at most %d", len(node.Items), maxInputs)
	}
	inputs := make([]control.Input, len(node.Items))
	for i, item := range node.Items {
		if inputs[i], err = parseInput(item); err != nil {
			return nil, refusal.New(refusal.Invalid, refusal.CodeBadInput, "input %d: %s", i, err.Error()).With(map[string]any{"index": i})
		}
	}
	return inputs, nil
}

func parseInput(n *strict.Node) (control.Input, error) {
	if n.Kind != strict.Object {
		return nil, fmt.Errorf("is %s, want a mapping with a type", n.Kind)
	}
	rest, typ := n.Without("type")
	if typ == nil || typ.Kind != strict.String {
		return nil, errors.New("type: is missing; it is a name such as user-message")
	}
	kind := inputNames[typ.Text]
	if kind == nil {
		var types []string
		for _, k := range inputKinds {
			types = append(types, k.names[0])
		}
		return nil, fmt.Errorf("type: %.100q is not known; the types are: %s", typ.Text, strings.Join(types, ", "))
	}
	o, err := kind.object(rest)
	if err != nil {
		return nil, err
	}
	return kind.read(typ.Text, o)
}

// inputObject holds an input's values by their key in snake case.
type inputObject map[string]*strict.Node

// object reads and checks an input's keys.
func (k *inputKind) object(n *strict.Node) (inputObject, error) {
	o := inputObject{}
	for _, m := range n.Members {
		i := slices.IndexFunc(k.keys, func(key inputKey) bool { return m.Key == key.name || m.Key == camelCase(key.name) })
		if i < 0 {
			var known []string
			for _, key := range k.keys {
				known = append(known, key.name)
			}
			return nil, fmt.Errorf("%.100q: unknown key; the keys of %s are %s", m.Key, k.names[0], strings.Join(known, ", "))
		}
		key := k.keys[i].name
		if o[key] != nil {
			return nil, fmt.Errorf("%s: is given twice", key)
		}
		o[key] = m.Value
	}
	for _, key := range k.keys {
		if n := o[key.name]; n == nil && key.required {
			return nil, fmt.Errorf("%s: is missing", key.name)
		} else if n != nil {
			if err := key.check(key.name, n); err != nil {
				return nil, err
			}
		}
	}
	return o, nil
}

// text returns the value of a string, or empty if the key is missing.
func (o inputObject) text(key string) string {
	if n := o[key]; n != nil {
		return n.Text
	}
	return ""
}

// yes reports whether the value of a key is true.
func (o inputObject) yes(key string) bool { return o.text(key) == "true" }

// either returns the value of one of two keys. Exactly one must be given.
func (o inputObject) either(a, b string) (*strict.Node, error) {
	switch {
	case o[a] == nil && o[b] == nil:
		return nil, fmt.Errorf("%s: is missing", a)
	case o[a] != nil && o[b] != nil:
		return nil, fmt.Errorf("%s: excludes %s; give one of them", b, a)
	case o[a] != nil:
		return o[a], nil
	}
	return o[b], nil
}

// The checks of values.

func checkAny(string, *strict.Node) error { return nil }

func checkKind(kind strict.Kind, want string) func(string, *strict.Node) error {
	return func(key string, n *strict.Node) error {
		if n.Kind != kind {
			return fmt.Errorf("%s: is %s, want %s", key, n.Kind, want)
		}
		return nil
	}
}

// checkText checks a string that must not be empty.
func checkText(key string, n *strict.Node) error {
	if n.Kind == strict.String && n.Text == "" {
		return fmt.Errorf("%s: is empty", key)
	}
	return checkKind(strict.String, "a string")(key, n)
}

func checkMessageID(key string, n *strict.Node) error {
	if len(n.Text) > control.MaxMessageID {
		return fmt.Errorf("%s: is longer than %d bytes", key, control.MaxMessageID)
	}
	return checkText(key, n)
}

// checkCount checks an integer from 0.
func checkCount(key string, n *strict.Node) error {
	var count int64
	if err := strict.DecodeAt(n, key, &count); err != nil {
		return err
	}
	if n.Kind == strict.Null || count < 0 {
		return fmt.Errorf("%s: must be an integer from 0", key)
	}
	return nil
}

func checkIncrement(key string, n *strict.Node) error {
	var increment int
	if err := strict.DecodeAt(n, key, &increment); err != nil {
		return err
	}
	if n.Kind == strict.Null || increment < 1 {
		return fmt.Errorf("%s: must be at least 1", key)
	}
	return nil
}

// checkTimestamp checks only the form of a client's time. The order of the log is what counts.
func checkTimestamp(key string, n *strict.Node) error {
	_, err := time.Parse(time.RFC3339Nano, n.Text)
	if n.Kind == strict.Number || n.Kind == strict.String && err == nil {
		return nil
	}
	return fmt.Errorf("%s: is neither milliseconds nor an RFC 3339 time", key)
}

// checkResult checks {isSuccess, content or error}.
func checkResult(key string, n *strict.Node) error {
	if n.Kind != strict.Object {
		return fmt.Errorf("%s: is %s, want a mapping", key, n.Kind)
	}
	r, err := resultKeys.object(n)
	switch {
	case err != nil:
		return fmt.Errorf("%s: %w", key, err)
	case r["is_success"].Kind != strict.Bool:
		return fmt.Errorf("%s: is_success: must be true or false", key)
	}
	text, want := r["content"], "content"
	if !r.yes("is_success") {
		text, want = r["error"], "error"
	}
	if text == nil || text.Kind != strict.String || (r["content"] == nil) == (r["error"] == nil) {
		return fmt.Errorf("%s: with is_success %t has %s, a string, and nothing else", key, r.yes("is_success"), want)
	}
	return nil
}

func readUserMessage(_ string, o inputObject) (control.Input, error) {
	text, parts, err := Content("content", o["content"])
	return control.UserMessage{MessageID: o.text("message_id"), Content: text, Parts: parts}, err
}

func readExpand(_ string, o inputObject) (control.Input, error) {
	var in control.ExpandContextWindow
	if n := o["increment"]; n != nil {
		if err := strict.DecodeAt(n, "increment", &in.Increment); err != nil {
			return nil, err
		}
	}
	return in, nil
}

func readAddCalls(_ string, o inputObject) (control.Input, error) {
	n, err := o.either("tool_call_ids", "call_ids")
	if err != nil {
		return nil, err
	}
	var in control.AddToolCallsToContext
	if err := strict.DecodeAt(n, "tool_call_ids", &in.CallIDs); err != nil {
		return nil, err
	}
	if len(in.CallIDs) == 0 {
		return nil, errors.New("tool_call_ids: is empty")
	}
	return in, nil
}

func readChunk(_ string, o inputObject) (control.Input, error) {
	return control.LLMChunk{MessageID: o.text("message_id"), Chunk: o.text("chunk")}, nil
}

func readReply(_ string, o inputObject) (control.Input, error) {
	in := control.LLMMessageComplete{MessageID: o.text("message_id"), Model: o.text("model"), Key: o.text("key")}
	if n := o["content"]; n != nil {
		in.Content = &n.Text
	}
	if n := o["usage"]; n != nil {
		if err := strict.DecodeAt(n, "usage", &in.Usage); err != nil {
			return nil, err
		}
		if u := in.Usage; u != nil && (min(u.Input, u.Output, u.Cached, u.Total) < 0 || u.CostUSD != nil && *u.CostUSD < 0) {
			return nil, errors.New("usage: no number may be negative")
		}
	}
	if n := o["calls"]; n != nil {
		for i, item := range n.Items {
			call, err := readModelCall(item)
			if err != nil {
				return nil, fmt.Errorf("calls[%d]: %w", i, err)
			}
			in.Calls = append(in.Calls, call)
		}
	}
	return in, nil
}

// callKind are the keys of a call in a model's reply.
var callKind = &inputKind{names: []string{"a call"}, keys: []inputKey{
	{name: "id", required: true, check: checkText}, {name: "name", required: true, check: checkText}, {name: "arguments", required: true, check: checkAny},
}}

// readModelCall reads {id, name, arguments}; arguments are an object, or its JSON in a string.
func readModelCall(n *strict.Node) (events.Call, error) {
	if n.Kind != strict.Object {
		return events.Call{}, fmt.Errorf("is %s, want a mapping", n.Kind)
	}
	o, err := callKind.object(n)
	if err != nil {
		return events.Call{}, err
	}
	call := events.Call{ID: o.text("id"), Name: o.text("name")}
	switch arguments := o["arguments"]; arguments.Kind {
	case strict.String:
		call.Arguments = arguments.Text
	case strict.Object:
		var object json.RawMessage
		if err := strict.DecodeAt(arguments, "arguments", &object); err != nil {
			return events.Call{}, err
		}
		call.Arguments = string(object)
	default:
		return events.Call{}, fmt.Errorf("arguments: is %s, want an object, or its JSON in a string", arguments.Kind)
	}
	return call, nil
}

// callID returns the id of the call that an input is about.
func callID(o inputObject) (string, error) {
	id, err := o.either("tool_call_id", "call_id")
	if err != nil {
		return "", err
	}
	if id.Kind != strict.String || id.Text == "" {
		return "", errors.New("tool_call_id: must be a string that is not empty")
	}
	return id.Text, nil
}

func readStarted(_ string, o inputObject) (control.Input, error) {
	id, err := callID(o)
	return control.ToolCallStarted{CallID: id, Name: o.text("name"), Arguments: o.text("parameters")}, err
}

// readToolResult accepts a result, or the keys of the event.
func readToolResult(_ string, o inputObject) (control.Input, error) {
	id, err := callID(o)
	if err != nil {
		return nil, err
	}
	switch {
	case o["result"] != nil && (o["success"] != nil || o["observation"] != nil):
		return nil, errors.New("result: excludes success and observation; give one of them")
	case o["result"] != nil:
		r, err := resultKeys.object(o["result"])
		if err != nil {
			return nil, err
		}
		return control.ToolCallResult{CallID: id, Success: r.yes("is_success"), Text: cmp.Or(r.text("content"), r.text("error"))}, nil
	case o["success"] == nil || o["observation"] == nil:
		return nil, errors.New("result: is missing")
	}
	return control.ToolCallResult{CallID: id, Success: o.yes("success"), Text: o.text("observation")}, nil
}
