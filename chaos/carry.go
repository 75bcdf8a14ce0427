package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
)

// answered is what somebody was told about a request.
type answered struct {
	// accepted says that it was answered with 2xx.
	accepted bool
	code     string
}

// carrier is the people around one run: who starts it, talks to it, decides on
// its calls, pauses and cancels it.
type carrier struct {
	plan   *plan
	client *client
	events *follower
	found  func(string)
	acts   sync.WaitGroup

	// turn lets the user say one thing at a time.
	turn sync.Mutex
	said int

	mu       sync.Mutex
	messages map[string]answered // by message id
	started  atomic.Bool
	ended    *event
	last     *event
}

func newCarrier(p *plan, c *client, f *feed, found func(string)) *carrier {
	return &carrier{
		plan: p, client: c, events: f.runs[p.run], messages: map[string]answered{},
		found: func(text string) { found("run " + p.run + " (" + strconv.Itoa(p.index) + ", " + p.kind + "): " + text) },
	}
}

// carry starts the run and sees it to its end, or to that of ctx.
func (c *carrier) carry(ctx context.Context) {
	defer c.acts.Wait()
	ctx, over := context.WithCancel(ctx)
	defer over()
	body := map[string]any{"agent": c.plan.agent, "task": c.plan.task(), "mode": c.plan.mode, "run_id": c.plan.run}
	err := c.post(ctx, "start", "/v1/runs", body)
	if r := refused(err); r != nil && r.Code != "run_exists" {
		c.found("start: " + r.Error())
		return
	}
	if ctx.Err() != nil {
		return
	}
	c.started.Store(true)
	for {
		e := c.events.next(ctx)
		if e == nil {
			return
		}
		c.mu.Lock()
		c.last = e
		if e.terminal() {
			c.ended = e
		}
		c.mu.Unlock()
		if e.terminal() {
			return
		}
		c.react(ctx, e)
	}
}

func refused(err error) *refusal {
	var r *refusal
	errors.As(err, &r)
	return r
}

// post makes a request; now and then twice at the same time, as an impatient
// client does, and the answer is one of the two.
func (c *carrier) post(ctx context.Context, name, path string, body any) error {
	if c.plan.chance("twice "+name).Float64() < 0.2 {
		c.acts.Go(func() { _ = c.client.do(ctx, http.MethodPost, path, body, nil) })
	}
	return c.client.do(ctx, http.MethodPost, path, body, nil)
}

// react does what the plan says to an event. What takes time happens beside.
func (c *carrier) react(ctx context.Context, e *event) {
	switch e.Type {
	case "LlmMessageComplete":
		c.acts.Go(func() { c.speak(ctx) })
	case "HumanApprovalRequired":
		var wanted struct {
			Requests []struct {
				CallID string `json:"call_id"`
			} `json:"requests"`
		}
		if err := json.Unmarshal(e.Data, &wanted); err != nil {
			c.found("HumanApprovalRequired: " + err.Error())
		}
		for _, r := range wanted.Requests {
			c.acts.Go(func() { c.decide(ctx, r.CallID) })
		}
	}
	for i, m := range c.plan.meddling {
		if m.n == e.N {
			c.acts.Go(func() { c.meddle(ctx, i, m) })
		}
	}
}

// speak says the user's next message, or closes the conversation after the last.
func (c *carrier) speak(ctx context.Context) {
	c.turn.Lock()
	defer c.turn.Unlock()
	if c.said < c.plan.turns {
		c.said++
		c.say(ctx, "user-"+strconv.Itoa(c.said))
		return
	}
	// A conversation that went on meanwhile is closed after the next answer.
	err := c.client.do(ctx, http.MethodPost, c.path("close"), map[string]any{"by": "user", "reason": "that is all"}, nil)
	c.expect("close", err, "not_waiting", "run_ended")
}

func (c *carrier) path(what string) string { return "/v1/runs/" + c.plan.run + "/" + what }

// say posts one message of the user.
func (c *carrier) say(ctx context.Context, id string) {
	inputs := []map[string]any{{"type": "user-message", "message_id": id, "content": "This is " + id + "."}}
	err := c.post(ctx, id, c.path("inputs"), inputs)
	c.expect("message "+id, err, "run_ended")
	result := answered{accepted: err == nil}
	if r := refused(err); r != nil {
		result.code = r.Code
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.messages[id] = result
}

// expect reports a refusal that has none of the codes.
func (c *carrier) expect(what string, err error, codes ...string) {
	r := refused(err)
	if r == nil {
		return
	}
	for _, code := range codes {
		if r.Code == code {
			return
		}
	}
	c.found(what + ": " + r.Error())
}

// decide says what the plan says about a call. If it was decided already, that
// was an earlier try of this one, whose answer was lost. Another human who then
// says the opposite comes too late.
func (c *carrier) decide(ctx context.Context, callID string) {
	v := c.plan.verdict(callID)
	if !pause(ctx, v.wait) {
		return
	}
	body := map[string]any{"call_id": callID, "decision": v.decision, "by": decider(callID)}
	switch v.decision {
	case "rejected":
		body["reason"] = "not today"
	case "modified":
		body["arguments"] = modified(callID)
	}
	err := c.post(ctx, "decision "+callID, c.path("decisions"), body)
	c.expectDecided(callID, v, err)
	if ctx.Err() != nil || c.plan.chance("rival "+callID).Float64() > 0.3 {
		return
	}
	rival := map[string]any{"call_id": callID, "decision": "approved", "by": "rival"}
	if v.decision == "approved" {
		rival["decision"], rival["reason"] = "rejected", "I disagree"
	}
	err = c.client.do(ctx, http.MethodPost, c.path("decisions"), rival, nil)
	if err == nil {
		c.found("decision on " + callID + ": a second one was accepted")
	}
	c.expectDecided(callID, v, err)
}

// expectDecided reports an answer to a decision that is neither 2xx nor says that
// the plan's verdict came first.
func (c *carrier) expectDecided(callID string, v verdict, err error) {
	c.expect("decision on "+callID, err, "already_decided", "run_ended")
	if r := refused(err); r != nil && r.Code == "already_decided" && (r.Decision == nil || r.Decision.Decision != v.decision || r.Decision.By != decider(callID)) {
		c.found(fmt.Sprintf("decision on %s: 409 with another first decision: %+v", callID, r.Decision))
	}
}

func decider(callID string) string { return "human of " + callID }

// modified are the arguments that a human gives a call instead of the model's.
func modified(callID string) string { return `{"amount": 1, "text": "modified ` + callID + `"}` }

// meddle does what somebody does to the run from outside.
func (c *carrier) meddle(ctx context.Context, i int, m meddling) {
	by := map[string]any{"by": "meddler", "reason": "chaos"}
	switch m.kind {
	case "message":
		c.say(ctx, "meddling-"+strconv.Itoa(i))
	case "cancel":
		c.expect("cancel", c.client.do(ctx, http.MethodPost, c.path("cancel"), by, nil), "run_ended")
	case "pause":
		c.expect("pause", c.client.do(ctx, http.MethodPost, c.path("pause"), by, nil), "run_ended")
		pause(ctx, m.wait)
		c.expect("resume", c.client.do(ctx, http.MethodPost, c.path("resume"), by, nil), "run_ended")
	}
}
