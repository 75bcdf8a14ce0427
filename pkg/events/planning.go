package events

import (
	"fmt"

	"github.com/moorebus/moorebus/internal/codes"
)

// The outcomes of asking a model.
const (
	TypeLLMToolCall          Type = "LlmToolCall"
	TypeLLMParallelToolCalls Type = "LlmParallelToolCalls"
	TypeLLMFinalAnswer       Type = "LlmFinalAnswer"
	TypeLLMMessageComplete   Type = "LlmMessageComplete"
	TypeLLMThought           Type = "LlmThought"
	TypeLowConfidence        Type = "LowConfidence"
	TypeAnswerTooShort       Type = "AnswerTooShort"
	TypeToolBlacklisted      Type = "ToolBlacklisted"
	TypeReplyInvalid         Type = "ReplyInvalid"
	TypeLLMAttemptFailed     Type = "LlmAttemptFailed"
)

var planningRows = []row{
	define("The model asks for one tool call.", func(p *LLMToolCall) string { return p.summary() }),
	define("The model asks for several tool calls at once.", func(p *LLMParallelToolCalls) string { return p.summary() }),
	define("The model answers, which ends a task.", func(p *LLMFinalAnswer) string { return p.Content }),
	define("The model answers, which ends a turn of a conversation.", func(p *LLMMessageComplete) string { return p.Content }),
	define("The reply has only thoughts.", func(p *LLMThought) string { return p.summary() }),
	define("The model doubts its own reply, so the run reflects first.", func(p *LowConfidence) string { return fmt.Sprintf("confidence %.2f", p.Confidence) }),
	define("The answer is shorter than the agent allows, so the model is asked again.", func(p *AnswerTooShort) string { return p.Content }),
	define("Every call of the reply is for a tool that the agent forbids.", func(p *ToolBlacklisted) string { return p.summary() }),
	define("The reply has nothing to act on.", func(p *ReplyInvalid) string { return p.summary() }),
	define("An attempt failed and is counted, or an interrupted reply is kept.", func(p *LLMAttemptFailed) string { return p.Kind + ": " + p.Message }),
}

// Reply is what every event made from a model's reply has in common.
type Reply struct {
	Content string `json:"content"`
	Model   string `json:"model"`
	Usage   Usage  `json:"usage"`
	Facts
	Chunks Chunks `json:"chunks,omitempty"`
}

// LLMToolCall is a reply that asks for one call, or the next call of an earlier
// reply whose calls go out one after another.
type LLMToolCall struct{ ToolCallReply }

func (*LLMToolCall) eventType() Type { return TypeLLMToolCall }

// LLMParallelToolCalls is a reply that asks for several calls at once.
type LLMParallelToolCalls struct{ ToolCallReply }

func (*LLMParallelToolCalls) eventType() Type { return TypeLLMParallelToolCalls }

// ToolCallReply is a reply with accepted calls, and the refused ones.
type ToolCallReply struct {
	Content string `json:"content"`
	// MessageID names the reply on the live feed, and its text where there is any.
	MessageID string    `json:"message_id,omitempty"`
	Calls     []Call    `json:"calls"`
	Refused   []Refusal `json:"refused,omitempty"`
	// Queued are the further calls of the reply when they go out one after
	// another.
	Queued     []Call  `json:"queued,omitempty"`
	Confidence float64 `json:"confidence"`
	Model      string  `json:"model"`
	Usage      Usage   `json:"usage"`
	Facts
	Chunks Chunks `json:"chunks,omitempty"`
}

// LLMFinalAnswer ends a run in task mode. Incomplete says that the answer was truncated and
// that the agent accepts that.
type LLMFinalAnswer struct {
	MessageID string `json:"message_id"`
	Reply
	Incomplete bool `json:"incomplete,omitempty"`
}

func (*LLMFinalAnswer) eventType() Type { return TypeLLMFinalAnswer }

// LLMMessageComplete ends a turn in chat mode.
type LLMMessageComplete struct {
	MessageID string `json:"message_id"`
	Reply
	Incomplete bool `json:"incomplete,omitempty"`
}

func (*LLMMessageComplete) eventType() Type { return TypeLLMMessageComplete }

// LLMThought is a thinking pass: text for the thinking log, and no action.
type LLMThought struct {
	MessageID string `json:"message_id,omitempty"`
	Reply
	// NextState is thinking or executing; Note says why it is not what the model
	// wrote, where it is not.
	NextState string `json:"next_state,omitempty"`
	Note      string `json:"note,omitempty"`
}

func (*LLMThought) eventType() Type { return TypeLLMThought }

// LowConfidence is a reply that the model itself doubts.
type LowConfidence struct {
	MessageID  string  `json:"message_id,omitempty"`
	Confidence float64 `json:"confidence"`
	Model      string  `json:"model,omitempty"`
	Usage      Usage   `json:"usage"`
	Facts
}

func (*LowConfidence) eventType() Type { return TypeLowConfidence }

// AnswerTooShort is a final answer below the minimum length.
type AnswerTooShort struct {
	MessageID string `json:"message_id,omitempty"`
	Content   string `json:"content"`
	Model     string `json:"model,omitempty"`
	Usage     Usage  `json:"usage"`
	Facts
	Chunks Chunks `json:"chunks,omitempty"`
}

func (*AnswerTooShort) eventType() Type { return TypeAnswerTooShort }

// RefusedReply is a reply all of whose calls were refused, or that was no valid
// reply at all. Results answers each call; the one of a reply without calls has
// an empty id.
type RefusedReply struct {
	MessageID string   `json:"message_id,omitempty"`
	Content   string   `json:"content"`
	Calls     []Call   `json:"calls"`
	Results   []Answer `json:"results"`
	Model     string   `json:"model,omitempty"`
	Usage     Usage    `json:"usage"`
	Facts
	Chunks Chunks `json:"chunks,omitempty"`
}

// ToolBlacklisted is a reply all of whose calls are blacklisted.
type ToolBlacklisted struct{ RefusedReply }

func (*ToolBlacklisted) eventType() Type { return TypeToolBlacklisted }

// ReplyInvalid is a reply that cannot be acted on.
type ReplyInvalid struct{ RefusedReply }

func (*ReplyInvalid) eventType() Type { return TypeReplyInvalid }

// LLMAttemptFailed is a failed attempt at any effect: a provider's failure has
// the provider's kind. Key is the effect's.
type LLMAttemptFailed struct {
	Kind         string `json:"kind"`
	Message      string `json:"message"`
	Key          string `json:"key,omitempty"`
	RetryAfterMS int64  `json:"retry_after_ms,omitempty"`
	// NotAsked says that no request was made: the provider was known to refuse it, or
	// another planner has it.
	NotAsked bool `json:"not_asked,omitempty"`
	// Next says that the agent's next model is asked from here on.
	Next  bool   `json:"next,omitempty"`
	Usage *Usage `json:"usage,omitempty"`
	// Facts are those of a reply that came and is not used; without a reply only who was
	// asked.
	Facts
	// Under is the event whose message the attempt was made under, and Delivery
	// which delivery of it that was, from 1: an attempt that was lost shows as a
	// delivery that is missing here.
	Under    uint64 `json:"under,omitempty"`
	Delivery int    `json:"delivery,omitempty"`
	// MessageID names a reply that came. Content is that of an interrupted one, as far as
	// it was streamed. Before is the id of the message that comes after it in the
	// conversation; empty: none does.
	MessageID string `json:"message_id,omitempty"`
	Content   string `json:"content,omitempty"`
	Before    string `json:"before,omitempty"`
}

func (*LLMAttemptFailed) eventType() Type { return TypeLLMAttemptFailed }

// FromProvider reports whether a provider was asked and failed.
func (p *LLMAttemptFailed) FromProvider() bool {
	return p.Kind != codes.KindHandler && p.Kind != codes.KindWorkerLost && p.Kind != codes.KindObsolete && !p.NotAsked && !p.Interrupted()
}

// Interrupted reports whether the event keeps what the user read of a reply that
// something from outside made obsolete. It counts as no attempt and as no reply.
func (p *LLMAttemptFailed) Interrupted() bool {
	return p.Kind == codes.KindInterrupted && p.Content != ""
}
