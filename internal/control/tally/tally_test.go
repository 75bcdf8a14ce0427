package tally

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/pkg/events"
)

const ns = "default"

var now = time.Date(2026, 5, 20, 12, 30, 0, 0, time.UTC)

// life is a run whose events are counted.
type life struct {
	t     *Tally
	agent string
	run   Run
}

func (l *life) at(at time.Time, p events.Payload) {
	_, first := p.(*events.Start)
	_, failed := p.(*events.FatalError)
	_, done := p.(*events.LLMFinalAnswer)
	l.t.Add(ns, &l.run, Event{Agent: l.agent, First: first, Ended: failed || done, Failed: failed, Time: at, Stored: at, Data: p})
}

func usage(input, output int, cost float64) events.Usage {
	return events.Usage{Input: input, Output: output, Total: input + output, CostUSD: &cost}
}

func asked(model string) events.Facts {
	return events.Facts{Asked: &events.Asked{Provider: "openai", Model: model}}
}

func calls(model string, u events.Usage, tools ...string) *events.LLMParallelToolCalls {
	p := &events.LLMParallelToolCalls{ToolCallReply: events.ToolCallReply{Usage: u, Facts: asked(model)}}
	for i, tool := range tools {
		p.Calls = append(p.Calls, events.Call{ID: fmt.Sprint(i), Name: tool})
	}
	return p
}

func answer(model string, u events.Usage) *events.LLMFinalAnswer {
	return &events.LLMFinalAnswer{Reply: events.Reply{Usage: u, Facts: asked(model)}}
}

func dollars(c float64) *float64 { return &c }

func TestCosts(t *testing.T) {
	all := New()
	ada, bob := &life{t: all, agent: "ada"}, &life{t: all, agent: "bob"}
	yesterday, old := now.Add(-24*time.Hour), now.Add(-72*time.Hour)
	ada.at(old, &events.Start{})
	ada.at(old, calls("large", usage(10, 5, 1), "search", "ask"))
	ada.at(old, &events.ToolCallResult{ToolOutcome: events.ToolOutcome{CallID: "0", Success: true}})
	child := usage(7, 3, 0.25)
	ada.at(yesterday, &events.ToolCallResult{ToolOutcome: events.ToolOutcome{CallID: "1", Success: true, Usage: &child}})
	// A later pass of the same reply is no other reply.
	ada.at(yesterday, &events.LLMToolCall{ToolCallReply: events.ToolCallReply{Calls: []events.Call{{ID: "2", Name: "search"}}}})
	ada.at(yesterday, &events.ToolFailure{Outcome: &events.ToolOutcome{CallID: "2"}})
	ada.at(now, answer("small", usage(2, 1, 0.5)))
	bob.at(now, &events.Start{})
	bob.at(now, &events.LLMAttemptFailed{Kind: "network", Facts: asked("small")})
	bob.at(now, &events.LLMAttemptFailed{Kind: "network", NotAsked: true, Facts: asked("small")})
	bob.at(now, &events.FatalError{})

	total := Use{Runs: 2, Calls: 3, Input: 12, Output: 6, CostUSD: dollars(1.5)}
	costs := all.Costs(ns, ByAgent, time.Time{}, now)
	require.Equal(t, Costs{By: ByAgent, Total: total, Rows: []Cost{
		{"ada", Use{Runs: 1, Calls: 2, Input: 12, Output: 6, CostUSD: dollars(1.5)}},
		{"bob", Use{Runs: 1, Calls: 1}},
	}}, costs)
	require.Equal(t, []Cost{
		{"openai/large", Use{Runs: 1, Calls: 1, Input: 10, Output: 5, CostUSD: dollars(1)}},
		{"openai/small", Use{Runs: 2, Calls: 2, Input: 2, Output: 1, CostUSD: dollars(0.5)}},
	}, all.Costs(ns, ByModel, time.Time{}, now).Rows)
	require.Equal(t, []Cost{
		{"ask", Use{Runs: 1, Calls: 1, Input: 7, Output: 3, CostUSD: dollars(0.25)}},
		{"search", Use{Runs: 1, Calls: 2}},
	}, all.Costs(ns, ByTool, time.Time{}, now).Rows)
	days := all.Costs(ns, ByDay, time.Time{}, now)
	require.Equal(t, []Cost{
		{"2026-05-17", Use{Runs: 1, Calls: 1, Input: 10, Output: 5, CostUSD: dollars(1)}}, {Key: "2026-05-19"},
		{"2026-05-20", Use{Runs: 1, Calls: 2, Input: 2, Output: 1, CostUSD: dollars(0.5)}},
	}, days.Rows)
	require.Equal(t, total, days.Total)

	// Since a time within 48 hours goes by the hour, else by the day.
	tools := all.Costs(ns, ByTool, yesterday.Add(20*time.Minute), now)
	require.Equal(t, time.Date(2026, 5, 19, 12, 0, 0, 0, time.UTC), tools.Since)
	require.Equal(t, []Cost{{"ask", Use{Runs: 1, Calls: 1, Input: 7, Output: 3, CostUSD: dollars(0.25)}}, {"search", Use{Calls: 1}}}, tools.Rows)
	require.Equal(t, Use{Runs: 1, Calls: 2, Input: 7, Output: 3, CostUSD: dollars(0.25)}, tools.Total)
	require.EqualValues(t, 2, all.Costs(ns, ByAgent, yesterday.Add(time.Hour), now).Total.Calls)
	byDay := all.Costs(ns, ByAgent, old, now)
	require.Equal(t, time.Date(2026, 5, 17, 0, 0, 0, 0, time.UTC), byDay.Since)
	require.Equal(t, total, byDay.Total)
	hours := all.Costs(ns, ByHour, time.Time{}, now)
	require.Equal(t, []string{"2026-05-19T12:00:00Z", "2026-05-20T12:00:00Z"}, []string{hours.Rows[0].Key, hours.Rows[1].Key})
	require.Empty(t, all.Costs("other", ByAgent, time.Time{}, now).Rows)
}

func TestHoursAndRates(t *testing.T) {
	all := New()
	ada := &life{t: all, agent: "ada"}
	ada.at(now.Add(-60*time.Hour), &events.Start{}) // too old
	ada.at(now.Add(-3*time.Hour), calls("m", usage(4, 2, 1)))
	ada.at(now.Add(-30*time.Second), &events.FatalError{})
	hours := all.Hours(ns, now)
	require.Len(t, hours, 4, "from the first to this one, empty ones too")
	require.Equal(t, Hour{
		Hour: time.Date(2026, 5, 20, 9, 0, 0, 0, time.UTC), Events: 1, Input: 4, Output: 2, CostUSD: dollars(1),
		Agents: []Agent{{Agent: "ada", Input: 4, Output: 2, CostUSD: dollars(1)}},
	}, hours[0])
	require.Equal(t, Hour{Hour: hours[0].Hour.Add(time.Hour), Agents: []Agent{}}, hours[1])
	require.EqualValues(t, 1, hours[3].Failed)
	require.EqualValues(t, 1, hours[3].Agents[0].Failed)
	require.Equal(t, Rates{Events: 1.0 / 60, Window: 60}, all.Rates(ns, now))
	require.Zero(t, all.Rates(ns, now.Add(time.Minute)).Events)
	behind := &life{t: all, agent: "bob"} // of a shard that is read beside the others
	behind.at(now.Add(-(30+ring)*time.Second), &events.Start{})
	require.Equal(t, Rates{Events: 1.0 / 60, Window: 60}, all.Rates(ns, now))
}

// An event of a worker whose clock is wrong counts when the log took it.
func TestClocksAheadDoNotCount(t *testing.T) {
	all := New()
	all.Add(ns, &Run{}, Event{Agent: "a", First: true, Time: now.Add(1000 * time.Hour), Stored: now, Data: &events.Start{}})
	require.EqualValues(t, 1, all.Costs(ns, ByHour, time.Time{}, now).Total.Runs)
}

// Hostile names and times do not take memory without bound, and no count is lost.
func TestMemoryIsBounded(t *testing.T) {
	all := New()
	const runs = 3 * MaxNames
	for i := range runs {
		l := &life{t: all, agent: strings.Repeat("x", 5000) + fmt.Sprint(i)}
		if i%2 == 0 {
			l.agent = fmt.Sprint(i)
		}
		l.at(now.Add(-time.Duration(i)*24*time.Hour), answer(fmt.Sprint(i), usage(1, 1, 1)))
	}
	for name, n := range all.spaces[ns].numbers[agents] {
		require.LessOrEqual(t, len(name), maxName+3)
		require.LessOrEqual(t, int(n), 3*MaxNames+int(kinds))
	}
	costs := all.Costs(ns, ByAgent, time.Time{}, now)
	require.LessOrEqual(t, len(costs.Rows), MaxNames+1)
	require.EqualValues(t, runs, costs.Total.Calls)
	require.Equal(t, Other, costs.Rows[1].Key, "after the name that is cut")
	days := all.Costs(ns, ByDay, time.Time{}, now)
	require.Len(t, days.Rows, Days+1)
	require.Equal(t, Older, days.Rows[0].Key)
	require.EqualValues(t, runs, days.Total.Calls)

	// Days that become too old join those before, and the cells are given back.
	l := &life{t: all, agent: "late"}
	l.at(now.Add(500*24*time.Hour), &events.Start{})
	require.EqualValues(t, runs, all.Costs(ns, ByDay, time.Time{}, now).Total.Calls)
	cells := len(all.spaces[ns].older.by)
	for _, periods := range []map[int64]*period{all.spaces[ns].hours, all.spaces[ns].days} {
		for _, p := range periods {
			cells += len(p.by)
		}
	}
	require.Equal(t, cells, all.cells)

	all = New()
	all.cells = maxCells
	for _, agent := range []string{"a", "b"} {
		l := &life{t: all, agent: agent}
		l.at(now, &events.Start{})
	}
	require.Equal(t, maxCells+2, all.cells, "one for the day, one for the hour")
	require.Equal(t, []Cost{{Other, Use{Runs: 2}}}, all.Costs(ns, ByAgent, time.Time{}, now).Rows)
}
