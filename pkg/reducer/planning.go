package reducer

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/moorebus/moorebus/internal/codes"
	"github.com/moorebus/moorebus/pkg/events"
)

var planningRules = []rule{
	{
		typ: events.TypeLLMToolCall, adds: true, moves: []move{{events.Planning, events.Acting}}, from: own,
		ways: only(tools(events.Acting)),
		route: func(mem *Memory, p events.Payload) (events.State, string) {
			return events.Acting, mem.toolPool(p.(*events.LLMToolCall).Calls[0].Name)
		},
		check: checkToolCall, legality: 1, fold: foldToolCall,
		steps: func(mem *Memory, p events.Payload) int {
			if mem.isQueuedPass(p.(*events.LLMToolCall).Calls) {
				return 0
			}
			return 1
		},
		trace: traced(func(p *events.LLMToolCall) string { return traceCalls(p.Calls) }),
	},
	{
		typ: events.TypeLLMParallelToolCalls, adds: true, moves: []move{{events.Planning, events.ParallelActing}}, from: own,
		ways: only(tools(events.ParallelActing), nobody), route: batchRoute,
		check: checkParallelCalls, legality: 1, steps: oneStep, fold: foldParallelCalls,
		trace: traced(func(p *events.LLMParallelToolCalls) string { return traceCalls(p.Calls) }),
	},
	{
		typ: events.TypeLLMFinalAnswer, moves: []move{{events.Planning, events.Done}}, from: own,
		check: always, legality: 1, steps: oneStep,
		fold: func(mem *Memory, e *events.Event) {
			p := e.Data.(*events.LLMFinalAnswer)
			mem.foldAnswer(e, p.MessageID, &p.Reply, p.Incomplete)
		},
		trace: traced(func(p *events.LLMFinalAnswer) string { return p.Content }),
	},
	{
		typ: events.TypeLLMMessageComplete, moves: []move{{events.Planning, events.WaitingForUser}}, from: own,
		check: always, legality: 1, steps: oneStep,
		fold: func(mem *Memory, e *events.Event) {
			p := e.Data.(*events.LLMMessageComplete)
			mem.foldAnswer(e, p.MessageID, &p.Reply, p.Incomplete)
		},
		trace: traced(func(p *events.LLMMessageComplete) string { return p.Content }),
	},
	{
		typ: events.TypeLLMThought, moves: []move{{events.Planning, events.Planning}}, from: own,
		check: always, legality: 1, steps: oneStep, fold: foldThought,
		trace: traced(func(t *events.LLMThought) string { return strings.TrimSpace(t.Content + " " + t.Note) }),
	},
	{
		typ: events.TypeLowConfidence, moves: []move{{events.Planning, events.Reflecting}}, from: own,
		check: always, legality: 1, steps: oneStep, fold: foldLowConfidence,
		trace: traced(func(p *events.LowConfidence) string { return fmt.Sprintf("confidence %.2f", p.Confidence) }),
	},
	{
		typ: events.TypeAnswerTooShort, moves: []move{{events.Planning, events.Planning}}, from: own,
		check: always, legality: 1, steps: oneStep, fold: foldTooShort,
		trace: traced(func(p *events.AnswerTooShort) string { return p.Content }),
	},
	{
		typ: events.TypeToolBlacklisted, moves: []move{{events.Planning, events.Planning}}, from: own, legality: 1,
		check: func(mem *Memory, e *events.Event) error {
			return mem.checkNewCalls(e.Data.(*events.ToolBlacklisted).Calls)
		},
		steps: oneStep,
		fold: func(mem *Memory, e *events.Event) {
			mem.foldRefusedReply(e, &e.Data.(*events.ToolBlacklisted).RefusedReply)
		},
		trace: traced(func(p *events.ToolBlacklisted) string { return traceAnswers(p.Results) }),
	},
	{
		typ: events.TypeReplyInvalid, moves: []move{{events.Planning, events.Planning}}, from: own, legality: 1,
		check: func(mem *Memory, e *events.Event) error {
			return mem.checkNewCalls(e.Data.(*events.ReplyInvalid).Calls)
		},
		steps: oneStep,
		fold: func(mem *Memory, e *events.Event) {
			mem.foldInvalidReply(e, &e.Data.(*events.ReplyInvalid).RefusedReply)
		},
		trace: traced(func(p *events.ReplyInvalid) string { return traceAnswers(p.Results) }),
	},
	{
		typ: events.TypeLLMAttemptFailed, stays: true, from: own | planning,
		fromNow: func(mem *Memory, p events.Payload) origin {
			if p.(*events.LLMAttemptFailed).Interrupted() {
				return planning // wherever the run has gone since
			}
			return mem.workers()
		},
		check: checkAttemptFailed, legality: 2, fold: foldAttemptFailed,
		form: func(mem *Memory, e *events.Event) int {
			if mem.State != events.Planning && e.Data.(*events.LLMAttemptFailed).Interrupted() {
				return 3 // not every build of revision 2 can read it
			}
			return 1
		},
		trace: traced(func(f *events.LLMAttemptFailed) string { return f.Kind + ": " + f.Message }),
	},
}

// pass counts a planning call: the step is Planning's, and every reply of a
// model is one.
func (mem *Memory) pass(u events.Usage) {
	mem.Step++
	c := &mem.Control
	c.SinceUser.Steps++
	c.Replies++
	c.QueuedPass, c.Compacted = false, ""
	c.SinceUser.Empty = 0
	mem.passText()
	mem.endEdits()
	mem.addUsage(u)
}

func checkToolCall(mem *Memory, e *events.Event) error {
	p := e.Data.(*events.LLMToolCall)
	if len(p.Calls) != 1 {
		return fmt.Errorf("has %d calls, want 1", len(p.Calls))
	}
	if mem.isQueuedPass(p.Calls) {
		return nil
	}
	return mem.checkNewCalls(p.Calls, p.Queued, refusedCalls(p.Refused))
}

func checkParallelCalls(mem *Memory, e *events.Event) error {
	p := e.Data.(*events.LLMParallelToolCalls)
	if len(p.Calls) < 2 {
		return fmt.Errorf("has %d calls, want at least 2", len(p.Calls))
	}
	return mem.checkNewCalls(p.Calls, refusedCalls(p.Refused))
}

func refusedCalls(refused []events.Refusal) []events.Call {
	if len(refused) == 0 {
		return nil
	}
	calls := make([]events.Call, len(refused))
	for i, r := range refused {
		calls[i] = r.Call
	}
	return calls
}

// checkNewCalls refuses ids that the run has seen.
func (mem *Memory) checkNewCalls(groups ...[]events.Call) error {
	var room [8]string
	seen := room[:0]
	for _, calls := range groups {
		for _, call := range calls {
			if call.ID == "" || mem.internal(call.ID) != nil || mem.ToolCalls[call.ID] != nil || slices.Contains(seen, call.ID) {
				return fmt.Errorf("call id %q is empty or not new in the run", call.ID)
			}
			seen = append(seen, call.ID)
		}
	}
	return nil
}

// isQueuedPass reports whether the calls are the next one of an earlier reply,
// as it was asked for.
func (mem *Memory) isQueuedPass(calls []events.Call) bool {
	q := mem.Control.Queued
	return len(q) > 0 && len(calls) == 1 && calls[0] == q[0]
}

func foldToolCall(mem *Memory, e *events.Event) {
	p := e.Data.(*events.LLMToolCall)
	if mem.isQueuedPass(p.Calls) {
		mem.nextQueued(p.Calls[0])
		return
	}
	mem.acceptReply(e, &p.ToolCallReply)
	mem.setCurrent(p.Calls[0])
}

// nextQueued makes the next call of an earlier reply the current one.
func (mem *Memory) nextQueued(call events.Call) {
	mem.Control.Queued = mem.Control.Queued[1:]
	mem.Control.QueuedPass = true
	mem.setCurrent(call)
}

func foldParallelCalls(mem *Memory, e *events.Event) {
	p := e.Data.(*events.LLMParallelToolCalls)
	mem.acceptReply(e, &p.ToolCallReply)
	mem.setBatch(e, p.Calls)
}

// acceptReply adds a reply with accepted calls to the conversation.
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
	mem.keepReasoning(&p.Facts)
}

// refusal is the result of a call that was refused, nil for any other call.
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
	mem.addTurn(Turn{Kind: turnReply, Content: content, Calls: ids})
	if r := mem.ReactContext; r != nil && !mem.speaksText() {
		r.ToolCallIDs = append(r.ToolCallIDs, ids...)
	}
}

func (mem *Memory) record(e *events.Event, call *events.Call, result *CallResult) {
	mem.Control.CallOrder = append(mem.Control.CallOrder, call.ID)
	mem.ToolCalls[call.ID] = &ToolCallRecord{
		Name: call.Name, Parameters: call.Arguments, Timestamp: e.Time, Result: result, ProviderID: call.ProviderID,
		Client: result == nil && mem.Tools[call.Name].Client,
	}
}

func (mem *Memory) callState(call events.Call) CallState {
	tool := mem.Tools[call.Name]
	if tool.Pool == "" {
		tool.Pool = events.DefaultPool
	}
	return CallState{Call: call, Pool: tool.Pool, Effect: tool.Effect, Client: tool.Client}
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

func (mem *Memory) foldAnswer(e *events.Event, messageID string, p *events.Reply, incomplete bool) {
	mem.pass(p.Usage)
	content := p.Content
	mem.FinalAnswer, mem.Control.Incomplete = &content, incomplete
	mem.addMessage(e, messageID, "assistant", p.Content)
	mem.addTurn(Turn{Kind: turnReply, Content: p.Content})
	mem.keepReasoning(&p.Facts)
	mem.ReactContext = nil
	mem.forgetInternal(nil)
	mem.dropReasoning()
}

func foldThought(mem *Memory, e *events.Event) {
	p := e.Data.(*events.LLMThought)
	mem.pass(p.Usage)
	mem.enterText(p.NextState)
	limit := mem.Config.ThinkingLogEntries
	if limit == 0 {
		return
	}
	mem.Control.Thoughts++
	log := append(mem.ThinkingLog, Thought{Name: fmt.Sprintf("thinking_log_%03d", mem.Control.Thoughts), Content: p.Content})
	if len(log) > limit {
		log = append([]Thought(nil), log[len(log)-limit:]...)
	}
	mem.ThinkingLog = log
}

func foldLowConfidence(mem *Memory, e *events.Event) {
	p := e.Data.(*events.LowConfidence)
	mem.pass(p.Usage)
	mem.ConfidenceScore = p.Confidence
	mem.RetryCount++
	mem.Control.LowPending = true
}

func foldTooShort(mem *Memory, e *events.Event) {
	p := e.Data.(*events.AnswerTooShort)
	mem.pass(p.Usage)
	mem.addTurn(Turn{Kind: turnReply, Content: p.Content, Aside: true})
	mem.addTurn(Turn{
		Kind: turnNote, Content: "ERROR: the answer is too short: give at least " + strconv.Itoa(mem.Config.MinAnswerLength) + " characters.",
	})
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
	mem.addReply(e, p.MessageID, p.Content, ids)
	mem.keepReasoning(&p.Facts)
	for _, r := range p.Results {
		if r.ID == "" {
			mem.addTurn(Turn{Kind: turnNote, Content: r.Observation})
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

func checkAttemptFailed(_ *Memory, e *events.Event) error {
	if p := e.Data.(*events.LLMAttemptFailed); p.Interrupted() && p.MessageID == "" {
		return errNoMessageID
	}
	return nil
}

func foldAttemptFailed(mem *Memory, e *events.Event) {
	p, c := e.Data.(*events.LLMAttemptFailed), &mem.Control
	if p.Usage != nil {
		mem.addUsage(*p.Usage)
	}
	if p.Interrupted() {
		mem.keepInterrupted(e, p)
		return
	}
	if p.Kind == codes.KindObsolete {
		return
	}
	at := slices.IndexFunc(c.Attempts, func(a Attempt) bool { return a.Key == p.Key })
	if at < 0 {
		at = len(c.Attempts)
		c.Attempts = append(c.Attempts, Attempt{Key: p.Key})
	}
	c.Attempts[at].count(p)
	// A reflection's failure is no reply, and who was not asked gave none.
	if e.From == events.Planning && p.FromProvider() {
		c.Replies++
	}
}

func (a *Attempt) count(p *events.LLMAttemptFailed) {
	switch {
	case p.Kind == codes.KindHandler:
		a.Handler++
		a.Last = cut(p.Message, 4*traceTextLimit)
	case p.Kind == codes.KindWorkerLost:
		a.Lost++
	case p.NotAsked:
		a.NotAsked++
	case p.Kind == codes.KindRateLimited:
		a.RateLimited++
	default:
		a.Provider++
		switch p.Kind {
		case codes.KindBrokenReply:
			a.Broken++
		case codes.KindContextTooLong:
			a.TooLong++
		case codes.KindNetwork:
			a.Network++
		case codes.KindOverloaded:
		default:
			a.Other++
		}
	}
	if p.Next {
		a.Passed++
		a.Before += a.RateLimited + a.NotAsked + a.Provider
		a.RateLimited, a.NotAsked, a.Provider, a.Broken, a.TooLong, a.Network, a.Other = 0, 0, 0, 0, 0, 0, 0
	}
	a.Under, a.Delivery = p.Under, p.Delivery
}

// foldByRevision is what an attempt changes in runs of younger revisions only.
func (t *Table) foldByRevision(mem *Memory, p *events.LLMAttemptFailed) {
	if t.revisions[mem.Control.TableHash] >= lossesInARow {
		mem.outlive(p)
	}
	if t.revisionOf(mem) >= compactsRequests && mem.State == events.Planning && p.Kind == codes.KindContextTooLong &&
		mem.Control.Compacted == "" && mem.narrowWindow(firstShare) {
		mem.Control.Compacted = CompactedWindow
	}
}

// outlive forgets the workers that were lost before one came back from the work to report
// a failure: the work does not kill its worker. What was given up stays so.
func (mem *Memory) outlive(p *events.LLMAttemptFailed) {
	for i := range mem.Control.Attempts {
		a := &mem.Control.Attempts[i]
		if a.Key == p.Key && p.Kind != codes.KindWorkerLost && a.Lost <= MaxWorkersLost {
			a.Lost = 0
		}
	}
}

func (mem *Memory) addUsage(u events.Usage) {
	t := &mem.TotalUsage
	t.Input += u.Input
	t.Output += u.Output
	t.Cached += u.Cached
	t.Total += u.Total
	if u.CostUSD != nil {
		t.Cost = min(t.Cost+*u.CostUSD, math.MaxFloat64) // infinity has no JSON
	}
}

// interruptedNote follows an interrupted reply in what the model sees.
const interruptedNote = "[moorebus: your reply above was interrupted before it was complete; the user has read what stands there]"

// keepInterrupted takes what the user read of an interrupted reply into the
// conversation, before the message that interrupted it. The run may have gone on
// since then: nothing else changes, and no work becomes obsolete.
func (mem *Memory) keepInterrupted(e *events.Event, p *events.LLMAttemptFailed) {
	if mem.Knows(p.MessageID) {
		return
	}
	at, said := len(mem.Messages), e.Time
	if i := mem.messageAt(p.Before); i >= 0 {
		at, said = i, mem.Messages[i].Timestamp
	}
	turn := mem.turnBefore(len(mem.Messages) - at)
	// New slices: others may still read the old ones.
	mem.Messages = slices.Insert(slices.Clone(mem.Messages), at, Message{
		ID: p.MessageID, Role: "assistant", Content: p.Content, Timestamp: said, Interrupted: true,
	})
	mem.messageIDs[p.MessageID] = struct{}{}
	c := &mem.Control
	c.Turns = slices.Insert(slices.Clone(c.Turns), turn, Turn{Kind: turnReply, Content: p.Content, Interrupted: true})
	if c.Asked >= turn {
		c.Asked++
	}
	if c.Opened >= at && c.Opened > 0 {
		c.Opened++
	}
}

func (mem *Memory) messageAt(id string) int {
	for i := range slices.Backward(mem.Messages) {
		if mem.Messages[i].ID == id {
			return i
		}
	}
	return -1
}

// turnBefore is the place in Turns before the turns of that many last messages.
func (mem *Memory) turnBefore(messages int) int {
	turns := mem.Control.Turns
	for i := len(turns); i > 0 && messages > 0; i-- {
		// What could not be read is no message of the conversation.
		if t := &turns[i-1]; t.Kind != turnUser && (t.Raw || !t.message()) {
			continue
		}
		if messages--; messages == 0 {
			return i - 1
		}
	}
	return len(turns)
}

// keepReasoning keeps what the model reasoned with the reply that was just taken into the
// conversation, and who was asked for it.
func (mem *Memory) keepReasoning(f *events.Facts) {
	if len(f.Reasoning) == 0 && f.ReasoningRef == nil {
		return
	}
	turns := mem.Control.Turns
	for i := len(turns) - 1; i >= 0; i-- {
		if turns[i].Kind == turnReply {
			turns[i].Reasoning, turns[i].ReasoningRef, turns[i].Asked = f.Reasoning, f.ReasoningRef, f.Asked
			return
		}
	}
}

// dropReasoning forgets the reasoning of a turn that is answered, as builds did that did not
// record who was asked. What those recorded nobody wants back after the turn.
func (mem *Memory) dropReasoning() {
	turns := mem.Control.Turns
	for i := len(turns) - 1; i >= 0 && turns[i].Kind != turnUser; i-- {
		if turns[i].Asked == nil {
			turns[i].Reasoning = nil
		}
	}
}
