package subagent

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/moorebus/moorebus/internal/agentfile"
	"github.com/moorebus/moorebus/internal/launch"
	"github.com/moorebus/moorebus/internal/toolcall"
	"github.com/moorebus/moorebus/internal/worker"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/reducer"
	"github.com/moorebus/moorebus/pkg/tool"
)

// CodeHandOffAlone is the code of a hand-off that is not the only call of its reply.
const CodeHandOffAlone = "handoff_alone"

// handoffSchema is the schema of a hand-off: an optional reason.
var handoffSchema = json.RawMessage(`{"type":"object","properties":{"reason":{"type":"string","description":"why the other agent is to go on"}},"additionalProperties":false}`)

// handoff is the definition of a tool that hands the conversation over.
func (t Tool) handoff() tool.Definition {
	def := tool.Definition{
		Name: cmp.Or(t.Name, agentfile.HandoffPrefix+t.Handoff), Description: t.Description, Schema: handoffSchema,
		Effect: tool.Idempotent, Pool: events.AgentsPool, Risk: t.Risk,
	}
	if def.Description == "" {
		def.Description = fmt.Sprintf("Hands this conversation over to the agent %s, who knows all of it and goes on in your place.", t.Handoff)
	}
	return def.WithDefaults()
}

// handOver continues the run under another agent and answers the call. If the worker dies
// in between, the next one answers. The error is a store's.
func (s *Subagents) handOver(ctx context.Context, c call, t Tool) (worker.Result, error) {
	if c.batch || c.queued {
		return c.failed(CodeHandOffAlone, fmt.Sprintf("%s was not called: a hand-off has to be the only call of a reply", c.Name)), nil
	}
	p, err := s.pinHandOff(ctx, c, t)
	var failure *tool.Failure
	switch {
	case errors.As(err, &failure):
		return c.failed(failure.Code, failure.Message), nil
	case err != nil:
		return worker.Result{}, err
	}
	return worker.Then(p, func(context.Context) worker.Result { return handedOver(c.ID) }), nil
}

// handedOver answers a call that has handed the conversation over.
func handedOver(call string) worker.Result {
	return worker.Done(toolcall.Outcome(events.ToolOutcome{
		CallID: call, Success: true, Code: tool.CodeOK, Observation: reducer.SuccessPrefix + "the conversation was handed over",
	}, false))
}

// pinHandOff pins the other agent as it is stored now.
func (s *Subagents) pinHandOff(ctx context.Context, c call, t Tool) (*events.HandedOff, error) {
	var arguments struct {
		Reason string `json:"reason"`
	}
	if text := strings.TrimSpace(c.Arguments); text != "" && json.Unmarshal([]byte(text), &arguments) != nil {
		return nil, tool.Failf(tool.CodeInvalidArguments, "%s takes {\"reason\": \"why\"}", c.Name)
	}
	a, err := s.launcher.Definition(ctx, c.run.Namespace, t.Handoff)
	if err != nil {
		return nil, failureOf(err)
	}
	start, err := s.pinWhenThere(ctx, a, launch.Task{Mode: c.mode, Pools: c.pools})
	if err != nil {
		return nil, failureOf(err)
	}
	return &events.HandedOff{
		Agent: start.Agent, AgentHash: start.AgentHash, Tools: start.Tools, CallID: c.ID,
		Reason: strings.ToValidUTF8(arguments.Reason, "\uFFFD"),
	}, nil
}
