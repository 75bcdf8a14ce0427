package sim

import (
	"errors"
	"strings"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
	"github.com/moorebus/moorebus/pkg/tool"
)

// apply folds a record. A fork begins with its parent's memory, which is folded
// again from the parent's records.
func (a *auditor) apply(mem *reducer.Memory, rec journal.Record) (*events.Event, error) {
	e, err := a.machine.Apply(mem, rec.Subject, rec.Body)
	var parent *reducer.ParentError
	if !errors.As(err, &parent) {
		return e, err
	}
	mem.Adopt(a.past(parent.Run, parent.At))
	return a.machine.Apply(mem, rec.Subject, rec.Body)
}

// past is a run as it was after its n-th event.
func (a *auditor) past(run string, n uint64) *reducer.Memory {
	mem := a.machine.Initial(run)
	for _, rec := range a.run(run).records {
		if mem.N == n {
			break
		}
		_, _ = a.apply(mem, rec) // it was checked when it was stored
	}
	return mem
}

// fork is a run that was forked.
type fork struct {
	id, parent string
	at         uint64
}

// inherit takes over what is known of a fork's parent at that event.
func (a *auditor) inherit(r *auditedRun, e *events.Event) {
	p, ok := e.Data.(*events.Forked)
	if !ok {
		return
	}
	a.forks = append(a.forks, fork{e.Run, p.Run, p.At})
	r.parent, r.patched = p.Run, p.Agent != nil || a.run(p.Run).patched
	for id, record := range r.mem.ToolCalls {
		r.inherited[id] = true
		if record.Result != nil {
			r.results[id] = 1
		}
	}
	for id, n := range a.run(p.Run).approved {
		if n <= p.At {
			r.approved[id] = 0
		}
	}
}

// fresh returns the forks that nobody has taken up, which are now.
func (a *auditor) fresh() []fork {
	a.mu.Lock()
	defer a.mu.Unlock()
	all := a.forks
	a.forks = nil
	return all
}

// approve notes that people approved a call.
func (r *auditedRun) approve(e *events.Event) {
	var d events.Decision
	switch p := e.Data.(type) {
	case *events.HumanApproved:
		d = p.Decision
	case *events.HumanModified:
		d = p.Decision
	case *events.HumanDecision:
		d = p.Decision
	}
	// The first time counts: a fork has it from there on.
	if _, before := r.approved[d.CallID]; !before && (d.Decision == events.DecisionApproved || d.Decision == events.DecisionModified) {
		r.approved[d.CallID] = e.N
	}
}

// allowed checks that a call which is executed may be: where the run's policy
// wants it approved, or the tool asks people, they were asked.
func (a *auditor) allowed(def tool.Definition, c tool.Call) {
	a.mu.Lock()
	defer a.mu.Unlock()
	r := a.run(c.Run)
	_, approved := r.approved[c.ID]
	call := events.Call{ID: c.ID, Name: c.Name, Arguments: c.Arguments}
	_, required, err := policies.Required(r.mem.Control.Agent.Approval, call, r.mem.Tools[c.Name], c.Run)
	switch {
	case err != nil:
		a.note(c.Run, "approval", "the policy cannot be evaluated: %v", err)
	case required && !approved:
		a.note(c.Run, "approval", "%s %s was executed, which nobody approved", c.Name, c.ID)
	case def.Asks && !strings.Contains(c.Arguments, "answer"):
		a.note(c.Run, "approval", "%s %s was executed, which nobody answered", c.Name, c.ID)
	}
}

// ranIn reports whether a call was executed in a run or one that it was forked
// from.
func (a *auditor) ranIn(run, call string, executed func(key string) int) bool {
	for ; run != ""; run = a.run(run).parent {
		if executed(run+"/"+call) > 0 {
			return true
		}
	}
	return false
}
