package planner_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/planner"
	"github.com/moorebus/moorebus/internal/prices"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/moorebus/moorebus/pkg/llm/scripted"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// fallback begins a run whose agent has two models, of two providers.
func (r *rig) fallback(change ...func(*events.Start)) events.Run {
	return r.begin(append(change, func(s *events.Start) {
		s.Agent.Models = map[string]events.Models{"default": {{Provider: "scripted", Model: "big"}, {Provider: "second", Model: "small"}}}
	})...)
}

// withSecond is a planner that has the provider second as well.
func withSecond(second llm.Caller) func(*planner.Config) {
	return func(c *planner.Config) {
		c.Providers = map[string]llm.Caller{"scripted": c.Providers["scripted"], "second": second}
	}
}

func asked(provider, model string) *events.Asked {
	return &events.Asked{Provider: provider, Model: model}
}

// The next model is asked when one refuses or stays overloaded, or cannot answer at all; and
// the log says which one answered.
func TestTheNextModelIsAsked(t *testing.T) {
	refusing := say("I will not.")
	refusing.Finish = llm.FinishRefusal
	busy := &llm.Error{Kind: llm.KindOverloaded, Message: "busy"}
	away := &llm.Error{Kind: llm.KindNetwork, Message: "connection refused"}
	for name, c := range map[string]struct {
		replies []any
		kind    string
	}{
		"refused":            {[]any{refusing}, "refused"},
		"overloaded":         {[]any{busy, busy, busy}, "overloaded"},
		"away":               {[]any{away, busy, away}, "network"},
		"limited for a time": {[]any{&llm.Error{Kind: llm.KindRateLimited, RetryAfter: time.Minute}}, "rate_limited"},
		"no key":             {[]any{&llm.Error{Kind: llm.KindAuth, Message: "bad key"}}, "auth"},
		"no such model":      {[]any{&llm.Error{Kind: llm.KindInvalid, Message: "no such model"}}, "invalid"},
		"no grammar":         {[]any{&llm.Error{Kind: llm.KindSchemaRefused, Message: "no grammar"}}, "schema_refused"},
	} {
		for _, mode := range []func(*events.Start){onCut(""), chat} {
			first, second := scripted.NewMock(c.replies...), scripted.NewMock(say("It is 42."))
			bubbleWith(t, first, func(t *testing.T, r *rig) {
				n := uint64(len(c.replies) + 2)
				run := r.fallback(mode)
				answer := r.event(run, n).Data
				require.Equal(t, "It is 42.", replyOf(t, answer).Content, name)
				require.Equal(t, asked("second", "small"), events.FactsOf(answer).Asked)
				require.Equal(t, "small", second.ModelForCall(0))
				last := r.event(run, n-1).Data.(*events.LLMAttemptFailed)
				require.True(t, last.Next)
				require.Equal(t, c.kind, last.Kind)
				require.Equal(t, asked("scripted", "big"), last.Asked)
				if c.kind == "refused" {
					require.Equal(t, []any{15, "refusal"}, []any{last.Usage.Total, last.Finish}, "the refusal is billed")
				}
			}, withSecond(second))
		}
	}
}

// Each model has attempts of its own. The last one ends the run as a single one does, and
// the next planning begins with the first again.
func TestEachModelHasItsAttempts(t *testing.T) {
	busy := &llm.Error{Kind: llm.KindOverloaded, Message: "busy"}
	first := scripted.NewMock(busy, busy, busy, ask(call("b", "alpha", "{}")), busy, busy, busy)
	second := scripted.NewMock(busy, busy, busy, busy, ask(call("a", "alpha", "{}")), busy, busy, busy, busy, busy, &llm.Error{Kind: llm.KindOverloaded, Message: "still busy"})
	bubbleWith(t, first, func(t *testing.T, r *rig) {
		run := r.fallback()
		r.act(run, "one")
		r.act(run, "two")
		mem := r.AwaitEnd(run)
		require.Equal(t, reducer.RunError{Code: "overloaded", Message: "still busy"}, *mem.Error)
		require.Len(t, first.Requests(), 7)
		require.Len(t, second.Requests(), 11)
	}, withSecond(second))
}

// Failures of one kind say nothing about those of another. A model that is the last one has as many
// attempts for each kind, and any planner counts them in the log.
func TestFailuresAreCountedByKind(t *testing.T) {
	busy := &llm.Error{Kind: llm.KindOverloaded, Message: "busy"}
	away := &llm.Error{Kind: llm.KindNetwork, Message: "connection reset"}
	broken := &llm.Error{Kind: llm.KindBroken, Message: "broke off"}
	garbage := &llm.Error{Kind: llm.KindOther, Message: "the answer is no JSON"}
	for name, c := range map[string]struct {
		replies []any
		ends    string
	}{
		"two overloads and garbage":      {[]any{busy, busy, garbage, say("It is 42.")}, ""},
		"five of each kind":              {[]any{busy, away, busy, away, broken, busy, broken, away, broken, busy, away, broken, garbage, broken, away, busy, say("It is 42.")}, ""},
		"garbage twice":                  {[]any{busy, garbage, busy, garbage}, "other"},
		"six overloads among the others": {[]any{busy, away, busy, busy, broken, busy, garbage, busy, busy}, "overloaded"},
	} {
		t.Run(name, func(t *testing.T) {
			mock := scripted.NewMock(c.replies...)
			bubbleWith(t, mock, func(t *testing.T, r *rig) {
				mem := r.AwaitEnd(r.begin())
				require.Len(t, mock.Requests(), len(c.replies))
				if c.ends == "" {
					require.Equal(t, "It is 42.", *mem.FinalAnswer)
				} else {
					require.Equal(t, c.ends, mem.Error.Code)
				}
			})
		})
	}
}

// A model that is limited is passed over without a request, as long as it is.
func TestALimitedModelIsPassedOver(t *testing.T) {
	first := scripted.NewMock(&llm.Error{Kind: llm.KindRateLimited, Message: "slow down", RetryAfter: time.Hour})
	second := scripted.NewMock(ask(call("a", "alpha", "{}")), say("It is 42."))
	bubbleWith(t, remote{mock: first}, func(t *testing.T, r *rig) {
		run := r.fallback()
		r.act(run, "one")
		require.Equal(t, events.Done, r.AwaitEnd(run).State)
		require.Len(t, first.Requests(), 1)
		passed := r.event(run, 6).Data.(*events.LLMAttemptFailed)
		require.True(t, passed.NotAsked && passed.Next, "%+v", passed)
	}, withSecond(remote{mock: second}))
}

// Any planner can go on: the place in the list is in the log.
func TestAnotherPlannerGoesOnWithTheNextModel(t *testing.T) {
	refusing := say("I will not.")
	refusing.Finish = llm.FinishRefusal
	bubbleWith(t, scripted.NewMock(refusing), func(t *testing.T, r *rig) {
		run := r.fallback()
		r.Await(run, func(mem *reducer.Memory) bool {
			return len(mem.Control.Attempts) > 0 && mem.Control.Attempts[0].Passed == 1 && mem.Control.Attempts[0].NotAsked > 0
		})
		cfg := r.config(scripted.NewMock(say("It is 42.")))
		cfg.Instance, cfg.Providers = "2", map[string]llm.Caller{"second": cfg.Providers["scripted"]}
		other, err := planner.New(cfg)
		require.NoError(t, err)
		r.Go(other.Run)
		require.Equal(t, "It is 42.", *r.AwaitEnd(run).FinalAnswer)
	})
}

// What the model of another provider cost has that one's price.
func TestTheNextModelIsPaidForByItsOwnPrice(t *testing.T) {
	first := remote{mock: scripted.NewMock(&llm.Error{Kind: llm.KindAuth, Message: "bad key"})}
	answer := say("It is 42.")
	answer.Model = ""
	table, err := prices.New(map[string]llm.Price{"scripted/big": {Input: 1000}, "second/small": {Input: 1, Output: 2}})
	require.NoError(t, err)
	bubbleWith(t, first, func(t *testing.T, r *rig) {
		run := r.fallback(money(1))
		require.InDelta(t, 20e-6, r.AwaitEnd(run).TotalUsage.Cost, 1e-9)
	}, withSecond(remote{mock: scripted.NewMock(answer)}), func(c *planner.Config) { c.Prices = table })
}

// Of the reasoning of a reply that is not used the log keeps as much as of any other.
func TestReasoningOfARefusal(t *testing.T) {
	refusing := cutText("I will not.", llm.FinishRefusal, "refusal")
	for _, all := range []bool{true, false} {
		bubbleWith(t, scripted.NewMock(refusing), func(t *testing.T, r *rig) {
			run := r.fallback(func(s *events.Start) { s.Agent.RecordReasoning = &all })
			require.Equal(t, events.Done, r.AwaitEnd(run).State)
			want := events.Reasoning{{Kind: "text", Text: "on I will not."}, {Kind: "opaque", Data: []byte(`"I will not."`)}}
			if !all {
				want = want[1:]
			}
			require.Equal(t, want, r.event(run, 2).Data.(*events.LLMAttemptFailed).Reasoning)
		}, withSecond(scripted.NewMock(say("It is 42."))))
	}
}
