package main

import "strings"

// checkCalls: every call has one result, was executed as often as its tool and
// its humans allow, and was decided as they said.
func (a *audit) checkCalls(c *carrier, h *history, say func(string, ...any)) {
	all := newFates()
	for _, e := range a.before(h) {
		_ = all.add(e) // said of the parent
	}
	all.forked()
	for _, e := range h.events {
		if err := all.add(e); err != nil {
			say("%v", err)
		}
	}
	// A run that was interrupted leaves calls behind.
	cut := h.end == nil || h.end.To != "done"
	for id, f := range all.calls {
		switch {
		case f.results > 1:
			say("call %s of %s has %d results", id, f.tool, f.results)
		case f.results == 0 && !cut:
			say("call %s of %s has no result", id, f.tool)
		case f.code == "not_found":
			say("call %s of %s was not found, though actors of its pool have it", id, f.tool)
		}
		a.checkExecutions(h.run, f, say)
		c.checkDecisions(f, say)
		if toolNamed(f.tool).client {
			c.checkClient(f, say)
		}
		if f.ref != nil {
			a.refs[*f.ref] = h.run
		}
		a.count(f)
	}
}

// count counts the outcomes that are not to be missed.
func (a *audit) count(f *fate) {
	if f.inherited {
		return
	}
	switch f.code {
	case "no_actor", "nesting_limit", "expired", "outcome_unknown", "circuit_open":
		a.outcomes[f.code]++
	}
	if toolNamed(f.tool) != nil && toolNamed(f.tool).agent && f.success {
		a.outcomes["agent answered"]++
	}
	if t := toolNamed(f.tool); t.client || t.service {
		who := map[bool]string{true: "client", false: "service"}[t.client]
		switch {
		case f.success || f.code == "tool_failed":
			a.outcomes[who+" answered"]++
		case f.code == "timeout", f.code == "unavailable":
			a.outcomes[who+" "+f.code]++
		}
	}
	if f.tool == askHuman && f.success {
		a.outcomes["answered"]++
	}
	if toolNamed(f.tool) != nil && toolNamed(f.tool).pool == partsPool && f.success {
		a.outcomes["part of a pool worked"]++
	}
	if toolNamed(f.tool) != nil && toolNamed(f.tool).pool == lonePool && f.success {
		a.outcomes["lone pool worked"]++
	}
	for _, q := range f.asked {
		if q.unknown {
			a.outcomes["outcome asked"]++
		}
	}
}

// runs is how often a once call may be executed: once, and again each time that
// a human who knew that it might have been said so.
func (f *fate) runs() int {
	n := 1
	for _, q := range f.asked {
		if q.unknown && q.decided.approves() {
			n++
		}
	}
	return n
}

// mayHave reports whether the call may have been executed with these arguments:
// its own, unless a human saw them first, or those that a human gave it.
func (f *fate) mayHave(arguments string) bool {
	own := len(f.asked) == 0 || f.asked[0].unknown
	for _, q := range f.asked {
		switch {
		case !q.decided.approves():
		case q.decided.Decision == "approved":
			own = true
		case q.decided.Arguments == arguments:
			return true
		}
	}
	return own && arguments == f.arguments
}

// checkExecutions holds the ledger of the tools to the log.
func (a *audit) checkExecutions(run string, f *fate, say func(string, ...any)) {
	done := a.executed[run+"/"+f.id]
	tool := toolNamed(f.tool)
	once := tool.effect == "once"
	switch {
	case once && len(done) > f.runs():
		say("call %s of %s, a once tool, was executed %d times", f.id, f.tool, len(done))
	case once && len(done) > 0 && f.started == 0:
		say("call %s of %s, a once tool, was executed and the log does not hold its start", f.id, f.tool)
	case tool.client && len(done) > 0:
		say("call %s of %s, a tool of the client, was executed elsewhere", f.id, f.tool)
	case tool.client: // see checkClient
	case tool.agent:
		a.checkChild(run, f, say)
	case tool.builtin:
		if want := answer(f.id); f.success && !strings.HasSuffix(f.observation, want) {
			say("call %s of %s was answered %q, the human said %q", f.id, f.tool, f.observation, want)
		}
	case f.success && len(done) == 0 && !f.inherited:
		say("call %s of %s has a result and was not executed", f.id, f.tool)
	case len(done) > 0 && f.inherited:
		say("call %s of %s was executed, though the parent has its result", f.id, f.tool)
	case len(done) > 0 && len(f.asked) > 0 && !f.asked[0].unknown && !f.asked[0].decided.approves():
		say("call %s of %s was executed without an approval", f.id, f.tool)
	}
	for _, e := range done {
		if e.tool != f.tool {
			say("call %s of %s was executed as %s", f.id, f.tool, e.tool)
		}
		if !f.mayHave(e.arguments) {
			say("call %s of %s was executed with %s", f.id, f.tool, e.arguments)
		}
	}
}

// checkDecisions holds the decisions in the log to the scenario.
func (c *carrier) checkDecisions(f *fate, say func(string, ...any)) {
	for _, q := range f.asked {
		if q.decided == nil {
			continue
		}
		if want := c.scenario.putToHuman(f.id, f.tool); *q.decided != want {
			say("call %s: the log has %+v, the human said %+v", f.id, *q.decided, want)
		}
	}
}
