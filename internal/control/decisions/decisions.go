// Package decisions records what humans decide about the calls of a run. It checks and appends a
// decision, and expires an approval whose deadline has passed.
package decisions

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/moorebus/moorebus/internal/agentfile/strict"
	"github.com/moorebus/moorebus/internal/approval"
	"github.com/moorebus/moorebus/internal/callname"
	"github.com/moorebus/moorebus/internal/control/runs"
	"github.com/moorebus/moorebus/internal/effects"
	"github.com/moorebus/moorebus/internal/refusal"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/internal/worker"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
	"github.com/moorebus/moorebus/pkg/tool"
)

// Decisions records decisions. It is safe for concurrent use.
type Decisions struct {
	a         *runs.Editor
	validator tool.Validator
}

// New returns Decisions about the runs of a. validator checks arguments that a human changed;
// nil: they must be an object.
func New(a *runs.Editor, validator tool.Validator) *Decisions { return &Decisions{a, validator} }

// Decide appends the decision of a named human about a waiting call. The call's id is the log's
// or the provider's. After the last decision of a batch the run is still in
// waiting_for_human: the worker joins the decisions, see [Join].
//
// Refusals are:
//
//   - Invalid, bad_decision: the decision is not complete, see [events.Decision]. By is
//     always needed; arguments are needed to modify and refused otherwise.
//   - NotFound: run_not_found, unknown_call.
//   - Conflict, already_decided, with the first decision in the field decision.
//   - Conflict, approval_expired: the approval's deadline has passed. This call expires the
//     approval if nothing did before.
//   - Conflict, not_waiting: the call does not wait for a decision.
//   - Conflict, run_ended, with the field decision if the call was decided.
//   - Unprocessable, unknown_tool, blacklisted, invalid_arguments: the modified call may not
//     run. It still waits.
//   - Unprocessable, answer_needed: the call asks a question. The answer is a decision
//     modified with arguments {question, answer}. The call still waits.
func (s *Decisions) Decide(ctx context.Context, ns, id string, d events.Decision) (runs.Result, error) {
	if err := checkForm(d); err != nil {
		return runs.Result{}, err
	}
	var expired *refusal.Error
	result, err := s.a.Change(ctx, ns, id, func(mem *reducer.Memory) ([]runlog.Draft, error) {
		expired = nil // an earlier attempt that lost a race may have set it
		d.CallID = callname.Find(mem, d.CallID)
		if err := checkWaiting(mem, d.CallID); err != nil {
			return nil, err
		}
		if drafts := Expire(mem, s.a.Store.Now()); drafts != nil {
			expired = expiredCall(mem, d.CallID, mem.PendingApproval.Deadline)
			return drafts, nil
		}
		if err := s.checkRunnable(mem, d); err != nil {
			return nil, err
		}
		return runs.One(events.WaitingForHuman, event(mem, d))
	})
	switch {
	case err != nil:
		return runs.Result{}, s.explain(ctx, ns, id, d.CallID, err)
	case expired != nil:
		expired.Fields["state"], expired.Fields["n"] = result.State, result.N
		return runs.Result{}, expired
	}
	return result, nil
}

// CheckDecision returns the refusal with which [Decisions.Decide] would answer a decision on a call that
// waits for one, or nil: bad_decision and those that are Unprocessable. The id is the log's.
func (s *Decisions) CheckDecision(mem *reducer.Memory, d events.Decision) error {
	if err := checkForm(d); err != nil {
		return err
	}
	return s.checkRunnable(mem, d)
}

func checkForm(d events.Decision) error {
	bad := func(format string, args ...any) error {
		return refusal.New(refusal.Invalid, refusal.CodeBadDecision, format, args...)
	}
	for _, text := range []string{d.CallID, d.Decision, d.Arguments, d.Reason, d.By} {
		if !utf8.ValidString(text) {
			return bad("the decision is not valid UTF-8")
		}
	}
	modified := d.Decision == events.DecisionModified
	switch {
	case d.CallID == "":
		return bad("call_id: is missing; name the call that is decided")
	case !modified && d.Decision != events.DecisionApproved && d.Decision != events.DecisionRejected:
		return bad("decision: %.100q is not %s, %s or %s", d.Decision, events.DecisionApproved, events.DecisionRejected, events.DecisionModified)
	case modified && d.Arguments == "":
		return bad("arguments: are missing; give the call's new arguments")
	case !modified && d.Arguments != "":
		return bad("arguments: only a decision that is %s has them", events.DecisionModified)
	case strings.TrimSpace(d.By) == "":
		return bad("by: is missing; name who decides")
	}
	return nil
}

// checkWaiting returns why a call cannot be decided now, or nil.
func checkWaiting(mem *reducer.Memory, callID string) error {
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
		return refusal.New(refusal.NotFound, refusal.CodeUnknownCall, "the run has no tool call %.100q", callID).With(callFields(mem, callID))
	}
	return conflict(mem, callID, refusal.CodeNotWaiting, "call %q does not wait for a decision; the run is in state %s", callID, mem.State)
}

// Undecided returns the ids of the calls that still wait, in the order of the requests. a may be
// nil.
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

// Deadline returns when the approval that the run waits for expires. It returns false if there is
// no such approval or deadline. A deadline that cannot be parsed counts as none: a typing
// error must not reject a call.
func Deadline(mem *reducer.Memory) (at time.Time, waits bool) {
	if mem.State != events.WaitingForHuman || len(Undecided(mem.PendingApproval)) == 0 {
		return time.Time{}, false
	}
	at, err := time.Parse(time.RFC3339, mem.PendingApproval.Deadline)
	return at, err == nil
}

// Expire returns the event for an approval whose deadline has passed, or nil.
func Expire(mem *reducer.Memory, now time.Time) []runlog.Draft {
	at, waits := Deadline(mem)
	if !waits || now.Before(at) {
		return nil
	}
	return []runlog.Draft{{Origin: events.WaitingForHuman, Payload: &events.ApprovalExpired{}}}
}

// checkRunnable checks a call that a human lets run. A modified call gets the checks of the
// model's own calls, in the same order, except the approval policy: the human who wrote the
// arguments has approved them.
func (s *Decisions) checkRunnable(mem *reducer.Memory, d events.Decision) error {
	unprocessable := func(code, format string, args ...any) error {
		return refusal.New(refusal.Unprocessable, code, format, args...).With(callFields(mem, d.CallID))
	}
	if d.Decision == events.DecisionRejected {
		return nil
	}
	name, arguments := mem.ToolCalls[d.CallID].Name, d.Arguments
	if slices.ContainsFunc(mem.PendingApproval.Requests, func(r events.Request) bool { return r.CallID == d.CallID && r.Asks }) {
		var answered bool
		if arguments, answered = withoutAnswer(d); !answered {
			return unprocessable(refusal.CodeAnswerNeeded, "%s asks a question: answer it with decision %s and arguments {question, answer}, or reject it",
				name, events.DecisionModified)
		}
	}
	if d.Decision == events.DecisionApproved {
		return nil
	}
	info, known := mem.Tools[name]
	switch {
	case !known:
		return unprocessable(refusal.CodeUnknownTool, "the run has no tool %q; reject the call", name)
	case slices.Contains(mem.Blacklist, name):
		return unprocessable(refusal.CodeBlacklisted, "tool %q is blacklisted in this run; reject the call", name)
	}
	if err := s.validate(json.RawMessage(info.Schema), arguments); err != nil {
		return unprocessable(refusal.CodeInvalidArguments, "invalid arguments for %s: %s", name, err.Error())
	}
	return nil
}

// Answered returns the arguments of a decision that answers a question: those of the request,
// which may be empty, and the answer.
func Answered(request, answer string) (string, error) {
	arguments := map[string]json.RawMessage{}
	if request != "" {
		if err := json.Unmarshal([]byte(request), &arguments); err != nil {
			return "", fmt.Errorf("the question's arguments: %w", err)
		}
	}
	text, err := json.Marshal(answer)
	if err != nil {
		return "", err
	}
	arguments["answer"] = text
	all, err := json.Marshal(arguments)
	return string(all), err
}

// withoutAnswer returns the arguments of a decision on a question without the answer, which is
// not in the tool's schema, and whether there is an answer. Arguments that are not an object
// pass: the check of the arguments refuses them.
func withoutAnswer(d events.Decision) (string, bool) {
	if d.Decision != events.DecisionModified {
		return "", false
	}
	node, err := strict.ParseJSON([]byte(d.Arguments))
	if err != nil || node.Kind != strict.Object {
		return d.Arguments, true
	}
	rest, answer := node.Without("answer")
	if answer == nil || answer.Kind != strict.String || strings.TrimSpace(answer.Text) == "" {
		return "", false
	}
	return string(rest.JSON()), true
}

func (s *Decisions) validate(schema json.RawMessage, arguments string) error {
	if err := approval.Distinct(schema, arguments); err != nil {
		return err
	}
	if s.validator != nil {
		return s.validator.Validate(schema, arguments)
	}
	node, err := strict.ParseJSON([]byte(arguments))
	if err == nil && node.Kind != strict.Object {
		err = errors.New("they are not a JSON object")
	}
	return err
}

func event(mem *reducer.Memory, d events.Decision) events.Payload {
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

// explain adds the earlier decision on the call to a refusal. Only the log has it: the memory
// drops finished calls.
func (s *Decisions) explain(ctx context.Context, ns, id, callID string, err error) error {
	var refused *refusal.Error
	if !errors.As(err, &refused) || !refusal.Is(err, refusal.CodeNotWaiting, refusal.CodeRunEnded) {
		return err
	}
	at, placeErr := s.a.Place(ns, id)
	if placeErr != nil {
		return placeErr
	}
	call := history{callID: callID, named: callname.New(nil, callID)}
	mem, err := runlog.Retrace(ctx, s.a.Log, s.a.Store.Machine(), at, func(_ journal.Record, e *events.Event) { call.observe(e.Data) })
	if err != nil {
		return err
	}
	switch {
	case refused.Code == refusal.CodeRunEnded:
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

// history is what happened to a call since its last request.
type history struct {
	// callID is the client's id of the call, named is the log's id if callID is the
	// provider's.
	callID   string
	named    string
	deadline string
	asked    bool
	expired  bool
	first    *events.Decision
}

func (h *history) is(id string) bool { return id == h.callID || id == h.named }

func (h *history) observe(p events.Payload) {
	switch p := p.(type) {
	case *events.HumanApprovalRequired:
		h.asked = slices.ContainsFunc(p.Requests, func(r events.Request) bool { return h.is(r.CallID) })
		if h.asked {
			h.deadline, h.expired, h.first = p.Deadline, false, nil
		}
	case *events.ApprovalExpired:
		h.expired = h.expired || h.asked
	}
	if d := Of(p); d != nil && d.CallID != "" && h.is(d.CallID) && h.first == nil {
		h.first = d
	}
}

// Of returns the decision on one call that an event holds; nil: it holds none.
func Of(p events.Payload) *events.Decision {
	switch p := p.(type) {
	case *events.HumanDecision:
		return &p.Decision
	case *events.HumanApproved:
		return &p.Decision
	case *events.HumanModified:
		return &p.Decision
	case *events.HumanRejected:
		return &p.Decision
	}
	return nil
}

func decidedCall(mem *reducer.Memory, first events.Decision) error {
	e := conflict(mem, first.CallID, refusal.CodeAlreadyDecided, "call %q is %s already, by %s", first.CallID, first.Decision, first.By)
	e.Fields["decision"] = first
	return e
}

func expiredCall(mem *reducer.Memory, callID, deadline string) *refusal.Error {
	return conflict(mem, callID, refusal.CodeApprovalExpired, "the approval of call %q expired at %s; the run goes on without it", callID, deadline)
}

func conflict(mem *reducer.Memory, callID, code, format string, args ...any) *refusal.Error {
	return refusal.New(refusal.Conflict, code, format, args...).With(callFields(mem, callID))
}

func callFields(mem *reducer.Memory, callID string) map[string]any {
	return map[string]any{"run": mem.RunID, "call_id": callID, "state": mem.State, "n": mem.N}
}

// Join is the handler of [effects.KindDecide]. It ends an approval after the decision on its
// last call: the calls run unless every one was rejected.
func Join(_ events.Run, mem *reducer.Memory, _ effects.Effect) worker.Work {
	left := len(mem.Control.Calls) // some may need no decision
	if a := mem.PendingApproval; a != nil {
		for _, d := range a.Decisions {
			if d.Decision == events.DecisionRejected {
				left--
			}
		}
	}
	var outcome events.Payload = &events.HumanRejected{}
	if left > 0 {
		outcome = &events.HumanApprovedParallel{}
	}
	return func(context.Context) worker.Result { return worker.Done(outcome) }
}
