package fold_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/history"
	"github.com/moorebus/moorebus/internal/history/fold"
	"github.com/moorebus/moorebus/internal/reducertest"
	"github.com/moorebus/moorebus/pkg/events"
)

func TestTexts(t *testing.T) {
	call := events.Call{ID: "c", Name: "search", Arguments: `{"q":"bus"}`}
	refused := events.Refusal{Call: events.Call{ID: "d", Name: "rm", Arguments: "{}"}, Observation: "ERROR: not found", Code: "not_found"}
	reply := events.ToolCallReply{Content: "Let me look.", Calls: []events.Call{call}, Refused: []events.Refusal{refused}, Facts: events.Facts{Reasoning: events.Reasoning{{Kind: events.ReasoningText, Text: "hm"}}}}
	ref, thoughts := &events.Ref{Key: "k"}, &events.Ref{Key: "t"}
	type text = history.Text
	calls := []text{
		{Kind: history.Message, Text: "Let me look."}, {Kind: history.Call, Text: `search {"q":"bus"}`}, {Kind: history.Call, Text: "rm {}"},
		{Kind: history.CallError, Code: "not_found", Text: "ERROR: not found"}, {Kind: history.Reasoning, Text: "hm"},
	}
	for name, c := range map[string]struct {
		from    events.State
		payload events.Payload
		want    []text
	}{
		"task":              {events.Idle, &events.Start{Task: "Do it."}, []text{{Kind: history.Task, Text: "Do it."}}},
		"task of a patch":   {events.Idle, &events.Forked{Task: "Do that."}, []text{{Kind: history.Task, Text: "Do that."}}},
		"message":           {events.Planning, &events.UserMessage{Content: "Hello"}, []text{{Kind: history.Message, Text: "Hello"}}},
		"calls":             {events.Planning, &events.LLMParallelToolCalls{ToolCallReply: reply}, calls},
		"calls for people":  {events.Planning, &events.HumanApprovalRequired{ToolCallReply: reply}, calls},
		"a call again":      {events.Acting, &events.HumanApprovalRequired{ToolCallReply: events.ToolCallReply{Calls: []events.Call{call}}}, nil},
		"changed arguments": {events.WaitingForHuman, &events.HumanModified{Decision: events.Decision{Arguments: `{"q":"train"}`}}, []text{{Kind: history.Call, Text: `{"q":"train"}`}}},
		"all refused": {events.Planning, &events.ToolBlacklisted{RefusedReply: events.RefusedReply{Calls: []events.Call{refused.Call}, Results: []events.Answer{{ID: "d", Observation: "no", Code: "blacklisted"}}}}, []text{
			{Kind: history.Call, Text: "rm {}"}, {Kind: history.CallError, Code: "blacklisted", Text: "no"},
		}},
		"empty reply":    {events.Planning, &events.ReplyInvalid{RefusedReply: events.RefusedReply{Results: []events.Answer{{Observation: "It is empty.", Code: "empty_reply"}}}}, []text{{Kind: history.Error, Code: "empty_reply", Text: "empty_reply It is empty."}}},
		"result":         {events.Acting, &events.ToolSuccess{Outcome: &events.ToolOutcome{CallID: "c", Success: true, Observation: "bus 7"}}, []text{{Kind: history.Result, Text: "bus 7"}}},
		"empty result":   {events.Acting, &events.ToolSuccess{Outcome: &events.ToolOutcome{CallID: "c", Success: true}}, nil},
		"JSON":           {events.Acting, &events.ToolSuccess{Outcome: &events.ToolOutcome{CallID: "c", Success: true, Observation: `{"stra\u00dfe":"a\nb"}`}}, []text{{Kind: history.Result, Text: "straße\na\nb\n"}}},
		"offloaded":      {events.ParallelActing, &events.ToolCallResult{ToolOutcome: events.ToolOutcome{CallID: "c", Success: true, Observation: "bus…", Ref: ref}}, []text{{Kind: history.Result, Text: "bus…", Ref: ref}}},
		"failure":        {events.Acting, &events.ToolFailure{Outcome: &events.ToolOutcome{CallID: "c", Code: "timeout", Observation: "late"}}, []text{{Kind: history.CallError, Code: "timeout", Text: "late"}}},
		"end of a batch": {events.ParallelActing, &events.ToolFailure{}, nil},
		"turn":           {events.Planning, &events.LLMMessageComplete{Reply: events.Reply{Content: "4", Facts: events.Facts{ReasoningRef: thoughts}}}, []text{{Kind: history.Message, Text: "4"}, {Kind: history.Reasoning, Ref: thoughts}}},
		"answer":         {events.Planning, &events.LLMFinalAnswer{Reply: events.Reply{Content: "4"}}, []text{{Kind: history.Answer, Text: "4"}}},
		"short":          {events.Planning, &events.AnswerTooShort{Content: "4"}, []text{{Kind: history.Message, Text: "4"}}},
		"thought":        {events.Planning, &events.LLMThought{Reply: events.Reply{Content: "hm"}}, []text{{Kind: history.Reasoning, Text: "hm"}}},
		"edit":           {events.Planning, &events.ContextWindowExpanded{ContextReply: &events.ContextReply{Content: "More."}}, []text{{Kind: history.Message, Text: "More."}}},
		"attempt":        {events.Planning, &events.LLMAttemptFailed{Kind: "rate_limited", Message: "slow down", Content: "It i"}, []text{{Kind: history.Message, Text: "It i"}, {Kind: history.Error, Code: "rate_limited", Text: "rate_limited slow down"}}},
		"end":            {events.Planning, &events.MaxSteps{Outcome: events.Outcome{Code: "max_steps", Message: "15 steps"}}, []text{{Kind: history.Error, Code: "max_steps", Text: "max_steps 15 steps"}}},
		"nothing":        {events.Planning, &events.Paused{}, nil},
	} {
		e := &events.Event{N: 3, From: c.from, Data: c.payload}
		for i := range c.want {
			c.want[i].N = 3
		}
		require.Equal(t, c.want, fold.Texts(e), name)
	}
}

func TestOffloaded(t *testing.T) {
	ref := &events.Ref{Key: "k"}
	large := strings.Repeat("ä", 1<<20)
	require.Equal(t, history.Text{Kind: history.Result, Text: large[:1<<20]}, fold.Offloaded(history.Text{Kind: history.Result, Text: "ä…", Ref: ref}, []byte(large)))
	require.Equal(t, "hm\nso", fold.Offloaded(history.Text{Kind: history.Reasoning, Ref: ref}, []byte(`[{"kind":"text","text":"hm"},{"kind":"summary","text":"so"}]`)).Text)
}

// add folds a legal event of a run.
func add(t *testing.T, r *reducertest.Run, f *fold.Fold, origin events.State, p events.Payload) history.Run {
	t.Helper()
	s, e, err := r.Append(origin, p)
	require.NoError(t, err)
	_, follows := f.Add(s, e, events.Hash(r.Records[len(r.Records)-1].Body), e.Time)
	require.True(t, follows)
	row, err := f.Row()
	require.NoError(t, err)
	return row
}

// What a run waits for, and in which pools its calls are.
func TestWaiting(t *testing.T) {
	r := reducertest.NewRun(nil)
	f := fold.New(r.Machine.Table(), r.ID)
	start := reducertest.StartOf("Do it.", events.ModeChat)
	start.Tools = append(start.Tools, events.ClientTool{Name: "ask", Description: "d", Schema: []byte(`{}`)}.Spec())
	start.Agent.LLM.Provider = events.ClientProvider
	row := add(t, r, f, events.Idle, start)
	require.Equal(t, []any{fold.Client, true}, []any{row.Waiting, row.Outside})
	call := func(id, tool string) events.Call { return events.Call{ID: id, Name: tool, Arguments: "{}"} }
	reply := events.ToolCallReply{Calls: []events.Call{call("a", "ask"), call("b", "beta"), call("c", "delta")}, Confidence: 1}
	row = add(t, r, f, events.Planning, &events.LLMParallelToolCalls{ToolCallReply: reply})
	require.Equal(t, []any{fold.Client, false}, []any{row.Waiting, row.Outside})
	require.Empty(t, row.Pools, "the planner sends each call")
	require.Equal(t, []string{"ask", "beta", "delta"}, row.Tools)
	add(t, r, f, events.Planning, &events.ToolCallDispatched{CallID: "a"})
	add(t, r, f, events.Planning, &events.ToolCallDispatched{CallID: "b"})
	row = add(t, r, f, events.Planning, &events.ToolCallDispatched{CallID: "b"})
	require.Equal(t, []string{"client", "web"}, row.Pools)
	row = add(t, r, f, events.Control, &events.ToolCallResult{ToolOutcome: events.ToolOutcome{CallID: "a", Success: true}})
	require.Equal(t, []any{"", []string{"web"}}, []any{row.Waiting, row.Pools})
	fork, err := r.Fork(uint64(len(r.Records)-1), events.Forked{})
	require.NoError(t, err)
	of := fold.New(r.Machine.Table(), fork.ID)
	of.Inherit(r.At(uint64(len(r.Records) - 1)))
	s, err := events.ParseSubject(fork.Records[0].Subject)
	require.NoError(t, err)
	e, err := r.Machine.Codec().Decode(fork.Records[0].Body)
	require.NoError(t, err)
	c, follows := of.Add(s, e, events.Hash(fork.Records[0].Body), e.Time)
	require.True(t, follows)
	require.Equal(t, []history.Text{{N: 1, Kind: history.Task, Text: "Do it.", At: e.Time}}, c.Texts)
	row, err = of.Row()
	require.NoError(t, err)
	require.Equal(t, []any{fold.Client, "tester", "Do it.", r.ID.ID}, []any{row.Waiting, row.Agent, row.Task, row.ForkOf})
}
