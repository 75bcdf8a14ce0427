package reducer_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/reducer"
)

func held(ask ...string) *events.HumanApprovalRequired {
	return approvalOf(ask, callOf("a", "alpha"), callOf("b", "beta"), callOf("d", "delta"))
}

func heldOne() *events.HumanApprovalRequired { return approvalOf([]string{"a"}, callOf("a", "alpha")) }

func TestFoldsOfApproval(t *testing.T) {
	unknown := &events.HumanApprovalRequired{Requests: []events.Request{{CallID: "a", Tool: "beta", Reason: "outcome unknown"}}, Deadline: "2026-01-01T00:00:00Z"}
	runFolds(t, []foldCase{
		{"one call", events.TypeHumanApprovalRequired, at(events.Planning), heldOne(), func(t *testing.T, m *reducer.Memory) {
			require.Equal(t, "a", m.CurrentToolCall.ID)
			require.Equal(t, 1, m.Step)
			require.Equal(t, heldOne().Requests, m.PendingApproval.Requests)
			require.Empty(t, m.PendingApproval.Decisions)
		}},
		{"a batch waits as a whole", events.TypeHumanApprovalRequired, at(events.Planning), held("b"), func(t *testing.T, m *reducer.Memory) {
			require.Len(t, m.PendingToolCalls, 3)
			require.Len(t, m.PendingApproval.Requests, 1)
			require.Nil(t, m.CurrentToolCall)
		}},
		{"an unknown outcome", events.TypeHumanApprovalRequired, after(single("a", "beta"), &events.ToolCallStarted{CallID: "a"}), unknown, func(t *testing.T, m *reducer.Memory) {
			require.Equal(t, unknown.Deadline, m.PendingApproval.Deadline)
			require.Equal(t, 1, m.Step)
			require.Equal(t, "a", m.CurrentToolCall.ID)
		}},
		{"runs as it is", events.TypeHumanApproved, after(heldOne()), &events.HumanApproved{Decision: decision("a", "approved")}, func(t *testing.T, m *reducer.Memory) {
			require.Nil(t, m.PendingApproval)
			require.JSONEq(t, `{"n":1.0}`, m.CurrentToolCall.Arguments)
		}},
		{"runs again", events.TypeHumanApproved, after(single("a", "beta"), &events.ToolCallStarted{CallID: "a"}, unknown), &events.HumanApproved{Decision: decision("a", "approved")}, func(t *testing.T, m *reducer.Memory) {
			require.Zero(t, m.Call("a").Started, "a new ToolCallStarted follows")
		}},
		{"runs with other arguments", events.TypeHumanModified, after(heldOne()), &events.HumanModified{Decision: decision("a", "modified")}, func(t *testing.T, m *reducer.Memory) {
			require.Equal(t, `{"n":2}`, m.CurrentToolCall.Arguments)
			require.Equal(t, `{"n":2}`, m.ToolCalls["a"].Parameters)
			require.Equal(t, `{"n":2}`, m.Call("a").Arguments)
		}},
		{"one call", events.TypeHumanRejected, after(heldOne()), &events.HumanRejected{Decision: decision("a", "rejected")}, func(t *testing.T, m *reducer.Memory) {
			require.Equal(t, "REJECTED: too dear", *m.LastObservation)
			require.Equal(t, "REJECTED: too dear", m.ToolCalls["a"].Result.Failed.Error)
			require.Nil(t, m.PendingApproval)
		}},
		{"one call", events.TypeApprovalExpired, after(heldOne()), &events.ApprovalExpired{}, func(t *testing.T, m *reducer.Memory) {
			require.Equal(t, "REJECTED: expired", *m.LastObservation)
		}},
		{"is kept", events.TypeHumanDecision, after(held("a", "b")), decided("b", "modified"), func(t *testing.T, m *reducer.Memory) {
			require.Equal(t, []events.Decision{decision("b", "modified")}, m.PendingApproval.Decisions)
			require.JSONEq(t, `{"n":1.0}`, m.ToolCalls["b"].Parameters, "nothing runs before all are decided")
		}},
		{"some accepted", events.TypeHumanApprovedParallel, after(held("a", "b", "d"), decided("b", "modified"), decided("a", "rejected"), decided("d", "approved")), &events.HumanApprovedParallel{}, func(t *testing.T, m *reducer.Memory) {
			require.Nil(t, m.PendingApproval)
			require.Len(t, m.ParallelResults, 1)
			require.Equal(t, "REJECTED: too dear", m.ParallelResults[0].Observation)
			require.Equal(t, "REJECTED: too dear", m.ToolCalls["a"].Result.Failed.Error)
			require.Equal(t, `{"n":2}`, m.ToolCalls["b"].Parameters)
			require.Equal(t, `{"n":2}`, m.PendingToolCalls[1].Arguments)
			require.True(t, m.Call("a").Answered)
			require.False(t, m.Call("b").Answered)
		}},
		{"all rejected", events.TypeHumanRejected, after(held("a", "b", "d"), decided("b", "rejected"), decided("a", "rejected"), decided("d", "rejected")), &events.HumanRejected{}, func(t *testing.T, m *reducer.Memory) {
			require.Len(t, m.ParallelResults, 3)
			require.Equal(t, "REJECTED: too dear", m.ParallelResults[2].Observation)
			require.Nil(t, m.LastObservation)
		}},
		{"answers every call, approved ones too", events.TypeApprovalExpired, after(held("a", "b"), decided("b", "approved")), &events.ApprovalExpired{}, func(t *testing.T, m *reducer.Memory) {
			require.Len(t, m.ParallelResults, 3)
			for _, r := range m.ParallelResults {
				require.Equal(t, "REJECTED: expired", r.Observation)
				require.False(t, r.Success)
			}
		}},
	})
}

func TestFoldsOfContext(t *testing.T) {
	entry := func(value string, tags ...string) events.Entry { return events.Entry{Tags: tags, Value: value} }
	six := []events.Payload{user("1", "x"), user("2", "x"), user("3", "x"), user("4", "x"), user("5", "x")}
	narrow := func(t *testing.T) *scene {
		return started(t, func(p *events.Start) { p.Agent.Config.ContextWindowSize = 2 }).do(six...)
	}
	runFolds(t, []foldCase{
		{"by its increment", events.TypeContextWindowExpanded, narrow, &events.ContextWindowExpanded{Increment: 3}, func(t *testing.T, m *reducer.Memory) {
			require.Equal(t, 5, m.ReactContext.ContextWindowSize)
		}},
		{"at most to what there is", events.TypeContextWindowExpanded, narrow, &events.ContextWindowExpanded{}, func(t *testing.T, m *reducer.Memory) {
			require.Equal(t, 6, m.ReactContext.ContextWindowSize)
		}},
		{"never narrower", events.TypeContextWindowExpanded, chatAfter(), &events.ContextWindowExpanded{Increment: 1}, func(t *testing.T, m *reducer.Memory) {
			require.Equal(t, 10, m.ReactContext.ContextWindowSize)
		}},
		{"everything is everything", events.TypeContextWindowExpanded, at(events.Planning), &events.ContextWindowExpanded{Increment: 1}, func(t *testing.T, m *reducer.Memory) {
			require.Zero(t, m.ReactContext.ContextWindowSize)
		}},
		{"a union", events.TypeToolCallsAddedToContext, chatAfter(single("a", "alpha"), success("a", "1"), &events.Continue{}, turnAnswer("Hi"), user("m", "x"), single("b", "alpha"), success("b", "2"), &events.Continue{}),
			&events.ToolCallsAddedToContext{CallIDs: []string{"b", "a", "a"}}, func(t *testing.T, m *reducer.Memory) {
				require.Equal(t, []string{"b", "a"}, m.ReactContext.ToolCallIDs)
			}},
		{"under sorted tags", events.TypeWorkingMemoryAdded, at(events.Acting), &events.WorkingMemoryAdded{Entry: entry("v", "z y", "a", "a", "")}, func(t *testing.T, m *reducer.Memory) {
			require.Equal(t, []reducer.MemoryEntry{{Tags: []string{"a", "z_y"}, Value: "v", N: m.N, Step: 1}}, m.WorkingMemory)
		}},
		{"replaces the same tags", events.TypeWorkingMemoryAdded, after(&events.WorkingMemoryAdded{Entry: entry("1", "a", "b")}, &events.WorkingMemoryAdded{Entry: entry("2", "c")}), &events.WorkingMemoryAdded{Entry: entry("3", "b", "a")}, func(t *testing.T, m *reducer.Memory) {
			require.Len(t, m.WorkingMemory, 2)
			require.Equal(t, "3", m.WorkingMemory[1].Value, "and counts as new")
		}},
		{"exact tags", events.TypeWorkingMemoryRemoved, after(&events.WorkingMemoryAdded{Entry: entry("1", "a", "b")}, &events.WorkingMemoryAdded{Entry: entry("2", "a")}), &events.WorkingMemoryRemoved{Tags: []string{"a"}}, func(t *testing.T, m *reducer.Memory) {
			require.Len(t, m.WorkingMemory, 1)
			require.Equal(t, "1", m.WorkingMemory[0].Value)
		}},
		{"unknown tags", events.TypeWorkingMemoryRemoved, at(events.Planning), &events.WorkingMemoryRemoved{Tags: []string{"a"}}, func(t *testing.T, m *reducer.Memory) {
			require.NotNil(t, m.WorkingMemory)
		}},
		{"copies", events.TypeStorageLoaded, at(events.Acting), &events.StorageLoaded{Tags: []string{"a"}, Entries: []events.Entry{entry("1", "a", "x"), entry("2", "a")}}, func(t *testing.T, m *reducer.Memory) {
			require.Len(t, m.WorkingMemory, 2)
		}},
		{"is outside", events.TypeStorageSaved, at(events.Acting), &events.StorageSaved{Entry: entry("1", "a")}, func(t *testing.T, m *reducer.Memory) {
			require.Empty(t, m.WorkingMemory)
		}},
		{"holds", events.TypePaused, at(events.Planning), &events.Paused{}, func(t *testing.T, m *reducer.Memory) { require.True(t, m.Control.Paused) }},
		{"lets go", events.TypeResumed, after(&events.Paused{}), &events.Resumed{}, func(t *testing.T, m *reducer.Memory) { require.False(t, m.Control.Paused) }},
		{"without a pause", events.TypeResumed, at(events.Observing), &events.Resumed{}, nothing},
		{"replaces what it names", events.TypeBudgetRaised, func(t *testing.T) *scene {
			return started(t, func(p *events.Start) { p.Agent.Budget = &events.Budget{MaxTotalTokens: 5, MaxCostUSD: 1} })
		}, &events.BudgetRaised{Budget: events.Budget{MaxTotalTokens: 50, MaxInputTokens: 7, MaxOutputTokens: 8, MaxWallTime: 9}}, func(t *testing.T, m *reducer.Memory) {
			require.Equal(t, &events.Budget{MaxTotalTokens: 50, MaxCostUSD: 1, MaxInputTokens: 7, MaxOutputTokens: 8, MaxWallTime: 9}, m.Budget)
		}},
		{"where there was none", events.TypeBudgetRaised, at(events.Planning), &events.BudgetRaised{Budget: events.Budget{MaxCostUSD: 3}}, func(t *testing.T, m *reducer.Memory) {
			require.Equal(t, &events.Budget{MaxCostUSD: 3}, m.Budget)
		}},
	})
}

func TestThinkingLogIsARing(t *testing.T) {
	s := started(t, func(p *events.Start) { p.Agent.Config.ThinkingLogEntries = 2 })
	for _, thought := range []string{"one", "two", "three"} {
		s.do(&events.LLMThought{Reply: events.Reply{Content: thought}})
	}
	require.Equal(t, []reducer.Thought{{Name: "thinking_log_002", Content: "two"}, {Name: "thinking_log_003", Content: "three"}}, s.Mem.ThinkingLog)

	off := started(t, func(p *events.Start) { p.Agent.Config.ThinkingLogEntries = 0 })
	off.do(&events.LLMThought{Reply: events.Reply{Content: "one"}})
	require.Empty(t, off.Mem.ThinkingLog)
}
