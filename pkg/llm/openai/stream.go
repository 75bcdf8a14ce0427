package openai

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sort"
	"strings"
	"time"

	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/sashabaranov/go-openai"
)

// errBroken is a stream that ended before it was complete; a plain call may
// still succeed.
var errBroken = errors.New("the stream broke")

// drainTime is how long an ended stream's connection may take to end, too.
const drainTime = 50 * time.Millisecond

// streamed asks for the reply as a stream and tells emit of its parts. The error
// wraps errBroken where a plain call should follow.
func (c *Caller) streamed(ctx context.Context, req llm.Request, emit func(llm.Chunk)) (llm.Response, error) {
	x, err := c.exchange(req, true)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s, err := c.client.CreateChatCompletionStream(x.in(ctx), openai.ChatCompletionRequest{})
	if err != nil {
		if x.whole != nil {
			return c.unstreamed(req, x, emit)
		}
		if refusesStream(err) {
			return nil, fmt.Errorf("%w: the server refuses to stream", errBroken)
		}
		return nil, c.classify(err, x)
	}
	defer func() { _ = s.Close() }()
	silence := stopped(cancel) // until something has begun, the call's own time bounds it
	defer silence.Stop()
	x.events.heard = func() { silence.Reset(c.opts.Silence) }
	a := newAssembly(emit, x.names)
	timer := stopped(cancel)
	defer timer.Stop()
	for err == nil {
		answered := a.answered()
		var raw []byte
		if raw, err = s.RecvRaw(); err == nil {
			err = a.add(raw)
		}
		if !answered && a.answered() {
			timer.Reset(c.grace) // for the usage, which comes last
		}
	}
	if !a.answered() {
		return nil, c.streamFailure(err, x)
	}
	if errors.Is(err, io.EOF) {
		timer.Reset(drainTime)
		x.events.drain()
	}
	return c.response(req, x.names, a.reply())
}

// stopped returns a timer that does not run, and calls f some time after it was
// reset.
func stopped(f func()) *time.Timer {
	timer := time.AfterFunc(time.Hour, f)
	timer.Stop()
	return timer
}

// unstreamed takes a reply that came in one piece from a server which ignores
// that a stream was asked for; asking again would be answered twice.
func (c *Caller) unstreamed(req llm.Request, x *exchange, emit func(llm.Chunk)) (llm.Response, error) {
	var res openai.ChatCompletionResponse
	if err := json.Unmarshal(x.whole, &res); err != nil {
		return nil, fmt.Errorf("%w: %w", errBroken, err)
	}
	r, err := fromCompletion(res)
	if err != nil {
		return nil, err
	}
	out, err := c.response(req, x.names, r)
	if err != nil {
		return nil, err
	}
	for chunk := range llm.Chunks(out) {
		emit(chunk)
	}
	return out, nil
}

// streamFailure tells a broken stream from an error that the provider stated in
// it, and from a server that floods.
func (c *Caller) streamFailure(err error, x *exchange) error {
	var stated *openai.APIError
	if errors.As(err, &stated) || errors.Is(err, errTooLarge) {
		return c.classify(err, x)
	}
	return fmt.Errorf("%w: %w", errBroken, err)
}

// refusesStream reports whether the server named the streaming parameters as
// what it does not accept.
func refusesStream(err error) bool {
	var e *openai.APIError
	return errors.As(err, &e) && e.Param != nil && (*e.Param == "stream" || *e.Param == "stream_options")
}

// assembly puts a streamed reply together.
type assembly struct {
	emit    func(llm.Chunk)
	names   *llm.ToolNames
	model   string
	text    strings.Builder
	refused bool
	finish  openai.FinishReason
	usage   *openai.Usage
	calls   []*partial
	byIndex map[int]*partial
	byID    map[string]*partial
	next    int
}

// partial is a call of which not everything may have come yet.
type partial struct {
	index    int
	id, name string
	args     strings.Builder
}

func newAssembly(emit func(llm.Chunk), names *llm.ToolNames) *assembly {
	return &assembly{emit: emit, names: names, byIndex: map[int]*partial{}, byID: map[string]*partial{}}
}

// answered reports whether the reply itself is complete.
func (a *assembly) answered() bool { return a.finish != "" }

// chunk is one event of a stream. Some servers state an error beside the fields
// of a reply, where the library does not look.
type chunk struct {
	openai.ChatCompletionStreamResponse
	Error *openai.APIError `json:"error"`
}

func (a *assembly) add(raw []byte) error {
	var c chunk
	if err := json.Unmarshal(raw, &c); err != nil {
		return fmt.Errorf("a chunk is not valid: %w", err)
	}
	if c.Error != nil {
		return c.Error
	}
	if c.Model != "" {
		a.model = c.Model
	}
	if c.Usage != nil {
		a.usage = c.Usage
	}
	for _, choice := range c.Choices {
		if choice.Index == 0 {
			a.delta(choice.Delta)
			a.finished(choice.FinishReason)
		}
	}
	return nil
}

func (a *assembly) finished(reason openai.FinishReason) {
	if reason != "" && reason != openai.FinishReasonNull {
		a.finish = reason
	}
}

func (a *assembly) delta(d openai.ChatCompletionStreamChoiceDelta) {
	if d.Refusal != "" {
		a.refused = true
	}
	if text := d.Content + d.Refusal; text != "" {
		a.text.WriteString(text)
		a.emit(llm.Chunk{Kind: llm.ChunkText, Text: text})
	}
	for _, tc := range d.ToolCalls {
		p := a.find(tc)
		name := ""
		if p.name == "" && tc.Function.Name != "" {
			p.name, name = tc.Function.Name, a.names.Tool(tc.Function.Name)
		}
		p.args.WriteString(tc.Function.Arguments)
		if name != "" || tc.Function.Arguments != "" {
			a.emit(llm.Chunk{Kind: llm.ChunkToolCall, Index: p.index, Name: name, Text: tc.Function.Arguments})
		}
	}
}

// find gives the call that a fragment belongs to: the one with its index, and
// where the server gives no index the one with its id, else the last one. A
// fragment that names a function under a new id begins a call even if its index
// is taken: some servers give every call index 0.
func (a *assembly) find(tc openai.ToolCall) *partial {
	var p *partial
	switch {
	case tc.Index != nil:
		p = a.byIndex[*tc.Index]
	case tc.ID != "":
		p = a.byID[tc.ID]
	case tc.Function.Name == "" && len(a.calls) > 0:
		p = a.calls[len(a.calls)-1]
	}
	another := p != nil && tc.ID != "" && p.id != "" && tc.ID != p.id && tc.Function.Name != ""
	if p == nil || another {
		p = a.begin(tc.Index)
	}
	if p.id == "" && tc.ID != "" {
		p.id = tc.ID
		a.byID[tc.ID] = p
	}
	return p
}

func (a *assembly) begin(index *int) *partial {
	p := &partial{index: a.next}
	if index != nil {
		if a.byIndex[*index] == nil {
			p.index = *index
		}
		a.byIndex[*index] = p
	}
	a.next = max(a.next, p.index+1)
	a.calls = append(a.calls, p)
	return p
}

func (a *assembly) reply() reply {
	sort.SliceStable(a.calls, func(i, j int) bool { return a.calls[i].index < a.calls[j].index })
	r := reply{model: a.model, text: a.text.String(), refused: a.refused, finish: a.finish}
	if a.usage != nil {
		r.usage = *a.usage
	}
	for _, p := range a.calls {
		r.calls = append(r.calls, llm.Call{ID: p.id, Name: p.name, Arguments: p.args.String()})
	}
	return r
}
