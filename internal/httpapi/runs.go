package httpapi

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"mime"
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
	"github.com/moorebus/moorebus/internal/httpapi/route"
	"github.com/moorebus/moorebus/internal/refusal"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

func (s *Server) postRun(ctx context.Context, r *route.Request) (any, error) {
	node, err := r.Node()
	if err != nil {
		return nil, err
	}
	req, err := s.parseStart(node)
	if err != nil {
		return nil, err
	}
	result, err := s.control.Start(ctx, r.Namespace(), req)
	if errors.Is(err, journal.ErrUnknownOutcome) {
		return nil, unknownStart(err, result.RunID)
	}
	if err == nil {
		r.W.Header().Set("Location", "/v1/runs/"+result.RunID)
	}
	return result, err
}

// unknownStart is the refusal of a start that may have happened. With the run's id the request is
// safe to repeat.
func unknownStart(err error, run string) *refusal.Error {
	e := route.RefusalOf(err)
	return refusal.Wrap(err, e.Kind, e.Code, "run %s may or may not have started: send the request again with this run_id; run_exists means that it had (%s)", run, err).
		With(map[string]any{"run": run})
}

// startBody is the body of POST /v1/runs. Agent and Task have readers of their own.
type startBody struct {
	Agent    route.AgentOrName `json:"agent" jsonschema:"The name of a stored agent, or a definition."`
	Task     route.Content     `json:"task,omitempty" jsonschema:"What the run is for. Default: the agent's own task."`
	Mode     events.Mode       `json:"mode,omitempty" jsonschema:"task or chat. Default: the agent's."`
	TaskType string            `json:"task_type,omitempty" jsonschema:"Selects one of the agent's models. Default: default."`
	Priority events.Priority   `json:"priority,omitempty" jsonschema:"high, normal or low: the run's place in the queue, where a quota makes it wait. Default: normal."`
	RunID    string            `json:"run_id,omitempty" jsonschema:"An unused lower-case UUIDv7. Default: a new one."`
}

func (s *Server) parseStart(node *strict.Node) (req control.StartRequest, err error) {
	rest, agent := node.Without("agent")
	rest, task := rest.Without("task")
	var body startBody
	if err := route.DecodeObject(rest, &body); err != nil {
		return req, err
	}
	req = control.StartRequest{Mode: body.Mode, TaskType: body.TaskType, RunID: body.RunID, Priority: body.Priority}
	if task != nil && task.Kind != strict.Null {
		if req.Task, req.Parts, err = inputs.Content("task", task); err != nil {
			return req, route.BadRequest("%s", err.Error())
		}
	}
	switch {
	case node.Get("run_id") != nil && body.RunID == "":
		return req, refusal.New(refusal.Invalid, refusal.CodeBadRunID, "run_id: is empty; leave it out or give a lower-case UUIDv7")
	case task != nil && req.Task == "" && req.Parts == nil:
		return req, refusal.New(refusal.Invalid, refusal.CodeEmptyTask, "task: is empty; describe the task, or leave it out if the agent has its own")
	case agent == nil:
	case agent.Kind == strict.String:
		req.AgentName = agent.Text
	default:
		req.Agent, err = s.control.DecodeAgent(agent)
	}
	return req, err
}

func (s *Server) getRuns(ctx context.Context, r *route.Request) (any, error) {
	values, err := route.Parameters(r.Request, "agent", "state", "q", "id_prefix", "since", "until", "parent", "waiting", "paused", "cost_above", "limit", "cursor", "after")
	if err != nil {
		return nil, err
	}
	for key, value := range values {
		if value == "" {
			return nil, route.BadParameter("%s: is empty; leave it out for every run", key)
		}
	}
	if values["cursor"] != "" && values["after"] != "" {
		return nil, route.BadParameter("after: is given beside cursor, which replaces it")
	}
	q := list.Query{
		State: events.State(values["state"]), Agent: values["agent"], Text: values["q"], IDPrefix: values["id_prefix"], Parent: values["parent"],
		Waiting: list.Waiting(values["waiting"]), Paused: list.Paused(values["paused"]), Cursor: cmp.Or(values["cursor"], values["after"]),
	}
	limit, err := route.Number(values, "limit", list.DefaultLimit)
	if err != nil {
		return nil, err
	}
	q.Limit = int(min(limit, list.MaxLimit+1))
	if q.Since, err = instant(values, "since"); err != nil {
		return nil, err
	}
	if q.Until, err = instant(values, "until"); err != nil {
		return nil, err
	}
	if text, given := values["cost_above"]; given {
		cost, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return nil, route.BadParameter("cost_above: %.100q is not a number of US dollars", text)
		}
		q.CostAbove = &cost
	}
	return s.control.Runs(ctx, r.Namespace(), q)
}

// instant reads a parameter that is a time; the zero time if it is missing.
func instant(values map[string]string, key string) (time.Time, error) {
	text, given := values[key]
	if !given {
		return time.Time{}, nil
	}
	at, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		return time.Time{}, route.BadParameter("%s: %.100q is not a time such as 2026-01-02T15:04:05Z", key, text)
	}
	return at, nil
}

func (s *Server) getRun(ctx context.Context, r *route.Request) (any, error) {
	values, err := route.Parameters(r.Request, "at")
	if err != nil {
		return nil, err
	}
	at, err := route.Number(values, "at", 0)
	if err != nil {
		return nil, err
	}
	return s.control.State(ctx, r.Namespace(), r.ID(), at)
}

func (s *Server) postInputs(ctx context.Context, r *route.Request) (any, error) {
	data, err := r.Body()
	if err != nil {
		return nil, err
	}
	all, err := inputs.Parse(data)
	if err != nil {
		return nil, err
	}
	return s.control.Inputs(ctx, r.Namespace(), r.ID(), all)
}

func (s *Server) postDecision(ctx context.Context, r *route.Request) (any, error) {
	node, err := r.Node()
	if err != nil {
		return nil, err
	}
	d, err := inputs.Decision(node)
	if err != nil {
		return nil, err
	}
	return s.control.Decide(ctx, r.Namespace(), r.ID(), d)
}

// command handles a request with {reason?, by?}.
func command(do func(ctx context.Context, ns, id string, by events.By) (runs.Result, error)) func(context.Context, *route.Request) (any, error) {
	return func(ctx context.Context, r *route.Request) (any, error) {
		var by events.By
		if err := r.OptionalObject(&by); err != nil {
			return nil, err
		}
		return do(ctx, r.Namespace(), r.ID(), by)
	}
}

// resumeBody is the optional body of a resume.
type resumeBody struct {
	events.By
	Restored bool `json:"restored,omitempty" jsonschema:"Resume the run only if a restore paused it, and nobody has paused it since."`
}

func (s *Server) postResume(ctx context.Context, r *route.Request) (any, error) {
	var body resumeBody
	if err := r.OptionalObject(&body); err != nil {
		return nil, err
	}
	resume := s.control.Resume
	if body.Restored {
		resume = s.control.Release
	}
	return resume(ctx, r.Namespace(), r.ID(), body.By)
}

// budgetBody is the body of a raised budget: the limits that change.
type budgetBody struct {
	events.Budget
	events.By
}

func (s *Server) postBudget(ctx context.Context, r *route.Request) (any, error) {
	var body budgetBody
	node, err := r.Node()
	if err != nil {
		return nil, err
	}
	if err := route.DecodeObject(node, &body); err != nil {
		return nil, err
	}
	if err := agentfile.CheckLimits(node, "", "leave it out to keep the current limit"); err != nil {
		return nil, err
	}
	return s.control.RaiseBudget(ctx, r.Namespace(), r.ID(), body.Budget, body.By)
}

func (s *Server) postFork(ctx context.Context, r *route.Request) (any, error) {
	var req forking.Request
	if err := r.Object(&req); err != nil {
		return nil, err
	}
	var err error
	if req.Key, err = keyOf(r); err != nil {
		return nil, err
	}
	result, err := s.control.Fork(ctx, r.Namespace(), r.ID(), req)
	if err == nil {
		r.W.Header().Set("Location", "/v1/runs/"+result.RunID)
	}
	return result, err
}

// keyOf returns the request's Idempotency-Key; empty: it has none.
func keyOf(r *route.Request) (string, error) {
	keys := r.Header.Values(forking.KeyHeader)
	if len(keys) > 1 || len(keys) == 1 && keys[0] == "" {
		return "", refusal.New(refusal.Invalid, refusal.CodeBadKey, "%s: must be given once, with 1 to %d visible ASCII characters", forking.KeyHeader, forking.MaxKey)
	}
	return strings.Join(keys, ""), nil
}

func (s *Server) getAgents(ctx context.Context, r *route.Request) (any, error) {
	return s.control.StoredAgents(ctx, r.Namespace())
}

func (s *Server) getAgent(ctx context.Context, r *route.Request) (any, error) {
	data, err := s.control.Agent(ctx, r.Namespace(), r.PathValue("name"))
	return json.RawMessage(data), err
}

func (s *Server) putAgent(ctx context.Context, r *route.Request) (any, error) {
	format, err := formatOf(r.Header.Get("Content-Type"))
	if err != nil {
		return nil, err
	}
	data, err := r.Body()
	if err != nil {
		return nil, err
	}
	return s.control.PutAgent(ctx, r.Namespace(), r.PathValue("name"), data, format)
}

func formatOf(contentType string) (agentfile.Format, error) {
	if contentType == "" {
		return agentfile.Auto, nil
	}
	media, _, err := mime.ParseMediaType(contentType)
	switch {
	case err != nil:
	case media == "application/json":
		return agentfile.JSON, nil
	case media == "application/yaml", media == "application/x-yaml", media == "text/yaml", media == "text/x-yaml":
		return agentfile.YAML, nil
	}
	return "", refusal.New(refusal.WrongMedia, refusal.CodeUnsupportedMedia, "Content-Type %q is not application/yaml or application/json", contentType)
}

func (s *Server) getTools(ctx context.Context, _ *route.Request) (any, error) {
	return s.control.Tools(ctx)
}
