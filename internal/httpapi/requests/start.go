package requests

import (
	"encoding/json"

	"github.com/moorebus/moorebus/internal/agentfile"
	"github.com/moorebus/moorebus/internal/agentfile/strict"
	"github.com/moorebus/moorebus/internal/control"
	"github.com/moorebus/moorebus/internal/httpapi/inputs"
	"github.com/moorebus/moorebus/internal/httpapi/route"
	"github.com/moorebus/moorebus/internal/refusal"
	"github.com/moorebus/moorebus/pkg/events"
)

// StartBody is the body of POST /v1/runs.
type StartBody struct {
	Agent    route.AgentOrName `json:"agent" jsonschema:"The name of a stored agent, or a definition."`
	Task     route.Content     `json:"task,omitempty" jsonschema:"What the run is for. Default: the agent's own task."`
	Mode     events.Mode       `json:"mode,omitempty" jsonschema:"task or chat. Default: the agent's."`
	TaskType string            `json:"task_type,omitempty" jsonschema:"Selects one of the agent's models. Default: default."`
	Priority events.Priority   `json:"priority,omitempty" jsonschema:"high, normal or low: the run's place in the queue, where a quota makes it wait. Default: normal."`
	Labels   events.Labels     `json:"labels,omitempty" jsonschema:"Texts by keys, by which the run is found. They go before those of the agent, key by key. At most 32 together."`
	RunID    string            `json:"run_id,omitempty" jsonschema:"An unused lower-case UUIDv7. Default: a new one."`

	// parsed and agent, a definition, are what was read.
	parsed control.StartRequest
	agent  *strict.Node
}

// Starts returns the body that starts a run: an agent with a task.
func Starts(req control.StartRequest) StartBody {
	b := StartBody{Agent: req.AgentName, Mode: req.Mode, TaskType: req.TaskType, Priority: req.Priority, RunID: req.RunID, Labels: req.Labels}
	if req.Agent != nil {
		b.Agent = json.RawMessage(agentfile.Marshal(*req.Agent))
	}
	switch {
	case req.Parts != nil:
		b.Task = req.Parts
	case req.Task != "":
		b.Task = req.Task
	}
	return b
}

// ReadBody is that of [route.BodyReader].
func (b *StartBody) ReadBody(r *route.Request) error {
	node, err := r.Node()
	if err != nil {
		return err
	}
	rest, agent := node.Without("agent")
	rest, task := rest.Without("task")
	if err := route.DecodeObject(rest, b); err != nil {
		return err
	}
	req := control.StartRequest{Mode: b.Mode, TaskType: b.TaskType, RunID: b.RunID, Priority: b.Priority, Labels: b.Labels}
	if task != nil && task.Kind != strict.Null {
		if req.Task, req.Parts, err = inputs.Content("task", task); err != nil {
			return route.BadRequest("%s", err.Error())
		}
	}
	switch {
	case node.Get("run_id") != nil && b.RunID == "":
		return refusal.New(refusal.Invalid, refusal.CodeBadRunID, "run_id: is empty; leave it out or give a lower-case UUIDv7")
	case task != nil && req.Task == "" && req.Parts == nil:
		return refusal.New(refusal.Invalid, refusal.CodeEmptyTask, "task: is empty; describe the task, or leave it out if the agent has its own")
	case agent == nil:
	case agent.Kind == strict.String:
		req.AgentName = agent.Text
	default:
		b.agent = agent
	}
	b.parsed = req
	return nil
}
