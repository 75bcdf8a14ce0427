package main

import (
	"context"
	"encoding/json"
	"math/rand/v2"
	"net/http"
	"strings"
	"time"
)

// The tools that a run's client carries out: pick is always answered, glance now and then
// not in time.
const (
	pick   = "pick"
	glance = "glance"
)

// glanceTime is how long the client has for a glance.
const glanceTime = 2 * time.Second

// clientTools are they as an agent has them.
func clientTools() []map[string]any {
	schema := map[string]any{"type": "object", "properties": map[string]any{"amount": map[string]any{"type": "number"}}}
	return []map[string]any{
		{"name": pick, "description": "Picks.", "schema": schema, "risk": "medium"},
		{"name": glance, "description": "Glances.", "schema": schema, "timeout": glanceTime.String()},
	}
}

// clientResult is what the client says of a call.
type clientResult struct {
	IsSuccess bool   `json:"isSuccess"`
	Content   string `json:"content,omitempty"`
	Error     string `json:"error,omitempty"`
}

// observation is what the model sees of it.
func (r clientResult) observation() string {
	if r.IsSuccess {
		return "SUCCESS: " + r.Content
	}
	return "ERROR: " + r.Error
}

// clientResult is the result of a call by the scenario, and how long the client takes.
func (p *scenario) clientResult(callID, tool string) (r clientResult, wait time.Duration) {
	random := p.chance("client " + callID)
	wait = time.Duration(random.Int64N(int64(400 * time.Millisecond)))
	if tool == glance && random.Float64() < 0.4 {
		wait += glanceTime
	}
	if random.Float64() < 0.2 {
		return clientResult{Error: "the client cannot do " + callID}, wait
	}
	return clientResult{IsSuccess: true, Content: "the client did " + callID}, wait
}

// returned is what the client was told about its result of a call.
type returned struct{ tried, accepted bool }

// returnAll answers the calls of the client that an event makes.
func (c *carrier) returnAll(ctx context.Context, e *event) {
	all := newFates()
	_ = all.add(e) // the audit says what is wrong with it
	c.returnOpen(ctx, all)
}

// returnInherited answers those that a fork has from its parent without a result.
func (c *carrier) returnInherited(ctx context.Context) {
	all := newFates()
	for _, e := range c.before {
		_ = all.add(e)
	}
	c.returnOpen(ctx, all)
}

func (c *carrier) returnOpen(ctx context.Context, all *fates) {
	for id, f := range all.calls {
		if t := toolNamed(f.tool); t == nil || !t.client || f.results > 0 {
			continue
		}
		c.mu.Lock()
		_, begun := c.returned[id] // a queued call comes again in its turn
		if !begun {
			c.returned[id] = returned{}
		}
		c.mu.Unlock()
		if !begun {
			c.acts.Go(func() { c.returnCall(ctx, id, f.tool) })
		}
	}
}

// returnCall answers a call as soon as it has gone out, now and then over a connection that
// breaks at once, and again. Another result comes too late then.
func (c *carrier) returnCall(ctx context.Context, id, tool string) {
	result, wait := c.scenario.clientResult(id, tool)
	if !pause(ctx, wait) {
		return
	}
	chance := c.scenario.chance("return " + id)
	if chance.Float64() < 0.3 {
		err := c.input(ctx, map[string]any{"type": "tool-call-started", "toolCallId": id})
		c.expect("start of "+id, err, "not_delivered", "run_ended")
	}
	c.note(id, returned{tried: true})
	input := map[string]any{"type": "tool-call-result", "toolCallId": id, "result": result}
	together, beside := []any{input}, ""
	if chance.Float64() < 0.4 { // the last input then wakes the worker for the result
		beside = "beside-" + id
		together = append(together, userMessage(beside), map[string]any{"type": "expand-context-window", "increment": 1})
	}
	var err error
	for {
		if chance.Float64() < 0.3 {
			c.loseAnswer(ctx, together...)
		}
		err = c.input(ctx, together...)
		if r := refused(err); r == nil || r.Code != "not_delivered" || !pause(ctx, 100*time.Millisecond) {
			break
		}
	}
	if beside != "" {
		c.noteMessage(beside, err)
	}
	if err != nil { // a human or the deadline was first, or the end of the run
		c.expect("result of "+id, err, "already_answered", "not_delivered", "run_ended")
		return
	}
	c.note(id, returned{tried: true, accepted: true})
	if chance.Float64() < 0.3 {
		c.expect("the same result of "+id, c.input(ctx, input))
	}
	if chance.Float64() < 0.3 {
		input["result"] = clientResult{IsSuccess: true, Content: "something else"}
		err = c.input(ctx, input)
		if err == nil {
			c.found("result of " + id + ": a second one was accepted")
		}
		c.expect("another result of "+id, err, "already_answered")
		if r := refused(err); r != nil && (r.Result == nil || *r.Result != result) {
			c.found("result of " + id + ": 409 with another first result: " + r.Error())
		}
	}
}

func (c *carrier) note(id string, r returned) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.returned[id] = r
}

// input posts inputs in one request.
func (c *carrier) input(ctx context.Context, inputs ...any) error {
	return c.client.do(ctx, http.MethodPost, c.path("inputs"), inputs, nil)
}

// loseAnswer posts inputs and is gone before the answer comes, if not before they have arrived.
func (c *carrier) loseAnswer(ctx context.Context, inputs ...any) {
	data, _ := json.Marshal(inputs) // maps of plain values
	ctx, cancel := context.WithTimeout(ctx, rand.N(10*time.Millisecond))
	defer cancel()
	_ = c.client.once(ctx, http.MethodPost, c.path("inputs"), data, nil)
}

// checkClient holds the log's result of a client's call to what the client said.
func (c *carrier) checkClient(f *fate, say func(string, ...any)) {
	if f.inherited {
		return
	}
	c.mu.Lock()
	r := c.returned[f.id]
	c.mu.Unlock()
	want, _ := c.scenario.clientResult(f.id, f.tool)
	given := f.success || f.code == "tool_failed"
	switch {
	case r.accepted && f.results == 0:
		say("call %s of %s: the client's result was accepted and is not in the log", f.id, f.tool)
	case r.accepted && !given:
		say("call %s of %s: the client's result was accepted, the log has the code %s", f.id, f.tool, f.code)
	case given && !r.tried:
		say("call %s of %s has a result that no client gave", f.id, f.tool)
	case given && (f.success != want.IsSuccess || f.observation != want.observation()):
		say("call %s of %s was answered %q, the client said %q", f.id, f.tool, f.observation, want.observation())
	case f.code == "timeout" && f.tool != glance:
		say("call %s of %s ended for its time, though its client answers", f.id, f.tool)
	}
}

// beModel is the run's model, if that is its client: it answers what it is asked, now and
// then twice, until ctx ends.
func (c *carrier) beModel(ctx context.Context) {
	for pause(ctx, 50*time.Millisecond) {
		var asked struct {
			Key      string
			Messages []struct{ Role string }
		}
		if err := c.client.do(ctx, http.MethodGet, c.path("request"), nil, &asked); err != nil {
			c.expect("request", err, "nothing_pending")
			continue
		}
		spoken := 0
		for _, m := range asked.Messages {
			if m.Role == "assistant" {
				spoken++
			}
		}
		said := reply{Text: "There is nothing more to say."}
		if spoken < len(c.scenario.replies) {
			said = c.scenario.replies[spoken]
		}
		id := "reply-" + asked.Key
		input := map[string]any{"type": "llm-message-complete", "messageId": id, "key": asked.Key, "content": said.Text + said.Content}
		if len(said.Calls) > 0 {
			input["calls"] = said.Calls
		}
		if rand.N(3) == 0 {
			c.loseAnswer(ctx, input)
		}
		err := c.input(ctx, input)
		c.expect(id, err, "obsolete", "nothing_pending", "paused", "run_ended")
		c.mu.Lock()
		c.replies[id] = c.replies[id] || err == nil
		c.mu.Unlock()
		if err == nil && rand.N(3) == 0 {
			c.expect("the same as "+id, c.input(ctx, input))
		}
	}
}

// checkReplies: each reply of the client's that was accepted is in the log, and none twice.
func (c *carrier) checkReplies(h *history, say func(string, ...any)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	seen := map[string]int{}
	for _, e := range h.events {
		var data struct {
			MessageID string `json:"message_id"`
		}
		_ = decode(e, &data) // without an id it is no reply
		if strings.HasPrefix(data.MessageID, "reply-") {
			seen[data.MessageID]++
		}
	}
	for id, n := range seen {
		if _, said := c.replies[id]; n > 1 || !said {
			say("reply %s is in the log %d times", id, n)
		}
	}
	for id, accepted := range c.replies {
		if accepted && seen[id] == 0 {
			say("reply %s was accepted and is not in the log", id)
		}
	}
}
