// Package scripted plays a model from a script in the agent's own definition, so
// that agents run without a key and tests know every reply beforehand.
//
// The script is in the agent's `llm` block, which a request carries as Settings:
//
//	llm:
//	  provider: scripted
//	  script:
//	    - content: I count first.
//	      calls: [{name: word_count, arguments: {text: one two}}]
//	    - error: {kind: overloaded, message: try again}
//	    - text: There are {{observation -1}} words.
//
// What it promises: it uses the entry numbered req.Replies and no state of the
// process, so any process can continue a run. {{observation -1}} stands for the result
// of the run's last tool call, {{observation 1}} for that of its first. A call without
// an id gets "call_<reply>_<k>". A request for the rest of a reply gets its entry's rest, or
// nothing more. Streams come word by word. A used-up script is an
// *llm.Error of KindInvalid.
//
// [Mock] is the variant for Go tests and examples: its replies are Go values,
// and it counts its calls.
package scripted

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"sync"

	"github.com/moorebus/moorebus/internal/script"
	"github.com/moorebus/moorebus/pkg/llm"
)

// usedUp is the message of the error that follows the last reply.
const usedUp = "no more programmed responses"

// defaultModel is the name that replies carry where the request names none.
const defaultModel = "scripted"

// caller answers each request from the script in its Settings. It is safe for
// concurrent use. The zero value is ready to use.
type caller struct {
	mu sync.Mutex
	// parsed caches scripts, since many requests carry the same one. No reply
	// depends on it.
	parsed map[string]script.Replies
	bytes  int // of the settings in parsed
}

// Describe returns the same for all callers: the agent's definition holds their replies.
func (*caller) Describe() llm.Description {
	return llm.Description{Identity: "scripted", Local: true, OwnCost: true}
}

// New returns a Caller that answers each request from the script in its Settings.
func New() llm.Described { return &caller{} }

// Bounds of the cache, in bytes of settings and in scripts.
const (
	cacheBytes   = 16 << 20
	cacheScripts = 256
)

// Call returns the script's entry numbered req.Replies, counted from 0. It returns an
// *llm.Error of KindInvalid for settings whose script cannot be, for a used-up script, for
// a reference to a missing observation, and for a reflection, which scripts do not hold.
func (c *caller) Call(ctx context.Context, req llm.Request, stream func(llm.Chunk)) (llm.Response, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if req.Purpose == llm.PurposeReflect {
		return nil, invalid("a script holds no reflections")
	}
	s, err := c.script(req.Settings)
	if err != nil {
		return nil, invalid(err.Error())
	}
	res, err := reply(s, req)
	if err != nil {
		return nil, err
	}
	if stream != nil {
		for chunk := range llm.Chunks(res) {
			stream(chunk)
		}
	}
	return res, nil
}

func (c *caller) script(settings json.RawMessage) (script.Replies, error) {
	c.mu.Lock()
	s, ok := c.parsed[string(settings)]
	c.mu.Unlock()
	if ok {
		return s, nil
	}
	s, err := script.Parse(settings)
	if err == nil {
		c.keep(string(settings), s)
	}
	return s, err
}

// keep caches a script. A full cache is emptied first.
func (c *caller) keep(settings string, parsed script.Replies) {
	if len(settings) > cacheBytes {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.parsed == nil || len(c.parsed) >= cacheScripts || c.bytes+len(settings) > cacheBytes {
		c.parsed, c.bytes = map[string]script.Replies{}, 0
	}
	if _, ok := c.parsed[settings]; !ok {
		c.parsed[settings] = parsed
		c.bytes += len(settings)
	}
}

// reply makes the response to req. The error is an *llm.Error.
func reply(s script.Replies, req llm.Request) (llm.Response, error) {
	if req.Replies < 0 || req.Replies >= len(s) {
		return nil, invalid(fmt.Sprintf("%s: the script has %d, and number %d was asked for",
			usedUp, len(s), req.Replies+1))
	}
	e := s[req.Replies]
	if req.Rest {
		if e.Rest == nil {
			e.Rest = &script.Entry{Finish: e.Finish, Confidence: e.Confidence}
		}
		e = *e.Rest
	}
	if e.Failure != nil {
		failure := *e.Failure
		return nil, &failure
	}
	res, err := respond(e, req)
	if err != nil {
		return nil, invalid(fmt.Sprintf("script[%d]: %v", req.Replies, err))
	}
	return res, nil
}

func respond(e script.Entry, req llm.Request) (llm.Response, error) {
	meta := llm.Meta{Model: modelOf(req), Usage: e.Usage, Confidence: e.Confidence, ZeroConfidence: e.Confidence == 0, Finish: e.Finish, Reasoning: e.Reasoning}
	text, err := expand(e.Text, req.Observations)
	if err != nil {
		return nil, err
	}
	if len(e.Calls) == 0 {
		if len(req.OutputSchema) > 0 && e.Finish != llm.FinishRefusal {
			return llm.Structured{Meta: meta, Content: text}, nil
		}
		return llm.Text{Meta: meta, Content: text}, nil
	}
	calls := make([]llm.Call, len(e.Calls))
	for i, c := range e.Calls {
		if c.Arguments, err = expandJSON(c.Arguments, req.Observations); err != nil {
			return nil, err
		}
		if c.ID == "" {
			c.ID = "call_" + strconv.Itoa(req.Replies+1) + "_" + strconv.Itoa(i+1)
		}
		calls[i] = c
	}
	return llm.ToolCalls{Meta: meta, Content: text, Calls: calls}, nil
}

func modelOf(req llm.Request) string {
	if req.Model == "" {
		return defaultModel
	}
	return req.Model
}

func invalid(message string) *llm.Error {
	return &llm.Error{Kind: llm.KindInvalid, Message: message}
}

// expand replaces every reference in text by the observation that it names.
func expand(text string, observations []string) (string, error) {
	return replace(text, observations, func(_, observation string) string { return observation })
}

// expandJSON does the same in JSON text. It escapes observations inside string literals,
// so that valid JSON stays valid.
func expandJSON(text string, observations []string) (string, error) {
	inside := false
	return replace(text, observations, func(before, observation string) string {
		inside = endsInString(before, inside)
		if !inside {
			return observation
		}
		return escape(observation)
	})
}

// replace calls put for every reference with the text between the reference
// before and this one, and with the observation.
func replace(text string, observations []string, put func(before, observation string) string) (string, error) {
	if !strings.Contains(text, "{{") {
		return text, nil
	}
	found := script.Placeholder.FindAllStringSubmatchIndex(text, -1)
	if found == nil {
		return text, nil
	}
	var out strings.Builder
	end := 0
	for _, at := range found {
		observation, err := pick(text[at[2]:at[3]], observations)
		if err != nil {
			return "", err
		}
		before := text[end:at[0]]
		out.WriteString(before)
		out.WriteString(put(before, observation))
		end = at[1]
	}
	out.WriteString(text[end:])
	return out.String(), nil
}

func pick(number string, observations []string) (string, error) {
	n, err := strconv.Atoi(number)
	if err != nil {
		return "", fmt.Errorf("observation %q: %w", number, err)
	}
	i := n - 1
	if n < 0 {
		i = len(observations) + n
	}
	if n == 0 || i < 0 || i >= len(observations) {
		return "", fmt.Errorf("there is no observation %d: the run has %d so far", n, len(observations))
	}
	return observations[i], nil
}

// endsInString reports whether a piece of JSON text ends inside a string
// literal, given whether it began in one.
func endsInString(piece string, inside bool) bool {
	for i := 0; i < len(piece); i++ {
		switch {
		case piece[i] == '"':
			inside = !inside
		case piece[i] == '\\' && inside:
			i++
		}
	}
	return inside
}

func escape(s string) string {
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	// A string cannot fail to encode.
	_ = enc.Encode(s)
	return strings.TrimSuffix(strings.TrimPrefix(strings.TrimSpace(out.String()), `"`), `"`)
}
