package mcpserve

import (
	"context"
	"encoding/json"
	"slices"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/tool"
)

// outcomeSchema is the structured content of the results of agents without an output schema.
var outcomeSchema = json.RawMessage(`{"type":"object","properties":{"run_id":{"type":"string"},"state":{"type":"string"},"answer":{"type":"string"},"incomplete":{"type":"boolean","description":"The answer was cut off."}},"required":["run_id","state"]}`)

// toolOf describes an agent as a tool. announced are the tools that there are.
func toolOf(a *events.Agent, announced []events.ToolSpec) *mcp.Tool {
	t := &mcp.Tool{Name: a.Name, Description: a.Description, InputSchema: taskSchema(a.Task), OutputSchema: outcomeSchema, Annotations: hints(a, announced)}
	if t.Description == "" {
		t.Description = "Gives a task to the agent " + a.Name + " and returns its answer."
	}
	if givesObject(a.OutputSchema) {
		t.OutputSchema = a.OutputSchema
	}
	return t
}

// givesObject reports whether the answers of a schema are objects, which structured content
// has to be.
func givesObject(schema json.RawMessage) bool {
	var s struct {
		Type any `json:"type"`
	}
	return len(schema) > 0 && json.Unmarshal(schema, &s) == nil && s.Type == "object"
}

// hints are the annotations that follow from the agent's tools: it can do what they can do
// together. A tool that is not known, or is an agent, can do anything.
func hints(a *events.Agent, announced []events.ToolSpec) *mcp.ToolAnnotations {
	readOnly, idempotent, destructive, open := true, true, false, false
	for _, ref := range a.Tools {
		pool, name := events.SplitTool(ref)
		begin, pattern := strings.CutSuffix(name, "*")
		known := false
		for _, t := range announced {
			if pool != "" && t.Pool != pool || t.Name != name && (!pattern || len(t.Name) < len(begin) || t.Name[:len(begin)] != begin) {
				continue
			}
			known = t.Pool != events.AgentsPool
			effect := tool.Effect(t.Effect)
			readOnly = readOnly && (effect == tool.Pure || effect == tool.Idempotent && tool.Risk(t.Risk) == tool.Low)
			idempotent = idempotent && effect.Repeatable()
			destructive = destructive || t.Risk == string(tool.High) || t.Risk == string(tool.Critical)
			open = open || effect != tool.Pure
		}
		if !known {
			readOnly, idempotent, destructive, open = false, false, true, true
		}
	}
	if len(a.ClientTools) > 0 {
		readOnly, idempotent, destructive, open = false, false, true, true
	}
	return &mcp.ToolAnnotations{ReadOnlyHint: readOnly, IdempotentHint: idempotent, DestructiveHint: &destructive, OpenWorldHint: &open}
}

// announced returns the tools that there are; with an error none, so that the hints claim
// nothing.
func (s *Server) announced(ctx context.Context) []events.ToolSpec {
	tools, err := s.o.Control.Tools(ctx)
	if err != nil {
		s.o.Logger.Debug("the announced tools cannot be read", "reason", err)
	}
	return slices.Clone(tools)
}

// offer adds the tool of an agent, unless it is there as it is.
func (s *Server) offer(a *events.Agent, announced []events.ToolSpec) {
	t := toolOf(a, announced)
	data, err := json.Marshal(t)
	if err != nil {
		s.o.Logger.Warn("an agent cannot be offered", "agent", a.Name, "reason", err)
		return
	}
	if s.offered[a.Name] == string(data) {
		return
	}
	s.offered[a.Name] = string(data)
	s.mcp.AddTool(t, s.call)
}
