package fold

import (
	"cmp"
	"slices"
	"strings"

	"github.com/moorebus/moorebus/internal/history"
	"github.com/moorebus/moorebus/pkg/events"
)

// maxName bounds a name that uses are summed under, in bytes.
const maxName = 200

// nameOf returns the name that uses are summed under.
func nameOf(text string) string {
	if len(text) > maxName {
		text = strings.ToValidUTF8(text[:maxName], "") + "…"
	}
	return cmp.Or(text, history.Unknown)
}

// uses takes what an event used: by the run's agent, by the model that replied, and by the tool of a call. The
// row has the event already.
func (f *Fold) uses(p events.Payload, c *Change) {
	r, o := &f.run, &f.open
	var agent history.Sum
	if replied(p) {
		agent = f.reply(p, c)
		o.Calls = nil
	}
	agent.Failed = c.Period.Failed
	agent.Runs, o.Agents = first(o.Agents, nameOf(r.Agent))
	f.use(c, history.ByAgent, r.Agent, agent)
	if calls, queued, is := callsOf(p); is {
		if o.Calls == nil {
			o.Calls = map[string]string{}
		}
		for _, call := range slices.Concat(calls, queued) {
			o.Calls[call.ID] = call.Name
		}
		for _, call := range calls {
			_, r.Tools = first(r.Tools, call.Name)
		}
	}
	if out := outcomeOf(p); out != nil {
		used, name := history.Sum{Calls: 1}, o.Calls[out.CallID]
		delete(o.Calls, out.CallID)
		used.Runs, o.Tools = first(o.Tools, nameOf(name))
		if !out.Success {
			used.Failed = 1
		}
		add(&used, out.Usage)
		f.use(c, history.ByTool, name, used)
	}
}

// reply counts a reply of a model, and returns what it used.
func (f *Fold) reply(p events.Payload, c *Change) history.Sum {
	r := &f.run
	used := history.Sum{Calls: 1}
	add(&used, events.Billed(p))
	if facts := events.FactsOf(p); facts != nil && facts.Asked != nil {
		r.Model = facts.Asked.Provider + "/" + facts.Asked.Model
		if facts.Asked.Provider == events.ClientProvider {
			used.Unpriced = 0 // the client pays
		}
	}
	model := used
	switch {
	case r.Model == "" && !f.open.Unknown:
		f.open.Unknown, model.Runs = true, 1
	case r.Model != "":
		model.Runs, r.Models = first(r.Models, r.Model)
	}
	f.use(c, history.ByModel, r.Model, model)
	return used
}

func (f *Fold) use(c *Change, kind history.UseKind, name string, used history.Sum) {
	c.Uses = append(c.Uses, history.Use{Namespace: f.run.Namespace, Hour: c.Period.Hour, Kind: kind, Name: nameOf(name), Sum: used})
}

// first returns 1 if a name is not among names yet, else 0, and the names with it.
func first(names []string, name string) (int64, []string) {
	if slices.Contains(names, name) {
		return 0, names
	}
	return 1, append(names, name)
}

// add adds tokens and money; u may be nil.
func add(s *history.Sum, u *events.Usage) {
	if u == nil {
		return
	}
	in, out := int64(max(0, u.Input)), int64(max(0, u.Output))
	s.Input, s.Output, s.Cached = s.Input+in, s.Output+out, s.Cached+int64(max(0, u.Cached))
	if u.CostUSD != nil {
		s.CostUSD, s.Priced = s.CostUSD+max(0, *u.CostUSD), true
		return
	}
	s.Unpriced += in + out
}

// replied reports whether a model replied, used or not. Later passes of one reply say nothing of that.
func replied(p events.Payload) bool {
	used := events.Billed(p)
	if failed, is := p.(*events.LLMAttemptFailed); is {
		return !failed.NotAsked && (used != nil || failed.Asked != nil)
	}
	facts := events.FactsOf(p)
	return used != nil && *used != (events.Usage{}) || facts != nil && (facts.Asked != nil || facts.Finish != "")
}
