package inputs

import (
	"encoding/json"

	"github.com/moorebus/moorebus/internal/agentfile/strict"
	"github.com/moorebus/moorebus/internal/httpapi/route"
	"github.com/moorebus/moorebus/internal/refusal"
	"github.com/moorebus/moorebus/pkg/events"
)

// DecisionBody is a decision on a call, as a client writes it.
type DecisionBody struct {
	CallID    string          `json:"call_id" jsonschema:"The call that waits."`
	Decision  string          `json:"decision" jsonschema:"approved, modified or rejected."`
	Arguments json.RawMessage `json:"arguments,omitempty" jsonschema:"The new arguments of a modified call: an object, or its JSON in a string."`
	Reason    string          `json:"reason,omitempty" jsonschema:"Why. The model gets the reason of a rejection."`
	By        string          `json:"by" jsonschema:"Who decided."`
}

// Decision reads a decision on a call: {call_id, decision, arguments?, reason?, by}. Arguments are
// an object, or its JSON in a string. The error is a refusal.
func Decision(node *strict.Node) (events.Decision, error) {
	var body DecisionBody
	if err := route.DecodeObject(node, &body); err != nil {
		return events.Decision{}, err
	}
	d := events.Decision{CallID: body.CallID, Decision: body.Decision, Arguments: string(body.Arguments), Reason: body.Reason, By: body.By}
	if d.Arguments != "" && d.Arguments[0] != '{' {
		d.Arguments = ""
		if err := json.Unmarshal(body.Arguments, &d.Arguments); err != nil || d.Arguments == "" {
			return d, refusal.New(refusal.Invalid, refusal.CodeBadDecision,
				"arguments: leave them out, or give the call's new arguments as an object or as its JSON in a string")
		}
	}
	return d, nil
}
