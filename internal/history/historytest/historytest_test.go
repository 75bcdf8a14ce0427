package historytest_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/history"
	"github.com/moorebus/moorebus/internal/history/historytest"
	"github.com/moorebus/moorebus/internal/history/query"
	"github.com/moorebus/moorebus/pkg/events"
)

var now = time.Date(2026, 11, 27, 12, 0, 0, 0, time.UTC)

func parse(t *testing.T, text string) query.Query {
	t.Helper()
	q, err := query.Parse(text, now)
	require.NoError(t, err, text)
	return q
}

// TestMatches has the rules of queries one by one.
func TestMatches(t *testing.T) {
	high := .9
	ended := historytest.Run{
		Run: history.Run{
			ID: "0190-a", State: events.Errored, N: 12, Agent: "billing", Task: "Charge the card", Started: now.Add(-25 * time.Hour), Ended: now.Add(-25*time.Hour + 10*time.Second),
			Models: []string{"openai/gpt-4o", "openai/gpt-4o-mini"}, Tools: []string{"charge_card", "search"}, By: "user:1", Steps: 3, Tokens: 100, CostUSD: .5, Priced: true,
			Error: "attempts_exhausted", CallErrors: []string{"timeout"},
		},
		Texts: []history.Text{
			{Kind: history.Task, Text: "Charge the card"}, {Kind: history.CallError, Code: "timeout", Text: "ETIMEDOUT after 30 s"},
			{Kind: history.Error, Code: "attempts_exhausted", Text: "The bank refused"}, {Kind: history.Reasoning, Text: "Maybe later"},
		},
		Labels: map[string]string{"env": "prod", "empty": ""},
		Scores: []history.Score{{Name: "ok", Text: "true"}, {Name: "quality", Text: "0.9", Number: &high}},
	}
	open := historytest.Run{Run: history.Run{ID: "0191-b", State: events.WaitingForHuman, Task: "Parent's task", Parent: "0190-a", Waiting: "human", Started: now, Steps: 5}}
	fork := historytest.Run{Run: history.Run{ID: "0192-c", State: events.Done, ForkOf: "0190-a", Experiment: "x1", Started: now, Steps: 5}}
	for want, queries := range map[string][]string{
		"ended": {
			"state:error", "agent:billing,other", "model:openai/gpt-4o-mini", "tool:search tool:charge_card", "by:user:*", "id:0190*", "charge", "CARD charge", "char*", `"the card char"*`,
			"card etimedout", "task:card", "error:attempts_exhausted", "error:bank,x", "call_error:timeout", "call_error:etimedout", "call_error:*", "later", "label.env:prod", "label.env:p*", "label.empty:*", `label.empty:""`,
			"score.ok:true", "score.ok:*", "score.quality>0.5", "score.quality=0.9", "-score.other:*", "started<24h", "ended<=2026-11-26T11:00:10Z", "duration=10s", "cost>=0.5", "tokens>99", "steps<4", "events=12", "-experiment:*", "",
		},
		"open": {"waiting:*", "waiting:human", "parent:0190-a", "parent's", "text:*", "state:waiting_for_human", "-cost<1", "-ended<0s", "-duration>0s", "started>=2026-11-27", "-label.env:prod", "-error:*"},
		"fork": {"experiment:x1", "experiment:* fork_of:0190-a", "-experiment:y", "experiment:* -text:*"},
		"":     {"bank etimedout zzz", `"card etimedout"`, "error:attempts", "error:attempts_*", "score.ok>0", "label.env:pro", "agent:Billing", "cost<0.1", "tool:sear"},
	} {
		for _, text := range queries {
			var found []string
			for name, r := range map[string]historytest.Run{"ended": ended, "open": open, "fork": fork} {
				if historytest.Matches(parse(t, text), r) {
					found = append(found, name)
				}
			}
			if want == "" {
				require.Empty(t, found, text)
				continue
			}
			require.Contains(t, found, want, text)
			if !strings.HasPrefix(text, "-") && text != "" && text != "text:*" && !strings.HasPrefix(text, "started") {
				require.Equal(t, []string{want}, found, text)
			}
		}
	}
}

func TestCompare(t *testing.T) {
	run := func(id string, cost float64, ended time.Duration) historytest.Run {
		r := historytest.Run{Run: history.Run{ID: id, Started: now, CostUSD: cost, Priced: cost > 0}}
		if ended > 0 {
			r.Ended = now.Add(ended)
		}
		return r
	}
	all := []historytest.Run{run("b", 2, 1), run("a", 2, 0), run("d", 0, 0), run("c", 1, 2)}
	for sort, want := range map[string]string{"": "dcba", "started": "abcd", "cost": "cabd", "-cost": "bacd", "ended": "bcad", "-duration": "cbda", "-steps": "dcba"} {
		s, err := query.ParseSort(sort)
		require.NoError(t, err)
		slices.SortFunc(all, func(a, b historytest.Run) int { return historytest.Compare(s, a, b) })
		got := ""
		for _, r := range all {
			got += r.ID
		}
		require.Equal(t, want, got, sort)
	}
}
