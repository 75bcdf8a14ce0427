package requests

import (
	"context"
	"encoding/json"

	"github.com/moorebus/moorebus/internal/agentfile"
	"github.com/moorebus/moorebus/internal/control"
	"github.com/moorebus/moorebus/internal/control/runs"
	"github.com/moorebus/moorebus/internal/httpapi/inputs"
	"github.com/moorebus/moorebus/internal/httpapi/route"
	"github.com/moorebus/moorebus/internal/refusal"
	"github.com/moorebus/moorebus/pkg/events"
)

// The inputs of requests that change a run.
type (
	// NewInputs are inputs of a run.
	NewInputs struct {
		Run
		Inputs Inputs `body:""`
	}
	// Inputs are inputs as a body has them.
	Inputs []control.Input
	// NewDecision decides about a call of a run.
	NewDecision struct {
		Run
		Decision Decision `body:""`
	}
	// Decision is a decision as a body has it.
	Decision events.Decision
	// NewBudget replaces limits of a run's budget.
	NewBudget struct {
		Run
		Body BudgetBody `body:""`
	}
	// BudgetBody has the limits that change.
	BudgetBody struct {
		events.Budget
		events.By
	}
	// Order is a command to a run, and who gives it.
	Order struct {
		Run
		By events.By `body:""`
	}
	// ResumeOrder resumes a run.
	ResumeOrder struct {
		Run
		Body ResumeBody `body:""`
	}
	// ResumeBody is the optional body of a resume.
	ResumeBody struct {
		events.By
		Restored bool `json:"restored,omitempty" jsonschema:"Resume the run only if a restore paused it, and nobody has paused it since."`
	}
)

const orderExample = `{"reason": "It takes too long.", "by": "ada"}`

// The requests that change runs.
var (
	PostInputs = route.Define(route.Route{
		Pattern: "POST /v1/runs/{id}/inputs", Summary: "Posts messages, edits of the context and other inputs to a run, all or none.",
		Body: inputs.Schema(), Example: `[{"type": "user-message", "content": "Hello."}]`, Codes: route.InputCodes,
	}, func(ctx context.Context, c *control.Controller, in NewInputs) (control.InputsResult, error) {
		return c.Inputs(ctx, in.Namespace, in.ID, in.Inputs)
	})
	Decide = route.Define(route.Route{
		Pattern: "POST /v1/runs/{id}/decisions", Summary: "Approves, changes or rejects a call that waits for a human.",
		Body: inputs.DecisionBody{}, Answer: newState{}, Example: `{"call_id": "call_1", "decision": "approved", "by": "ada"}`, Codes: route.DecisionCodes,
	}, func(ctx context.Context, c *control.Controller, in NewDecision) (runs.Result, error) {
		return c.Decide(ctx, in.Namespace, in.ID, events.Decision(in.Decision))
	})
	RaiseBudget = route.Define(route.Route{
		Pattern: "POST /v1/runs/{id}/budget", Summary: "Replaces limits of the run's budget: those that the body names.",
		Answer: newState{}, Codes: route.ChangeCodes, Example: `{"max_total_tokens": 500000, "by": "ada"}`,
	}, func(ctx context.Context, c *control.Controller, in NewBudget) (runs.Result, error) {
		return c.RaiseBudget(ctx, in.Namespace, in.ID, in.Body.Budget, in.Body.By)
	})
	Resume = route.Define(route.Route{
		Pattern: "POST /v1/runs/{id}/resume", Summary: "Continues a run that is paused; with restored: true only one that a restore paused.",
		OptionalBody: true, Answer: newState{}, Codes: with(route.ChangeCodes, refusal.CodeNotPaused), Example: orderExample,
	}, func(ctx context.Context, c *control.Controller, in ResumeOrder) (runs.Result, error) {
		resume := c.Resume
		if in.Body.Restored {
			resume = c.Release
		}
		return resume(ctx, in.Namespace, in.ID, in.Body.By)
	})
	Cancel = order("cancel", "Ends a run now.", (*control.Controller).Cancel)
	Pause  = order("pause", "Starts no new work of a run until it is resumed.", (*control.Controller).Pause)
	Close  = order("close", "Ends a conversation that waits for its user.", (*control.Controller).Close, refusal.CodeNotWaiting)
)

// order defines a command with {reason?, by?}.
func order(verb, summary string, do func(c *control.Controller, ctx context.Context, ns, id string, by events.By) (runs.Result, error), codes ...string) *route.Op[*control.Controller, Order, runs.Result] {
	return route.Define(route.Route{
		Pattern: "POST /v1/runs/{id}/" + verb, Summary: summary, OptionalBody: true, Answer: newState{}, Codes: with(route.ChangeCodes, codes...), Example: orderExample,
	}, func(ctx context.Context, c *control.Controller, in Order) (runs.Result, error) {
		return do(c, ctx, in.Namespace, in.ID, in.By)
	})
}

// ReadBody is that of [route.BodyReader].
func (all *Inputs) ReadBody(r *route.Request) error {
	data, err := r.Body()
	if err == nil {
		*all, err = inputs.Parse(data)
	}
	return err
}

// MarshalJSON writes those inputs that commands post: messages and results of calls.
func (all Inputs) MarshalJSON() ([]byte, error) {
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
	return json.Marshal(body)
}

// ReadBody is that of [route.BodyReader].
func (d *Decision) ReadBody(r *route.Request) error {
	node, err := r.Node()
	if err != nil {
		return err
	}
	read, err := inputs.Decision(node)
	*d = Decision(read)
	return err
}

// MarshalJSON writes the body of a decision.
func (d Decision) MarshalJSON() ([]byte, error) {
	body := inputs.DecisionBody{CallID: d.CallID, Decision: d.Decision, Reason: d.Reason, By: d.By}
	if d.Arguments != "" {
		body.Arguments, _ = json.Marshal(d.Arguments) // a text is JSON
	}
	return json.Marshal(body)
}

// ReadBody is that of [route.BodyReader].
func (b *BudgetBody) ReadBody(r *route.Request) error {
	node, err := r.Node()
	if err != nil {
		return err
	}
	if err := route.DecodeObject(node, b); err != nil {
		return err
	}
	return agentfile.CheckLimits(node, "", "leave it out to keep the current limit")
}
