package reducer

import (
	"bytes"
	"encoding/json"
	"math"

	"github.com/moorebus/moorebus/pkg/events"
)

// foldPayload changes memory by the event's payload. Every built-in type has
// its case; types that only move the run between states have an empty one.
func (m *Machine) foldPayload(mem *Memory, e *events.Event) {
	switch p := e.Data.(type) {
	case *events.Start:
		mem.foldStart(e, p)
	case *events.Forked:
		mem.foldForked(e, p)
	case *events.UserMessage:
		mem.foldUserMessage(e, p)
	case *events.LLMToolCall:
		mem.foldToolCall(e, p)
	case *events.LLMParallelToolCalls:
		mem.foldParallelCalls(e, p)
	case *events.LLMFinalAnswer:
		mem.foldAnswer(e, p.MessageID, &p.Reply)
	case *events.LLMMessageComplete:
		mem.foldAnswer(e, p.MessageID, &p.Reply)
	case *events.LLMThought:
		mem.foldThought(p)
	case *events.LowConfidence:
		mem.foldLowConfidence(p)
	case *events.AnswerTooShort:
		mem.foldTooShort(p)
	case *events.ToolBlacklisted:
		mem.foldRefusedReply(e, &p.RefusedReply)
	case *events.ReplyInvalid:
		mem.foldInvalidReply(e, &p.RefusedReply)
	case *events.HumanApprovalRequired:
		mem.foldApprovalRequired(e, p)
	case *events.LLMAttemptFailed:
		mem.foldAttemptFailed(e, p)
	case *events.MaxSteps:
		mem.fail(p.Outcome)
	case *events.BudgetExceeded:
		mem.fail(p.Outcome)
	case *events.FatalError:
		mem.fail(p.Outcome)
		if p.Usage != nil {
			mem.addUsage(*p.Usage)
		}
	case *events.CancelledRun, *events.Closed:
		mem.ReactContext = nil
	default:
		mem.foldActing(e)
		mem.foldHuman(e)
		mem.foldObserving(e)
		mem.foldContext(e)
	}
}

func (mem *Memory) fail(o events.Outcome) {
	mem.Error = &RunError{Code: o.Code, Message: o.Message}
	mem.ReactContext = nil
}

func (mem *Memory) foldStart(e *events.Event, p *events.Start) {
	mem.Task, mem.TaskType, mem.Mode = p.Task, p.TaskType, p.Mode
	if mem.TaskType == "" {
		mem.TaskType = "default"
	}
	mem.pin(p.Agent, p.AgentHash, p.Tools)
	mem.Control.StorageAgent = p.Agent.Name
	mem.Started = e.Time
	mem.Control.TableHash, mem.Control.Parent = p.TableHash, p.Parent
	mem.addMessage(e, e.ID, "user", p.Task)
	mem.addTurn(Turn{Kind: TurnUser, Content: p.Task})
	mem.openContext(e)
}

// pin makes the definition and the tools those of the run.
func (mem *Memory) pin(a events.Agent, hash string, tools []events.ToolSpec) {
	mem.SystemPrompt, mem.Config, mem.Budget = a.SystemPrompt, a.Config, a.Budget
	mem.Blacklist = append([]string{}, a.Blacklist...)
	mem.Tools = make(map[string]ToolInfo, len(tools))
	for _, t := range tools {
		mem.Tools[t.Name] = ToolInfo{
			Description: t.Description, Schema: schemaText(t.Schema), Effect: t.Effect, Pool: t.Pool, Risk: t.Risk, Asks: t.Asks,
		}
	}
	c := &mem.Control
	c.Agent, c.AgentHash = a, hash
	mem.settings = nil
	mem.beginText()
	// What memory shows under its own names need not stand here twice.
	c.Agent.SystemPrompt, c.Agent.Blacklist = "", nil
}

// schemaText is a schema as its event's body has it: without white space, and
// empty where there is none. What was drafted and what was read fold alike.
func schemaText(schema json.RawMessage) string {
	var b bytes.Buffer
	if json.Compact(&b, schema) != nil || b.String() == "null" {
		return ""
	}
	return b.String()
}

// openContext starts a new loop's context.
func (mem *Memory) openContext(e *events.Event) {
	mem.forgetInternal(nil)
	mem.ReactContext = &ReactContext{
		ContextWindowSize: mem.Config.ContextWindowSize, ToolCallIDs: []string{}, StartedAt: e.Time,
	}
}

func (mem *Memory) addMessage(e *events.Event, id, role, content string) {
	if id == "" {
		id = e.ID
	}
	mem.Messages = append(mem.Messages, Message{ID: id, Role: role, Content: content, Timestamp: e.Time})
	if mem.messageIDs != nil {
		mem.messageIDs[id] = struct{}{}
	}
}

func (mem *Memory) addTurn(t Turn) {
	c := &mem.Control
	if mem.joinParts(&t) {
		return
	}
	c.Turns = append(c.Turns, t)
	if t.Kind == TurnUser {
		c.Asked = len(c.Turns) - 1
	}
}

// Knows reports whether a message with this id is in the conversation.
func (mem *Memory) Knows(messageID string) bool {
	if mem.messageIDs == nil {
		mem.messageIDs = make(map[string]struct{}, len(mem.Messages))
		for i := range mem.Messages {
			mem.messageIDs[mem.Messages[i].ID] = struct{}{}
		}
	}
	_, known := mem.messageIDs[messageID]
	return known
}

func (mem *Memory) foldUserMessage(e *events.Event, p *events.UserMessage) {
	if e.From == events.WaitingForUser || mem.ReactContext == nil {
		mem.openContext(e)
		defer mem.applyNextTurn() // the message is one of those that the window may show
	}
	if mem.Knows(p.MessageID) {
		return
	}
	if e.From == events.WaitingForUser {
		mem.Control.Opened = len(mem.Messages)
	}
	mem.addMessage(e, p.MessageID, "user", p.Content)
	mem.addTurn(Turn{Kind: TurnUser, Content: p.Content})
	if mem.Mode == events.ModeChat {
		mem.Control.SinceUser = Counts{}
		mem.RetryCount = 0
		mem.FinalAnswer = nil
	}
}

func (mem *Memory) foldAttemptFailed(e *events.Event, p *events.LLMAttemptFailed) {
	c := &mem.Control
	if p.Usage != nil {
		mem.addUsage(*p.Usage)
	}
	if p.Interrupted() {
		mem.keepInterrupted(e, p)
		return
	}
	a := Attempt{Key: p.Key}
	at := -1
	for i := range c.Attempts {
		if c.Attempts[i].Key == p.Key {
			a, at = c.Attempts[i], i
		}
	}
	a.count(p)
	if p.Kind == events.KindHandler {
		a.Last = cut(p.Message, 4*traceTextLimit)
	}
	// A reflection's failure is no reply, and who was not asked gave none.
	if e.From == events.Planning && p.FromProvider() {
		c.Replies++
	}
	a.Under, a.Delivery = p.Under, p.Delivery
	if at < 0 {
		c.Attempts = append(c.Attempts, a)
	} else {
		c.Attempts[at] = a
	}
}

// count adds a failure.
func (a *Attempt) count(p *events.LLMAttemptFailed) {
	switch {
	case p.Kind == events.KindHandler:
		a.Handler++
	case p.Kind == events.KindWorkerLost:
		a.Lost++
	case p.NotAsked:
		a.NotAsked++
	case p.Kind == events.KindRateLimited:
		a.RateLimited++
	default:
		a.Provider++
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
