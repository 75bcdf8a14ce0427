package gatewayclient

import (
	"context"
	"encoding/json"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/moorebus/moorebus/internal/agentfile"
	"github.com/moorebus/moorebus/internal/agentfile/strict"
	"github.com/moorebus/moorebus/internal/control"
	"github.com/moorebus/moorebus/internal/control/forking"
	"github.com/moorebus/moorebus/internal/control/list"
	"github.com/moorebus/moorebus/internal/control/runs"
	"github.com/moorebus/moorebus/internal/httpapi/inputs"
	"github.com/moorebus/moorebus/internal/refusal"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

// query returns the parameters that are not empty, given as pairs.
func query(pairs ...string) url.Values {
	q := url.Values{}
	for i := 0; i < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			q.Set(pairs[i], pairs[i+1])
		}
	}
	return q
}

func number(n uint64) string {
	if n == 0 {
		return ""
	}
	return strconv.FormatUint(n, 10)
}

func instant(at time.Time) string {
	if at.IsZero() {
		return ""
	}
	return at.UTC().Format(time.RFC3339Nano)
}

// Runs is [list.Lister.Runs].
func (c *Client) Runs(ctx context.Context, ns string, q list.Query) (list.Page, error) {
	cost := ""
	if q.CostAbove != nil {
		cost = strconv.FormatFloat(*q.CostAbove, 'g', -1, 64)
	}
	return ask[list.Page](ctx, c, request{namespace: ns, path: path("runs"), query: query(
		"state", string(q.State), "agent", q.Agent, "parent", q.Parent, "id_prefix", q.IDPrefix, "q", q.Text, "since", instant(q.Since),
		"until", instant(q.Until), "waiting", string(q.Waiting), "paused", string(q.Paused), "cost_above", cost, "limit", number(uint64(max(q.Limit, 0))), "cursor", q.Cursor,
	)})
}

// Find is [list.Lister.Find].
func (c *Client) Find(ctx context.Context, ns, prefix string, limit int) ([]list.Run, error) {
	page, err := c.Runs(ctx, ns, list.Query{IDPrefix: prefix, Limit: limit})
	return page.Runs, err
}

// State is [runs.Editor.State].
func (c *Client) State(ctx context.Context, ns, id string, n uint64) (runs.RunState, error) {
	return ask[runs.RunState](ctx, c, request{namespace: ns, path: path("runs", id), query: query("at", number(n))})
}

// Events is [runs.Editor.Events]. The answer is open until the records were ranged over.
func (c *Client) Events(ctx context.Context, ns, id string, from uint64) (iter.Seq2[journal.Record, error], error) {
	resp, err := c.lines(ctx, ns, id, from)
	if err != nil {
		return nil, err
	}
	return c.records(resp), nil
}

// Request is [control.Controller.Request].
func (c *Client) Request(ctx context.Context, ns, id string, at uint64) (control.ModelRequest, error) {
	return ask[control.ModelRequest](ctx, c, request{namespace: ns, path: path("runs", id, "request"), query: query("at", number(at), "body", "true")})
}

// Start is [control.Controller.Start] for what commands start: an agent with a task.
func (c *Client) Start(ctx context.Context, ns string, req control.StartRequest) (control.StartResult, error) {
	body := map[string]any{"agent": req.AgentName}
	if req.Agent != nil {
		body["agent"] = json.RawMessage(agentfile.Marshal(*req.Agent))
	}
	if req.Priority != "" {
		body["priority"] = req.Priority
	}
	switch {
	case req.Parts != nil:
		body["task"] = req.Parts
	case req.Task != "":
		body["task"] = req.Task
	}
	return post[control.StartResult](ctx, c, request{namespace: ns, path: path("runs")}, body)
}

// command posts a command that says who gave it.
func (c *Client) command(ctx context.Context, ns, id, name string, by events.By) (runs.Result, error) {
	return post[runs.Result](ctx, c, request{namespace: ns, path: path("runs", id, name)}, by)
}

// Cancel is [control.Controller.Cancel].
func (c *Client) Cancel(ctx context.Context, ns, id string, by events.By) (runs.Result, error) {
	return c.command(ctx, ns, id, "cancel", by)
}

// Pause is [control.Controller.Pause].
func (c *Client) Pause(ctx context.Context, ns, id string, by events.By) (runs.Result, error) {
	return c.command(ctx, ns, id, "pause", by)
}

// Resume is [control.Controller.Resume].
func (c *Client) Resume(ctx context.Context, ns, id string, by events.By) (runs.Result, error) {
	return c.command(ctx, ns, id, "resume", by)
}

// Release is [control.Controller.Release].
func (c *Client) Release(ctx context.Context, ns, id string, by events.By) (runs.Result, error) {
	return post[runs.Result](ctx, c, request{namespace: ns, path: path("runs", id, "resume")}, struct {
		events.By
		Restored bool `json:"restored"`
	}{by, true})
}

// Decide is the method of [control.Controller].
func (c *Client) Decide(ctx context.Context, ns, id string, d events.Decision) (runs.Result, error) {
	body := inputs.DecisionBody{CallID: d.CallID, Decision: d.Decision, Reason: d.Reason, By: d.By}
	if d.Arguments != "" {
		text, err := json.Marshal(d.Arguments)
		if err != nil {
			return runs.Result{}, err
		}
		body.Arguments = text
	}
	return post[runs.Result](ctx, c, request{namespace: ns, path: path("runs", id, "decisions")}, body)
}

// Inputs is [control.Controller.Inputs] for those inputs that commands post: messages and results
// of calls.
func (c *Client) Inputs(ctx context.Context, ns, id string, all []control.Input) (control.InputsResult, error) {
	body := make([]map[string]any, len(all))
	for i, in := range all {
		switch in := in.(type) {
		case control.UserMessage:
			body[i] = map[string]any{"type": "user-message", "content": in.Content}
			if in.Parts != nil {
				body[i]["content"] = in.Parts
			}
			if in.MessageID != "" {
				body[i]["message_id"] = in.MessageID
			}
		case control.ToolCallResult:
			result := map[string]any{"isSuccess": in.Success, "content": in.Text}
			if !in.Success {
				result = map[string]any{"isSuccess": false, "error": in.Text}
			}
			body[i] = map[string]any{"type": "tool-call-result", "toolCallId": in.CallID, "result": result}
		}
	}
	return post[control.InputsResult](ctx, c, request{namespace: ns, path: path("runs", id, "inputs")}, body)
}

// Fork is [forking.Forker.Fork].
func (c *Client) Fork(ctx context.Context, ns, id string, req forking.Request) (forking.Result, error) {
	if len(req.Patch) > 0 {
		if _, err := strict.ParseJSON(req.Patch); err != nil { // it would be no part of a body
			return forking.Result{}, refusal.New(refusal.Invalid, refusal.CodeBadPatch, "patch: %s", err.Error())
		}
	}
	r := request{namespace: ns, path: path("runs", id, "fork")}
	if req.Key != "" {
		r.header = map[string]string{forking.KeyHeader: req.Key}
	}
	return post[forking.Result](ctx, c, r, req)
}

// Tools is the method of [control.Controller].
func (c *Client) Tools(ctx context.Context) ([]events.ToolSpec, error) {
	return ask[[]events.ToolSpec](ctx, c, request{path: path("tools")})
}

// StoredAgents is [control.Controller.StoredAgents].
func (c *Client) StoredAgents(ctx context.Context, ns string) ([]control.AgentInfo, error) {
	return ask[[]control.AgentInfo](ctx, c, request{namespace: ns, path: path("agents")})
}

// Agent is [control.Controller.Agent].
func (c *Client) Agent(ctx context.Context, ns, name string) ([]byte, error) {
	return ask[[]byte](ctx, c, request{namespace: ns, path: path("agents", name)})
}

// PutAgent is [control.Controller.PutAgent].
func (c *Client) PutAgent(ctx context.Context, ns, name string, data []byte, f agentfile.Format) (control.AgentInfo, error) {
	header := map[string]string{}
	switch f {
	case agentfile.JSON:
		header["Content-Type"] = "application/json"
	case agentfile.YAML:
		header["Content-Type"] = "application/yaml"
	}
	return ask[control.AgentInfo](ctx, c, request{method: http.MethodPut, namespace: ns, path: path("agents", name), header: header, body: data})
}

// Storages is [control.Controller.Storages].
func (c *Client) Storages(ctx context.Context, ns string) ([]string, error) {
	all, err := ask[struct{ Agents []string }](ctx, c, request{namespace: ns, path: path("storage")})
	return all.Agents, err
}

// Stored is [control.Controller.Stored].
func (c *Client) Stored(ctx context.Context, ns, agent string, q journal.StorageQuery) (journal.Found, error) {
	return c.stored(ctx, ns, agent, query("tags", strings.Join(q.Tags, ","), "q", q.Value, "limit", number(uint64(max(q.Limit, 0)))))
}

func (c *Client) stored(ctx context.Context, ns, agent string, q url.Values) (journal.Found, error) {
	return ask[journal.Found](ctx, c, request{namespace: ns, path: path("agents", agent, "storage"), query: q})
}

// StoredEntry is [control.Controller.StoredEntry].
func (c *Client) StoredEntry(ctx context.Context, ns, agent string, tags []string) (events.Entry, error) {
	found, err := c.stored(ctx, ns, agent, query("tags", strings.Join(tags, ","), "exact", "true"))
	if err != nil || len(found.Entries) == 0 {
		return events.Entry{}, err
	}
	return found.Entries[0], nil
}

// SaveStored is [control.Controller.SaveStored].
func (c *Client) SaveStored(ctx context.Context, ns, agent string, e events.Entry) (events.Entry, error) {
	return post[events.Entry](ctx, c, request{method: http.MethodPut, namespace: ns, path: path("agents", agent, "storage")}, e)
}

// DeleteStored is [control.Controller.DeleteStored].
func (c *Client) DeleteStored(ctx context.Context, ns, agent string, tags []string) error {
	return c.call(ctx, request{method: http.MethodDelete, namespace: ns, path: path("agents", agent, "storage"), query: query("tags", strings.Join(tags, ","))}, nil)
}

// Blob is [control.Controller.Blob]. What is not there is journal.ErrNotFound.
func (c *Client) Blob(ctx context.Context, ref events.Ref) ([]byte, error) {
	data, err := ask[[]byte](ctx, c, request{path: path("blobs", ref.Bucket, ref.SHA256), query: query("size", strconv.Itoa(ref.Size))})
	return data, missing(err)
}
