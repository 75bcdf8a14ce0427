package gateway

import (
	"context"
	"net/http"
	"net/url"
	"unicode/utf8"

	"github.com/moorebus/moorebus/internal/agentfile"
	"github.com/moorebus/moorebus/internal/agentfile/strict"
	"github.com/moorebus/moorebus/pkg/events"
)

func parseQuery(r *http.Request) (url.Values, error) {
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, badRequest(CodeBadParameter, "the query cannot be read: %s", err.Error())
	}
	for key, values := range query {
		for _, text := range append(values, key) {
			if !utf8.ValidString(text) {
				return nil, badRequest(CodeBadParameter, "the query is not valid UTF-8")
			}
		}
	}
	return query, nil
}

// startBody is the body of POST /v1/runs without its agent.
type startBody struct {
	Task     string      `json:"task"`
	Mode     events.Mode `json:"mode"`
	TaskType string      `json:"task_type"`
	RunID    string      `json:"run_id"`
}

func (g *Gateway) postRun(w http.ResponseWriter, r *http.Request) error {
	ctx, stop := bounded(r)
	defer stop()
	data, err := readBody(w, r)
	if err != nil {
		return err
	}
	req, err := g.parseStart(data)
	if err != nil {
		return err
	}
	result, err := g.Start(ctx, namespace(r), req)
	if err != nil {
		return err
	}
	w.Header().Set("Location", "/v1/runs/"+result.RunID)
	return writeJSON(w, http.StatusCreated, result)
}

func (g *Gateway) parseStart(data []byte) (StartRequest, error) {
	node, err := strict.ParseJSON(data)
	if err != nil {
		return StartRequest{}, err
	}
	rest, agent := node.Without("agent")
	var body startBody
	if err := decodeObject(rest, &body); err != nil {
		return StartRequest{}, err
	}
	req := StartRequest{Task: body.Task, Mode: body.Mode, TaskType: body.TaskType, RunID: body.RunID}
	if run := node.Get("run_id"); run != nil && body.RunID == "" {
		return req, badRequest(CodeBadRunID, "run_id: is empty; leave it out or give a lower-case UUIDv7")
	}
	if node.Get("task") != nil && body.Task == "" {
		return req, badRequest(CodeEmptyTask, "task: is empty; say what is to be done, or leave it out where the agent has a task of its own")
	}
	switch {
	case agent == nil:
	case agent.Kind == strict.String:
		req.AgentName = agent.Text
	default:
		a, err := agentfile.DecodeDefinition(agent, "agent", agentfile.Options{CheckScript: g.cfg.CheckScript, Name: "inline"})
		if err != nil {
			return req, badRequest(CodeBadAgent, "%s", err.Error())
		}
		req.Agent = &a
	}
	return req, nil
}

func (g *Gateway) getRuns(w http.ResponseWriter, r *http.Request) error {
	ctx, stop := bounded(r)
	defer stop()
	values, err := parameters(r, "state", "limit", "after")
	if err != nil {
		return err
	}
	limit, err := number(values, "limit", defaultRunLimit)
	if err != nil {
		return err
	}
	if state, given := values["state"]; given && state == "" {
		return badRequest(CodeBadParameter, "state: is empty; leave it out for every state")
	}
	page, err := g.Runs(ctx, namespace(r), events.State(values["state"]), int(min(limit, maxRunLimit+1)), values["after"])
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, page)
}

func (g *Gateway) getRun(w http.ResponseWriter, r *http.Request) error {
	ctx, stop := bounded(r)
	defer stop()
	values, err := parameters(r, "at")
	if err != nil {
		return err
	}
	at, err := number(values, "at", 0)
	if err != nil {
		return err
	}
	state, err := g.State(ctx, namespace(r), r.PathValue("id"), at)
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, state)
}

func (g *Gateway) postInputs(w http.ResponseWriter, r *http.Request) error {
	ctx, stop := bounded(r)
	defer stop()
	data, err := readBody(w, r)
	if err != nil {
		return err
	}
	inputs, err := ParseInputs(data)
	if err != nil {
		return err
	}
	result, err := g.Inputs(ctx, namespace(r), r.PathValue("id"), inputs)
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, result)
}

// control is the endpoint of a request with {reason?, by?}.
func (g *Gateway) control(do func(ctx context.Context, ns, id string, by events.By) (Result, error)) endpoint {
	return func(w http.ResponseWriter, r *http.Request) error {
		ctx, stop := bounded(r)
		defer stop()
		var by events.By
		if err := readJSON(w, r, true, &by); err != nil {
			return err
		}
		result, err := do(ctx, namespace(r), r.PathValue("id"), by)
		if err != nil {
			return err
		}
		return writeJSON(w, http.StatusOK, result)
	}
}

func (g *Gateway) postBudget(w http.ResponseWriter, r *http.Request) error {
	ctx, stop := bounded(r)
	defer stop()
	var body struct {
		events.Budget
		events.By
	}
	data, err := readBody(w, r)
	if err != nil {
		return err
	}
	node, err := strict.ParseJSON(data)
	if err != nil {
		return err
	}
	if err := decodeObject(node, &body); err != nil {
		return err
	}
	if err := agentfile.CheckLimits(node, "", "leave it out to keep the limit that holds"); err != nil {
		return err
	}
	result, err := g.RaiseBudget(ctx, namespace(r), r.PathValue("id"), body.Budget, body.By)
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, result)
}
