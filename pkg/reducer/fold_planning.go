package reducer

import (
	"strconv"

	"github.com/moorebus/moorebus/pkg/events"
)

// pass counts a planning call: the step is Planning's, and every reply of a
// model is one.
func (mem *Memory) pass(u events.Usage) {
	mem.Step++
	c := &mem.Control
	c.SinceUser.Steps++
	c.Replies++
	c.QueuedPass = false
	mem.passText()
	mem.endEdits()
	mem.addUsage(u)
}

func (mem *Memory) foldToolCall(e *events.Event, p *events.LLMToolCall) {
	if mem.isQueuedPass(p.Calls) {
		mem.takeQueued(p.Calls[0])
		return
	}
	mem.acceptReply(e, &p.ToolCallReply)
	mem.setCurrent(p.Calls[0])
}

// takeQueued makes the next call of an earlier reply the current one.
func (mem *Memory) takeQueued(call events.Call) {
	mem.Control.Queued = mem.Control.Queued[1:]
	mem.Control.QueuedPass = true
	mem.setCurrent(call)
}

func (mem *Memory) foldParallelCalls(e *events.Event, p *events.LLMParallelToolCalls) {
	mem.acceptReply(e, &p.ToolCallReply)
	mem.setBatch(e, p.Calls)
}

// acceptReply takes a reply with accepted calls into the conversation.
func (mem *Memory) acceptReply(e *events.Event, p *events.ToolCallReply) {
	mem.pass(p.Usage)
	c := &mem.Control
	mem.ConfidenceScore, mem.RetryCount, c.LowPending = p.Confidence, 0, false
	c.Refused, c.Queued = p.Refused, p.Queued
	calls := p.Calls
	if len(p.Refused)+len(p.Queued) > 0 {
		calls = p.AllCalls()
	}
	ids := make([]string, len(calls))
	for i := range calls {
		mem.record(e, &calls[i], refusal(p.Refused, calls[i].ID))
		ids[i] = calls[i].ID
	}
	mem.addReply(e, p.MessageID, p.Content, ids)
	mem.keepReasoning(p.Reasoning)
}

// refusal is the result of a call that was refused, nil for one that was not.
func refusal(refused []events.Refusal, id string) *CallResult {
	for _, r := range refused {
		if r.ID == id {
			return &CallResult{Failed: &Failed{Error: r.Observation}}
		}
	}
	return nil
}

func (mem *Memory) addReply(e *events.Event, messageID, content string, ids []string) {
	if content != "" {
		mem.addMessage(e, messageID, "assistant", content)
	}
	mem.addTurn(Turn{Kind: TurnReply, Content: content, Calls: ids})
	if r := mem.ReactContext; r != nil && !mem.SpeaksText() {
		r.ToolCallIDs = append(r.ToolCallIDs, ids...)
	}
}

func (mem *Memory) record(e *events.Event, call *events.Call, result *CallResult) {
	mem.Control.CallOrder = append(mem.Control.CallOrder, call.ID)
	mem.ToolCalls[call.ID] = &ToolCallRecord{
		Name: call.Name, Parameters: call.Arguments, Timestamp: e.Time, Result: result, ProviderID: call.ProviderID,
	}
}

// callState is a call at its beginning, with what its tool was pinned as.
func (mem *Memory) callState(call events.Call) CallState {
	tool := mem.Tools[call.Name]
	if tool.Pool == "" {
		tool.Pool = events.DefaultPool
	}
	return CallState{Call: call, Pool: tool.Pool, Effect: tool.Effect}
}

func (mem *Memory) setCurrent(call events.Call) {
	mem.CurrentToolCall = &ToolCall{ID: call.ID, Name: call.Name, Arguments: call.Arguments}
	mem.Control.Calls = []CallState{mem.callState(call)}
	mem.Control.Batch = false
}

func (mem *Memory) setBatch(e *events.Event, calls []events.Call) {
	c := &mem.Control
	c.Calls, c.Batch, c.DispatchAfter = make([]CallState, len(calls)), true, e.N
	mem.PendingToolCalls = make([]ToolCall, len(calls))
	mem.ParallelResults = []ToolResult{}
	for i, call := range calls {
		c.Calls[i] = mem.callState(call)
		mem.PendingToolCalls[i] = ToolCall{ID: call.ID, Name: call.Name, Arguments: call.Arguments}
	}
}

func (mem *Memory) foldAnswer(e *events.Event, messageID string, p *events.Reply) {
	mem.pass(p.Usage)
	content := p.Content
	mem.FinalAnswer = &content
	mem.addMessage(e, messageID, "assistant", p.Content)
	mem.addTurn(Turn{Kind: TurnReply, Content: p.Content})
	mem.ReactContext = nil
	mem.forgetInternal(nil)
	mem.dropReasoning()
}

func (mem *Memory) foldThought(p *events.LLMThought) {
	mem.pass(p.Usage)
	mem.enterText(p.NextState)
	limit := mem.Config.ThinkingLogEntries
	if limit == 0 {
		return
	}
	mem.Control.Thoughts++
	name := "thinking_log_" + pad3(mem.Control.Thoughts)
	log := append(mem.ThinkingLog, Thought{Name: name, Content: p.Content})
	if len(log) > limit {
		log = append([]Thought(nil), log[len(log)-limit:]...)
	}
	mem.ThinkingLog = log
}

// pad3 writes a number with at least three digits.
func pad3(n int) string {
	s := strconv.Itoa(n)
	for len(s) < 3 {
		s = "0" + s
	}
	return s
}

func (mem *Memory) foldLowConfidence(p *events.LowConfidence) {
	mem.pass(p.Usage)
	mem.ConfidenceScore = p.Confidence
	mem.RetryCount++
	mem.Control.LowPending = true
}

func (mem *Memory) foldTooShort(p *events.AnswerTooShort) {
	mem.pass(p.Usage)
	mem.addTurn(Turn{Kind: TurnReply, Content: p.Content, Aside: true})
	mem.addTurn(Turn{Kind: TurnNote, Content: TooShortNote(mem.Config.MinAnswerLength)})
}

// TooShortNote is what the model is told about an answer that is too short.
func TooShortNote(least int) string {
	return "ERROR: the answer is too short: give at least " + strconv.Itoa(least) + " characters."
}

// foldRefusedReply keeps a reply that could not be acted on, each call with its
// answer, so that the model can do better.
func (mem *Memory) foldRefusedReply(e *events.Event, p *events.RefusedReply) {
	mem.pass(p.Usage)
	ids := make([]string, 0, len(p.Calls))
	for i := range p.Calls {
		call := &p.Calls[i]
		mem.record(e, call, &CallResult{Failed: &Failed{Error: answerFor(p.Results, call.ID)}})
		ids = append(ids, call.ID)
	}
	mem.addReply(e, "", p.Content, ids)
	mem.keepReasoning(p.Reasoning)
	for _, r := range p.Results {
		if r.ID == "" {
			mem.addTurn(Turn{Kind: TurnNote, Content: r.Observation})
		}
	}
}

func answerFor(results []events.Answer, id string) string {
	for _, r := range results {
		if r.ID == id {
			return r.Observation
		}
	}
	return "ERROR: the call was refused"
}
