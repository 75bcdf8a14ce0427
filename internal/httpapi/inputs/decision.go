package inputs

import (
	"encoding/json"

	"github.com/moorebus/moorebus/internal/agentfile/strict"
	"github.com/moorebus/moorebus/internal/httpapi/route"
	"github.com/moorebus/moorebus/internal/refusal"
	"github.com/moorebus/moorebus/pkg/events"
)

// Decision reads a decision on a call: {call_id, decision, arguments?, reason?, by}. Arguments are
// an object, or its JSON in a string. The error is a refusal.
func Decision(node *strict.Node) (events.Decision, error) {
	var body struct {
		CallID    string          `json:"call_id"`
		Decision  string          `json:"decision"`
		Arguments json.RawMessage `json:"arguments"`
		Reason    string          `json:"reason"`
		By        string          `json:"by"`
	}
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
