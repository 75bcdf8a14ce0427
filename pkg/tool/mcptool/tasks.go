package mcptool

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/moorebus/moorebus/internal/callctx"
	"github.com/moorebus/moorebus/internal/retry"
	"github.com/moorebus/moorebus/pkg/tool"
)

// Tasks are those of version 2025-11-25: a call is answered with a task, whose status is asked
// for until it ends. The SDK drops what a list says of them and gives calls no task. So these
// two requests go through the SDK under names of our own, and get their real ones where they
// are written.
const (
	ownList = "io.moorebus/tools/list"
	ownCall = "io.moorebus/tools/call"

	taskGet, taskResult, taskCancel = "tasks/get", "tasks/result", "tasks/cancel"
)

var realMethod = map[string]string{ownList: "tools/list", ownCall: "tools/call"}

// The states of a task that has not come to its end, and of one that was ended.
const (
	taskWorking   = "working"
	taskCancelled = "cancelled"
)

const (
	// The bounds of how often a status is asked for, whatever the server wants, and the default.
	leastPoll, mostPoll, defaultPoll = 100 * time.Millisecond, 30 * time.Second, time.Second
	// taskSlack is how much longer than its call a task is kept.
	taskSlack = time.Minute
	// defaultTask is how long a task is kept whose call has no deadline.
	defaultTask = time.Hour
	// maxUnanswered bounds how often in a row a status may stay unknown.
	maxUnanswered = 5
	// taskFarewell bounds the request that ends a task nobody waits for.
	taskFarewell = 5 * time.Second
)

type listParams struct {
	mcp.ParamsBase
	Cursor string `json:"cursor,omitempty"`
}

type taskTime struct {
	TTL int64 `json:"ttl"` // in milliseconds
}

type callParams struct {
	mcp.ParamsBase
	Name      string          `json:"name"`
	Arguments json.RawMessage `json:"arguments"`
	Task      taskTime        `json:"task"`
}

type taskParams struct {
	mcp.ParamsBase
	TaskID string `json:"taskId"`
}

// anyResult is a result as the server wrote it.
type anyResult struct {
	mcp.ResultBase
	data json.RawMessage
}

// UnmarshalJSON keeps the text.
func (r *anyResult) UnmarshalJSON(data []byte) error {
	r.data = bytes.Clone(data)
	return nil
}

// task is what a server says of a task.
type task struct {
	ID     string `json:"taskId"`
	Status string `json:"status"`
	Says   string `json:"statusMessage"`
	Poll   *int64 `json:"pollInterval"` // in milliseconds
}

// pause is how long to wait before the status is asked for again.
func (t *task) pause() time.Duration {
	if t.Poll == nil {
		return defaultPoll
	}
	return min(max(time.Duration(min(*t.Poll, mostPoll.Milliseconds()))*time.Millisecond, leastPoll), mostPoll)
}

// addTasks lets a client send what the SDK has no methods for.
func addTasks(c *mcp.Client) error {
	return errors.Join(
		mcp.AddSendingCustomMethod[*listParams, *anyResult](c, ownList),
		mcp.AddSendingCustomMethod[*callParams, *anyResult](c, ownCall),
		mcp.AddSendingCustomMethod[*taskParams, *anyResult](c, taskGet),
		mcp.AddSendingCustomMethod[*taskParams, *anyResult](c, taskResult),
		mcp.AddSendingCustomMethod[*taskParams, *anyResult](c, taskCancel),
	)
}

// written returns a message as it is written.
func written(msg jsonrpc.Message) jsonrpc.Message {
	req, ok := msg.(*jsonrpc.Request)
	if !ok || realMethod[req.Method] == "" {
		return msg
	}
	renamed := *req
	renamed.Method = realMethod[req.Method]
	return &renamed
}

// rewritten returns a request over HTTP as it is sent.
func rewritten(req *http.Request) (*http.Request, error) {
	msg := messageOf(req)
	own, ok := msg.(*jsonrpc.Request)
	if !ok || realMethod[own.Method] == "" {
		return req, nil
	}
	data, err := jsonrpc.EncodeMessage(written(msg))
	if err != nil {
		return nil, err
	}
	req = req.Clone(req.Context())
	req.ContentLength = int64(len(data))
	req.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data)), nil }
	req.Body, err = req.GetBody()
	return req, err
}

// tooled is a tool of a list, with what the SDK drops.
type tooled struct {
	*mcp.Tool
	// asTask says that the tool can only be called as a task.
	asTask bool
}

// page returns a page of the server's tools.
func page(ctx context.Context, session *mcp.ClientSession, cursor string) (tools []tooled, next string, err error) {
	if session.InitializeResult().ProtocolVersion != legacy {
		page, err := session.ListTools(ctx, &mcp.ListToolsParams{Cursor: cursor})
		if err != nil {
			return nil, "", err
		}
		for _, t := range page.Tools {
			tools = append(tools, tooled{Tool: t})
		}
		return tools, page.NextCursor, nil
	}
	res, err := mcp.CallCustomMethod[*listParams, *anyResult](ctx, session, ownList, &listParams{Cursor: cursor})
	if err != nil {
		return nil, "", err
	}
	var listed mcp.ListToolsResult
	var more struct {
		Tools []struct {
			Execution struct {
				TaskSupport string `json:"taskSupport"`
			} `json:"execution"`
		} `json:"tools"`
	}
	if err := errors.Join(json.Unmarshal(res.data, &listed), json.Unmarshal(res.data, &more)); err != nil {
		return nil, "", err
	}
	for i, t := range listed.Tools {
		tools = append(tools, tooled{t, more.Tools[i].Execution.TaskSupport == "required"})
	}
	return tools, listed.NextCursor, nil
}

// runTask calls a tool as a task. Each request is separate, so the status can be requested in
// another session than the one in which the task began.
func (r *remote) runTask(ctx context.Context, arguments json.RawMessage, meta mcp.Meta) (string, error) {
	kept := defaultTask
	if deadline, ok := ctx.Deadline(); ok {
		kept = time.Until(deadline)
	}
	params := &callParams{Name: r.name, Arguments: arguments, Task: taskTime{(kept + taskSlack).Milliseconds()}}
	params.Meta = meta
	res, err := r.custom(ctx, func(ctx context.Context, client *mcp.ClientSession) (*anyResult, error) {
		return mcp.CallCustomMethod[*callParams, *anyResult](ctx, client, ownCall, params)
	})
	if err != nil {
		return "", err
	}
	var made struct {
		Task *task `json:"task"`
	}
	if err := json.Unmarshal(res.data, &made); err != nil {
		return "", tool.Failf(tool.CodeFailed, "the MCP server %q answered with a task that cannot be read: %v", r.server.opts.Name, err)
	}
	if made.Task == nil { // it answered at once
		return said(ctx, res)
	}
	result, err := r.follow(ctx, made.Task)
	// While the process ends, the task continues: what becomes of the call is not known here.
	ends := ctx.Err() != nil && !callctx.Unwanted(ctx) && !errors.Is(ctx.Err(), context.DeadlineExceeded)
	if err != nil && !ends {
		r.abandon(ctx, made.Task)
	}
	return result, err
}

// follow waits for the end of a task and returns its result.
func (r *remote) follow(ctx context.Context, t *task) (string, error) {
	id, unanswered := t.ID, 0
	for t.Status == taskWorking {
		if !retry.Wait(ctx, t.pause()) {
			return "", fmt.Errorf("the call was stopped: %w", ctx.Err())
		}
		res, err := r.about(ctx, taskGet, id)
		if unreachable(err) && ctx.Err() == nil && unanswered < maxUnanswered {
			unanswered++
			continue
		}
		if err != nil {
			return "", err
		}
		var now task
		if err := json.Unmarshal(res.data, &now); err != nil {
			return "", tool.Failf(tool.CodeFailed, "the MCP server %q answered with a status of a task that cannot be read: %v", r.server.opts.Name, err)
		}
		t, unanswered = &now, 0
	}
	if t.Status == taskCancelled {
		return "", tool.Failf(tool.CodeFailed, "the MCP server %q cancelled the task: %s", r.server.opts.Name, cmp.Or(t.Says, "it does not say why"))
	}
	// The result of a task that wants a human's answer comes when it has that: the server asks
	// during this request.
	res, err := r.about(ctx, taskResult, id)
	if err != nil {
		return "", err
	}
	return said(ctx, res)
}

// unreachable reports whether nothing is known of what a server would have answered.
func unreachable(err error) bool {
	var f *tool.Failure
	return errors.As(err, &f) && (f.Code == tool.CodeUnreachable || f.Passing)
}

// abandon ends a task whose result nobody reads.
func (r *remote) abandon(ctx context.Context, t *task) {
	ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), taskFarewell)
	defer stop()
	_, _ = r.about(ctx, taskCancel, t.ID) // the server forgets the task when its time is over
}

// about makes a request about a task.
func (r *remote) about(ctx context.Context, method, id string) (*anyResult, error) {
	return r.custom(ctx, func(ctx context.Context, client *mcp.ClientSession) (*anyResult, error) {
		return mcp.CallCustomMethod[*taskParams, *anyResult](ctx, client, method, &taskParams{TaskID: id})
	})
}

// custom makes one request in the session that there is then.
func (r *remote) custom(ctx context.Context, send func(context.Context, *mcp.ClientSession) (*anyResult, error)) (res *anyResult, err error) {
	err = r.server.request(ctx, func(ctx context.Context, client *mcp.ClientSession) (err error) {
		res, err = send(ctx, client)
		return err
	})
	return res, err
}

// said reads the result of a tool.
func said(ctx context.Context, res *anyResult) (string, error) {
	var result mcp.CallToolResult
	if err := json.Unmarshal(res.data, &result); err != nil {
		return "", tool.Failf(tool.CodeFailed, "the tool's result cannot be read: %v", err)
	}
	return resultOf(ctx, &result)
}
