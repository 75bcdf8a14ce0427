package main

import (
	"encoding/json"
	"fmt"
	"time"
)

func decode(e *event, into any) error {
	if err := json.Unmarshal(e.Data, into); err != nil {
		return fmt.Errorf("event %d, %s: %w", e.N, e.Type, err)
	}
	return nil
}

// fate is what became of one call.
type fate struct {
	id, tool, arguments string
	// asked is each time that a human had to decide.
	asked   []*question
	started int
	results int
	success bool
	code    string
	// observation is what the model sees.
	observation string
	ref         *ref
	// inherited says that a fork has the result from its parent.
	inherited bool
}

// question is what a human had to decide on a call.
type question struct {
	// unknown says that the call had been started and nobody knew what became
	// of it: it is asked for out of acting.
	unknown  bool
	deadline string
	decided  *decision
}

// request is a question as the log has it.
type request struct {
	CallID string `json:"call_id"`
	Tool   string `json:"tool"`
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
	Arguments string `json:"arguments,omitempty"`
	Reason    string `json:"reason,omitempty"`
	By        string `json:"by"`
}

// approves reports whether the call may run.
func (d *decision) approves() bool { return d != nil && d.Decision != "rejected" }

// fates are the accepted calls of a run, by id.
type fates struct {
	calls map[string]*fate
	// held are the calls that wait for a human, those that need no decision of
	// their own too, and deadline is how long.
	held     []string
	deadline string
}

func newFates() *fates { return &fates{calls: map[string]*fate{}} }

// forked lets go of what a fork does not have from its parent: what is under
// way is begun again.
func (f *fates) forked() {
	for _, c := range f.calls {
		c.started, c.inherited = 0, c.results > 0
	}
}

// add takes an event's part in.
func (f *fates) add(e *event) error {
	switch e.Type {
	case "LlmToolCall", "LlmParallelToolCalls", "HumanApprovalRequired":
		return f.reply(e)
	case "ToolCallStarted", "ToolCallResult", "ToolSuccess", "ToolFailure":
		return f.work(e)
	case "HumanDecision", "HumanApproved", "HumanModified", "HumanRejected":
		return f.decision(e)
	case "ApprovalExpired":
		return f.expiry(e)
	}
	return nil
}

func (f *fates) reply(e *event) error {
	var data struct {
		Calls, Queued []struct{ ID, Name, Arguments string }
		Requests      []request
		Deadline      string
	}
	if err := decode(e, &data); err != nil {
		return err
	}
	f.held, f.deadline = nil, data.Deadline
	for _, c := range data.Calls {
		f.held = append(f.held, c.ID)
	}
	for _, c := range append(data.Calls, data.Queued...) {
		if f.calls[c.ID] == nil { // a queued call comes again in its turn
			f.calls[c.ID] = &fate{id: c.ID, tool: c.Name, arguments: c.Arguments}
		}
	}
	for _, r := range data.Requests {
		c := f.calls[r.CallID]
		if c == nil {
			return fmt.Errorf("event %d asks a human about %s, which is no call", e.N, r.CallID)
		}
		unknown := e.From == "acting"
		if unknown {
			f.held = []string{c.id}
		}
		c.asked = append(c.asked, &question{unknown: unknown, deadline: data.Deadline})
	}
	return nil
}

func (f *fates) work(e *event) error {
	var data struct {
		CallID      string `json:"call_id"`
		Success     bool
		Code        string
		Observation string
		Ref         *ref
	}
	if err := decode(e, &data); err != nil {
		return err
	}
	c := f.calls[data.CallID]
	switch {
	case data.CallID == "" && (e.Type == "ToolSuccess" || e.Type == "ToolFailure"):
		return nil // the end of a batch
	case c == nil:
		return fmt.Errorf("event %d, %s, is about %q, which is no call", e.N, e.Type, data.CallID)
	case e.Type == "ToolCallStarted":
		c.started++
	default:
		c.results++
		c.success, c.code, c.observation, c.ref = data.Success, data.Code, data.Observation, data.Ref
	}
	return nil
}

func (f *fates) decision(e *event) error {
	d := new(decision)
	if err := decode(e, d); err != nil {
		return err
	}
	c := f.calls[d.CallID]
	switch {
	case d.CallID == "":
		return nil // the end of a batch that was rejected
	case c == nil:
		return fmt.Errorf("event %d, %s, is about %q, which is no call", e.N, e.Type, d.CallID)
	case len(c.asked) == 0:
		return fmt.Errorf("event %d decides on call %s, which nobody asked for", e.N, d.CallID)
	}
	asked := c.asked[len(c.asked)-1]
	if asked.decided != nil {
		return fmt.Errorf("event %d: call %s is decided a second time", e.N, d.CallID)
	}
	if late := since(asked.deadline, e.Time); asked.deadline != "" && late > clockSlack {
		return fmt.Errorf("event %d: call %s is decided %s after its deadline", e.N, d.CallID, late)
	}
	asked.decided = d
	if d.Decision == "rejected" {
		c.results++
		c.code = "rejected"
	}
	return nil
}

// clockSlack is how long it may take from the look at a clock to the time in an
// event that follows from it.
const clockSlack = time.Second

// since is the time from one event's time to another's.
func since(from, to string) time.Duration {
	a, _ := time.Parse(time.RFC3339Nano, from)
	b, _ := time.Parse(time.RFC3339Nano, to)
	return b.Sub(a)
}

// expiry answers every call that waits.
func (f *fates) expiry(e *event) error {
	for _, id := range f.held {
		c := f.calls[id]
		if c.results == 0 {
			c.results++
			c.code = "expired"
		}
	}
	switch {
	case f.deadline == "":
		return fmt.Errorf("event %d: an approval expired that had no deadline", e.N)
	case since(f.deadline, e.Time) < 0:
		return fmt.Errorf("event %d: an approval expired before its deadline, %s", e.N, f.deadline)
	}
	return nil
}
