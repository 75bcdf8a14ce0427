package a2atool

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/moorebus/moorebus/internal/capability"
	"github.com/moorebus/moorebus/internal/retry"
	"github.com/moorebus/moorebus/internal/tracecontext"
	"github.com/moorebus/moorebus/pkg/tool"
)

const (
	requestTimeout = 10 * time.Second
	// maxAnswer bounds an answer of the other server, in bytes.
	maxAnswer = 8 << 20
	// A tool has 400 ms after its context has ended. sendGrace is for the answer to a message, which
	// names the task, cancelTimeout for cancelling that.
	sendGrace     = 150 * time.Millisecond
	cancelTimeout = 200 * time.Millisecond
)

// sends are the pauses between attempts to send a message: a server may start anew.
var sends = retry.Policy{First: 200 * time.Millisecond, Factor: 2, Max: 5 * time.Second, Budget: time.Minute}

// polls are the pauses between looks at a task.
var polls = retry.Policy{First: 100 * time.Millisecond, Factor: 1.5, Max: 5 * time.Second}

// agentTool is the tool of one agent, as its card was read.
type agentTool struct {
	*source
	base string
	def  tool.Definition
}

// Definition returns the tool's definition.
func (t *agentTool) Definition() tool.Definition { return t.def }

type part struct {
	Text      *string         `json:"text,omitempty"`
	Raw       []byte          `json:"raw,omitempty"`
	URL       string          `json:"url,omitempty"`
	Data      json.RawMessage `json:"data,omitempty"`
	MediaType string          `json:"mediaType,omitempty"`
}

type message struct {
	MessageID string `json:"messageId"`
	Role      string `json:"role"`
	Parts     []part `json:"parts"`
}

type task struct {
	ID     string `json:"id"`
	Status struct {
		State   string   `json:"state"`
		Message *message `json:"message"`
	} `json:"status"`
	Artifacts []struct {
		Parts []part `json:"parts"`
	} `json:"artifacts"`
}

// Run sends the call's message and waits for the end of its task.
func (t *agentTool) Run(ctx context.Context, call tool.Call) (string, error) {
	ctx = tracecontext.With(ctx, call.TraceParent)
	said, err := t.message(call)
	if err != nil {
		return "", err
	}
	body := map[string]any{"message": said, "configuration": map[string]any{
		"returnImmediately": true, "acceptedOutputModes": []string{"text/plain", "application/json"},
	}}
	var answer struct {
		Task    *task    `json:"task"`
		Message *message `json:"message"`
	}
	lasting, stop := outlasting(ctx, sendGrace)
	defer stop()
	err = sends.Do(ctx, func(context.Context) error {
		err := t.do(lasting, http.MethodPost, t.base+"/message:send", body, &answer)
		var f *tool.Failure
		if errors.As(err, &f) && (f.NotSent || t.def.Effect.Repeatable() && (f.Passing || f.Code == tool.CodeUnreachable)) {
			return retry.After(f.RetryAfter, err) // the same message again
		}
		return retry.Stop(err)
	}, nil)
	if err != nil {
		return "", err
	}
	switch {
	case answer.Message != nil:
		return textOf(ctx, answer.Message.Parts), nil
	case answer.Task == nil || answer.Task.ID == "":
		return "", tool.Failf(tool.CodeFailed, "the agent answered neither with a task nor with a message")
	}
	return t.await(ctx, answer.Task)
}

// outlasting returns a context that ends some time after ctx, or with stop.
func outlasting(ctx context.Context, grace time.Duration) (_ context.Context, stop func()) {
	lasting, cancel := context.WithCancel(context.WithoutCancel(ctx))
	unhook := context.AfterFunc(ctx, func() { time.AfterFunc(grace, cancel) })
	return lasting, func() { unhook(); cancel() }
}

func (t *agentTool) message(call tool.Call) (message, error) {
	m := message{MessageID: call.IdempotencyKey(), Role: "ROLE_USER"}
	if len(t.o.Over.Schema) > 0 {
		arguments := call.Arguments
		if strings.TrimSpace(arguments) == "" {
			arguments = "{}"
		}
		m.Parts = []part{{Data: json.RawMessage(arguments), MediaType: "application/json"}}
		return m, nil
	}
	var in struct {
		Task string `json:"task"`
	}
	if err := json.Unmarshal([]byte(call.Arguments), &in); err != nil || in.Task == "" {
		return m, tool.Failf(tool.CodeInvalidArguments, "the argument task is missing or empty")
	}
	m.Parts = []part{{Text: &in.Task}}
	return m, nil
}

// await looks at the task until it ends. A server that is away meanwhile is asked again.
func (t *agentTool) await(ctx context.Context, now *task) (string, error) {
	at := t.base + "/tasks/" + url.PathEscape(now.ID)
	for looks := 1; ; looks++ {
		if result, err, over := t.outcome(ctx, at, now); over {
			return result, err
		}
		if !retry.Wait(ctx, polls.Delay(looks)) {
			break
		}
		var next task
		err := t.do(ctx, http.MethodGet, at+"?historyLength=0", nil, &next)
		var f *tool.Failure
		switch {
		case err == nil:
			now = &next
		case ctx.Err() != nil:
		case errors.As(err, &f) && !f.Passing && f.Code != tool.CodeUnreachable && f.Code != tool.CodeTimeout:
			return "", err
		}
	}
	if capability.Unwanted(ctx) || errors.Is(ctx.Err(), context.DeadlineExceeded) && t.def.Retries == 0 {
		t.cancel(ctx, at)
	}
	return "", fmt.Errorf("waiting for task %s: %w", now.ID, ctx.Err())
}

// outcome returns what a task came to. over is false while it goes on.
func (t *agentTool) outcome(ctx context.Context, at string, now *task) (result string, err error, over bool) {
	said := func() string { // it keeps files, so only of the status that counts
		if m := now.Status.Message; m != nil {
			return ": " + textOf(ctx, m.Parts)
		}
		return ""
	}
	switch state := strings.TrimPrefix(now.Status.State, "TASK_STATE_"); state {
	case "COMPLETED":
		var texts []string
		for _, a := range now.Artifacts {
			if text := textOf(ctx, joined(a.Parts)); text != "" {
				texts = append(texts, text)
			}
		}
		if len(now.Artifacts) == 0 && now.Status.Message != nil {
			texts = append(texts, textOf(ctx, now.Status.Message.Parts))
		}
		return strings.Join(texts, "\n"), nil, true
	case "FAILED", "REJECTED", "CANCELED":
		return "", tool.Failf("a2a_"+strings.ToLower(state), "the agent's task %s is %s%s", now.ID, strings.ToLower(state), said()), true
	case "INPUT_REQUIRED", "AUTH_REQUIRED":
		t.cancel(ctx, at)
		return "", tool.Failf("a2a_"+strings.ToLower(state), "the agent needs input, which this tool cannot give, so its task was cancelled; call again with a task that says it%s", said()), true
	}
	return "", nil, false
}

// cancel cancels a task that nobody waits for. It tries once: there is nobody to tell.
func (t *agentTool) cancel(ctx context.Context, at string) {
	ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), cancelTimeout)
	defer stop()
	_ = t.do(ctx, http.MethodPost, at+":cancel", map[string]any{}, nil)
}

// joined returns an artifact's parts with its texts put together. An agent that streams an
// artifact appends a part for each chunk of its text, and cuts the text anywhere.
func joined(parts []part) (whole []part) {
	for _, p := range parts {
		if n := len(whole); n > 0 && p.Text != nil && whole[n-1].Text != nil {
			text := *whole[n-1].Text + *p.Text
			whole[n-1].Text = &text
			continue
		}
		whole = append(whole, p)
	}
	return whole
}

// textOf returns the parts as text. Files are kept beside the call's result.
func textOf(ctx context.Context, parts []part) string {
	var lines []string
	for _, p := range parts {
		switch {
		case p.Text != nil:
			lines = append(lines, *p.Text)
		case len(p.Data) > 0:
			lines = append(lines, string(p.Data))
		case p.URL != "":
			lines = append(lines, p.URL)
		case len(p.Raw) > 0:
			what := "file"
			if strings.HasPrefix(p.MediaType, "image/") {
				what = "image"
			}
			lines = append(lines, capability.Kept(ctx, what, p.MediaType, p.Raw))
		}
	}
	return strings.Join(lines, "\n")
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
	f.NotSent = !sent
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		f.Code = tool.CodeTimeout
	} else if ctx.Err() != nil {
		f.Code = tool.CodeCancelled
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
