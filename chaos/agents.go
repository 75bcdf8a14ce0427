package main

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"time"
)

// The agents that runs call: a helper uses tools, a deputy calls its own helpers.
const (
	helper = "helper"
	deputy = "deputy"
)

// agents are their definitions by name.
func agents() map[string]map[string]any {
	definition := func(tools []string, script ...reply) map[string]any {
		return map[string]any{
			"system_prompt": "You are called by others.", "tools": tools, "llm": map[string]any{"provider": "scripted", "script": script},
			"config": map[string]any{"reflect_every_n_steps": 0},
		}
	}
	asks := func(id, tool string, arguments map[string]any) call {
		return call{ID: id, Name: tool, Arguments: arguments}
	}
	amount := map[string]any{"amount": 1}
	return map[string]map[string]any{
		helper: definition([]string{"lookup", "note"},
			reply{Calls: []call{asks("h-1", "lookup", amount), asks("h-2", "note", amount)}},
			reply{Text: "The helper is done."}),
		deputy: definition([]string{helper, "search"},
			reply{Calls: []call{asks("d-1", helper, map[string]any{"task": "Help."}), asks("d-2", "search", amount)}},
			reply{Text: "The deputy is done."}),
		clockwork: definition([]string{"lookup"},
			reply{Calls: []call{asks("c-1", "lookup", amount)}},
			reply{Text: "The clock has struck."}),
	}
}

// storeAgents stores them.
func storeAgents(ctx context.Context, c *client) error {
	if err := awaitTools(ctx, c); err != nil {
		return err
	}
	for name, definition := range agents() {
		definition["name"] = name
		if err := c.do(ctx, http.MethodPut, "/v1/agents/"+name, definition, nil); err != nil {
			return err
		}
	}
	return nil
}

// awaitTools waits until every tool that runs are started with is announced for the first
// time: before that a start is refused, as it has to be.
func awaitTools(ctx context.Context, c *client) error {
	for {
		var tools []struct{ Name string }
		if err := c.do(ctx, http.MethodGet, "/v1/tools", nil, &tools); err != nil {
			return err
		}
		missing := slices.ContainsFunc(append(toolNames(), helper, deputy, lonely, lonePay, askHuman, "tally", "charge"), func(name string) bool {
			return !slices.ContainsFunc(tools, func(t struct{ Name string }) bool { return t.Name == name })
		})
		if !missing {
			return nil
		}
		if !pause(ctx, 100*time.Millisecond) {
			return ctx.Err()
		}
	}
}

// parent is the call that a run answers, as its first event has it.
type parent struct {
	Run    string `json:"run"`
	CallID string `json:"call_id"`
}

func (p *parent) call() string { return p.Run + "/" + p.CallID }

// parent returns what a run answers whose first event this is; nil if nothing.
func (e *event) parent() *parent {
	if e.Type != "Start" {
		return nil
	}
	var data struct {
		Parent *parent `json:"parent"`
	}
	_ = decode(e, &data) // then it answers nothing
	return data.Parent
}

// subrunScenario is the scenario of a run that answers a call: nobody meddles with it.
func subrunScenario(run string, by *parent) *scenario {
	return &scenario{index: -1, run: run, kind: "sub-run", mode: "task", parent: by, seed: hash(run)}
}

// delegates reports whether a run may wait for runs that answer its calls.
func (p *scenario) delegates() bool {
	return p.kind == "delegating" || p.kind == "client" || p.parent != nil
}

// checkChild: one run answers a call of an agent, and the answer is that run's.
func (a *audit) checkChild(run string, f *fate, say func(string, ...any)) {
	subruns := a.subruns[run+"/"+f.id]
	switch {
	case len(subruns) > 1:
		say("call %s of %s is answered by %d runs", f.id, f.tool, len(subruns))
	case f.inherited && len(subruns) > 0:
		say("call %s of %s has a run, though the parent has its result", f.id, f.tool)
	case !f.success || f.inherited:
	case len(subruns) == 0:
		say("call %s of %s has an answer that no run gave", f.id, f.tool)
	default:
		if text, done := subruns[0].answer(); !done || !strings.HasSuffix(f.observation, text) {
			say("call %s of %s was answered %q, the run %s says %q", f.id, f.tool, f.observation, subruns[0].run, text)
		}
	}
}

// answer is a run's final answer, false if it has none.
func (h *history) answer() (string, bool) {
	if h.end == nil || h.end.Type != "LlmFinalAnswer" {
		return "", false
	}
	var data struct{ Content string }
	err := decode(h.end, &data)
	return data.Content, err == nil && data.Content != ""
}

// checkParent: a run that answers a call is one of a run that made that call.
func (a *audit) checkParent(p *scenario, say func(string, ...any)) {
	if p.parent == nil {
		return
	}
	above := a.runs[p.parent.Run]
	if above == nil {
		say("answers call %s of run %s, which is not there", p.parent.CallID, p.parent.Run)
		return
	}
	if a.fates(above).calls[p.parent.CallID] == nil {
		say("answers call %s of run %s, which it has not made", p.parent.CallID, p.parent.Run)
	}
}

// abandoned reports whether nobody waits for a run that answers a call: its parent
// did not come to a good end, or the call was answered otherwise, as for an actor
// that was lost too often.
func (a *audit) abandoned(p *scenario) bool {
	if p.parent == nil || a.runs[p.parent.Run] == nil {
		return false
	}
	above := a.runs[p.parent.Run]
	if above.end == nil || above.end.To != "done" {
		return true
	}
	f := a.fates(above).calls[p.parent.CallID]
	return f != nil && f.results > 0 && !f.success && f.code != "cancelled"
}

// fates are what became of a run's calls, those that a fork has from its parent too.
func (a *audit) fates(h *history) *fates {
	all := newFates()
	for _, e := range a.before(h) {
		_ = all.add(e) // said of the parent
	}
	all.forked()
	for _, e := range h.events {
		_ = all.add(e) // said where the run's calls are checked
	}
	return all
}
