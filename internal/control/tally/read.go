package tally

import (
	"cmp"
	"maps"
	"slices"
	"time"
)

// Hour is what happened in an hour, by the events' own times.
type Hour struct {
	Hour    time.Time `json:"hour" jsonschema:"When the hour began."`
	Started int64     `json:"started"`
	Ended   int64     `json:"ended"`
	Failed  int64     `json:"failed" jsonschema:"Of the ended runs, those that ended by an error."`
	Events  int64     `json:"events"`
	Input   int64     `json:"input" jsonschema:"Tokens."`
	Output  int64     `json:"output" jsonschema:"Tokens."`
	CostUSD *float64  `json:"cost_usd,omitempty" jsonschema:"Omitted if no price is known."`
	Agents  []Agent   `json:"agents" jsonschema:"By agent, the dearest first."`
}

// Agent is what the runs of an agent did in an hour.
type Agent struct {
	Agent   string   `json:"agent"`
	Runs    int64    `json:"runs" jsonschema:"Runs that the agent began to work on."`
	Input   int64    `json:"input"`
	Output  int64    `json:"output"`
	CostUSD *float64 `json:"cost_usd,omitempty"`
	Failed  int64    `json:"failed"`
}

// Window is the time that [Rates] are means of, in seconds.
const Window = 60

// Rates are what the log took a second.
type Rates struct {
	Events float64 `json:"events_per_s"`
	Runs   float64 `json:"runs_per_s" jsonschema:"Runs that began."`
	Window int     `json:"window_s" jsonschema:"The rates are the mean of so many seconds."`
}

// By is what costs are asked by.
type By string

// The values of [By].
const (
	ByAgent By = "agent"
	ByModel By = "model"
	ByHour  By = "hour"
	ByDay   By = "day"
	ByTool  By = "tool"
)

// Costs are what runs used, by agent, model, tool, hour or day.
type Costs struct {
	By    By        `json:"by"`
	Since time.Time `json:"since,omitzero" jsonschema:"The time from which on is counted: the parameter, rounded down."`
	Rows  []Cost    `json:"rows" jsonschema:"The dearest first; hours and days in order."`
	Total Use       `json:"total"`
}

// Cost is what was used under one key.
type Cost struct {
	Key string `json:"key"`
	Use
}

// Use is what runs used.
type Use struct {
	Runs    int64    `json:"runs" jsonschema:"Each run counts once, when it first used the key; for hours, days and the total when it began."`
	Calls   int64    `json:"calls" jsonschema:"Requests to models; of tools their calls."`
	Input   int64    `json:"input" jsonschema:"Tokens; of tools those of the runs that answered calls."`
	Output  int64    `json:"output"`
	Cached  int64    `json:"cached"`
	CostUSD *float64 `json:"cost_usd,omitempty" jsonschema:"Omitted if no price is known."`
	// Unpriced are tokens whose price is not known, without those of models that are the run's
	// client.
	Unpriced int64 `json:"-"`
}

func (s *sum) dollars() *float64 {
	if !s.priced {
		return nil
	}
	cost := s.cost
	return &cost
}

func (s *sum) asUse() Use {
	return Use{s.runs, s.calls, s.input, s.output, s.cached, s.dollars(), s.unpriced}
}

// dearer orders sums by cost, then tokens, then calls, the most first.
func dearer(a, b *sum) int {
	return -cmp.Or(cmp.Compare(a.cost, b.cost), cmp.Compare(a.input+a.output, b.input+b.output), cmp.Compare(a.calls, b.calls), cmp.Compare(a.runs, b.runs))
}

// Hours returns the last 48 hours of a namespace up to now, from the first in which something
// happened, the newest last.
func (t *Tally) Hours(ns string, now time.Time) []Hour {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := []Hour{}
	s := t.spaces[ns]
	if s == nil {
		return all
	}
	last := now.Unix() / hour
	for h := last - Hours + 1; h <= max(last, min(s.newestHour, last+1)); h++ {
		p := s.hours[h]
		if p == nil && len(all) == 0 {
			continue
		}
		if p == nil {
			p = newPeriod()
		}
		all = append(all, s.hour(h, p))
	}
	return all[max(0, len(all)-Hours):]
}

func (s *space) hour(h int64, p *period) Hour {
	found := Hour{
		Hour: time.Unix(h*hour, 0).UTC(), Started: p.started, Ended: p.ended, Failed: p.failed, Events: p.events,
		Input: p.replies.input, Output: p.replies.output, CostUSD: p.replies.dollars(), Agents: []Agent{},
	}
	for _, n := range s.sorted(agents, p.by) {
		a := p.by[n]
		found.Agents = append(found.Agents, Agent{s.names[n].text, a.runs, a.input, a.output, a.dollars(), a.failed})
	}
	return found
}

// sorted returns the names of a kind, the dearest first.
func (s *space) sorted(k kind, by map[name]*sum) []name {
	names := slices.Collect(maps.Keys(by))
	names = slices.DeleteFunc(names, func(n name) bool { return s.names[n].kind != k })
	slices.SortFunc(names, func(a, b name) int {
		return cmp.Or(dearer(by[a], by[b]), cmp.Compare(s.names[a].text, s.names[b].text))
	})
	return names
}

// Rates returns what the log took in the last minute, by its own clock.
func (t *Tally) Rates(ns string, now time.Time) Rates {
	t.mu.Lock()
	defer t.mu.Unlock()
	rates := Rates{Window: Window}
	s := t.spaces[ns]
	if s == nil {
		return rates
	}
	for _, slot := range s.recent {
		if age := now.Unix() - slot.at; age >= 0 && age < Window {
			rates.Events += float64(slot.events) / Window
			rates.Runs += float64(slot.runs) / Window
		}
	}
	return rates
}

// Costs returns what was used in a namespace since a time, zero for all in the log.
// The time is rounded down to the hour within the last 48 hours, else to the day. Hours are known
// of the last 48 hours only.
func (t *Tally) Costs(ns string, by By, since, now time.Time) Costs {
	t.mu.Lock()
	defer t.mu.Unlock()
	costs := Costs{By: by, Rows: []Cost{}}
	s := t.spaces[ns]
	if s == nil {
		s = newSpace()
	}
	h, d := since.Unix()/hour, since.Unix()/day
	firstHour := now.Unix()/hour - Hours + 1
	var total sum
	rows := map[name]*sum{}
	count := func(key string, p *period) {
		used := p.replies
		used.runs = p.started
		total.add(used)
		for n, used := range p.by {
			if rows[n] == nil {
				rows[n] = &sum{}
			}
			rows[n].add(*used)
		}
		if by == ByHour || by == ByDay {
			costs.Rows = append(costs.Rows, Cost{key, used.asUse()})
		}
	}
	if by == ByHour || by != ByDay && !since.IsZero() && h >= firstHour {
		h = max(h, firstHour)
		costs.Since = time.Unix(h*hour, 0).UTC()
		for _, at := range slices.Sorted(maps.Keys(s.hours)) {
			if at >= h {
				count(time.Unix(at*hour, 0).UTC().Format(time.RFC3339), s.hours[at])
			}
		}
	} else {
		if !since.IsZero() {
			costs.Since = time.Unix(d*day, 0).UTC()
		}
		if s.older.events > 0 && (since.IsZero() || d <= s.newestDay-Days) {
			count(Older, s.older)
		}
		for _, at := range slices.Sorted(maps.Keys(s.days)) {
			if since.IsZero() || at >= d {
				count(time.Unix(at*day, 0).UTC().Format(time.DateOnly), s.days[at])
			}
		}
	}
	if k, is := map[By]kind{ByAgent: agents, ByModel: models, ByTool: tools}[by]; is {
		for _, n := range s.sorted(k, rows) {
			costs.Rows = append(costs.Rows, Cost{s.names[n].text, rows[n].asUse()})
		}
	}
	costs.Total = total.asUse()
	if by == ByTool {
		costs.Total = toolTotal(costs.Rows, total.runs)
	}
	return costs
}

// toolTotal returns what all tools used.
func toolTotal(rows []Cost, runs int64) Use {
	all := sum{runs: runs}
	for _, r := range rows {
		used := sum{calls: r.Calls, input: r.Input, output: r.Output, cached: r.Cached}
		if r.CostUSD != nil {
			used.cost, used.priced = *r.CostUSD, true
		}
		all.add(used)
	}
	return all.asUse()
}
