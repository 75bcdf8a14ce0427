package main

import (
	"encoding/json"
	"fmt"
)

func decode(e *event, into any) error {
	if err := json.Unmarshal(e.Data, into); err != nil {
		return fmt.Errorf("event %d, %s: %w", e.N, e.Type, err)
	}
	return nil
}

// fate is what became of one call.
type fate struct {
	id, tool string
	// asked says that a human had to decide, decided what they said.
	asked   bool
	decided *decision
	started int
	results int
	success bool
	code    string
	ref     *ref
}

// ref points to a result that was too large for the log.
type ref struct {
	Bucket string `json:"bucket"`
	Key    string `json:"key"`
	Size   int    `json:"size"`
	SHA256 string `json:"sha256"`
}

type decision struct {
	CallID    string `json:"call_id"`
	Decision  string `json:"decision"`
	Arguments string `json:"arguments"`
	Reason    string `json:"reason"`
	By        string `json:"by"`
}

// fates are the accepted calls of a run, by id.
type fates map[string]*fate

// add takes an event's part in.
func (f fates) add(e *event) error {
	switch e.Type {
	case "LlmToolCall", "LlmParallelToolCalls", "HumanApprovalRequired":
		return f.reply(e)
	case "ToolCallStarted", "ToolCallResult", "ToolSuccess", "ToolFailure":
		return f.work(e)
	case "HumanDecision", "HumanApproved", "HumanModified", "HumanRejected":
		return f.decision(e)
	}
	return nil
}

func (f fates) reply(e *event) error {
	var data struct {
		Calls, Queued []struct{ ID, Name string }
		Requests      []struct {
			CallID string `json:"call_id"`
		}
	}
	if err := decode(e, &data); err != nil {
		return err
	}
	for _, c := range append(data.Calls, data.Queued...) {
		if f[c.ID] == nil { // a queued call comes again in its turn
			f[c.ID] = &fate{id: c.ID, tool: c.Name}
		}
	}
	for _, r := range data.Requests {
		if f[r.CallID] == nil {
			return fmt.Errorf("event %d asks a human about %s, which is no call", e.N, r.CallID)
		}
		f[r.CallID].asked = true
	}
	return nil
}

func (f fates) work(e *event) error {
	var data struct {
		CallID  string `json:"call_id"`
		Success bool
		Code    string
		Ref     *ref
	}
	if err := decode(e, &data); err != nil {
		return err
	}
	c := f[data.CallID]
	switch {
	case data.CallID == "" && (e.Type == "ToolSuccess" || e.Type == "ToolFailure"):
		return nil // the end of a batch
	case c == nil:
		return fmt.Errorf("event %d, %s, is about %q, which is no call", e.N, e.Type, data.CallID)
	case e.Type == "ToolCallStarted":
		c.started++
	default:
		c.results++
		c.success, c.code, c.ref = data.Success, data.Code, data.Ref
	}
	return nil
}

func (f fates) decision(e *event) error {
	d := new(decision)
	if err := decode(e, d); err != nil {
		return err
	}
	c := f[d.CallID]
	switch {
	case d.CallID == "":
		return nil // the end of a batch that was rejected
	case c == nil:
		return fmt.Errorf("event %d, %s, is about %q, which is no call", e.N, e.Type, d.CallID)
	case c.decided != nil:
		return fmt.Errorf("event %d: call %s is decided a second time", e.N, d.CallID)
	}
	c.decided = d
	if d.Decision == "rejected" {
		c.results++
		c.code = "rejected"
	}
	return nil
}

// checkCalls: every call has one result, was executed as often as its tool may
// be, and was decided as its human said.
func (a *audit) checkCalls(c *carrier, h *history, say func(string, ...any)) {
	all := fates{}
	for _, e := range h.events {
		if err := all.add(e); err != nil {
			say("%v", err)
		}
	}
	// A run that was cut off leaves calls behind.
	cut := h.end == nil || h.end.To != "done"
	for id, f := range all {
		switch {
		case f.results > 1:
			say("call %s of %s has %d results", id, f.tool, f.results)
		case f.results == 0 && !cut:
			say("call %s of %s has no result", id, f.tool)
		}
		a.checkExecutions(h.run, f, say)
		c.checkDecision(f, say)
		if f.ref != nil {
			a.refs[*f.ref] = h.run
		}
	}
}

// checkExecutions holds the ledger of the tools to the log.
func (a *audit) checkExecutions(run string, f *fate, say func(string, ...any)) {
	done := a.executed[run+"/"+f.id]
	once := toolNamed(f.tool).effect == "once"
	switch {
	case once && len(done) > 1:
		say("call %s of %s, a once tool, was executed %d times", f.id, f.tool, len(done))
	case once && len(done) > 0 && f.started == 0:
		say("call %s of %s, a once tool, was executed and the log does not hold its start", f.id, f.tool)
	case f.success && len(done) == 0:
		say("call %s of %s has a result and was not executed", f.id, f.tool)
	case f.asked && len(done) > 0 && (f.decided == nil || f.decided.Decision == "rejected"):
		say("call %s of %s was executed without an approval", f.id, f.tool)
	}
	for _, e := range done {
		if e.tool != f.tool {
			say("call %s of %s was executed as %s", f.id, f.tool, e.tool)
		}
		if f.decided != nil && f.decided.Decision == "modified" && e.arguments != f.decided.Arguments {
			say("call %s of %s was executed with %s, the human said %s", f.id, f.tool, e.arguments, f.decided.Arguments)
		}
	}
}

// checkDecision holds a decision in the log to the plan.
func (c *carrier) checkDecision(f *fate, say func(string, ...any)) {
	if f.decided == nil {
		return
	}
	want := c.plan.verdict(f.id)
	if f.decided.Decision != want.decision || f.decided.By != decider(f.id) ||
		want.decision == "modified" && f.decided.Arguments != modified(f.id) || want.decision == "rejected" && f.decided.Reason == "" {
		say("call %s: the log has %+v, the human said %s", f.id, *f.decided, want.decision)
	}
}
