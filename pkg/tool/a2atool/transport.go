package a2atool

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/moorebus/moorebus/internal/codes"
	"github.com/moorebus/moorebus/internal/retry"
	"github.com/moorebus/moorebus/internal/tracecontext"
	"github.com/moorebus/moorebus/pkg/tool"
)

const (
	requestTimeout = 10 * time.Second
	// maxAnswer bounds an answer of the other server, in bytes.
	maxAnswer = 8 << 20
)

// The bindings of the protocol that a tool speaks, the preferred one first.
const (
	overHTTP    = "HTTP+JSON"
	overJSONRPC = "JSONRPC"
)

// place is an interface of an agent, as its card has it.
type place struct {
	binding, url, tenant string
}

// sent is what a message led to: a task, or the answer at once.
type sent struct {
	Task    *task    `json:"task"`
	Message *message `json:"message"`
}

// send sends a message. The answer comes at once, before the task ends.
func (t *agentTool) send(ctx context.Context, m message) (answer sent, err error) {
	body := map[string]any{"message": m, "configuration": map[string]any{
		"returnImmediately": true, "acceptedOutputModes": []string{"text/plain", "application/json", "image/png", "image/jpeg", "application/pdf"},
	}}
	if t.at.binding == overJSONRPC {
		return answer, t.invoke(ctx, "SendMessage", body, &answer)
	}
	return answer, t.do(ctx, http.MethodPost, t.base()+"/message:send", body, &answer)
}

// look returns a task as it is now.
func (t *agentTool) look(ctx context.Context, id string) (now task, err error) {
	if t.at.binding == overJSONRPC {
		return now, t.invoke(ctx, "GetTask", map[string]any{"id": id, "historyLength": 0}, &now)
	}
	if id == "." || id == ".." { // servers read them as other paths, however they are escaped
		return now, tool.Failf(tool.CodeInvalidArguments, "%q is not the id of a task", id)
	}
	return now, t.do(ctx, http.MethodGet, t.base()+"/tasks/"+url.PathEscape(id)+"?historyLength=0", nil, &now)
}

// cancel cancels a task that nobody waits for. It tries once: there is nobody to tell.
func (t *agentTool) cancel(ctx context.Context, id string) {
	ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), cancelTimeout)
	defer stop()
	if t.at.binding == overJSONRPC {
		_ = t.invoke(ctx, "CancelTask", map[string]any{"id": id}, nil)
		return
	}
	_ = t.do(ctx, http.MethodPost, t.base()+"/tasks/"+url.PathEscape(id)+":cancel", map[string]any{}, nil)
}

// base is where the requests of HTTP+JSON are.
func (t *agentTool) base() string {
	base := strings.TrimRight(t.at.url, "/")
	if t.at.tenant != "" {
		base += "/" + url.PathEscape(t.at.tenant)
	}
	return base
}

// The codes of JSON-RPC errors that say something about whether the same request may succeed.
const rpcInternal = -32603

// invoke calls a method over JSON-RPC and decodes its result into out, which may be nil. Its error
// is a *tool.Failure.
func (t *agentTool) invoke(ctx context.Context, method string, params map[string]any, out any) error {
	if t.at.tenant != "" {
		params["tenant"] = t.at.tenant
	}
	var answer struct {
		Result json.RawMessage `json:"result"`
		Error  *struct {
			Code    int    `json:"code"`
			Message string `json:"message"`
		} `json:"error"`
	}
	// Each request has its own connection, so one id is as good as any other.
	request := map[string]any{"jsonrpc": "2.0", "id": "1", "method": method, "params": params}
	if err := t.do(ctx, http.MethodPost, t.at.url, request, &answer); err != nil {
		return err
	}
	switch {
	case answer.Error != nil:
		f := tool.Failf(codeError, "the agent refused %s with code %d: %s", method, answer.Error.Code, answer.Error.Message)
		f.Passing = answer.Error.Code == rpcInternal
		return f
	case len(answer.Result) == 0:
		return tool.Failf(tool.CodeFailed, "the answer of %s has neither a result nor an error", t.origin)
	case out == nil:
		return nil
	}
	if err := json.Unmarshal(answer.Result, out); err != nil {
		return tool.Failf(tool.CodeFailed, "the answer of %s is not the protocol's: %v", t.origin, err)
	}
	return nil
}

// do sends a request and decodes the answer into out, which may be nil. Its error is a
// *tool.Failure.
func (s *source) do(ctx context.Context, method, target string, body, out any) error {
	asking, stop := context.WithTimeout(ctx, 3*requestTimeout)
	defer stop()
	var sent io.Reader
	if body != nil {
		data, err := json.Marshal(body)
		if err != nil {
			return tool.Failf(tool.CodeInvalidArguments, "the arguments are no JSON: %v", err)
		}
		sent = bytes.NewReader(data)
	}
	var connected atomic.Bool
	traced := httptrace.WithClientTrace(asking, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { connected.Store(true) }})
	req, err := http.NewRequestWithContext(traced, method, target, sent)
	if err != nil {
		return tool.Failf(tool.CodeFailed, "the request cannot be made")
	}
	req.Header.Set("User-Agent", "moorebus")
	req.Header.Set("Accept", "application/a2a+json, application/json")
	for name, value := range s.o.Headers {
		req.Header.Set(name, value)
	}
	req.Header.Set("A2A-Version", version)
	tracecontext.SetHeader(ctx, req.Header.Set)
	if sent != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	res, err := s.client.Do(req)
	if err != nil {
		return s.unreachable(ctx, err, connected.Load())
	}
	defer func() { _ = res.Body.Close() }()
	data, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer+1))
	switch {
	case err != nil:
		return s.unreachable(ctx, err, true)
	case len(data) > maxAnswer:
		return tool.Failf(tool.CodeFailed, "the answer of %s is larger than %d bytes", s.origin, maxAnswer)
	case res.StatusCode < 200 || res.StatusCode > 299:
		return refused(res, data)
	case out == nil:
		return nil
	}
	if err := json.Unmarshal(data, out); err != nil {
		return tool.Failf(tool.CodeFailed, "the answer of %s is not the protocol's: %v", s.origin, err)
	}
	return nil
}

// unreachable is the failure of a request without an answer. Its URL may hold a secret.
func (s *source) unreachable(ctx context.Context, err error, sent bool) error {
	var wrapped *url.Error
	if errors.As(err, &wrapped) {
		err = wrapped.Err
	}
	f := tool.Failf(tool.CodeUnreachable, "no answer came from %s: %v", s.origin, err)
	f.NotSent, f.Err = !sent, err
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		f.Code = tool.CodeTimeout
	} else if ctx.Err() != nil {
		f.Code = codes.Cancelled
	}
	return f
}

// refused is the failure of an answer with an error, with its message.
func refused(res *http.Response, data []byte) error {
	var e struct {
		Error struct {
			Message string `json:"message"`
		} `json:"error"`
	}
	f := tool.Failf(tool.CodeHTTPStatus, "HTTP status %d", res.StatusCode)
	if json.Unmarshal(data, &e) == nil && e.Error.Message != "" {
		f.Message += ": " + e.Error.Message
	}
	f.Passing = res.StatusCode == http.StatusTooManyRequests || res.StatusCode >= 500
	f.RetryAfter = retry.FromHeader(res.Header, time.Now())
	return f
}
