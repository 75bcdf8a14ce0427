package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/moorebus/moorebus/internal/agentfile/strict"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// The codes of an [Error] of [Gateway.Decide]. They are stable.
const (
	CodeBadDecision      = "bad_decision"
	CodeAlreadyDecided   = "already_decided"
	CodeApprovalExpired  = "approval_expired"
	CodeAnswerNeeded     = "answer_needed"
	CodeBlacklisted      = "blacklisted"
	CodeInvalidArguments = "invalid_arguments"
)

// Decide gives a run what a named human decided on a call that waits for it, and
// returns where the run stands then. The call is named as the log or as its provider
// names it. The last decision on several calls leaves
// the run in waiting_for_human: the role's worker takes it on from there.
//
// Errors are *[Error]:
//
//   - 400 bad_decision: the decision itself is not complete, see
//     [events.Decision]. By is always needed; arguments are needed to modify and
//     refused otherwise.
//   - 404 run_not_found, 404 unknown_call.
//   - 409 already_decided, with the first decision in the field decision.
//   - 409 approval_expired: the approval's deadline has passed. If nothing had
//     expired the approval before, this does.
//   - 409 not_waiting: the call does not wait for a decision.
//   - 409 run_ended, with the field decision if the call was decided.
//   - 422 unknown_tool, blacklisted, invalid_arguments: the call as modified may
//     not be run. It still waits.
//   - 422 answer_needed: the call asks a question, which a decision that is
//     modified answers with arguments {question, answer}. It still waits.
func (g *Gateway) Decide(ctx context.Context, ns, id string, d events.Decision) (Result, error) {
	if err := checkDecisionForm(d); err != nil {
		return Result{}, err
	}
	var expired *Error
	result, err := g.change(ctx, ns, id, func(mem *reducer.Memory) ([]runlog.Draft, error) {
		expired = nil // of an earlier try, which lost a race
		d.CallID = mem.CallID(d.CallID)
		if err := awaits(mem, d.CallID); err != nil {
			return nil, err
		}
		if drafts := g.expire(mem); drafts != nil {
			expired = expiredCall(mem, d.CallID, mem.PendingApproval.Deadline)
			return drafts, nil
		}
		if err := g.checkRunnable(mem, d); err != nil {
			return nil, err
		}
		return one(events.WaitingForHuman, decisionEvent(mem, d))
	})
	switch {
	case err != nil:
		return Result{}, g.withFirst(ctx, ns, id, d.CallID, err)
	case expired != nil:
		expired.Fields["state"], expired.Fields["n"] = result.State, result.N
		return Result{}, expired
	}
	return result, nil
}

func checkDecisionForm(d events.Decision) *Error {
	for _, text := range []string{d.CallID, d.Decision, d.Arguments, d.Reason, d.By} {
		if !utf8.ValidString(text) {
			return badRequest(CodeBadDecision, "the decision is not valid UTF-8")
		}
	}
	modified := d.Decision == events.DecisionModified
	switch {
	case d.CallID == "":
		return badRequest(CodeBadDecision, "call_id: is missing; name the call that is decided")
	case !modified && d.Decision != events.DecisionApproved && d.Decision != events.DecisionRejected:
		return badRequest(CodeBadDecision, "decision: %.100q is not %s, %s or %s", d.Decision,
			events.DecisionApproved, events.DecisionRejected, events.DecisionModified)
	case modified && d.Arguments == "":
		return badRequest(CodeBadDecision, "arguments: are missing; give the call's new arguments")
	case !modified && d.Arguments != "":
		return badRequest(CodeBadDecision, "arguments: only a decision that is %s has them", events.DecisionModified)
	case strings.TrimSpace(d.By) == "":
		return badRequest(CodeBadDecision, "by: is missing; name who decides")
	}
	return nil
}

// awaits says why a call cannot be decided now, nil if it can.
func awaits(mem *reducer.Memory, callID string) error {
	if slices.Contains(Undecided(mem.PendingApproval), callID) {
		return nil
	}
	if a := mem.PendingApproval; a != nil {
		for _, d := range a.Decisions {
			if d.CallID == callID {
				return decidedCall(mem, d)
			}
		}
	}
	if mem.ToolCalls[callID] == nil {
		e := notFound(CodeUnknownCall, "the run has no tool call %.100q", callID)
		e.Fields = callFields(mem, callID)
		return e
	}
	e := conflict(CodeNotWaiting, "call %q does not wait for a decision; the run is in state %s", callID, mem.State)
	e.Fields = callFields(mem, callID)
	return e
}

// Undecided returns the ids of the calls that still wait, in the order in which
// they were asked for; none for nil.
func Undecided(a *reducer.PendingApproval) []string {
	if a == nil {
		return nil
	}
	var calls []string
	for _, r := range a.Requests {
		if !slices.ContainsFunc(a.Decisions, func(d events.Decision) bool { return d.CallID == r.CallID }) {
			calls = append(calls, r.CallID)
		}
	}
	return calls
}

// checkRunnable checks a call as a human leaves it, if it is to run.
func (g *Gateway) checkRunnable(mem *reducer.Memory, d events.Decision) error {
	asks := slices.ContainsFunc(mem.PendingApproval.Requests, func(r events.Request) bool { return r.CallID == d.CallID && r.Asks })
	arguments, e := d.Arguments, (*Error)(nil)
	switch d.Decision {
	case events.DecisionApproved:
		if asks {
			e = answerNeeded(mem, d.CallID)
		}
	case events.DecisionModified:
		if asks {
			arguments, e = withoutAnswer(mem, d)
		}
		if e == nil {
			e = g.checkModified(mem, d.CallID, arguments)
		}
	}
	if e == nil {
		return nil
	}
	e.Fields = callFields(mem, d.CallID)
	return e
}

func answerNeeded(mem *reducer.Memory, callID string) *Error {
	return unprocessable(CodeAnswerNeeded, "%s asks a question: answer it with decision %s and arguments {question, answer}, or reject it",
		mem.ToolCalls[callID].Name, events.DecisionModified)
}

// withoutAnswer returns the arguments of a decision on a question without the
// answer, which has to be there and which the tool's schema says nothing of.
func withoutAnswer(mem *reducer.Memory, d events.Decision) (string, *Error) {
	node, err := strict.ParseJSON([]byte(d.Arguments))
	if err != nil || node.Kind != strict.Object {
		return d.Arguments, nil // the check of the arguments says what is wrong
	}
	rest, answer := node.Without("answer")
	if answer == nil || answer.Kind != strict.String || strings.TrimSpace(answer.Text) == "" {
		return "", answerNeeded(mem, d.CallID)
	}
	return string(rest.JSON()), nil
}

// checkModified checks a call as a human modified it, in the order in which the
// model's own calls are checked. The approval policy is the last check of
// that order, and has nothing to say: whatever it wants of the new arguments, the
// human who wrote them has approved them.
func (g *Gateway) checkModified(mem *reducer.Memory, callID, arguments string) *Error {
	name := mem.ToolCalls[callID].Name
	info, known := mem.Tools[name]
	switch {
	case !known:
		return unprocessable(CodeUnknownTool, "the run has no tool %q; reject the call", name)
	case slices.Contains(mem.Blacklist, name):
		return unprocessable(CodeBlacklisted, "tool %q is blacklisted in this run; reject the call", name)
	}
	if err := g.validArguments(json.RawMessage(info.Schema), arguments); err != nil {
		return unprocessable(CodeInvalidArguments, "invalid arguments for %s: %s", name, err.Error())
	}
	return nil
}

func (g *Gateway) validArguments(schema json.RawMessage, arguments string) error {
	if g.cfg.Validator != nil {
		return g.cfg.Validator.Validate(schema, arguments)
	}
	node, err := strict.ParseJSON([]byte(arguments))
	if err != nil {
		return err
	}
	if node.Kind != strict.Object {
		return errors.New("they are no JSON object")
	}
	return nil
}

// decisionEvent is a decision as the event that it is for the run.
func decisionEvent(mem *reducer.Memory, d events.Decision) events.Payload {
	switch {
	case mem.Control.Batch:
		return &events.HumanDecision{Decision: d}
	case d.Decision == events.DecisionApproved:
		return &events.HumanApproved{Decision: d}
	case d.Decision == events.DecisionModified:
		return &events.HumanModified{Decision: d}
	}
	return &events.HumanRejected{Decision: d}
}

// withFirst completes the refusal of a decision by what became of the call
// before. Only the log has it: a run goes on without what is done with.
func (g *Gateway) withFirst(ctx context.Context, ns, id, callID string, err error) error {
	var refused *Error
	if !errors.As(err, &refused) || refused.Code != CodeNotWaiting && refused.Code != CodeRunEnded {
		return err
	}
	at, placeErr := g.place(ns, id)
	if placeErr != nil {
		return placeErr
	}
	call := history{callID: callID, named: reducer.NameCall(nil, callID)}
	mem, err := runlog.Retrace(ctx, g.log, g.machine, at, func(_ journal.Record, e *events.Event) { call.add(e.Data) })
	if err != nil {
		return err
	}
	switch {
	case refused.Code == CodeRunEnded:
		if call.first != nil {
			refused.Fields["decision"] = call.first
			refused.Message = fmt.Sprintf("call %q is %s already, by %s; %s", callID, call.first.Decision, call.first.By, refused.Message)
		}
	case call.first != nil:
		return decidedCall(mem, *call.first)
	case call.expired:
		return expiredCall(mem, callID, call.deadline)
	}
	return refused
}

// history is what became of a call since it was last asked for.
type history struct {
	// callID is the call as the client names it, named the log's name where that is the
	// provider's.
	callID   string
	named    string
	deadline string
	asked    bool
	expired  bool
	first    *events.Decision
}

func (h *history) is(id string) bool { return id == h.callID || id == h.named }

func (h *history) add(p events.Payload) {
	switch p := p.(type) {
	case *events.HumanApprovalRequired:
		h.asked = slices.ContainsFunc(p.Requests, func(r events.Request) bool { return h.is(r.CallID) })
		if h.asked {
			h.deadline, h.expired, h.first = p.Deadline, false, nil
		}
	case *events.ApprovalExpired:
		h.expired = h.expired || h.asked
	case *events.HumanDecision:
		h.decide(p.Decision)
	case *events.HumanApproved:
		h.decide(p.Decision)
	case *events.HumanModified:
		h.decide(p.Decision)
	case *events.HumanRejected:
		h.decide(p.Decision)
	}
}

func (h *history) decide(d events.Decision) {
	if h.is(d.CallID) && h.first == nil {
		h.first = &d
	}
}

func decidedCall(mem *reducer.Memory, first events.Decision) *Error {
	e := conflict(CodeAlreadyDecided, "call %q is %s already, by %s", first.CallID, first.Decision, first.By)
	e.Fields = callFields(mem, first.CallID)
	e.Fields["decision"] = first
	return e
}

func expiredCall(mem *reducer.Memory, callID, deadline string) *Error {
	e := conflict(CodeApprovalExpired, "the approval of call %q expired at %s; the run goes on without it", callID, deadline)
	e.Fields = callFields(mem, callID)
	return e
}

func callFields(mem *reducer.Memory, callID string) map[string]any {
	return map[string]any{"run": mem.RunID, "call_id": callID, "state": mem.State, "n": mem.N}
}

// decisionBody is the body of POST /v1/runs/{id}/decisions. Arguments are the
// text that a tool gets, as a string, or the object itself.
type decisionBody struct {
	CallID    string          `json:"call_id"`
	Decision  string          `json:"decision"`
	Arguments json.RawMessage `json:"arguments"`
	Reason    string          `json:"reason"`
	By        string          `json:"by"`
}

// arguments returns the new arguments as text, empty where there are none.
func (b *decisionBody) arguments() (string, error) {
	if len(b.Arguments) == 0 {
		return "", nil
	}
	if b.Arguments[0] == '{' {
		return string(b.Arguments), nil
	}
	var text string
	if err := json.Unmarshal(b.Arguments, &text); err != nil || text == "" {
		return "", badRequest(CodeBadDecision, "arguments: leave them out, or give the call's new arguments as an object or as its JSON in a string")
	}
	return text, nil
}

func (g *Gateway) postDecision(w http.ResponseWriter, r *http.Request) error {
	ctx, stop := bounded(r)
	defer stop()
	var body decisionBody
	if err := readJSON(w, r, false, &body); err != nil {
		return err
	}
	arguments, err := body.arguments()
	if err != nil {
		return err
	}
	d := events.Decision{CallID: body.CallID, Decision: body.Decision, Arguments: arguments, Reason: body.Reason, By: body.By}
	result, err := g.Decide(ctx, namespace(r), r.PathValue("id"), d)
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, result)
}
