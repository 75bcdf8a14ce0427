package mcptool

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/moorebus/moorebus/internal/callctx"
	"github.com/moorebus/moorebus/internal/tracecontext"
	"github.com/moorebus/moorebus/pkg/tool"
)

// The keys of a call's `_meta`, by which a server can recognise a repeated call.
const (
	metaIdempotencyKey = "io.moorebus/idempotency-key"
	metaRun            = "io.moorebus/run"
	metaCall           = "io.moorebus/call"
)

// remote is a tool of a server.
type remote struct {
	server *server
	name   string // the server's own name for it
	def    tool.Definition
	// asTask says that the tool is called as a task.
	asTask bool
	// ask makes the request and returns its result as the model sees it.
	ask func(ctx context.Context, client *mcp.ClientSession, arguments json.RawMessage, meta mcp.Meta) (string, error)
}

func (r *remote) Definition() tool.Definition { return r.def }

// Run calls the tool. It tells the server to stop when ctx ends.
func (r *remote) Run(ctx context.Context, call tool.Call) (said string, err error) {
	arguments, err := object(call.Arguments)
	if err != nil {
		return "", err
	}
	meta := mcp.Meta{metaIdempotencyKey: call.IdempotencyKey(), metaRun: call.Run, metaCall: call.ID}
	if call.TraceParent != "" {
		meta[tracecontext.Header] = call.TraceParent
		ctx = tracecontext.With(ctx, call.TraceParent)
	}
	if r.asTask {
		said, err = r.runTask(ctx, arguments, meta)
		return r.server.hide(said), err
	}
	err = r.server.request(ctx, func(ctx context.Context, client *mcp.ClientSession) (err error) {
		said, err = r.ask(ctx, client, arguments, meta)
		return err
	})
	return r.server.hide(said), err
}

// callTool is the ask of a tool of the server.
func (r *remote) callTool(ctx context.Context, client *mcp.ClientSession, arguments json.RawMessage, meta mcp.Meta) (string, error) {
	res, err := client.CallTool(ctx, &mcp.CallToolParams{Name: r.name, Arguments: arguments, Meta: meta})
	if err != nil {
		return "", err
	}
	return resultOf(ctx, res)
}

// resultOf returns a result as the model sees it.
func resultOf(ctx context.Context, res *mcp.CallToolResult) (string, error) {
	said := text(ctx, res)
	switch {
	case res.IsError && said == "":
		return "", tool.Failf(tool.CodeFailed, "the tool failed without saying why")
	case res.IsError:
		return "", tool.Failf(tool.CodeFailed, "%s", said)
	}
	return said, nil
}

// request makes a request. If the session did not send it, because the session was ending or
// nobody listens at the address, the next session gets it. A server's own answer can look
// like that, since the SDK distinguishes its errors by codes that a server may use as well.
func (s *server) request(ctx context.Context, send func(context.Context, *mcp.ClientSession) error) error {
	waiting, stop := context.WithTimeout(ctx, patience(ctx))
	defer stop()
	for {
		session, err := s.await(ctx, waiting.Done())
		if err != nil {
			return err
		}
		marked, sent := watchSent(ctx)
		leave := session.enter()
		asking, end := session.inquire(marked, s)
		err = send(asking, session.client)
		open := end()
		leave()
		var failed *tool.Failure
		switch {
		case open != nil:
			return open
		case err == nil:
			return nil
		case errors.As(err, &failed):
			failed.Message = s.hide(failed.Message)
			return err
		}
		gone := unreached(err)
		closed := errors.Is(err, mcp.ErrConnectionClosed)
		if closed && sent.Load() {
			err = answered(err)
		}
		switch {
		case gone != nil && session.end != nil && ctx.Err() == nil:
			session.end(gone) // the next round waits for its successor
		case sent.Load() || !closed && !errors.Is(err, errOver) || ctx.Err() != nil:
			return s.failure(ctx, session, err)
		}
		select {
		case <-session.ended:
		case <-ctx.Done():
		}
	}
}

// unreached returns the error of a connection that could not be made, else nil. Nothing was
// sent then.
func unreached(err error) error {
	var dial *net.OpError
	if errors.As(err, &dial) && dial.Op == "dial" {
		return dial
	}
	return nil
}

// answered recovers the answer of a server that the SDK took for the end of the connection.
// The SDK keeps only its text.
func answered(err error) error {
	said := err.Error()
	if _, inner, found := strings.Cut(said, `calling "`); found {
		_, said, _ = strings.Cut(inner, `": `)
	}
	return tool.Failf(tool.CodeFailed, "%s", said)
}

// object checks that arguments are a JSON object. Empty arguments mean {}.
func object(arguments string) (json.RawMessage, error) {
	trimmed := strings.TrimSpace(arguments)
	if trimmed == "" {
		return json.RawMessage("{}"), nil
	}
	if trimmed[0] != '{' || !json.Valid([]byte(trimmed)) {
		f := tool.Failf(tool.CodeInvalidArguments, "the arguments are not a JSON object")
		f.NotSent = true
		return nil, f
	}
	return json.RawMessage(trimmed), nil
}

// answerOf returns the error that a server answered with, else nil. The SDK uses the same
// type for messages that never reached a server.
func answerOf(err error) *jsonrpc.Error {
	var answer *jsonrpc.Error
	if !errors.As(err, &answer) {
		return nil
	}
	switch answer.Message {
	case "rejected by transport", "client is closing", "server is closing":
		return nil
	}
	return answer
}

// failure returns the failure of a call, without secrets of the server's address.
func (s *server) failure(ctx context.Context, session *session, err error) error {
	classified := s.classify(ctx, session, err)
	var f *tool.Failure
	if errors.As(classified, &f) {
		f.Message = s.hide(s.conceal.Replace(f.Message))
	}
	return classified
}

// hide removes the server's OAuth token from a text.
func (s *server) hide(text string) string {
	if s.endpoint == nil {
		return text
	}
	return s.endpoint.auth.Hide(text)
}

// classify classifies the errors of calls.
func (s *server) classify(ctx context.Context, session *session, err error) error {
	answer := answerOf(err)
	var status *statusError
	var known *tool.Failure
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("the call was stopped: %w", ctx.Err())
	case errors.As(err, &known):
		return known
	case errors.As(err, &status):
		f := tool.Failf(tool.CodeHTTPStatus, "the MCP server %q answered %s", s.opts.Name, status)
		f.Passing, f.RetryAfter = status.passing(), status.retryAfter
		f.NotSent = status.refused()
		return f
	case answer != nil:
		return tool.Failf(tool.CodeFailed, "%s (MCP error %d)", answer.Message, answer.Code)
	}
	session.lookSoon()
	return tool.Failf(tool.CodeUnreachable,
		"the MCP server %q went away before it answered: %v", s.opts.Name, session.why(err))
}

// text returns a result as the model sees it.
func text(ctx context.Context, res *mcp.CallToolResult) string {
	var parts []string
	said := false
	for _, c := range res.Content {
		part, isText := part(ctx, c)
		said = said || isText
		parts = append(parts, part)
	}
	if !said && res.StructuredContent != nil {
		if data, err := compact(res.StructuredContent); err == nil {
			parts = append([]string{string(data)}, parts...)
		}
	}
	return strings.Join(parts, "\n")
}

// part returns one part of a result, and whether it is plain text.
func part(ctx context.Context, c mcp.Content) (string, bool) {
	switch c := c.(type) {
	case *mcp.TextContent:
		return c.Text, true
	case *mcp.ImageContent:
		return callctx.Stored(ctx, "image", c.MIMEType, c.Data), false
	case *mcp.AudioContent:
		return callctx.Stored(ctx, "audio", c.MIMEType, c.Data), false
	case *mcp.ResourceLink:
		return link(c), false
	case *mcp.EmbeddedResource:
		return resource(ctx, c.Resource)
	}
	return fmt.Sprintf("[content of a kind that is not known: %T]", c), false
}

func link(l *mcp.ResourceLink) string {
	var b strings.Builder
	b.WriteString("[resource " + l.URI)
	for _, more := range []string{l.Name, l.MIMEType} {
		if more != "" {
			b.WriteString(", " + more)
		}
	}
	if l.Size != nil {
		fmt.Fprintf(&b, ", %d bytes", *l.Size)
	}
	if l.Description != "" {
		b.WriteString(": " + l.Description)
	}
	b.WriteString("]")
	return b.String()
}

// resource returns a resource that came with the result.
func resource(ctx context.Context, r *mcp.ResourceContents) (string, bool) {
	switch {
	case r == nil:
		return "[resource without contents]", false
	case r.Blob != nil:
		return callctx.Stored(ctx, "resource "+r.URI, r.MIMEType, r.Blob), false
	}
	return "[resource " + r.URI + "]\n" + r.Text, true
}

// sentKey is the key of a context's mark that a message was sent.
type sentKey struct{}

// watchSent returns a context for one request of the SDK, and a mark that says whether a
// message of the request was written, at least in part.
func watchSent(ctx context.Context) (context.Context, *atomic.Bool) {
	sent := &atomic.Bool{}
	return context.WithValue(ctx, sentKey{}, sent), sent
}

// noteSent sets the mark just before a message is written.
func noteSent(ctx context.Context) {
	if sent, ok := ctx.Value(sentKey{}).(*atomic.Bool); ok {
		sent.Store(true)
	}
}
