package reducer_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/codes"
	"github.com/moorebus/moorebus/internal/reducertest"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// foldCase leads a run somewhere, folds one event and looks at the memory. The
// events that the case is about are those of type.
type foldCase struct {
	name  string
	typ   events.Type
	scene func(t *testing.T) *scene
	event events.Payload
	want  func(t *testing.T, m *reducer.Memory)
}

// emptyReply is a reply that held nothing.
func emptyReply() *events.ReplyInvalid {
	return &events.ReplyInvalid{RefusedReply: events.RefusedReply{
		Calls: []events.Call{}, Results: []events.Answer{{Observation: "ERROR: the reply is empty", Code: codes.EmptyReply}},
	}}
}

func at(state events.State) func(*testing.T) *scene {
	return func(t *testing.T) *scene { t.Helper(); return in(t, state) }
}

func after(payloads ...events.Payload) func(*testing.T) *scene {
	return func(t *testing.T) *scene { t.Helper(); return started(t).do(payloads...) }
}

func chatAfter(payloads ...events.Payload) func(*testing.T) *scene {
	return func(t *testing.T) *scene { t.Helper(); return started(t, chat).do(payloads...) }
}

func runFolds(t *testing.T, cases []foldCase) {
	t.Helper()
	for _, c := range cases {
		t.Run(string(c.typ)+"/"+c.name, func(t *testing.T) {
			require.Equal(t, c.typ, events.TypeOf(c.event))
			s := c.scene(t)
			before := s.Mem.Clone()
			_, e, err := s.Append(origin(s.Mem, c.event), c.event)
			require.NoError(t, err)
			to, ok := oracle(before.State, c.typ)
			require.True(t, ok)
			require.Equal(t, to, s.Mem.State)
			checkOwner(t, before, s.Mem, e)
			require.Equal(t, reducertest.Canonical(s.Fold()), reducertest.Canonical(s.Mem))
			last := s.Mem.Trace[len(s.Mem.Trace)-1]
			require.Equal(t, reducer.TraceEntry{
				Step: s.Mem.Step, State: string(before.State), Event: string(c.typ), Data: last.Data, Timestamp: e.Time,
			}, last)
			c.want(t, s.Mem)
		})
	}
}

func nothing(*testing.T, *reducer.Memory) {}

func TestFoldsOfStartAndUser(t *testing.T) {
	start := reducertest.StartOf("find it", events.ModeTask)
	start.Agent.Budget = &events.Budget{MaxTotalTokens: 9}
	runFolds(t, []foldCase{
		{"opens the run", events.TypeStart, at(events.Idle), start, func(t *testing.T, m *reducer.Memory) {
			require.Equal(t, "find it", m.Task)
			require.Equal(t, "default", m.TaskType)
			require.Equal(t, "You test.", m.SystemPrompt)
			require.Equal(t, events.ModeTask, m.Mode)
			require.Equal(t, start.Agent.Config, m.Config)
			require.Equal(t, 9, m.Budget.MaxTotalTokens)
			require.Equal(t, []string{"forbidden"}, m.Blacklist)
			require.Equal(t, 1.0, m.ConfidenceScore)
			require.Zero(t, m.Step)
			require.Len(t, m.Messages, 1)
			require.Equal(t, "user", m.Messages[0].Role)
			require.Equal(t, "find it", m.Messages[0].Content)
			require.Equal(t, m.Started, m.Messages[0].Timestamp)
			require.Equal(t, reducer.ToolInfo{Description: "first", Schema: `{"type":"object"}`, Effect: "pure", Pool: "default", Risk: "low"}, m.Tools["alpha"])
			require.Empty(t, m.Tools["delta"].Schema, "no schema is no schema, not null")
			require.Equal(t, 0, m.ReactContext.ContextWindowSize)
			require.Equal(t, "agent-hash", m.Control.AgentHash)
			require.Equal(t, reducer.DefaultTable().Hash(), m.Control.TableHash)
		}},
		{"in Planning it is kept and the call in flight obsolete", events.TypeUserMessage, at(events.Planning), user("m", "faster"), func(t *testing.T, m *reducer.Memory) {
			require.Equal(t, "faster", m.Messages[1].Content)
			require.Equal(t, "m", m.Messages[1].ID)
			require.Equal(t, m.N, m.Control.Armed)
		}},
		{"in Acting it is kept for the next planning", events.TypeUserMessage, at(events.Acting), user("m", "faster"), func(t *testing.T, m *reducer.Memory) {
			require.Len(t, m.Messages, 2)
			require.NotEqual(t, m.N, m.Control.Armed)
		}},
		{"a known id is ignored", events.TypeUserMessage, after(user("m", "one")), user("m", "two"), func(t *testing.T, m *reducer.Memory) {
			require.Len(t, m.Messages, 2)
			require.Equal(t, "one", m.Messages[1].Content)
		}},
		{"task mode counts on", events.TypeUserMessage, after(&events.LowConfidence{}, &events.ReflectDone{}), user("m", "x"), func(t *testing.T, m *reducer.Memory) {
			require.Equal(t, 1, m.Control.SinceUser.Steps)
		}},
		{"chat mode starts a turn", events.TypeUserMessage, chatAfter(single("a", "alpha"), success("a", "1"), &events.Continue{}, turnAnswer("Hello")), user("m", "again"), func(t *testing.T, m *reducer.Memory) {
			require.Nil(t, m.FinalAnswer)
			require.Zero(t, m.RetryCount)
			require.Zero(t, m.Control.SinceUser.Steps)
			require.Equal(t, 2, m.Step, "step counts over the run")
			require.Equal(t, &reducer.ReactContext{ContextWindowSize: 10, ToolCallIDs: []string{}, StartedAt: m.Updated}, m.ReactContext)
		}},
		{"a known id in WaitingForUser", events.TypeUserMessage, chatAfter(user("m", "x"), turnAnswer("Hello")), user("m", "x"), func(t *testing.T, m *reducer.Memory) {
			require.Len(t, m.Messages, 3)
			require.NotNil(t, m.ReactContext, "whoever plans needs its window")
		}},
		{"ends the chat", events.TypeClosed, at(events.WaitingForUser), &events.Closed{}, func(t *testing.T, m *reducer.Memory) {
			require.Nil(t, m.Error)
			require.Equal(t, "Hello there.", *m.FinalAnswer)
		}},
	})
}

func TestFoldsOfPlanning(t *testing.T) {
	cost := 0.5
	withText := single("a", "alpha")
	withText.Content, withText.MessageID, withText.Usage.CostUSD = "Let me look.", "m1", &cost
	mixed := oneBatch()
	mixed.Refused = []events.Refusal{{Call: callOf("r", "forbidden"), Observation: "ERROR: blacklisted", Code: "blacklisted"}}
	queued := single("a", "alpha")
	queued.Queued = []events.Call{callOf("q", "beta")}
	refusal := events.RefusedReply{Content: "try", Calls: []events.Call{callOf("x", "forbidden")}, Results: []events.Answer{{ID: "x", Observation: "ERROR: no", Code: "blacklisted"}}, Usage: tokens(2, 1)}
	runFolds(t, []foldCase{
		{"one call", events.TypeLLMToolCall, after(&events.LowConfidence{Confidence: 0.1}, &events.ReflectDone{}), withText, func(t *testing.T, m *reducer.Memory) {
			require.Equal(t, 2, m.Step)
			require.Zero(t, m.RetryCount, "an accepted call resets it")
			require.Equal(t, 0.75, m.ConfidenceScore)
			require.Equal(t, reducer.TotalUsage{Input: 10, Output: 5, Total: 15, Cost: 0.5}, m.TotalUsage)
			require.Equal(t, &reducer.ToolCall{ID: "a", Name: "alpha", Arguments: `{"n":1.0}`}, m.CurrentToolCall)
			require.Equal(t, "Let me look.", m.Messages[1].Content)
			require.Equal(t, "m1", m.Messages[1].ID)
			require.Equal(t, "assistant", m.Messages[1].Role)
			require.Equal(t, &reducer.ToolCallRecord{Name: "alpha", Parameters: `{"n":1.0}`, Timestamp: m.Updated}, m.ToolCalls["a"])
			require.Equal(t, []string{"a"}, m.ReactContext.ToolCallIDs)
		}},
		{"several calls, one refused", events.TypeLLMParallelToolCalls, at(events.Planning), mixed, func(t *testing.T, m *reducer.Memory) {
			require.Equal(t, 1, m.Step)
			require.Nil(t, m.CurrentToolCall)
			require.Len(t, m.PendingToolCalls, 2)
			require.Empty(t, m.ParallelResults)
			require.Equal(t, "ERROR: blacklisted", m.ToolCalls["r"].Result.Failed.Error)
			require.Nil(t, m.ToolCalls["b"].Result)
			require.Len(t, m.Messages, 1, "no text, no message")
		}},
		{"the queue's first", events.TypeLLMToolCall, at(events.Planning), queued, func(t *testing.T, m *reducer.Memory) {
			require.Equal(t, []events.Call{callOf("q", "beta")}, m.Control.Queued)
			require.NotNil(t, m.ToolCalls["q"])
		}},
		{"the queue's next", events.TypeLLMToolCall, after(queued, success("a", "1"), &events.Continue{}), single("q", "beta"), func(t *testing.T, m *reducer.Memory) {
			require.Equal(t, 1, m.Step, "without a model call and without a step")
			require.Equal(t, 15, m.TotalUsage.Total)
			require.Equal(t, "q", m.CurrentToolCall.ID)
			require.Empty(t, m.Control.Queued)
			require.Equal(t, 1, m.Control.Replies)
			require.Equal(t, 4, m.Control.SinceUser.Changes, "later calls of one reply are not counted")
		}},
		{"answers", events.TypeLLMFinalAnswer, at(events.Planning), finalAnswer("It is 42."), func(t *testing.T, m *reducer.Memory) {
			require.Equal(t, "It is 42.", *m.FinalAnswer)
			require.Nil(t, m.ReactContext)
			require.Equal(t, 1, m.Step)
			require.Equal(t, "answer", m.Messages[1].ID)
		}},
		{"answers the turn", events.TypeLLMMessageComplete, chatAfter(), turnAnswer("Hi"), func(t *testing.T, m *reducer.Memory) {
			require.Equal(t, "Hi", *m.FinalAnswer)
			require.NotEmpty(t, m.Messages[1].ID)
		}},
		{"answers in part", events.TypeLLMMessageComplete, chatAfter(), &events.LLMMessageComplete{Reply: events.Reply{Content: "H"}, Incomplete: true}, func(t *testing.T, m *reducer.Memory) {
			require.True(t, m.Control.Incomplete)
		}},
		{"asks for a whole answer", events.TypeUserMessage, chatAfter(&events.LLMMessageComplete{Reply: events.Reply{Content: "H"}, Incomplete: true}), user("m", "And?"), func(t *testing.T, m *reducer.Memory) {
			require.False(t, m.Control.Incomplete)
		}},
		{"counts empty ones in a row", events.TypeReplyInvalid, after(emptyReply()), emptyReply(), func(t *testing.T, m *reducer.Memory) {
			require.Equal(t, 2, m.Control.SinceUser.Empty)
		}},
		{"ends the empty ones", events.TypeAnswerTooShort, after(emptyReply(), emptyReply()), &events.AnswerTooShort{Content: "42"}, func(t *testing.T, m *reducer.Memory) {
			require.Zero(t, m.Control.SinceUser.Empty)
		}},
		{"thinks", events.TypeLLMThought, at(events.Planning), &events.LLMThought{Reply: events.Reply{Content: "hm"}}, func(t *testing.T, m *reducer.Memory) {
			require.Equal(t, []reducer.Thought{{Name: "thinking_log_001", Content: "hm"}}, m.ThinkingLog)
			require.Equal(t, 1, m.Step)
		}},
		{"doubts", events.TypeLowConfidence, at(events.Planning), &events.LowConfidence{Confidence: 0.2, Usage: tokens(1, 1)}, func(t *testing.T, m *reducer.Memory) {
			require.Equal(t, 1, m.RetryCount)
			require.Equal(t, 0.2, m.ConfidenceScore)
			require.Equal(t, 2, m.TotalUsage.Total)
		}},
		{"is too short", events.TypeAnswerTooShort, at(events.Planning), &events.AnswerTooShort{Content: "42"}, func(t *testing.T, m *reducer.Memory) {
			require.Nil(t, m.FinalAnswer)
			require.Nil(t, m.Error)
		}},
		{"tells the model", events.TypeToolBlacklisted, at(events.Planning), &events.ToolBlacklisted{RefusedReply: refusal}, func(t *testing.T, m *reducer.Memory) {
			require.Nil(t, m.Error, "no error set")
			require.Equal(t, "ERROR: no", m.ToolCalls["x"].Result.Failed.Error)
			require.Equal(t, "try", m.Messages[1].Content)
		}},
		{"tells the model", events.TypeReplyInvalid, at(events.Planning), &events.ReplyInvalid{RefusedReply: refusal}, func(t *testing.T, m *reducer.Memory) {
			require.Equal(t, 3, m.TotalUsage.Total)
		}},
		{"ends the run", events.TypeMaxSteps, at(events.Planning), &events.MaxSteps{Outcome: events.Outcome{Code: "max_steps", Message: "max steps 15 exceeded"}}, func(t *testing.T, m *reducer.Memory) {
			require.Equal(t, &reducer.RunError{Code: "max_steps", Message: "max steps 15 exceeded"}, m.Error)
			require.Nil(t, m.ReactContext)
		}},
		{"a provider's failure is billed", events.TypeLLMAttemptFailed, at(events.Planning), &events.LLMAttemptFailed{Kind: "overloaded", Key: "plan/1", Usage: &events.Usage{Input: 3, Total: 3}}, func(t *testing.T, m *reducer.Memory) {
			require.Equal(t, 3, m.TotalUsage.Total)
			require.Equal(t, []reducer.Attempt{{Key: "plan/1", Provider: 1}}, m.Control.Attempts)
			require.Equal(t, 1, m.Control.Replies)
			require.Zero(t, m.Step)
		}},
		{"counts what broke off", events.TypeLLMAttemptFailed, at(events.Planning), &events.LLMAttemptFailed{Kind: "broken_reply", Key: "plan/1"}, func(t *testing.T, m *reducer.Memory) {
			require.Equal(t, []reducer.Attempt{{Key: "plan/1", Provider: 1, Broken: 1}}, m.Control.Attempts)
		}},
		{"goes to the next model", events.TypeLLMAttemptFailed, after(&events.LLMAttemptFailed{Kind: "broken_reply", Key: "plan/1"}), &events.LLMAttemptFailed{Kind: "rate_limited", Key: "plan/1", Next: true}, func(t *testing.T, m *reducer.Memory) {
			require.Equal(t, []reducer.Attempt{{Key: "plan/1", Passed: 1, Before: 2}}, m.Control.Attempts)
			require.Equal(t, 2, m.Control.Attempts[0].Total(), "deliveries are counted by the sum")
		}},
		{"who was not asked gave no reply", events.TypeLLMAttemptFailed, at(events.Planning), &events.LLMAttemptFailed{Kind: "rate_limited", Key: "plan/1", NotAsked: true}, func(t *testing.T, m *reducer.Memory) {
			require.Equal(t, []reducer.Attempt{{Key: "plan/1", NotAsked: 1}}, m.Control.Attempts)
			require.Zero(t, m.Control.Replies)
		}},
		{"a handler's failure is no reply", events.TypeLLMAttemptFailed, at(events.Planning), &events.LLMAttemptFailed{Kind: codes.KindHandler, Key: "plan/1"}, func(t *testing.T, m *reducer.Memory) {
			require.Zero(t, m.Control.Replies)
		}},
		{"a reflection's failure is no reply", events.TypeLLMAttemptFailed, at(events.Reflecting), &events.LLMAttemptFailed{Kind: "overloaded", Key: "reflect/2"}, func(t *testing.T, m *reducer.Memory) {
			require.Equal(t, 1, m.Control.Replies, "only the doubted reply")
		}},
		{"from anywhere", events.TypeFatalError, at(events.WaitingForHuman), fatal(), func(t *testing.T, m *reducer.Memory) {
			require.Equal(t, &reducer.RunError{Code: "auth", Message: "bad key"}, m.Error)
		}},
		{"from anywhere", events.TypeBudgetExceeded, at(events.Observing), &events.BudgetExceeded{Outcome: events.Outcome{Code: "budget", Message: "tokens"}}, func(t *testing.T, m *reducer.Memory) {
			require.Equal(t, "budget", m.Error.Code)
		}},
		{"from anywhere", events.TypeCancelled, at(events.ParallelActing), &events.CancelledRun{}, func(t *testing.T, m *reducer.Memory) {
			require.Nil(t, m.Error)
			require.Nil(t, m.ReactContext)
		}},
	})
}

func TestFoldsOfActing(t *testing.T) {
	ref := result("b", true, "big")
	ref.Ref = &events.Ref{Bucket: "x", Key: "k", Size: 3, SHA256: "s"}
	runFolds(t, []foldCase{
		{"one call", events.TypeToolSuccess, at(events.Acting), success("a", "1"), func(t *testing.T, m *reducer.Memory) {
			require.Equal(t, "SUCCESS: 1", *m.LastObservation)
			require.Equal(t, "1", m.ToolCalls["a"].Result.Success.Content)
			require.NotNil(t, m.CurrentToolCall, "Observing clears it")
			require.Empty(t, m.History)
		}},
		{"one call", events.TypeToolFailure, at(events.Acting), failure("a", "x not found"), func(t *testing.T, m *reducer.Memory) {
			require.Equal(t, "ERROR: x not found", *m.LastObservation)
			require.Equal(t, "ERROR: x not found", m.ToolCalls["a"].Result.Failed.Error)
		}},
		{"one of several", events.TypeToolCallResult, at(events.ParallelActing), ref, func(t *testing.T, m *reducer.Memory) {
			require.Equal(t, []reducer.ToolResult{{
				ToolCall: reducer.ToolCall{ID: "b", Name: "beta", Arguments: `{"n":1.0}`}, Success: true, Observation: "SUCCESS: big", Code: "ok", LatencyMS: 7,
			}}, m.ParallelResults)
			require.Equal(t, "big", m.ToolCalls["b"].Result.Success.Content)
			require.Equal(t, ref.Ref, m.ToolCalls["b"].Ref)
			require.Len(t, m.PendingToolCalls, 3)
			require.Nil(t, m.LastObservation)
		}},
		{"after a batch", events.TypeToolSuccess, after(oneBatch(), result("c", false, "x"), result("b", true, "2")), &events.ToolSuccess{}, nothing},
		{"after a batch", events.TypeToolFailure, after(oneBatch(), result("c", false, "x"), result("b", false, "y")), &events.ToolFailure{}, nothing},
		{"notes the pool's event", events.TypeToolCallDispatched, at(events.ParallelActing), &events.ToolCallDispatched{CallID: "b"}, func(t *testing.T, m *reducer.Memory) {
			require.Equal(t, m.N, m.Call("b").Dispatched)
		}},
		{"notes the start", events.TypeToolCallStarted, at(events.Acting), &events.ToolCallStarted{CallID: "a"}, func(t *testing.T, m *reducer.Memory) {
			require.Equal(t, m.N, m.Call("a").Started)
		}},
		{"notes a start again", events.TypeToolCallStarted, after(single("a", "gamma"), &events.ToolCallStarted{CallID: "a"}), &events.ToolCallStarted{CallID: "a"}, func(t *testing.T, m *reducer.Memory) {
			require.Equal(t, m.N, m.Call("a").Started)
		}},
	})
}

func TestFoldsOfObserving(t *testing.T) {
	refused := oneBatch()
	refused.Refused = []events.Refusal{{Call: callOf("r", "forbidden"), Observation: "ERROR: blacklisted", Code: "blacklisted"}}
	cleared := func(t *testing.T, m *reducer.Memory) {
		require.Nil(t, m.CurrentToolCall)
		require.Nil(t, m.LastObservation)
		require.Empty(t, m.PendingToolCalls)
		require.Empty(t, m.ParallelResults)
	}
	runFolds(t, []foldCase{
		{"commits one", events.TypeContinue, at(events.Observing), &events.Continue{}, func(t *testing.T, m *reducer.Memory) {
			cleared(t, m)
			require.Equal(t, []reducer.HistoryEntry{{
				Step: 1, Tool: reducer.ToolCall{ID: "a", Name: "alpha", Arguments: `{"n":1.0}`}, Observation: "SUCCESS: 1", Success: true, Code: "ok",
			}}, m.History)
		}},
		{"commits all, refused ones too", events.TypeContinue, after(refused, result("c", false, "x"), result("b", true, "2"), &events.ToolSuccess{}), &events.Continue{}, func(t *testing.T, m *reducer.Memory) {
			cleared(t, m)
			require.Len(t, m.History, 3)
			for i, id := range []string{"c", "b", "r"} {
				require.Equal(t, id, m.History[i].Tool.ID)
				require.Equal(t, 1, m.History[i].Step)
				require.Equal(t, id == "b", m.History[i].Success)
			}
		}},
		{"commits a rejected call", events.TypeContinue, after(approvalOf([]string{"a"}, callOf("a", "alpha")), &events.HumanRejected{Decision: decision("a", "rejected")}), &events.Continue{}, func(t *testing.T, m *reducer.Memory) {
			cleared(t, m)
			require.Equal(t, "REJECTED: too dear", m.History[0].Observation)
			require.False(t, m.History[0].Success)
		}},
		{"commits", events.TypeNeedsReflection, at(events.Observing), &events.NeedsReflection{}, func(t *testing.T, m *reducer.Memory) {
			cleared(t, m)
			require.Len(t, m.History, 1)
		}},
		{"commits", events.TypeNeedsPaging, at(events.Observing), &events.NeedsPaging{}, func(t *testing.T, m *reducer.Memory) {
			cleared(t, m)
			require.Len(t, m.History, 1)
		}},
		{"summarizes", events.TypeReflectDone, after(single("a", "alpha"), success("a", "1"), &events.NeedsReflection{}), &events.ReflectDone{Summary: "a gave 1", Usage: &events.Usage{Input: 4, Total: 4}}, func(t *testing.T, m *reducer.Memory) {
			require.Equal(t, []reducer.HistoryEntry{{Step: 1, Tool: reducer.ToolCall{Name: "[SUMMARY]"}, Observation: "a gave 1", Success: true, Code: "ok"}}, m.History)
			require.Equal(t, 19, m.TotalUsage.Total)
			require.Equal(t, 1, m.Step, "a reflection is no planning call")
			require.Len(t, m.ToolCalls, 1, "the log keeps all")
		}},
		{"a failed one keeps the history", events.TypeReflectDone, after(single("a", "alpha"), success("a", "1"), &events.NeedsReflection{}), &events.ReflectDone{Failed: "overloaded"}, func(t *testing.T, m *reducer.Memory) {
			require.Len(t, m.History, 1)
			require.Equal(t, "a", m.History[0].Tool.ID)
		}},
		{"after LowConfidence it keeps the count", events.TypeReflectDone, at(events.Reflecting), &events.ReflectDone{Summary: "s"}, func(t *testing.T, m *reducer.Memory) {
			require.Equal(t, 1, m.RetryCount)
		}},
		{"moves entries", events.TypePageDone, after(&events.WorkingMemoryAdded{Entry: events.Entry{Tags: []string{"a"}, Value: "1"}}, &events.WorkingMemoryAdded{Entry: events.Entry{Tags: []string{"b"}, Value: "2"}}, &events.WorkingMemoryAdded{Entry: events.Entry{Tags: []string{"c"}, Value: "3"}}, single("a", "alpha"), success("a", "1"), &events.NeedsPaging{}),
			&events.PageDone{Paged: []events.Entry{{Tags: []string{"a"}}}, Dropped: []events.Entry{{Tags: []string{"c"}}}}, func(t *testing.T, m *reducer.Memory) {
				require.Len(t, m.WorkingMemory, 1)
				require.Equal(t, []string{"b"}, m.WorkingMemory[0].Tags)
			}},
	})
}

func TestAPeriodicReflectionResetsRetries(t *testing.T) {
	s := in(t, events.Observing)
	s.do(&events.NeedsReflection{})
	s.Mem.RetryCount = 2
	s.do(&events.ReflectDone{})
	require.Zero(t, s.Mem.RetryCount, "a periodic reflection resets retry_count")
}

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
		{"replaces what was kept", events.TypeCustomMemorySet, func(t *testing.T) *scene {
			return started(t, func(p *events.Start) {
				p.MessageID, p.Custom = "first", map[string]json.RawMessage{"mine": []byte(`{"a": 1}`), "other": []byte("2")}
			})
		}, &events.CustomMemorySet{Key: "mine", Value: []byte(`[ "<" ]`)}, func(t *testing.T, m *reducer.Memory) {
			require.Equal(t, "first", m.Messages[0].ID)
			require.Len(t, m.Custom, 2)
			require.JSONEq(t, `["<"]`, string(m.Custom["mine"]))
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
