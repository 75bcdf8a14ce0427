package main

import (
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"
)

// call is a tool call that the model asks for.
type call struct {
	ID        string         `json:"id"`
	Name      string         `json:"name"`
	Arguments map[string]any `json:"arguments"`
}

// reply is one reply of the model, in the scripted provider's form: text, calls
// or a failure.
type reply struct {
	Text    string         `json:"text,omitempty"`
	Content string         `json:"content,omitempty"`
	Calls   []call         `json:"calls,omitempty"`
	Error   map[string]any `json:"error,omitempty"`
}

// meddling is something that somebody does to a run as soon as it has n events.
type meddling struct {
	n    uint64
	kind string // message, pause, cancel or fork
	// wait is how long a pause lasts.
	wait time.Duration
	// at is the event that a fork is made at.
	at uint64
}

// verdict is what the human says about a call.
type verdict struct {
	decision string
	wait     time.Duration
}

// scenario is one run: what its agent is, what its model says, and what its user and
// the people around do. It follows from the seed.
type scenario struct {
	index int
	run   string
	kind  string
	mode  string
	// parent is the call that the run answers; nil if a person started it.
	parent   *parent
	openai   bool
	agent    map[string]any
	replies  []reply
	turns    int // the user's messages after the task
	meddling []meddling
	// fails says that the model fails for good, so that the run ends in error.
	fails bool
	// wall is how long the run may take, 0 for any time.
	wall time.Duration
	seed uint64
}

// fork is the scenario of a fork of the scenario's run. It is meddled with less.
func (p *scenario) fork(run string) *scenario {
	fork := *p
	fork.run, fork.meddling = run, nil
	if r := p.chance("fork of " + run); r.Float64() < 0.3 {
		fork.meddleForking(r)
	}
	return &fork
}

// mayLackTools reports whether the run's tools may be away for longer than an announcement
// lives: those of an only actor, and those of a service that an actor has not found again.
func (p *scenario) mayLackTools() bool {
	return p.kind == "lonely" || p.kind == "client" || p.kind == "services"
}

// task is a run's first message.
func (p *scenario) task() string { return "run " + strconv.Itoa(p.index) + " of kind " + p.kind }

// verdict is the decision on a call.
func (p *scenario) verdict(callID string) verdict {
	r := p.chance("verdict " + callID)
	v := verdict{decision: "approved", wait: time.Duration(r.Int64N(int64(400 * time.Millisecond)))}
	if p.kind == "expiring" || p.kind == "timed" {
		v.wait *= 4
		if r.Float64() < 0.4 {
			v.wait = time.Hour // nobody is there
		}
	}
	switch draw := r.Float64(); {
	case draw < 0.25:
		v.decision = "rejected"
	case draw < 0.5:
		v.decision = "modified"
	}
	return v
}

// putToHuman are the words of a decision: what it says of a tool's call. A question
// is answered or refused.
func (p *scenario) putToHuman(callID, tool string) decision {
	v := p.verdict(callID)
	d := decision{CallID: callID, Decision: v.decision, By: decider(callID)}
	if tool == askHuman && d.Decision == "approved" {
		d.Decision = "modified"
	}
	if (tool == helper || tool == deputy) && d.Decision == "modified" {
		d.Decision = "approved" // the changed arguments do not fit an agent, which takes a task
	}
	switch {
	case d.Decision == "rejected":
		d.Reason = "not today"
	case d.Decision == "modified" && tool == askHuman:
		d.Arguments = `{"question": "why?", "answer": "` + answer(callID) + `"}`
	case d.Decision == "modified":
		d.Arguments = modified(callID)
	}
	return d
}

// chance is a source of chance for one thing of the run, by its name.
func (p *scenario) chance(name string) *rand.Rand { return rand.New(rand.NewPCG(p.seed, hash(name))) }

// hash is FNV-1a.
func hash(text string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(text) {
		h = (h ^ uint64(text[i])) * 1099511628211
	}
	return h
}

// newScenarios makes the runs of a seed.
func newScenarios(o options, began time.Time) []*scenario {
	all := make([]*scenario, o.runs)
	for i := range all {
		all[i] = newScenario(i, rand.New(rand.NewPCG(o.seed, 1000+uint64(i))), began)
	}
	return all
}

// kinds are the kinds of run, each as often as it is named.
var kinds = []string{
	"single", "single", "parallel", "parallel", "parallel", "sequence", "approval", "approval", "approval",
	"chat", "chat", "chat", "reflecting", "failing",
	"delegating", "delegating", "expiring", "expiring", "timed", "asking", "unknowing", "unknowing", "unknowing",
	"client", "client", "client", "services", "services", "outside",
}

// lonelyEvery is how many runs there are to one whose tools one actor alone has.
const lonelyEvery = 15

// expires is how long a human has, where there is a time.
const expires = time.Second

func newScenario(index int, r *rand.Rand, began time.Time) *scenario {
	p := &scenario{index: index, kind: kinds[r.IntN(len(kinds))], mode: "task", openai: r.Float64() < 0.4, seed: r.Uint64()}
	if index%lonelyEvery == lonelyEvery/3 {
		p.kind = "lonely"
	}
	p.run = runID(began.Add(time.Duration(index)*time.Millisecond), r)
	config := map[string]any{"reflect_every_n_steps": 0, "context_window_size": 0, "max_steps": 100}
	p.agent = map[string]any{"name": "chaos-" + p.kind, "system_prompt": "You are run " + strconv.Itoa(index) + ".", "config": config, "tools": append(toolNames(), askHuman)}
	s := &script{scenario: p, random: r, from: toolNames()}
	switch p.kind {
	case "single":
		s.steps(1+r.IntN(4), 1)
	case "parallel":
		s.steps(1+r.IntN(3), 5)
	case "sequence":
		config["parallel_tools"] = false
		s.steps(1+r.IntN(2), 3)
	case "approval":
		p.agent["approval"] = policy(r)
		s.steps(1+r.IntN(3), 1+r.IntN(3))
	case "chat":
		p.mode, p.turns = "chat", 1+r.IntN(3)
		if r.Float64() < 0.3 {
			p.agent["approval"] = policy(r)
		}
		for range 1 + p.turns {
			s.steps(r.IntN(3), 3)
			s.text()
		}
	case "reflecting":
		config["reflect_every_n_steps"] = 2
		p.openai = false // its reflections fail, and the run continues
		s.steps(3, 2)
	case "failing":
		s.steps(r.IntN(2), 2)
		s.failure()
	}
	s.awkward(config)
	s.end()
	p.meddle(r)
	p.describeModel()
	return p
}

// awkward adds the replies of the kinds that are about humans who are slow, time
// that runs out, and workers that are lost.
func (s *script) awkward(config map[string]any) {
	p, r := s.scenario, s.random
	switch p.kind {
	case "expiring":
		config["parallel_tools"] = r.Float64() < 0.7
		p.agent["approval"] = with(policy(r), "expires", expires.String())
		s.steps(1+r.IntN(3), 1+r.IntN(3))
	case "timed":
		p.wall = time.Second + time.Duration(r.Int64N(int64(2*time.Second)))
		p.agent["budget"] = map[string]any{"max_wall_time": p.wall.String()}
		if r.Float64() < 0.5 {
			p.agent["approval"] = policy(r)
		}
		s.steps(2+r.IntN(5), 2)
	case "asking":
		s.from = []string{askHuman, askHuman, "lookup", "note"}
		s.steps(1+r.IntN(3), 1+r.IntN(2))
	case "unknowing":
		s.from = []string{"pay", "pay", "pay", "post", "note"}
		policies := []map[string]any{{"policy": "never"}, {"policy": "never"}, {"policy": "tools", "tools": []string{"pay"}}}
		p.agent["approval"] = with(policies[r.IntN(len(policies))], "outcome_unknown", "ask")
		if r.Float64() < 0.3 {
			p.agent["approval"] = with(p.agent["approval"].(map[string]any), "expires", (2 * expires).String())
		}
		s.steps(2+r.IntN(4), 1)
	case "delegating":
		s.from = []string{helper, helper, deputy, "lookup"}
		p.agent["tools"] = append(toolNames(), helper, deputy)
		s.steps(1+r.IntN(2), 3)
	case "client":
		config["parallel_tools"] = r.Float64() < 0.8
		p.agent["client_tools"] = clientTools()
		p.agent["tools"] = append(toolNames(), "tally", "charge", helper)
		if r.Float64() < 0.3 {
			p.agent["approval"] = policy(r)
		}
		s.from = []string{pick, pick, glance, "lookup", "charge", helper}
		s.steps(1+r.IntN(3), 4)
	case "services":
		p.agent["tools"] = append(toolNames(), "tally", "charge")
		s.from = []string{"tally", "charge", "charge", "note"}
		s.steps(3+r.IntN(4), 3)
	case "outside":
		p.agent["client_tools"] = clientTools()
		s.from = append(toolNames(), pick, pick, pick)
		s.steps(1+r.IntN(3), 2)
	case "lonely":
		s.from = []string{lonely, lonePay}
		p.agent["tools"] = append(toolNames(), lonely, lonePay)
		s.steps(4+r.IntN(4), 1+r.IntN(2))
	}
}

func with(m map[string]any, key string, value any) map[string]any {
	m[key] = value
	return m
}

// meddleForking adds a fork.
func (p *scenario) meddleForking(r *rand.Rand) {
	n := 1 + r.Uint64N(12)
	p.meddling = append(p.meddling, meddling{n: n, kind: "fork", at: 1 + r.Uint64N(n)})
}

// meddle adds what is done to the run from outside.
func (p *scenario) meddle(r *rand.Rand) {
	if r.Float64() < 0.3 {
		p.meddling = append(p.meddling, meddling{n: 1 + r.Uint64N(12), kind: "message"})
	}
	if r.Float64() < 0.25 {
		wait := 100*time.Millisecond + time.Duration(r.Int64N(int64(1500*time.Millisecond)))
		p.meddling = append(p.meddling, meddling{n: 1 + r.Uint64N(12), kind: "pause", wait: wait})
	}
	if r.Float64() < 0.1 {
		p.meddling = append(p.meddling, meddling{n: 1 + r.Uint64N(15), kind: "cancel"})
	}
	if r.Float64() < 0.15 {
		p.meddleForking(r)
	}
}

// modelName tells the model server which run asks.
func (p *scenario) modelName() string { return "run-" + strconv.Itoa(p.index) }

func (p *scenario) describeModel() {
	if p.kind == "outside" {
		p.agent["llm"] = map[string]any{"provider": "client"}
		return
	}
	if p.openai {
		p.agent["llm"] = map[string]any{"provider": "openai"}
		p.agent["models"] = map[string]any{"default": p.modelName()}
		return
	}
	p.agent["llm"] = map[string]any{"provider": "scripted", "script": p.replies}
}

// policy draws an approval policy.
func policy(r *rand.Rand) map[string]any {
	all := []map[string]any{
		{"policy": "always"},
		{"policy": "above", "risk": "low"},
		{"policy": "tools", "tools": []string{"pay", "note", "search"}},
		{"policy": "expr", "expr": `arguments.amount > 50`},
	}
	return all[r.IntN(len(all))]
}

// script adds replies to a scenario.
type script struct {
	scenario *scenario
	random   *rand.Rand
	calls    int
	// from are the tools that are called.
	from []string
}

// steps adds replies that ask for up to most calls each.
func (s *script) steps(n, most int) {
	for range n {
		var calls []call
		for range 1 + s.random.IntN(most) {
			s.calls++
			calls = append(calls, s.call())
		}
		s.scenario.replies = append(s.scenario.replies, reply{Calls: calls, Content: []string{"", "I look."}[s.random.IntN(2)]})
	}
}

// call draws a call; one in ten asks for what is no tool or has bad arguments.
func (s *script) call() call {
	c := call{ID: "c-" + strconv.Itoa(s.calls), Arguments: map[string]any{"amount": s.random.IntN(100), "text": "call " + strconv.Itoa(s.calls)}}
	switch draw := s.random.Float64(); {
	case draw < 0.03:
		c.Name = "sing"
	case draw < 0.06:
		c.Name, c.Arguments = "note", map[string]any{"amount": "much"}
	default:
		c.Name = s.from[s.random.IntN(len(s.from))]
	}
	if t := toolNamed(c.Name); t != nil && t.agent {
		c.Arguments = map[string]any{"task": "Do call " + strconv.Itoa(s.calls) + "."}
	}
	if c.Name == askHuman {
		c.Arguments = map[string]any{"question": "What about call " + strconv.Itoa(s.calls) + "?"}
	}
	return c
}

func (s *script) text() {
	s.scenario.replies = append(s.scenario.replies, reply{Text: fmt.Sprintf("This is what I found, number %d.", len(s.scenario.replies))})
}

// failure ends the model's words with an error for good, or one that passes.
func (s *script) failure() {
	if s.random.Float64() < 0.5 {
		s.scenario.fails = true
		s.scenario.replies = append(s.scenario.replies, reply{Error: map[string]any{"kind": "auth", "message": "no key"}})
		return
	}
	s.scenario.replies = append(s.scenario.replies, reply{Error: map[string]any{"kind": "overloaded", "message": "busy", "retry_after_ms": 50}})
}

// end adds the last answers: more than the user can ask for.
func (s *script) end() {
	s.text()
	if s.scenario.mode == "chat" {
		for range s.scenario.turns + 2 {
			s.text()
		}
	}
}

// runID makes a lower-case UUIDv7.
func runID(at time.Time, r *rand.Rand) string {
	ms, a, b := uint64(at.UnixMilli()), r.Uint64(), r.Uint64()
	raw := []byte{
		byte(ms >> 40), byte(ms >> 32), byte(ms >> 24), byte(ms >> 16), byte(ms >> 8), byte(ms),
		0x70 | byte(a>>8)&0x0f, byte(a), 0x80 | byte(b>>56)&0x3f, byte(b >> 48), byte(b >> 40), byte(b >> 32), byte(b >> 24), byte(b >> 16), byte(b >> 8), byte(b),
	}
	text := hex.EncodeToString(raw)
	return text[:8] + "-" + text[8:12] + "-" + text[12:16] + "-" + text[16:20] + "-" + text[20:]
}
