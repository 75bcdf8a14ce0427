package anthropic

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	sdk "github.com/anthropics/anthropic-sdk-go"
	"github.com/anthropics/anthropic-sdk-go/option"

	"github.com/moorebus/moorebus/pkg/llm"
)

// errBroken is a stream that ended before it was complete; a plain call may
// still succeed.
var errBroken = errors.New("the stream broke")

// drainTime is how long an ended stream's connection may take to end, too.
const drainTime = 50 * time.Millisecond

// streamed asks for the reply as a stream and tells emit of its parts. The error
// wraps errBroken where a plain call should follow.
func (c *Caller) streamed(ctx context.Context, x *exchange, emit func(llm.Chunk)) (llm.Response, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	silence := stopped(cancel) // until something has begun, the call's own time bounds it
	defer silence.Stop()
	d := &doer{client: c.opts.HTTPClient, limit: c.opts.MaxBytes, stream: true, heard: func() { silence.Reset(c.opts.Silence) }}
	s := c.client.Messages.NewStreaming(ctx, x.params, option.WithHTTPClient(d))
	defer func() { _ = s.Close() }()
	if d.body == nil { // refused, or no reply at all
		return nil, c.classify(s.Err(), d)
	}
	a := assembly{emit: emit, x: x, blocks: map[int64]*block{}}
	for !a.stopped && s.Next() {
		event := s.Current()
		a.add(&event)
	}
	if !a.stopped {
		return nil, c.streamFailure(s.Err(), d)
	}
	silence.Reset(drainTime)
	d.body.drain()
	return c.response(x, a.reply())
}

// stopped returns a timer that does not run, and calls f some time after it was
// reset.
func stopped(f func()) *time.Timer {
	timer := time.AfterFunc(time.Hour, f)
	timer.Stop()
	return timer
}

// streamFailure tells a broken stream from an error that the provider stated in
// it, and from a server that floods.
func (c *Caller) streamFailure(err error, d *doer) error {
	var stated *sdk.Error
	switch {
	case errors.As(err, &stated), errors.Is(err, errTooLarge):
		return c.classify(err, d)
	case err == nil:
		return fmt.Errorf("%w: it ended without message_stop", errBroken)
	}
	return fmt.Errorf("%w: %w", errBroken, err)
}

// assembly puts a streamed reply together. The library can do that, too, but it
// replaces the arguments of a call that was cut off by {}, and copies a text for
// each part of it.
type assembly struct {
	emit    func(llm.Chunk)
	x       *exchange
	model   string
	order   []*block
	blocks  map[int64]*block
	calls   int
	said    bool
	stop    sdk.StopReason
	refusal string
	usage   usage
	stopped bool
}

// block is one block of the reply. Text is its text, thinking or arguments; whole
// what its beginning held of it.
type block struct {
	kind, id, name string
	call           int
	answer         bool
	text           strings.Builder
	whole          string
	signature      string
	raw            json.RawMessage
}

func (a *assembly) add(e *sdk.MessageStreamEventUnion) {
	switch e.Type {
	case "message_start":
		u := e.Message.Usage
		a.model = e.Message.Model
		a.usage = usage{u.InputTokens, u.CacheCreationInputTokens, u.CacheReadInputTokens, u.OutputTokens}
	case "content_block_start":
		a.begin(e)
	case "content_block_delta":
		if b := a.blocks[e.Index]; b != nil {
			a.delta(b, &e.Delta)
		}
	case "message_delta":
		a.stop, a.refusal = e.Delta.StopReason, e.Delta.StopDetails.Explanation
		a.count(&e.Usage)
	case "message_stop":
		a.stopped = true
	}
}

// count takes the usage so far; what it leaves out is as the stream's beginning
// said.
func (a *assembly) count(u *sdk.MessageDeltaUsage) {
	a.usage.output = max(a.usage.output, u.OutputTokens)
	if u.JSON.InputTokens.Valid() {
		a.usage.input = u.InputTokens
	}
	if u.JSON.CacheCreationInputTokens.Valid() {
		a.usage.created = u.CacheCreationInputTokens
	}
	if u.JSON.CacheReadInputTokens.Valid() {
		a.usage.read = u.CacheReadInputTokens
	}
}

func (a *assembly) begin(e *sdk.MessageStreamEventUnion) {
	start := &e.ContentBlock
	b := &block{kind: start.Type, id: start.ID, name: start.Name, signature: start.Signature}
	a.blocks[e.Index] = b
	a.order = append(a.order, b)
	switch b.kind {
	case "text":
		a.say(b, start.Text)
	case "thinking":
		b.text.WriteString(start.Thinking)
	case "redacted_thinking":
		b.raw = json.RawMessage(start.RawJSON())
	case "tool_use":
		b.whole = start.JSON.Input.Raw()
		b.answer = a.x.answer != nil && b.name == a.x.answer.name
		if !b.answer {
			b.call = a.calls
			a.calls++
			a.emit(llm.Chunk{Kind: llm.ChunkToolCall, Index: b.call, Name: a.x.names.Tool(b.name)})
		}
	}
}

func (a *assembly) delta(b *block, d *sdk.MessageStreamEventUnionDelta) {
	switch d.Type {
	case "text_delta":
		a.say(b, d.Text)
	case "thinking_delta":
		b.text.WriteString(d.Thinking)
	case "signature_delta":
		b.signature += d.Signature
	case "input_json_delta":
		b.text.WriteString(d.PartialJSON)
		switch {
		case d.PartialJSON == "":
		case !b.answer:
			a.emit(llm.Chunk{Kind: llm.ChunkToolCall, Index: b.call, Text: d.PartialJSON})
		case !a.said: // a structured answer is shown as the text that it becomes
			a.emit(llm.Chunk{Kind: llm.ChunkText, Text: d.PartialJSON})
		}
	}
}

func (a *assembly) say(b *block, text string) {
	b.text.WriteString(text)
	if text != "" {
		a.said = true
		a.emit(llm.Chunk{Kind: llm.ChunkText, Text: text})
	}
}

func (a *assembly) reply() reply {
	r := reply{model: a.model, stop: a.stop, explanation: a.refusal, usage: a.usage}
	var words strings.Builder
	for _, b := range a.order {
		switch b.kind {
		case "text":
			words.WriteString(b.text.String())
		case "thinking":
			r.thinking = append(r.thinking, thought(b.text.String(), b.signature))
		case "redacted_thinking":
			r.thinking = append(r.thinking, b.raw)
		case "tool_use":
			arguments := b.text.String()
			if arguments == "" {
				arguments = b.whole
			}
			r.calls = append(r.calls, llm.Call{ID: b.id, Name: b.name, Arguments: arguments})
		}
	}
	r.text = words.String()
	return r
}
