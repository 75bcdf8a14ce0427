package a2atool

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/moorebus/moorebus/internal/callctx"
	"github.com/moorebus/moorebus/internal/retry"
	"github.com/moorebus/moorebus/internal/tracecontext"
	"github.com/moorebus/moorebus/pkg/tool"
)

const (
	// A tool has 400 ms after its context has ended. sendGrace is for the answer to a message, which
	// names the task, cancelTimeout for cancelling that.
	sendGrace     = 150 * time.Millisecond
	cancelTimeout = 200 * time.Millisecond
)

// codeError is the code of a request that the agent refused over JSON-RPC.
const codeError = "a2a_error"

// sends are the pauses between attempts to send a message: a server may start anew.
var sends = retry.Policy{First: 200 * time.Millisecond, Factor: 2, Max: 5 * time.Second, Budget: time.Minute}

// polls are the pauses between two requests for a task.
var polls = retry.Policy{First: 100 * time.Millisecond, Factor: 1.5, Max: 5 * time.Second}

// agentTool is the tool of one agent, as its card was read.
type agentTool struct {
	*source
	at  place
	def tool.Definition
}

// Definition returns the tool's definition.
func (t *agentTool) Definition() tool.Definition { return t.def }

type message struct {
	MessageID string `json:"messageId"`
	ContextID string `json:"contextId,omitempty"`
	TaskID    string `json:"taskId,omitempty"`
	Role      string `json:"role"`
	Parts     []part `json:"parts"`
}

type task struct {
	ID        string `json:"id"`
	ContextID string `json:"contextId"`
	Status    status `json:"status"`
	Artifacts []struct {
		Parts []part `json:"parts"`
	} `json:"artifacts"`
}

type status struct {
	State   string   `json:"state"`
	Message *message `json:"message"`
}

// The states in which a task waits for somebody.
const (
	inputRequired = "INPUT_REQUIRED"
	authRequired  = "AUTH_REQUIRED"
)

func (s *status) state() string { return strings.TrimPrefix(s.State, "TASK_STATE_") }

func (s *status) waits() bool { return s.state() == inputRequired || s.state() == authRequired }

// Run sends the call's message, or what a human answered since, and waits for the end of the task.
func (t *agentTool) Run(ctx context.Context, call tool.Call) (string, error) {
	ctx = tracecontext.With(ctx, call.TraceParent)
	said, before, err := t.next(ctx, call)
	if err != nil {
		return "", err
	}
	if before != nil && said == nil {
		return t.await(ctx, before, nil)
	}
	answer, err := t.deliver(ctx, *said)
	var f *tool.Failure
	switch {
	case err != nil && before != nil && before.Status.waits() && errors.As(err, &f) && f.Code != tool.CodeUnreachable && !f.Passing && !f.NotSent:
		return "", t.ask(ctx, before, "The answer was not accepted: "+f.Message+"\n")
	case err != nil:
		return "", err
	case answer.Message != nil:
		return t.textOf(ctx, answer.Message.Parts), nil
	case answer.Task == nil || answer.Task.ID == "":
		return "", tool.Failf(tool.CodeFailed, "the agent answered neither with a task nor with a message")
	}
	return t.await(ctx, answer.Task, before)
}

// next returns the message to send now. before is the task that it is for, as it is before the
// message; nil: the message begins one. Without a message there is nothing to say to the task.
func (t *agentTool) next(ctx context.Context, call tool.Call) (said *message, before *task, err error) {
	answers := callctx.DialogueOf(ctx).Answers
	if len(answers) == 0 {
		m, err := t.first(call)
		if err == nil && m.TaskID != "" {
			before, err = t.lookup(ctx, m.TaskID)
		}
		if before != nil {
			m.ContextID = before.ContextID
		}
		return &m, before, err
	}
	last := answers[len(answers)-1]
	var open question
	if err := json.Unmarshal([]byte(last.State), &open); err != nil || open.Task == "" {
		return nil, nil, tool.Failf(tool.CodeFailed, "the log does not say which task the answer is for")
	}
	if before, err = t.lookup(ctx, open.Task); err != nil {
		return nil, nil, err
	}
	if !before.Status.waits() || before.Status.id() != open.Asked {
		return nil, before, nil // the answer was sent, or the task continued without it
	}
	// The ids differ for each answer of the call, and an answer that is sent again has its own.
	m := message{
		MessageID: fmt.Sprintf("%s/%d", call.IdempotencyKey(), len(answers)), TaskID: before.ID, ContextID: before.ContextID,
		Role: "ROLE_USER", Parts: []part{answerPart(last.Text)},
	}
	return &m, before, nil
}

// answerPart is what a human said, as the agent gets it. An object is data, such as the decision on
// one call of several.
func answerPart(text string) part {
	if trimmed := strings.TrimSpace(text); strings.HasPrefix(trimmed, "{") && json.Valid([]byte(trimmed)) {
		return part{Data: json.RawMessage(trimmed), MediaType: "application/json"}
	}
	return part{Text: &text}
}

// deliver sends a message, again if that is harmless and may help.
func (t *agentTool) deliver(ctx context.Context, m message) (answer sent, err error) {
	lasting, stop := outlasting(ctx, sendGrace)
	defer stop()
	err = t.again(ctx, func() error { answer, err = t.send(lasting, m); return err })
	return answer, err
}

// lookup returns a task, also if the server is away for a moment.
func (t *agentTool) lookup(ctx context.Context, id string) (*task, error) {
	var now task
	err := sends.Do(ctx, func(context.Context) (err error) {
		now, err = t.look(ctx, id)
		return passing(err, true)
	}, nil)
	if err == nil && now.ID == "" {
		err = tool.Failf(tool.CodeFailed, "the agent answered with no task")
	}
	return &now, err
}

// again repeats a request that may be repeated.
func (t *agentTool) again(ctx context.Context, request func() error) error {
	return sends.Do(ctx, func(context.Context) error { return passing(request(), t.def.Effect.Repeatable()) }, nil)
}

// passing marks an error by whether the same request may be sent again.
func passing(err error, repeatable bool) error {
	var f *tool.Failure
	switch {
	case err == nil:
		return nil
	case errors.As(err, &f) && (f.NotSent || repeatable && (f.Passing || f.Code == tool.CodeUnreachable)):
		return retry.After(f.RetryAfter, err)
	}
	return retry.Stop(err)
}

// outlasting returns a context that ends some time after ctx, or with stop.
func outlasting(ctx context.Context, grace time.Duration) (_ context.Context, stop func()) {
	lasting, cancel := context.WithCancel(context.WithoutCancel(ctx))
	unhook := context.AfterFunc(ctx, func() { time.AfterFunc(grace, cancel) })
	return lasting, func() { unhook(); cancel() }
}

// first returns the message that the call itself is.
func (t *agentTool) first(call tool.Call) (message, error) {
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
		Task   string `json:"task"`
		TaskID string `json:"task_id"`
	}
	if err := json.Unmarshal([]byte(call.Arguments), &in); err != nil || in.Task == "" {
		return m, tool.Failf(tool.CodeInvalidArguments, "the argument task is missing or empty")
	}
	m.TaskID, m.Parts = in.TaskID, []part{{Text: &in.Task}}
	return m, nil
}

// staleFor is how long a task may show the question that was answered before it counts as asked
// again. A server may accept an answer before the task continues.
const staleFor = 30 * time.Second

// await polls the task until it ends or asks. A server that is away meanwhile is asked again.
// before is the task as it was before it got an answer.
func (t *agentTool) await(ctx context.Context, now, before *task) (string, error) {
	began := time.Now()
	for looks := 1; ; looks++ {
		old := before != nil && now.Status.waits() && now.Status.id() == before.Status.id() && time.Since(began) < staleFor
		if !old {
			if result, err, over := t.outcome(ctx, now); over {
				return result, err
			}
		}
		if !retry.Wait(ctx, polls.Delay(looks)) {
			break
		}
		next, err := t.look(ctx, now.ID)
		var f *tool.Failure
		switch {
		case err == nil:
			now = &next
		case ctx.Err() != nil:
		case errors.As(err, &f) && !f.Passing && f.Code != tool.CodeUnreachable && f.Code != tool.CodeTimeout:
			return "", err
		}
	}
	if callctx.Unwanted(ctx) || errors.Is(ctx.Err(), context.DeadlineExceeded) && t.def.Retries == 0 {
		t.cancel(ctx, now.ID)
	}
	return "", fmt.Errorf("waiting for task %s: %w", now.ID, ctx.Err())
}

// outcome returns what a task came to. over is false until it ends or asks.
func (t *agentTool) outcome(ctx context.Context, now *task) (result string, err error, over bool) {
	switch state := now.Status.state(); state {
	case "COMPLETED":
		var texts []string
		for _, a := range now.Artifacts {
			if text := t.textOf(ctx, joined(a.Parts)); text != "" {
				texts = append(texts, text)
			}
		}
		if len(now.Artifacts) == 0 && now.Status.Message != nil {
			texts = append(texts, t.textOf(ctx, now.Status.Message.Parts))
		}
		return strings.Join(texts, "\n"), nil, true
	case "FAILED", "REJECTED", "CANCELED":
		said := ""
		if m := now.Status.Message; m != nil {
			said = ": " + t.textOf(ctx, m.Parts)
		}
		return "", tool.Failf("a2a_"+strings.ToLower(state), "the agent's task %s is %s%s", now.ID, strings.ToLower(state), said), true
	case inputRequired, authRequired:
		return "", t.ask(ctx, now, ""), true
	}
	return "", nil, false
}
