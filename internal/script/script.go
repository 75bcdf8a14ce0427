// Package script reads the replies that an agent with provider scripted states in its definition.
// Package scripted plays them.
package script

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/llm"
)

// Replies is a checked script.
type Replies []Entry

// Entry is one reply: a failure, calls with text beside them, or text.
type Entry struct {
	Text       string
	Calls      []llm.Call
	Failure    *llm.Error
	Confidence float64
	Usage      llm.Usage
	Finish     llm.Finish
	Reasoning  events.Reasoning
	// Rest is what the model says when it is asked to continue; nil: nothing.
	Rest *Entry
}

// The forms of a script. A key that is null counts as absent.
type (
	blockForm struct {
		Provider       any                `json:"provider"`
		Text           any                `json:"text"`
		Script         *[]json.RawMessage `json:"script"`
		Temperature    any                `json:"temperature"`
		TopP           any                `json:"top_p"`
		Seed           any                `json:"seed"`
		MaxTokens      any                `json:"max_tokens"`
		ThinkingTokens any                `json:"thinking_tokens"`
		Stop           any                `json:"stop"`
		StatePrompts   any                `json:"state_prompts"`
	}
	entryForm struct {
		Text       *string            `json:"text"`
		Content    *string            `json:"content"`
		Calls      *[]json.RawMessage `json:"calls"`
		Error      *json.RawMessage   `json:"error"`
		Confidence *float64           `json:"confidence"`
		Usage      *json.RawMessage   `json:"usage"`
		Finish     llm.Finish         `json:"finish"`
		Reasoning  []json.RawMessage  `json:"reasoning"`
		Rest       *json.RawMessage   `json:"rest"`
	}
	reasoningForm struct {
		Kind string          `json:"kind"`
		Text string          `json:"text"`
		Data json.RawMessage `json:"data"`
		ID   string          `json:"id"`
	}
	callForm struct {
		Name      string           `json:"name"`
		Arguments *json.RawMessage `json:"arguments"`
		ID        string           `json:"id"`
	}
	errorForm struct {
		Kind         llm.ErrorKind `json:"kind"`
		Message      string        `json:"message"`
		RetryAfterMS int64         `json:"retry_after_ms"`
	}
	usageForm struct {
		Input   int      `json:"input"`
		Output  int      `json:"output"`
		Cached  int      `json:"cached"`
		Total   *int     `json:"total"`
		CostUSD *float64 `json:"cost_usd"`
	}
)

// Check refuses the `script` of an agent that package scripted cannot play. The error says
// where, as in "script[2].calls[0]".
func Check(script json.RawMessage) error {
	settings := []byte(`{}`)
	if len(script) > 0 {
		settings = append(append([]byte(`{"script":`), script...), '}')
	}
	_, err := Parse(settings)
	return err
}

// Parse reads an agent's `llm` block with its script. It refuses unknown keys,
// entries that are none or several of text, calls and error, and references to
// observations that can never exist; the error says where, as in
// "script[2].calls[0]".
func Parse(settings json.RawMessage) (Replies, error) {
	if len(settings) == 0 {
		settings = json.RawMessage("{}")
	}
	var block blockForm
	if err := read("llm", settings, &block); err != nil {
		return nil, err
	}
	if block.Script == nil {
		return nil, errors.New("llm: the scripted provider needs a script (a list of replies)")
	}
	s := make(Replies, len(*block.Script))
	for i, raw := range *block.Script {
		where := fmt.Sprintf("script[%d]", i)
		var f entryForm
		if err := read(where, raw, &f); err != nil {
			return nil, err
		}
		var err error
		if s[i], err = f.entry(where); err != nil {
			return nil, err
		}
	}
	return s, nil
}

func (f entryForm) entry(where string) (Entry, error) {
	e := Entry{Confidence: 1}
	kinds := 0
	for _, there := range []bool{f.Text != nil, f.Calls != nil, f.Error != nil} {
		if there {
			kinds++
		}
	}
	switch {
	case kinds != 1:
		return e, fmt.Errorf("%s: an entry is exactly one of text, calls and error", where)
	case f.Content != nil && f.Calls == nil:
		return e, fmt.Errorf("%s: content is the text of a reply with calls; a reply without calls uses text", where)
	}
	for key, text := range map[string]*string{"text": f.Text, "content": f.Content} {
		if text == nil {
			continue
		}
		if err := checkPlaceholders(*text); err != nil {
			return e, fmt.Errorf("%s.%s: %w", where, key, err)
		}
		e.Text = *text
	}
	if f.Confidence != nil {
		if e.Confidence = *f.Confidence; e.Confidence < 0 || e.Confidence > 1 {
			return e, fmt.Errorf("%s.confidence: has to be between 0 and 1", where)
		}
	}
	var err error
	if f.Calls != nil {
		if e.Calls, err = parseCalls(where+".calls", *f.Calls); err != nil {
			return e, err
		}
	}
	if f.Error != nil {
		if e.Failure, err = parseFailure(where+".error", *f.Error); err != nil {
			return e, err
		}
	}
	if f.Usage != nil {
		if e.Usage, err = parseUsage(where+".usage", *f.Usage); err != nil {
			return e, err
		}
	}
	return e, f.ending(where, &e)
}

var finishes = []llm.Finish{
	llm.FinishStop, llm.FinishToolCalls, llm.FinishLength, llm.FinishContentFilter, llm.FinishRefusal, llm.FinishError, llm.FinishUnknown,
}

// ending reads how the reply ends, what the model reasoned, and the rest of one that is cut
// off.
func (f entryForm) ending(where string, e *Entry) error {
	e.Finish = f.Finish
	switch {
	case f.Finish != "" && !slices.Contains(finishes, f.Finish):
		return fmt.Errorf("%s.finish: %q is not one of %v", where, f.Finish, finishes)
	case f.Error != nil && (f.Finish != "" || f.Reasoning != nil):
		return fmt.Errorf("%s: finish and reasoning belong to a reply, not to an error", where)
	case f.Rest != nil && !(llm.Meta{Finish: f.Finish}).Cut():
		return fmt.Errorf("%s.rest: is for a reply that is cut off, such as one with finish: length", where)
	}
	for i, raw := range f.Reasoning {
		where := fmt.Sprintf("%s.reasoning[%d]", where, i)
		var r reasoningForm
		if err := read(where, raw, &r); err != nil {
			return err
		}
		switch r.Kind {
		case events.ReasoningText, events.ReasoningSummary, events.ReasoningOpaque:
		default:
			return fmt.Errorf("%s.kind: %q is not text, summary or opaque", where, r.Kind)
		}
		e.Reasoning = append(e.Reasoning, events.ReasoningPart(r))
	}
	if f.Rest == nil {
		return nil
	}
	var rest entryForm
	if err := read(where+".rest", *f.Rest, &rest); err != nil {
		return err
	}
	parsed, err := rest.entry(where + ".rest")
	e.Rest = &parsed
	return err
}

func parseCalls(where string, list []json.RawMessage) ([]llm.Call, error) {
	if len(list) == 0 {
		return nil, fmt.Errorf("%s: is empty", where)
	}
	calls := make([]llm.Call, len(list))
	for i, raw := range list {
		where := fmt.Sprintf("%s[%d]", where, i)
		var f callForm
		if err := read(where, raw, &f); err != nil {
			return nil, err
		}
		if f.Name == "" {
			return nil, fmt.Errorf("%s: needs a name", where)
		}
		text, err := arguments(f.Arguments)
		if err != nil {
			return nil, fmt.Errorf("%s.arguments: %w", where, err)
		}
		calls[i] = llm.Call{ID: f.ID, Name: f.Name, Arguments: text}
	}
	return calls, nil
}

// arguments gives a call's arguments as a model would write them: an object's
// own text without white space (numbers and the order of keys stay as they are),
// or a string as it is, so that a script can also play a model that writes
// invalid JSON. None at all is the empty object.
func arguments(raw *json.RawMessage) (string, error) {
	if raw == nil {
		return "{}", nil
	}
	var text string
	switch bytes.TrimSpace(*raw)[0] {
	case '{':
		var out bytes.Buffer
		if err := json.Compact(&out, *raw); err != nil {
			return "", err
		}
		text = out.String()
	case '"':
		if err := json.Unmarshal(*raw, &text); err != nil {
			return "", err
		}
	default:
		return "", errors.New("has to be an object, or a string that holds one")
	}
	return text, checkPlaceholders(text)
}

var errorKinds = []llm.ErrorKind{
	llm.KindRateLimited, llm.KindOverloaded, llm.KindNetwork, llm.KindBroken, llm.KindAuth, llm.KindInvalid, llm.KindContextTooLong,
	llm.KindSchemaRefused, llm.KindToolUse, llm.KindOther,
}

func parseFailure(where string, raw json.RawMessage) (*llm.Error, error) {
	var f errorForm
	if err := read(where, raw, &f); err != nil {
		return nil, err
	}
	const year = 365 * 24 * 60 * 60 * 1000
	switch {
	case !slices.Contains(errorKinds, f.Kind):
		return nil, fmt.Errorf("%s.kind: %q is not one of %v", where, f.Kind, errorKinds)
	case f.RetryAfterMS < 0 || f.RetryAfterMS > year:
		return nil, fmt.Errorf("%s.retry_after_ms: has to be between 0 and a year", where)
	}
	wait := time.Duration(f.RetryAfterMS) * time.Millisecond
	return &llm.Error{Kind: f.Kind, Message: cmp.Or(f.Message, "programmed error"), RetryAfter: wait}, nil
}

func parseUsage(where string, raw json.RawMessage) (llm.Usage, error) {
	var f usageForm
	if err := read(where, raw, &f); err != nil {
		return llm.Usage{}, err
	}
	if min(f.Input, f.Output, f.Cached) < 0 || f.Total != nil && *f.Total < 0 || f.CostUSD != nil && *f.CostUSD < 0 {
		return llm.Usage{}, fmt.Errorf("%s: must not be negative", where)
	}
	if f.Total != nil && f.Input == 0 && f.Output == 0 {
		f.Input = *f.Total // a script that only cares about the sum
	}
	if f.Total != nil && *f.Total != f.Input+f.Output {
		return llm.Usage{}, fmt.Errorf("%s.total: has to be input plus output (%d)", where, f.Input+f.Output)
	}
	return llm.Usage{Input: f.Input, Output: f.Output, Cached: f.Cached, Total: f.Input + f.Output, CostUSD: f.CostUSD}, nil
}

// read decodes an object into one of the forms. It refuses other keys, letter by
// letter.
func read(where string, raw json.RawMessage, form any) error {
	var keys map[string]json.RawMessage
	if err := decode(where, raw, &keys); err != nil {
		return err
	}
	if keys == nil {
		return fmt.Errorf("%s: has to be an object", where)
	}
	var allowed, unknown []string
	for i := range reflect.TypeOf(form).Elem().NumField() {
		allowed = append(allowed, reflect.TypeOf(form).Elem().Field(i).Tag.Get("json"))
	}
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		if !slices.Contains(allowed, key) {
			unknown = append(unknown, fmt.Sprintf("%q", key))
		}
	}
	if len(unknown) > 0 {
		return fmt.Errorf("%s: unknown key %s (allowed: %s)", where, strings.Join(unknown, ", "), strings.Join(allowed, ", "))
	}
	return decode(where, raw, form)
}

func decode(where string, raw json.RawMessage, to any) error {
	err := json.Unmarshal(raw, to)
	var wrong *json.UnmarshalTypeError
	if errors.As(err, &wrong) {
		if wrong.Field != "" {
			where += "." + wrong.Field
		}
		return fmt.Errorf("%s: has to be %s, not a JSON %s", where, wanted(wrong.Type), wrong.Value)
	}
	if err != nil {
		return fmt.Errorf("%s: is not valid JSON: %w", where, err)
	}
	return nil
}

// wanted names a Go type in the words of JSON.
func wanted(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Map, reflect.Struct:
		return "an object"
	case reflect.Slice:
		return "a list"
	case reflect.String:
		return "a string"
	case reflect.Int, reflect.Int64:
		return "a whole number"
	}
	return "a number"
}

// Placeholder is a reference to an observation; opening finds what was meant to
// be one.
var (
	Placeholder = regexp.MustCompile(`\{\{\s*observation\s+(-?[0-9]{1,9})\s*\}\}`)
	opening     = regexp.MustCompile(`\{\{\s*observation\b`)
)

// checkPlaceholders refuses references that could never be replaced.
func checkPlaceholders(text string) error {
	found := Placeholder.FindAllStringSubmatch(text, -1)
	if len(found) != len(opening.FindAllString(text, -1)) {
		return fmt.Errorf("a reference has to be like {{observation -1}} (the last one) or {{observation 1}} (the first)")
	}
	for _, f := range found {
		if n, _ := strconv.Atoi(f[1]); n == 0 {
			return fmt.Errorf("%s: observations count from 1, or from the end from -1", f[0])
		}
	}
	return nil
}
