package wire

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/moorebus/moorebus/internal/agentfile"
	"github.com/moorebus/moorebus/internal/control"
	"github.com/moorebus/moorebus/internal/subagent"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/llm/scripted"
)

// Subagents returns the tools of a file that are agents; file may be nil.
func Subagents(file *agentfile.ToolFile) []subagent.Tool {
	if file == nil {
		return nil
	}
	var tools []subagent.Tool
	for _, e := range file.Tools {
		if e.OfAgent() {
			tools = append(tools, subagent.Tool{
				Name: e.Name, Agent: e.Agent, Handoff: e.Handoff, Description: e.Description, Risk: e.Risk, Timeout: time.Duration(e.Timeout),
			})
		}
	}
	return tools
}

// ActorSubagents returns the tools of an actor's file that are agents, if the actor
// serves the pool agents. Without pools it serves all. To name the pool agents without
// such a tool is an error.
func ActorSubagents(file string, pools []string) ([]subagent.Tool, error) {
	named := slices.Contains(pools, events.AgentsPool)
	if len(pools) > 0 && !named {
		return nil, nil
	}
	var tools []subagent.Tool
	if file != "" {
		docs, err := agentfile.ReadFile(file, agentfile.Options{CheckScript: scripted.CheckScript})
		if err != nil {
			return nil, err
		}
		tools = Subagents(docs.Tools)
	}
	if named && len(tools) == 0 {
		return nil, fmt.Errorf("--pool %s: no tool is an agent; give one the key `agent` or `handoff`", events.AgentsPool)
	}
	return tools, nil
}

// PutAgents stores all agents of the documents, so that they can call one another.
func PutAgents(ctx context.Context, g *control.Controller, namespace string, docs agentfile.Documents) error {
	for _, a := range docs.Agents() {
		if err := PutAgent(ctx, g, namespace, a); err != nil {
			return err
		}
	}
	return nil
}
