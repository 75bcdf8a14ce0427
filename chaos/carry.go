package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
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
	scenario *scenario
	client   *client
	events   *follower
	found    func(string)
	acts     sync.WaitGroup
	// before is what a fork has of its parent's events, and of its parent's
	// parent's.
	before []*event

	// turn lets the user say one thing at a time.
	turn sync.Mutex
	said int

	mu       sync.Mutex
	messages map[string]answered // by message id
	returned map[string]returned // by call id
	replies  map[string]bool     // by message id: whether it was accepted
	started  atomic.Bool
	ended    *event
	last     *event
}

func newCarrier(p *scenario, c *client, f *feed, found func(string)) *carrier {
	return &carrier{
		scenario: p, client: c, events: f.follower(p.run), messages: map[string]answered{},
		returned: map[string]returned{}, replies: map[string]bool{},
		found: func(text string) { found("run " + p.run + " (" + strconv.Itoa(p.index) + ", " + p.kind + "): " + text) },
	}
}

// forked makes the carrier of a fork of the run, which is there already.
func (c *carrier) forked(p *scenario, at uint64, f *feed, found func(string)) *carrier {
	fork := newCarrier(p, c.client, f, found)
	fork.before = slices.Concat(c.before, c.events.first(at))
	fork.said = len(said(fork.before, "user-"))
	fork.started.Store(true)
	return fork
}

// said returns how often each message is among the events whose id begins so.
func said(events []*event, prefix string) map[string]int {
	all := map[string]int{}
	for _, e := range events {
		var data struct {
			MessageID string `json:"message_id"`
		}
		_ = decode(e, &data) // without an id it is not said
		if e.Type == "UserMessage" && strings.HasPrefix(data.MessageID, prefix) {
			all[data.MessageID]++
		}
	}
	return all
}

// carry starts the run and sees it to its end, or to that of ctx.
func (c *carrier) carry(ctx context.Context) {
	defer c.acts.Wait()
	if c.start(ctx) {
		c.accompany(ctx)
	}
}

// start starts the run, if it is no fork, and reports whether it is there.
func (c *carrier) start(ctx context.Context) bool {
	if c.started.Load() {
		return true
	}
	body := map[string]any{"agent": c.scenario.agent, "task": c.scenario.task(), "mode": c.scenario.mode, "run_id": c.scenario.run}
	err := c.post(ctx, "start", "/v1/runs", body)
	for c.scenario.mayLackTools() && refused(err) != nil && refused(err).Code == "unknown_tool" && pause(ctx, time.Second) {
		err = c.post(ctx, "start", "/v1/runs", body)
	}
	if r := refused(err); r != nil && r.Code != "run_exists" {
		c.found("start: " + r.Error())
		return false
	}
	c.started.Store(ctx.Err() == nil)
	return c.started.Load()
}

// accompany reacts to the run's events until its end, or that of ctx.
func (c *carrier) accompany(ctx context.Context) {
	ctx, over := context.WithCancel(ctx)
	defer over()
	if c.scenario.kind == "outside" {
		c.acts.Go(func() { c.beModel(ctx) })
	}
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
	if c.scenario.chance("twice "+name).Float64() < 0.2 {
		c.acts.Go(func() { _ = c.client.do(ctx, http.MethodPost, path, body, nil) })
	}
	return c.client.do(ctx, http.MethodPost, path, body, nil)
}

// react does what the scenario says to an event. What takes time happens beside.
func (c *carrier) react(ctx context.Context, e *event) {
	switch e.Type {
	case "LlmMessageComplete":
		c.acts.Go(func() { c.speak(ctx) })
	case "HumanApprovalRequired":
		c.decideAll(ctx, e)
		c.returnAll(ctx, e)
	case "LlmToolCall", "LlmParallelToolCalls":
		c.returnAll(ctx, e)
	case "Forked": // into what its parent waited for
		c.returnInherited(ctx)
		switch e.To {
		case "waiting_for_user":
			c.acts.Go(func() { c.speak(ctx) })
		case "waiting_for_human":
			c.decideAll(ctx, c.lastAsked())
		}
	}
	for i, m := range c.scenario.meddling {
		if m.n == e.N {
			c.acts.Go(func() { c.meddle(ctx, i, m) })
		}
	}
}

// lastAsked is what the fork's parent asked its human last.
func (c *carrier) lastAsked() *event {
	for _, e := range slices.Backward(c.before) {
		if e.Type == "HumanApprovalRequired" {
			return e
		}
	}
	c.found("was forked into waiting_for_human, and its parent asked nobody")
	return &event{Data: []byte("{}")}
}

// decideAll has every call decided that an event asks for.
func (c *carrier) decideAll(ctx context.Context, e *event) {
	var wanted struct {
		Requests []request `json:"requests"`
	}
	if err := decode(e, &wanted); err != nil {
		c.found(err.Error())
	}
	for _, r := range wanted.Requests {
		c.acts.Go(func() { c.decide(ctx, r) })
	}
}

// speak says the user's next message, or closes the conversation after the last.
func (c *carrier) speak(ctx context.Context) {
	c.turn.Lock()
	defer c.turn.Unlock()
	if c.said < c.scenario.turns {
		c.said++
		c.say(ctx, "user-"+strconv.Itoa(c.said))
		return
	}
	// A conversation that continued meanwhile is closed after the next answer.
	err := c.client.do(ctx, http.MethodPost, c.path("close"), map[string]any{"by": "user", "reason": "that is all"}, nil)
	c.expect("close", err, "not_waiting", "run_ended")
}

func (c *carrier) path(what string) string { return "/v1/runs/" + c.scenario.run + "/" + what }

// say posts one message of the user.
func (c *carrier) say(ctx context.Context, id string) {
	err := c.post(ctx, id, c.path("inputs"), []any{userMessage(id)})
	c.expect("message "+id, err, "run_ended")
	c.noteMessage(id, err)
}

func userMessage(id string) map[string]any {
	return map[string]any{"type": "user-message", "message_id": id, "content": "This is " + id + "."}
}

// noteMessage notes how the gateway answered a message.
func (c *carrier) noteMessage(id string, err error) {
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

// decide says what the scenario says about a call. If it was decided already, that
// was an earlier try of this one, whose answer was lost. Another human who then
// says the opposite comes too late.
//
// There is no other human where calls may be asked for again: what is said to
// the first question could come so late that it answers the second one.
func (c *carrier) decide(ctx context.Context, asked request) {
	if !pause(ctx, c.scenario.verdict(asked.CallID).wait) {
		return
	}
	d := c.scenario.putToHuman(asked.CallID, asked.Tool)
	err := c.post(ctx, "decision "+d.CallID, c.path("decisions"), d)
	c.expectDecided(d, err)
	if ctx.Err() != nil || c.scenario.kind == "unknowing" || c.scenario.chance("rival "+d.CallID).Float64() > 0.3 {
		return
	}
	rival := decision{CallID: d.CallID, Decision: "approved", By: "rival"}
	if d.Decision == "approved" {
		rival.Decision, rival.Reason = "rejected", "I disagree"
	}
	err = c.client.do(ctx, http.MethodPost, c.path("decisions"), rival, nil)
	if err == nil {
		c.found("decision on " + d.CallID + ": a second one was accepted")
	}
	c.expectDecided(d, err)
}

// expectDecided reports an answer to a decision that is neither 2xx nor says that
// the scenario's verdict came first or that it is too late for any. The audit holds
// the log to that.
func (c *carrier) expectDecided(d decision, err error) {
	c.expect("decision on "+d.CallID, err, "already_decided", "approval_expired", "run_ended")
	if r := refused(err); r != nil && r.Code == "already_decided" && (r.Decision == nil || r.Decision.Decision != d.Decision || r.Decision.By != d.By) {
		c.found(fmt.Sprintf("decision on %s: 409 with another first decision: %+v", d.CallID, r.Decision))
	}
}

func decider(callID string) string { return "human of " + callID }

// modified are the arguments that a human gives a call instead of the model's.
func modified(callID string) string { return `{"amount": 1, "text": "modified ` + callID + `"}` }

// answer is what a human answers to a question.
func answer(callID string) string { return "the answer to " + callID }

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
		c.expect("resume", c.client.do(ctx, http.MethodPost, c.path("resume"), by, nil), "run_ended", "not_paused") // an earlier try's answer was lost
	case "fork":
		// If the answer is lost there is a second one, which is as good. The
		// feed shows them.
		body := map[string]any{"at": m.at}
		if c.scenario.chance("patch").Float64() < 0.5 {
			body["patch"] = map[string]any{"task": c.scenario.task() + ", forked"}
		}
		// Between the approval of a call that must not run twice and its result nobody forks.
		c.expect("fork", c.client.do(ctx, http.MethodPost, c.path("fork"), body, nil), "approval_open")
	}
}
