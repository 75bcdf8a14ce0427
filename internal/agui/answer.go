package agui

import (
	"cmp"
	"fmt"

	"github.com/moorebus/moorebus/internal/agentfile/strict"
	"github.com/moorebus/moorebus/internal/control/decisions"
	"github.com/moorebus/moorebus/internal/httpapi/inputs"
	"github.com/moorebus/moorebus/internal/refusal"
	"github.com/moorebus/moorebus/pkg/events"
)

// client is who decides, if an answer does not say.
const client = "ag-ui"

const (
	// cancelled is the status of an answer that rejects the call, resolved of any other.
	cancelled = "cancelled"
	resolved  = "resolved"
)

// The forms that a payload may have.
const (
	approvalForms = "true, false, {approved: true|false, reason?, by?}, or a decision, {decision: approved|rejected|modified, arguments?, reason?, by?}"
	questionForms = "a string, {answer, by?}, or a decision, {decision: modified, arguments: {question, answer}, by?}"
)

// answer is what a payload says. Value is nil if it is a decision's body.
type answer struct {
	id       string
	decision events.Decision
	// approves answers an approval, and says a question.
	approves *bool
	says     *string
}

// read reads the answer to an interrupt as far as its form goes.
func (r *Resume) read() (a answer, err error) {
	a.id = r.InterruptID
	switch {
	case r.InterruptID == "":
		return a, fmt.Errorf("interruptId: is missing")
	case r.Status == cancelled:
		a.decision = events.Decision{Decision: events.DecisionRejected, Reason: "cancelled", By: client}
		return a, nil
	case r.Status != resolved:
		return a, fmt.Errorf("status: %.100q is neither resolved nor cancelled", r.Status)
	case len(r.Payload) == 0 || string(r.Payload) == "null":
		return a, fmt.Errorf("payload: is missing; for an approval give %s; for a question give %s", approvalForms, questionForms)
	}
	node, err := strict.ParseJSON(r.Payload)
	if err == nil {
		err = a.parse(node)
	}
	if err != nil {
		return a, fmt.Errorf("payload: %s", err.Error())
	}
	a.decision.By = cmp.Or(a.decision.By, client)
	return a, nil
}

// parse reads a payload: a decision's body, or a plain value.
func (a *answer) parse(node *strict.Node) (err error) {
	switch {
	case node.Kind == strict.Bool:
		yes := node.Text == "true"
		a.approves = &yes
	case node.Kind == strict.String:
		a.says = &node.Text
	case node.Get("decision") != nil:
		a.decision, err = inputs.Decision(node)
	case node.Get("approved") != nil && node.Get("approved").Kind == strict.Bool:
		var body struct {
			Approved bool   `json:"approved"`
			Reason   string `json:"reason"`
			By       string `json:"by"`
		}
		err = strict.Decode(node, &body)
		a.approves, a.decision.Reason, a.decision.By = &body.Approved, body.Reason, body.By
	case node.Get("answer") != nil && node.Get("answer").Kind == strict.String:
		var body struct {
			Answer string `json:"answer"`
			By     string `json:"by"`
		}
		err = strict.Decode(node, &body)
		a.says, a.decision.By = &body.Answer, body.By
	default:
		err = fmt.Errorf("is %s that is no answer; for an approval give %s; for a question give %s", node.Kind, approvalForms, questionForms)
	}
	if a.approves != nil {
		a.decision.Decision = events.DecisionRejected
		if *a.approves {
			a.decision.Decision = events.DecisionApproved
		}
	}
	return err
}

// to returns the decision that the answer is on a call that waits. The error is a refusal: text
// never approves, and a truth value answers no question.
func (a *answer) to(r *events.Request) (events.Decision, error) {
	d := a.decision
	bad := func(format string, args ...any) (events.Decision, error) {
		return d, refusal.New(refusal.Invalid, refusal.CodeBadDecision, "resume: interrupt %.100q: %s", a.id, fmt.Sprintf(format, args...))
	}
	switch {
	case d.CallID != "" && d.CallID != r.CallID && d.CallID != a.id:
		return bad("payload: call_id: is %.100q, but the interrupt's is %.100q", d.CallID, r.CallID)
	case a.says != nil && !r.Asks:
		return bad("payload: a text does not decide about a call; give %s", approvalForms)
	case a.approves != nil && r.Asks:
		return bad("payload: a truth value does not answer a question; give %s", questionForms)
	case a.says != nil:
		arguments, err := decisions.Answered(r.Arguments, *a.says)
		if err != nil {
			return bad("%s", err.Error())
		}
		d.Decision, d.Arguments = events.DecisionModified, arguments
	}
	d.CallID = r.CallID
	return d, nil
}
