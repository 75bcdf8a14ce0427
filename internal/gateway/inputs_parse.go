package gateway

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/moorebus/moorebus/internal/agentfile/strict"
)

// The bounds of one request's inputs.
const (
	maxInputs    = 256
	maxMessageID = 256
)

// inputKind is one type of input: the names that it goes by, and how it is read.
type inputKind struct {
	// names are in kebab case; snake, camel and Pascal case are names too.
	names []string
	// keys are in snake case; camel case is accepted too. Those of required
	// must be there.
	keys, required []string
	read           func(k *inputKind, name string, o inputObject) (Input, error)
}

// inputKinds is the one table of what may be sent to a run.
var inputKinds = []inputKind{
	{
		names: []string{"user-message"},
		keys:  []string{"message_id", "content", "timestamp"}, required: []string{"content"},
		read: readUserMessage,
	},
	{
		names: []string{"expand-context-window", "context-window-expanded"},
		keys:  []string{"increment", "timestamp"},
		read:  readExpand,
	},
	{
		names: []string{"add-tool-calls-to-context", "tool-calls-added-to-context"},
		keys:  []string{"tool_call_ids", "call_ids", "timestamp"},
		read:  readAddCalls,
	},
	{
		names: []string{"llm-chunk"},
		keys:  []string{"message_id", "chunk", "offset", "timestamp"}, required: []string{"message_id", "chunk"},
		read: readForeign,
	},
	{
		names: []string{"llm-message-complete"},
		keys:  []string{"message_id", "content", "model", "usage", "timestamp"}, required: []string{"message_id"},
		read: readForeign,
	},
	{
		names: []string{"tool-call-started"},
		keys:  []string{"tool_call_id", "call_id", "name", "parameters", "timestamp"},
		read:  readToolCall,
	},
	{
		names: []string{"tool-call-result"},
		keys: []string{
			"tool_call_id", "call_id", "result", "success", "observation", "code", "latency_ms", "timestamp",
		},
		read: readToolCall,
	},
}

// inputNames finds a kind by any of its names.
var inputNames = indexInputs()

func indexInputs() map[string]*inputKind {
	byName := map[string]*inputKind{}
	for i := range inputKinds {
		for _, name := range inputKinds[i].names {
			snake := strings.ReplaceAll(name, "-", "_")
			camel := camelCase(snake)
			for _, form := range []string{name, snake, camel, strings.ToUpper(camel[:1]) + camel[1:]} {
				byName[form] = &inputKinds[i]
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

// ParseInputs reads a JSON array of inputs. The error is an *[Error] with status
// 400 whose message names the first input that is wrong by its index, from 0.
func ParseInputs(data []byte) ([]Input, error) {
	node, err := strict.ParseJSON(data)
	if err != nil {
		return nil, badRequest(CodeBadRequest, "%s", err.Error())
	}
	switch {
	case node.Kind != strict.Array:
		return nil, badRequest(CodeBadRequest, "the body is %s, want a list of inputs", node.Kind)
	case len(node.Items) > maxInputs:
		return nil, badRequest(CodeBadInput, "%d inputs at once, at most %d are taken", len(node.Items), maxInputs)
	}
	inputs := make([]Input, len(node.Items))
	for i, item := range node.Items {
		if inputs[i], err = parseInput(item); err != nil {
			e := badRequest(CodeBadInput, "input %d: %s", i, err.Error())
			e.Fields = map[string]any{"index": i}
			return nil, e
		}
	}
	return inputs, nil
}

func parseInput(n *strict.Node) (Input, error) {
	if n.Kind != strict.Object {
		return nil, fmt.Errorf("is %s, want a mapping with a type", n.Kind)
	}
	rest, typ := n.Without("type")
	if typ == nil || typ.Kind != strict.String {
		return nil, errors.New("type: is missing; it is a name such as user-message")
	}
	kind := inputNames[typ.Text]
	if kind == nil {
		return nil, fmt.Errorf("type: %.100q is not known; the types are: %s", typ.Text, listed(inputTypes()))
	}
	o, err := kind.object(rest)
	if err != nil {
		return nil, err
	}
	return kind.read(kind, typ.Text, o)
}

// inputTypes are the types by their first names, in the table's order.
func inputTypes() []string {
	types := make([]string, len(inputKinds))
	for i, k := range inputKinds {
		types[i] = k.names[0]
	}
	return types
}

// inputObject holds an input's values by their key in snake case.
type inputObject map[string]*strict.Node

func (k *inputKind) object(n *strict.Node) (inputObject, error) {
	o := inputObject{}
	for _, m := range n.Members {
		key := ""
		for _, known := range k.keys {
			if m.Key == known || m.Key == camelCase(known) {
				key = known
			}
		}
		if key == "" {
			return nil, fmt.Errorf("%.100q: unknown key; the keys of %s are %s", m.Key, k.names[0], strings.Join(k.keys, ", "))
		}
		if o[key] != nil {
			return nil, fmt.Errorf("%s: stands there twice", key)
		}
		o[key] = m.Value
	}
	for _, key := range k.required {
		if o[key] == nil {
			return nil, fmt.Errorf("%s: is missing", key)
		}
	}
	return o, o.checkTimestamp()
}

// checkTimestamp checks a client's clock for its form; it is not used: the log's
// order is the order.
func (o inputObject) checkTimestamp() error {
	n := o["timestamp"]
	switch {
	case n == nil || n.Kind == strict.Number:
		return nil
	case n.Kind == strict.String:
		if _, err := time.Parse(time.RFC3339Nano, n.Text); err == nil {
			return nil
		}
	}
	return errors.New("timestamp: is neither milliseconds nor an RFC 3339 time")
}

// text returns a string's value, empty if it is not there; what is there must
// not be empty.
func (o inputObject) text(key string) (string, error) {
	n := o[key]
	switch {
	case n == nil:
		return "", nil
	case n.Kind != strict.String:
		return "", fmt.Errorf("%s: is %s, want a string", key, n.Kind)
	case n.Text == "":
		return "", fmt.Errorf("%s: is empty", key)
	}
	return n.Text, nil
}

func (o inputObject) messageID() (string, error) {
	id, err := o.text("message_id")
	if len(id) > maxMessageID {
		return "", fmt.Errorf("message_id: is longer than %d bytes", maxMessageID)
	}
	return id, err
}

func readUserMessage(_ *inputKind, _ string, o inputObject) (Input, error) {
	id, err := o.messageID()
	if err != nil {
		return nil, err
	}
	content, err := o.text("content")
	return UserMessage{MessageID: id, Content: content}, err
}

func readExpand(_ *inputKind, _ string, o inputObject) (Input, error) {
	var in ExpandContextWindow
	n := o["increment"]
	if n == nil {
		return in, nil
	}
	if err := strict.DecodeAt(n, "increment", &in.Increment); err != nil {
		return nil, err
	}
	if n.Kind == strict.Null || in.Increment < 1 {
		return nil, errors.New("increment: must be at least 1")
	}
	return in, nil
}

func readAddCalls(_ *inputKind, _ string, o inputObject) (Input, error) {
	n, err := o.either("tool_call_ids", "call_ids")
	if err != nil {
		return nil, err
	}
	var in AddToolCallsToContext
	if err := strict.DecodeAt(n, "tool_call_ids", &in.CallIDs); err != nil {
		return nil, err
	}
	if len(in.CallIDs) == 0 {
		return nil, errors.New("tool_call_ids: is empty")
	}
	return in, nil
}

// either returns the one of two keys that is there.
func (o inputObject) either(a, b string) (*strict.Node, error) {
	switch {
	case o[a] == nil && o[b] == nil:
		return nil, fmt.Errorf("%s: is missing", a)
	case o[a] != nil && o[b] != nil:
		return nil, fmt.Errorf("%s: stands beside %s; give one of them", b, a)
	case o[a] != nil:
		return o[a], nil
	}
	return o[b], nil
}

// readForeign checks what a model of one's own would send.
func readForeign(_ *inputKind, name string, o inputObject) (Input, error) {
	if _, err := o.messageID(); err != nil {
		return nil, err
	}
	for _, key := range []string{"chunk", "content", "model"} {
		if n := o[key]; n != nil && n.Kind != strict.String {
			return nil, fmt.Errorf("%s: is %s, want a string", key, n.Kind)
		}
	}
	if n := o["usage"]; n != nil && n.Kind != strict.Object {
		return nil, fmt.Errorf("usage: is %s, want a mapping", n.Kind)
	}
	return Foreign{Type: name}, o.checkCount("offset")
}

// checkCount checks a whole number from 0, where it is there.
func (o inputObject) checkCount(key string) error {
	n := o[key]
	if n == nil {
		return nil
	}
	var count int64
	if err := strict.DecodeAt(n, key, &count); err != nil {
		return err
	}
	if n.Kind == strict.Null || count < 0 {
		return fmt.Errorf("%s: must be a whole number from 0", key)
	}
	return nil
}

// readToolCall checks what a tool of one's own would send.
func readToolCall(k *inputKind, name string, o inputObject) (Input, error) {
	id, err := o.either("tool_call_id", "call_id")
	if err != nil {
		return nil, err
	}
	if id.Kind != strict.String || id.Text == "" {
		return nil, errors.New("tool_call_id: must be a string that is not empty")
	}
	for _, key := range []string{"name", "parameters", "observation", "code"} {
		if n := o[key]; n != nil && n.Kind != strict.String {
			return nil, fmt.Errorf("%s: is %s, want a string", key, n.Kind)
		}
	}
	if k.names[0] == "tool-call-result" {
		if err := o.checkResult(); err != nil {
			return nil, err
		}
		if err := o.checkCount("latency_ms"); err != nil {
			return nil, err
		}
	}
	return Foreign{Type: name}, nil
}

// checkResult checks either form of a result: {isSuccess, content or error}, or
// the keys of the event.
func (o inputObject) checkResult() error {
	if n := o["success"]; n != nil && n.Kind != strict.Bool {
		return fmt.Errorf("success: is %s, want true or false", n.Kind)
	}
	n := o["result"]
	if n == nil {
		if o["success"] == nil || o["observation"] == nil {
			return errors.New("result: is missing")
		}
		return nil
	}
	k := inputKind{names: []string{"result"}, keys: []string{"is_success", "content", "error"}, required: []string{"is_success"}}
	if n.Kind != strict.Object {
		return fmt.Errorf("result: is %s, want a mapping", n.Kind)
	}
	r, err := k.object(n)
	switch {
	case err != nil:
		return fmt.Errorf("result: %w", err)
	case r["is_success"].Kind != strict.Bool:
		return errors.New("result: is_success: must be true or false")
	case (r["content"] == nil) == (r["error"] == nil):
		return errors.New("result: has content on success, error on failure")
	}
	return nil
}
