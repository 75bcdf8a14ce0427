package planner_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/verify"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/moorebus/moorebus/pkg/reducer"
	"github.com/moorebus/moorebus/pkg/replay"
	"github.com/moorebus/moorebus/pkg/tool"
)

// narrow is a chat that shows the last messages only.
func narrow(size int) func(*events.Start) {
	return func(s *events.Start) {
		chat(s)
		s.Agent.Config.ContextWindowSize, s.Agent.Config.ExpandContextWindowSize = size, 3
	}
}

// say sends the user's next message, once the run waits for it.
func (r *rig) say(run events.Run, text string) {
	r.T.Helper()
	quiet()
	mem := r.Memory(run)
	require.Equal(r.T, events.WaitingForUser, mem.State)
	r.Append(run, events.WaitingForUser, &events.UserMessage{MessageID: fmt.Sprint("m", mem.N), Content: text})
}

func named(req llm.Request) (names []string) {
	for _, t := range req.Tools {
		names = append(names, t.Name)
	}
	return names
}

var ours = []string{"moorebus_load_messages", "moorebus_load_tool_result", "moorebus_search_tool_calls"}

func TestInternalToolsAreOfferedWhereTheWindowIsLimited(t *testing.T) {
	for name, c := range map[string]struct {
		start   func(*events.Start)
		offered bool
	}{
		"a chat with a window": {narrow(1), true},
		"a task with a window": {config(func(c *events.Config) { c.ContextWindowSize = 1 }), true},
		"a chat that sees all": {narrow(0), false},
		"a task that sees all": {config(func(*events.Config) {}), false},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, []any{ask(call("x", "moorebus_load_messages", `{"count":2}`)), say("That is all.")}, func(t *testing.T, r *rig) {
				run := r.begin(c.start, func(s *events.Start) { s.Agent.Blacklist = append(s.Agent.Blacklist, ours...) },
					approve(events.Approval{Policy: events.ApproveAlways}))
				e := r.event(run, 2)
				quiet()
				if c.offered {
					require.IsType(t, &events.ContextWindowExpanded{}, e.Data, "whatever blacklist and policy say")
					require.Subset(t, named(r.mock.Requests()[0]), ours)
				} else {
					require.IsType(t, &events.ReplyInvalid{}, e.Data)
					require.Equal(t, tool.CodeNotFound, e.Data.(*events.ReplyInvalid).Results[0].Code)
					require.NotSubset(t, named(r.mock.Requests()[0]), ours[:1])
				}
				require.Empty(t, r.Memory(run).History)
				require.Equal(t, 2, r.mock.CallCount(), "the model is asked again")
			})
		})
	}
}

// TestOlderMessagesAndCallsAreLoaded leads a conversation with a call through all
// three tools.
func TestOlderMessagesAndCallsAreLoaded(t *testing.T) {
	replies := []any{
		ask(call("c", "alpha", `{"city":"Oslo"}`)), say("It rains."), say("Yes."),
		ask(call("c", "moorebus_search_tool_calls", `{"query":"OSLO"}`)),
		ask(call("", "moorebus_load_tool_result", `{"call_ids":["c","c"]}`), call("", "moorebus_load_messages", `{"count":2.0}`)),
		say("It rained in Oslo."), say("Bye."),
	}
	bubble(t, replies, func(t *testing.T, r *rig) {
		run := r.begin(narrow(1))
		r.act(run, "rain")
		r.say(run, "Sure?")
		r.say(run, "Where was that?")
		r.say(run, "Thanks.")
		quiet()
		mem := r.Memory(run)
		require.Equal(t, []string{"c"}, keys(mem.ToolCalls), "ours are no tool calls of the run")
		require.Len(t, mem.History, 1)
		require.Equal(t, 7, mem.Control.Replies)
		require.Equal(t, 7*15, mem.TotalUsage.Total, "each reply is billed once")
		require.Equal(t, 7, mem.Step)

		requests := r.mock.Requests()
		require.Equal(t, "Where was that?", lastOf(requests[3]).Content)
		found := lastOf(requests[4])
		require.Equal(t, llm.RoleTool, found.Role)
		require.Equal(t, "c", found.CallID, "the provider's own id is sent back")
		require.JSONEq(t, `{"calls":[{"id":"c","name":"alpha","arguments":"{\"city\":\"Oslo\"}","success":true}],"more":0}`, found.Content)
		all := requests[5].Messages
		require.Equal(t, []llm.Message{
			{Role: llm.RoleAssistant, Calls: []llm.Call{call("c", "alpha", `{"city":"Oslo"}`)}},
			{Role: llm.RoleTool, CallID: "c", Name: "alpha", Content: "rain"},
			{Role: llm.RoleUser, Content: "Sure?"},
			{Role: llm.RoleAssistant, Content: "Yes."},
			{Role: llm.RoleUser, Content: "Where was that?"},
		}, all[1:6], "the call that was loaded, and two older messages")
		both := all[len(all)-3]
		require.Len(t, both.Calls, 2, "one reply is shown as one")
		require.Equal(t, "Shown: c.", all[len(all)-2].Content)
		require.Equal(t, "2 older messages are shown: now the last 3 of 5.", all[len(all)-1].Content)
		require.Len(t, requests[6].Messages, 2, "the next turn begins with the window as it was")
	})
}

func keys(calls map[string]*reducer.ToolCallRecord) (ids []string) {
	for id := range calls {
		ids = append(ids, id)
	}
	return ids
}

func lastOf(req llm.Request) llm.Message { return req.Messages[len(req.Messages)-1] }

// TestAReplyWithOwnAndOtherCalls is one append, whose last event counts.
func TestAReplyWithOwnAndOtherCalls(t *testing.T) {
	mixed := ask(call("x", "alpha", "{}"), call("x", "moorebus_load_messages", ""), call("y", "nonsense", "{}"))
	mixed.Content = "I look."
	bubble(t, []any{mixed, say("Done with it.")}, func(t *testing.T, r *rig) {
		run := r.begin(narrow(4))
		e := r.event(run, 3)
		edit := r.Events(run)[1].Data.(*events.ContextWindowExpanded)
		require.True(t, edit.Part)
		require.Equal(t, events.Usage{}, edit.Usage)
		require.Equal(t, "x~1", edit.Calls[0].ID)
		require.Equal(t, "x", edit.Calls[0].ProviderID)
		reply := e.Data.(*events.LLMToolCall)
		require.Equal(t, used, reply.Usage)
		require.Equal(t, "y", reply.Refused[0].ID)
		require.Equal(t, 1, e.Step)
		r.act(run, "done")
		mem := r.AwaitState(run, events.WaitingForUser)
		require.Equal(t, 2, mem.Control.Replies)
		view := r.mock.Requests()[1].Messages
		require.Equal(t, []llm.Message{
			{
				Role: llm.RoleAssistant, Content: "I look.",
				Calls: []llm.Call{call("x", "moorebus_load_messages", ""), call("x", "alpha", "{}"), call("y", "nonsense", "{}")},
			},
			{Role: llm.RoleTool, CallID: "x", Name: "moorebus_load_messages", Content: "All 1 messages of the conversation are shown already."},
			{Role: llm.RoleTool, CallID: "x", Name: "alpha", Content: "done"},
			{Role: llm.RoleTool, CallID: "y", Name: "nonsense", Content: `ERROR: tool "nonsense" not found`, Failed: true},
		}, view[len(view)-4:])
	})
}

func TestDoubtedRepliesEditNothing(t *testing.T) {
	doubted := doubting(0.1, call("x", "alpha", "{}"), call("y", "moorebus_load_messages", "{}"))
	bubble(t, []any{doubted}, func(t *testing.T, r *rig) {
		run := r.begin(narrow(4))
		require.IsType(t, &events.LowConfidence{}, r.event(run, 2).Data)
	})
}

func TestBadArgumentsOfInternalTools(t *testing.T) {
	for _, c := range []struct{ tool, arguments, says string }{
		{"moorebus_load_messages", `{"count":0}`, "ERROR: invalid arguments for moorebus_load_messages: "},
		{"moorebus_load_messages", `{"count":1.5}`, "ERROR: invalid arguments"},
		{"moorebus_load_messages", `{"cuont":1}`, "ERROR: invalid arguments"},
		{"moorebus_load_messages", `not json`, "ERROR: invalid arguments"},
		{"moorebus_search_tool_calls", `{"limit":0}`, "ERROR: invalid arguments for moorebus_search_tool_calls"},
		{"moorebus_search_tool_calls", `{"limit":101}`, "ERROR: invalid arguments"},
		{"moorebus_search_tool_calls", `{"query":7}`, "ERROR: invalid arguments"},
		{"moorebus_search_tool_calls", `{"query":"nothing"}`, `{"calls":[],"more":0}`},
		{"moorebus_load_tool_result", `{}`, "ERROR: invalid arguments for moorebus_load_tool_result"},
		{"moorebus_load_tool_result", `{"call_ids":[]}`, "ERROR: invalid arguments"},
		{"moorebus_load_tool_result", `{"call_ids":["q","r"]}`, `ERROR: No such tool call: "q", "r". moorebus_search_tool_calls lists them.`},
	} {
		t.Run(c.tool+" "+c.arguments, func(t *testing.T) {
			bubble(t, []any{ask(call("x", c.tool, c.arguments)), say("As you like.")}, func(t *testing.T, r *rig) {
				run := r.begin(narrow(4))
				mem := r.AwaitState(run, events.WaitingForUser)
				require.Equal(t, uint64(3), mem.N)
				require.Nil(t, mem.Control.Poison)
				answer := lastOf(r.mock.Requests()[1])
				require.Equal(t, "x", answer.CallID)
				require.Contains(t, answer.Content, c.says)
			})
		})
	}
}

// TestASearchIsBounded: however many calls there are, and whatever they hold.
func TestASearchIsBounded(t *testing.T) {
	var replies []any
	long := fmt.Sprintf(`{"n":"%0400d"}`, 7)
	for i := range 30 {
		replies = append(replies, ask(call(fmt.Sprint("c", i), "alpha", long)))
	}
	replies = append(replies, ask(call("x", "moorebus_search_tool_calls", `{"name":"alpha","limit":5}`)), ask(call("y", "moorebus_search_tool_calls", `{"name":"beta"}`)), say("Enough."))
	bubble(t, replies, func(t *testing.T, r *rig) {
		run := r.begin(narrow(4), config(func(c *events.Config) { c.MaxSteps = 100 }))
		for range 30 {
			r.act(run, "done")
		}
		r.AwaitState(run, events.WaitingForUser)
		var list struct {
			Calls []struct{ ID, Arguments string }
			More  int
		}
		require.NoError(t, json.Unmarshal([]byte(lastOf(r.mock.Requests()[31]).Content), &list))
		require.Len(t, list.Calls, 5)
		require.Equal(t, 25, list.More)
		require.Equal(t, "c29", list.Calls[0].ID, "newest first")
		require.Less(t, len(list.Calls[0].Arguments), 210)
		require.JSONEq(t, `{"calls":[],"more":0}`, lastOf(r.mock.Requests()[32]).Content)
	})
}

// TestOwnCallsAreReplayed carries a run once more from what its log says that the
// model answered.
func TestOwnCallsAreReplayed(t *testing.T) {
	replies := []any{
		ask(call("x", "alpha", "{}"), call("y", "moorebus_load_messages", "{}")),
		ask(call("x", "moorebus_search_tool_calls", "{}"), call("x", "moorebus_load_tool_result", `{"call_ids":["x"]}`)),
		say("That is all."),
	}
	var told llm.Caller
	var requests []llm.Request
	play := func(r *rig) *reducer.Memory {
		run := r.begin(narrow(2))
		r.act(run, "done")
		mem := r.AwaitState(run, events.WaitingForUser)
		var err error
		told, err = replay.Model(context.Background(), r.Journal.NewProcess(), reducer.NewMachine(reducer.MachineOptions{}), run)
		require.NoError(r.T, err)
		report, err := verify.Log(context.Background(), r.Journal.NewProcess(), reducer.NewMachine(reducer.MachineOptions{}), verify.Options{All: true})
		require.NoError(r.T, err)
		require.True(r.T, report.Clean())
		return mem
	}
	var first *reducer.Memory
	bubble(t, replies, func(_ *testing.T, r *rig) {
		first = play(r)
		requests = r.mock.Requests()
	})
	heard := llm.CallerFunc(func(ctx context.Context, req llm.Request, stream func(llm.Chunk)) (llm.Response, error) {
		require.Equal(t, requests[req.Replies].Messages, req.Messages, "the model sees the same")
		return told.Call(ctx, req, stream)
	})
	bubbleWith(t, heard, func(t *testing.T, r *rig) {
		second := play(r)
		require.Equal(t, first.Messages[len(first.Messages)-1].Content, second.Messages[len(second.Messages)-1].Content)
		require.Equal(t, first.N, second.N)
	})
}

// TestInternalToolsAreReserved: what the port refuses is what the log reserves.
func TestInternalToolsAreReserved(t *testing.T) {
	for _, name := range ours {
		require.True(t, strings.HasPrefix(name, events.ReservedPrefix))
		require.ErrorContains(t, tool.Definition{Name: name}.Validate(), "are reserved")
	}
}

// Each call of Moorebus' own tools is an event of its own, so the first 100 of a reply are taken.
func TestOfTooManyInternalCallsTheFirstAreTaken(t *testing.T) {
	calls := manyCalls(102, ours[0])
	calls[101].Name = "alpha"
	bubble(t, []any{ask(calls...), ask(manyCalls(101, ours[0])...), say("Enough.")}, func(t *testing.T, r *rig) {
		run := r.begin(narrow(4))
		r.AwaitState(run, events.Acting)
		reply := r.event(run, 1+100+1).Data.(*events.LLMToolCall)
		require.Equal(t, "c101", reply.Calls[0].ID)
		require.Len(t, reply.Refused, 1)
		require.Equal(t, "c100", reply.Refused[0].ID)
		require.Equal(t, "too_many_calls", reply.Refused[0].Code)
		require.Contains(t, reply.Refused[0].Observation, "the reply has 101 calls of moorebus_* tools, and the first 100 are taken")
	})
	bubble(t, []any{ask(manyCalls(101, ours[0])...), say("Enough.")}, func(t *testing.T, r *rig) {
		run := r.begin(narrow(4))
		mem := r.AwaitState(run, events.WaitingForUser)
		require.Nil(t, mem.Control.Poison)
		refused := r.event(run, 1+100+1).Data.(*events.ReplyInvalid)
		require.Len(t, refused.Results, 1, "what is left of the reply is one call that was not taken")
		require.Equal(t, "too_many_calls", refused.Results[0].Code)
		require.Equal(t, 2, mem.Control.Replies)
	})
}

func manyCalls(n int, tool string) []llm.Call {
	calls := make([]llm.Call, n)
	for i := range calls {
		calls[i] = call(fmt.Sprint("c", i), tool, "{}")
	}
	return calls
}

// The parts of a reply wake nobody: the planner is woken once for it, and not at all
// where another role goes on. Calls for several pools are dispatched all the same.
func TestPartsWakeNobody(t *testing.T) {
	replies := []any{
		ask(call("x", ours[0], "{}"), call("y", ours[2], "{}")),
		ask(call("z", ours[0], "{}"), call("a", "alpha", "{}"), call("b", "beta", "{}")),
	}
	bubble(t, replies, func(t *testing.T, r *rig) {
		run := r.begin(narrow(4), config(func(c *events.Config) { c.ParallelTools = true }))
		r.Await(run, func(mem *reducer.Memory) bool {
			return mem.State == events.ParallelActing && mem.Call("a").Dispatched > 0 && mem.Call("b").Dispatched > 0
		})
		var woken []string
		for rec, err := range r.Journal.Read(t.Context(), run, 0) {
			require.NoError(t, err)
			s, err := events.ParseSubject(rec.Subject)
			require.NoError(t, err)
			woken = append(woken, string(s.To)+"."+s.Pool)
		}
		require.ElementsMatch(t, []string{"parallel_acting.default", "parallel_acting.web"}, woken[5:])
		require.Equal(t, []string{
			"planning.default", "none.default", "planning.default", "none.default", "none.default",
		}, woken[:5])
	})
}
