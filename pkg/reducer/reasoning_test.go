package reducer_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// reasonings are those of the replies that the model sees.
func reasonings(mem *reducer.Memory) (all []string) {
	for _, m := range reducer.View(nil, mem) {
		if m.Role == "assistant" {
			all = append(all, string(m.Reasoning))
		}
	}
	return all
}

func thoughtful(p *events.LLMToolCall, reasoning string) *events.LLMToolCall {
	p.Reasoning = json.RawMessage(reasoning)
	return p
}

// Reasoning stands with its reply until the turn is over.
func TestReasoningLastsForATurn(t *testing.T) {
	s := started(t, chat)
	s.do(thoughtful(single("a", "alpha"), `{"n":1.50}`), success("a", "one"), &events.Continue{})
	s.do(&events.ReplyInvalid{RefusedReply: events.RefusedReply{
		Calls: []events.Call{callOf("b", "nonsense")}, Results: []events.Answer{{ID: "b", Observation: "ERROR: no", Code: "not_found"}},
		Reasoning: json.RawMessage(`{"n":2}`),
	}})
	s.do(single("c", "alpha"), failure("c", "broke"), &events.Continue{})
	require.Equal(t, []string{`{"n":1.50}`, `{"n":2}`, ""}, reasonings(s.Mem))
	require.Equal(t, []string{`{"n":1.50}`, `{"n":2}`, ""}, reasonings(s.Mem.Clone()), "snapshots keep it")

	s.do(turnAnswer("It is 42."))
	require.Equal(t, []string{"", "", "", ""}, reasonings(s.Mem))
	s.do(user("m", "And then?"), thoughtful(single("d", "alpha"), `{"n":3}`), success("d", "two"), &events.Continue{})
	require.Equal(t, []string{"", "", "", "", `{"n":3}`}, reasonings(s.Mem))
}

// The view says which results are failures.
func TestViewMarksFailures(t *testing.T) {
	s := started(t)
	s.do(single("a", "alpha"), success("a", "ERROR: is what it found"), &events.Continue{}, single("b", "alpha"), failure("b", "broke"), &events.Continue{})
	failed := map[string]bool{}
	for _, m := range reducer.View(nil, s.Mem) {
		if m.Role == "tool" {
			failed[m.CallID] = m.Failed
		}
	}
	require.Equal(t, map[string]bool{"a": false, "b": true}, failed)
}
