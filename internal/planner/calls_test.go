package planner_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// A reply with too many calls is paid for, so its first calls are taken. The model reads which
// were not.
func TestOfTooManyCallsTheFirstAreTaken(t *testing.T) {
	for name, c := range map[string]struct {
		calls    int
		argument int
		refused  int
		last     string
	}{
		"as many as fit":  {256, 0, 0, ""},
		"one too many":    {257, 0, 1, "the reply has 257 calls, and the first 256 are taken; make this call again in another reply"},
		"300":             {300, 0, 44, "in another reply"},
		"endless":         {20_000, 0, 1000, "in another reply; the 18744 calls after it were not run either"},
		"more than fits":  {1200, 2000, 1, "in another reply; the 943 calls after it were not run either"},
		"one after other": {258, 0, 2, "in another reply"},
	} {
		t.Run(name, func(t *testing.T) {
			calls := manyCalls(c.calls, "alpha")
			for i := range calls {
				calls[i].Arguments = `{"x":"` + strings.Repeat("x", c.argument) + `"}`
			}
			parallel := name != "one after other"
			bubble(t, []any{ask(calls...)}, func(t *testing.T, r *rig) {
				run := r.begin(config(func(c *events.Config) { c.ParallelTools = parallel }))
				mem := r.Await(run, func(mem *reducer.Memory) bool { return mem.N >= 2 })
				require.Nil(t, mem.Control.Poison)
				reply := withCalls(t, r.event(run, 2).Data)
				require.Len(t, append(reply.Calls, reply.Queued...), 256)
				require.Equal(t, "c255", append(reply.Calls, reply.Queued...)[255].ID)
				require.Len(t, reply.Refused, c.refused)
				for i, refused := range reply.Refused {
					require.Equal(t, calls[256+i].ID, refused.ID)
					require.Equal(t, "too_many_calls", refused.Code)
					require.Equal(t, 257+i, refused.Place)
					require.True(t, strings.HasPrefix(refused.Observation, "ERROR: not run: "))
				}
				if c.refused > 0 {
					require.True(t, strings.HasSuffix(reply.Refused[c.refused-1].Observation, c.last), reply.Refused[c.refused-1].Observation)
				}
			})
		})
	}
}

func withCalls(t *testing.T, p events.Payload) events.ToolCallReply {
	switch p := p.(type) {
	case *events.LLMParallelToolCalls:
		return p.ToolCallReply
	case *events.LLMToolCall:
		return p.ToolCallReply
	}
	require.FailNow(t, "no reply with calls", "%T", p)
	return events.ToolCallReply{}
}

// The calls that are taken have to fit into one event, as those of every reply.
func TestTooManyCallsThatAreTooLarge(t *testing.T) {
	calls := manyCalls(300, "alpha")
	for i := range calls {
		calls[i].Arguments = `{"x":"` + strings.Repeat("x", journal.MaxBody/200) + `"}`
	}
	bubble(t, []any{ask(calls...)}, func(t *testing.T, r *rig) {
		run := r.begin()
		r.Await(run, func(mem *reducer.Memory) bool { return mem.N >= 2 })
		invalidReply("", "too_large", "too large")(t, r.event(run, 2).Data)
	})
}

// A cut reply's last call is incomplete, also if it is not taken anyway.
func TestTooManyCallsOfACutReply(t *testing.T) {
	reply := ask(manyCalls(258, "alpha")...)
	reply.Finish = llm.FinishLength
	bubble(t, []any{reply}, func(t *testing.T, r *rig) {
		run := r.begin(func(s *events.Start) { s.Agent.OnCut = events.CutContinue }, config(func(c *events.Config) { c.ParallelTools = true }))
		r.Await(run, func(mem *reducer.Memory) bool { return mem.N >= 2 })
		got := r.event(run, 2).Data.(*events.LLMParallelToolCalls)
		require.Len(t, got.Calls, 256)
		require.Equal(t, []string{"too_many_calls", "too_many_calls"}, []string{got.Refused[0].Code, got.Refused[1].Code})
	})
}
