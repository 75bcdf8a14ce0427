package llmhttp

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"

	"github.com/moorebus/moorebus/pkg/llm"
)

// Exchange is one request in the form of an API, and what its reply is read with.
type Exchange interface {
	// Body writes the request.
	Body(stream bool) ([]byte, error)
	// Read reads a reply that came in one piece.
	Read(r *Reply) (llm.Response, error)
	// Assemble begins a streamed reply, whose parts go to emit as they come.
	Assemble(emit func(llm.Chunk)) Assembly
}

// Assembly puts a streamed reply together.
type Assembly interface {
	// Add takes the next event; see [Client.Stream].
	Add(e Event) (Progress, error)
	// Reply returns the reply once it is complete.
	Reply() (llm.Response, error)
	// Meta returns what is known of the reply so far.
	Meta() llm.Meta
}

// Reducible is an [Exchange] with parameters that it can do without. Without reports
// whether the request, which the server refused for the parameter, can be sent again
// without it.
type Reducible interface {
	Exchange
	Without(param string) bool
}

// ReturnedReasoning stands for the reasoning that a request sends back, where the server
// refuses it: it was altered, is another model's, or is bound to another conversation.
const ReturnedReasoning = "returned reasoning"

// Forget removes the reasoning from the request's messages, and reports whether there was
// any.
func Forget(req *llm.Request) bool {
	had := false
	messages := slices.Clone(req.Messages)
	for i := range messages {
		had = had || len(messages[i].Reasoning) > 0
		messages[i].Reasoning = nil
	}
	req.Messages = messages
	return had
}

// Ask makes one call, within the timeout: with a stream if stream is not nil. A server
// that answers that in one piece has answered. One that refuses to stream, or refuses a
// parameter of a [Reducible], is asked again without. A stream that breaks is an error of [llm.KindBroken]. The digest of the request
// is in the reply, unless the exchange sets another.
func (c *Client) Ask(ctx context.Context, x Exchange, stream func(llm.Chunk)) (llm.Response, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if written, ok := ctx.Value(writing{}).(*llm.Written); ok {
		body, err := x.Body(stream != nil)
		*written = llm.Written{Dialect: c.row.Name, Body: body}
		return nil, cmp.Or(err, errWritten)
	}
	timed, cancel := context.WithTimeout(ctx, c.opts.Timeout)
	defer cancel()
	a := asked{client: c, x: x}
	res, err := a.ask(timed, stream)
	switch {
	case err == nil:
		return amended(res, a.sent), nil
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case timed.Err() != nil:
		late := &llm.Error{
			Kind: llm.KindNetwork, Err: timed.Err(),
			Message: fmt.Sprintf("the model gave no complete reply within %v", c.opts.Timeout),
		}
		if a.partial != nil { // what came is billed
			late.Kind = llm.KindBroken
		}
		err = late
	}
	return nil, a.explain(err)
}

// writing is the key of the context in which requests are written and not sent.
type writing struct{}

// errWritten ends a call whose request was written.
var errWritten = errors.New("the request was written and not sent")

// Write returns the request that Call sends first, without sending it; see [llm.Writer].
func (c *Caller) Write(ctx context.Context, req llm.Request, _ string, stream bool) (llm.Written, error) {
	var written llm.Written
	var chunk func(llm.Chunk)
	if stream {
		chunk = func(llm.Chunk) {}
	}
	_, err := c.call(context.WithValue(ctx, writing{}, &written), req, chunk)
	if errors.Is(err, errWritten) {
		err = nil
	}
	return written, err
}

// asked is one call.
type asked struct {
	client *Client
	x      Exchange
	// sha256 is the digest of the first body.
	sha256 string
	// partial is a streamed reply of which something came.
	partial Assembly
}

// ask asks again only if the server refuses a parameter that the request can do without.
func (a *asked) ask(ctx context.Context, stream func(llm.Chunk)) (llm.Response, error) {
	for {
		res, err := a.once(ctx, stream)
		var param refused
		x, reducible := a.x.(Reducible)
		switch {
		case !errors.As(err, &param) || ctx.Err() != nil:
			return res, err
		case stream != nil && (param == "stream" || param == "stream_options"):
			stream = nil
		case reducible && x.Without(string(param)):
		default:
			return res, err
		}
	}
}

func (a *asked) once(ctx context.Context, stream func(llm.Chunk)) (llm.Response, error) {
	if stream != nil {
		return a.streamed(ctx, stream)
	}
	body, err := a.body(false)
	if err != nil {
		return nil, err
	}
	r, err := a.client.Post(ctx, body)
	if err != nil {
		return nil, err
	}
	return a.read(r)
}

// read reads a reply in one piece, which some servers write as a stream.
func (a *asked) read(r *Reply) (llm.Response, error) {
	if !streams(r.Body) {
		return a.x.Read(r)
	}
	assembly := a.x.Assemble(func(llm.Chunk) {})
	in := newEvents(bytes.NewReader(r.Body), int64(len(r.Body)), func() {})
	a.partial = assembly
	if err := play(in, assembly.Add, func() {}); err != nil {
		return nil, a.client.broken(err, in, r.response)
	}
	return assembly.Reply()
}

func (a *asked) streamed(ctx context.Context, emit func(llm.Chunk)) (llm.Response, error) {
	body, err := a.body(true)
	if err != nil {
		return nil, err
	}
	assembly := a.x.Assemble(emit)
	whole, err := a.client.Stream(ctx, body, func(e Event) (Progress, error) {
		a.partial = assembly
		return assembly.Add(e)
	})
	switch {
	case err != nil:
		return nil, err
	case whole == nil:
		return assembly.Reply()
	}
	res, err := a.x.Read(whole)
	if err != nil {
		return nil, err
	}
	for chunk := range llm.Chunks(res) {
		emit(chunk)
	}
	return res, nil
}

func (a *asked) body(stream bool) ([]byte, error) {
	body, err := a.x.Body(stream)
	if err == nil && a.sha256 == "" {
		sum := sha256.Sum256(body)
		a.sha256 = hex.EncodeToString(sum[:])
	}
	return body, err
}

// sent adds what was sent, and to which API.
func (a *asked) sent(m *llm.Meta) {
	m.Dialect, m.RequestSHA256 = a.client.row.Name, cmp.Or(m.RequestSHA256, a.sha256)
}

// explain adds to an error what is known of the reply that came in part.
func (a *asked) explain(err error) error {
	var e *llm.Error
	if !errors.As(err, &e) {
		return err
	}
	if e.Reply == nil && a.partial != nil {
		_ = Unused(e, a.partial.Meta())
	}
	if e.Reply == nil && e.Kind == llm.KindToolUse {
		e.Reply = &llm.Meta{Finish: llm.FinishError} // the server has the reply, and only an error comes
	}
	if e.Reply != nil {
		a.sent(e.Reply)
	}
	return err
}

// Unused adds to the error of a reply that came what is known of the reply, and returns
// the error.
func Unused(e *llm.Error, reply llm.Meta) *llm.Error {
	e.Reply = &reply
	if e.Usage == nil && reply.Usage != (llm.Usage{}) {
		e.Usage = &reply.Usage
	}
	return e
}

// amended returns the reply with a changed Meta.
func amended(res llm.Response, change func(*llm.Meta)) llm.Response {
	switch r := res.(type) {
	case llm.Text:
		change(&r.Meta)
		return r
	case llm.ToolCalls:
		change(&r.Meta)
		return r
	case llm.Structured:
		change(&r.Meta)
		return r
	}
	return res
}
