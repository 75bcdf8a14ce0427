package events

import "encoding/json"

// Payload is an event's data. The set is closed: the types of this file and
// [Custom]. Payloads are always used as pointers and are not changed once they
// stand in an [Event]. Their text must be valid UTF-8: the log replaces what is
// not, so the writer's memory would differ from every reader's.
type Payload interface {
	// Type returns the event type that the payload belongs to.
	Type() Type
	isPayload()
}

// Call is one tool call as the log names it. ID is unique in the run;
// ProviderID is the provider's own id where that had to be renamed. Arguments
// is the model's text, verbatim.
type Call struct {
	ID         string `json:"id"`
	Name       string `json:"name"`
	Arguments  string `json:"arguments"`
	ProviderID string `json:"provider_id,omitempty"`
}

// Refusal is a call that was answered without being run.
type Refusal struct {
	Call
	Observation string `json:"observation"`
	Code        string `json:"code"`
	// Place is the call's place in the model's reply, counted from 1; 0 where
	// nobody counted: after all that were not refused.
	Place int `json:"place,omitempty"`
}

// Answer is the observation that a refused call got, by the call's id.
type Answer struct {
	ID          string `json:"id"`
	Observation string `json:"observation"`
	Code        string `json:"code"`
}

// Usage counts the tokens of one reply. Total is Input plus Output, Cached a
// part of Input.
type Usage struct {
	Input   int      `json:"input"`
	Output  int      `json:"output"`
	Cached  int      `json:"cached"`
	Total   int      `json:"total"`
	CostUSD *float64 `json:"cost_usd,omitempty"`
}

// Ref points to a result that was too large for the log.
type Ref struct {
	Bucket string `json:"bucket"`
	Key    string `json:"key"`
	Size   int    `json:"size"`
	SHA256 string `json:"sha256"`
}

// Parent names the call of another run that this run answers.
type Parent struct {
	Run    string `json:"run"`
	CallID string `json:"call_id"`
	// Depth counts the runs above this one: 1 where the parent has none.
	Depth int `json:"depth,omitempty"`
}

// Answers reports whether the run of p answers that call of that run; a run
// without a parent answers none.
func (p *Parent) Answers(run, callID string) bool {
	return p != nil && p.Run == run && p.CallID == callID
}

// Start opens a run. It pins all that a replay needs.
type Start struct {
	Agent     Agent      `json:"agent"`
	AgentHash string     `json:"agent_hash"`
	Task      string     `json:"task"`
	Mode      Mode       `json:"mode"`
	TaskType  string     `json:"task_type"`
	Tools     []ToolSpec `json:"tools"`
	TableHash string     `json:"table_hash"`
	Parent    *Parent    `json:"parent,omitempty"`
}

// Forked opens a run that begins as another one did, up to its event At, whose
// body has the Hash. Patch is what was asked to be different; what it came to is
// pinned beside it, as Start pins it, so that a replay need not apply it. A field
// that is empty is as the parent had it.
type Forked struct {
	Run   string          `json:"run"`
	At    uint64          `json:"at"`
	Hash  string          `json:"hash"`
	Patch json.RawMessage `json:"patch,omitempty"`

	Task     string `json:"task,omitempty"`
	TaskType string `json:"task_type,omitempty"`
	Mode     Mode   `json:"mode,omitempty"`
	// Agent, AgentHash and Tools are there together or not at all.
	Agent     *Agent     `json:"agent,omitempty"`
	AgentHash string     `json:"agent_hash,omitempty"`
	Tools     []ToolSpec `json:"tools,omitempty"`
}

// Reply is what every event made from a model's reply has in common.
type Reply struct {
	Content string `json:"content"`
	Model   string `json:"model"`
	Usage   Usage  `json:"usage"`
	Chunks  Chunks `json:"chunks,omitempty"`
}

// LLMToolCall is a reply that asks for one call, or the next call of an earlier
// reply whose calls go out one after another.
type LLMToolCall struct{ ToolCallReply }

// LLMParallelToolCalls is a reply that asks for several calls at once.
type LLMParallelToolCalls struct{ ToolCallReply }

// ToolCallReply is a reply with accepted calls, and the refused ones beside.
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
	// Reasoning is what the provider wants back with this reply; opaque.
	Reasoning json.RawMessage `json:"reasoning,omitempty"`
	Chunks    Chunks          `json:"chunks,omitempty"`
}

// LLMFinalAnswer ends a run in task mode.
type LLMFinalAnswer struct {
	MessageID string `json:"message_id"`
	Reply
}

// LLMMessageComplete ends a turn in chat mode.
type LLMMessageComplete struct {
	MessageID string `json:"message_id"`
	Reply
}

// LLMThought is a thinking pass: text for the thinking log, and no action.
type LLMThought struct {
	Reply
	// NextState is thinking or executing; Note says why it is not what the model
	// wrote, where it is not.
	NextState string `json:"next_state,omitempty"`
	Note      string `json:"note,omitempty"`
}

// Outcome is why a run ended, machine-readable code first.
type Outcome struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

// MaxSteps ends a run that used up its planning calls.
type MaxSteps struct{ Outcome }

// BudgetExceeded ends a run that used up its budget.
type BudgetExceeded struct{ Outcome }

// FatalError ends a run that nobody can continue. Poison names the stored
// message that could not be read, where that is the reason; Usage what was billed
// for a reply that ended the run.
type FatalError struct {
	Outcome
	Poison
	Usage *Usage `json:"usage,omitempty"`
}

// Poison describes a stored message that is not a legal event of its run.
type Poison struct {
	Type   string `json:"type,omitempty"`
	N      uint64 `json:"n,omitempty"`
	Reason string `json:"reason,omitempty"`
}

// By says who acted from outside, and why.
type By struct {
	Reason string `json:"reason,omitempty"`
	By     string `json:"by,omitempty"`
}

// CancelledRun ends a run from outside (event type Cancelled; [Cancelled] is
// the state).
type CancelledRun struct{ By }

// Closed ends a conversation that waits for its user.
type Closed struct{ By }

// Paused keeps new work from starting.
type Paused struct{ By }

// Resumed lets work start again, and drives the current state once more.
type Resumed struct {
	By
	// Redrive marks the one by which a gateway drives work that stands still: the run
	// ends if nothing comes of it. Whoever asks for a Resumed cannot set it.
	Redrive bool `json:"redrive,omitempty"`
}

// BudgetRaised replaces the limits that it names.
type BudgetRaised struct {
	Budget Budget `json:"budget"`
	By
}

// LowConfidence is a reply that the model itself doubts.
type LowConfidence struct {
	Confidence float64 `json:"confidence"`
	Model      string  `json:"model,omitempty"`
	Usage      Usage   `json:"usage"`
}

// AnswerTooShort is a final answer below the minimum length.
type AnswerTooShort struct {
	Content string `json:"content"`
	Model   string `json:"model,omitempty"`
	Usage   Usage  `json:"usage"`
	Chunks  Chunks `json:"chunks,omitempty"`
}

// RefusedReply is a reply all of whose calls were refused, or that was no valid
// reply at all. Results answers each call; the one of a reply without calls has
// an empty id.
type RefusedReply struct {
	Content string   `json:"content"`
	Calls   []Call   `json:"calls"`
	Results []Answer `json:"results"`
	Model   string   `json:"model,omitempty"`
	Usage   Usage    `json:"usage"`
	// Reasoning is what the provider wants back with this reply; opaque.
	Reasoning json.RawMessage `json:"reasoning,omitempty"`
	Chunks    Chunks          `json:"chunks,omitempty"`
}

// ToolBlacklisted is a reply all of whose calls are blacklisted.
type ToolBlacklisted struct{ RefusedReply }

// ReplyInvalid is a reply that cannot be acted on.
type ReplyInvalid struct{ RefusedReply }

// The kinds of LLMAttemptFailed that mean something to the fold.
const (
	// KindRateLimited is a provider that refuses for a time.
	KindRateLimited = "rate_limited"
	// KindHandler is a handler that failed or panicked.
	KindHandler = "handler"
	// KindWorkerLost is a worker that went away in the middle.
	KindWorkerLost = "worker_lost"
	// KindInterrupted is no failure: see [LLMAttemptFailed.Interrupted].
	KindInterrupted = "interrupted"
)

// LLMAttemptFailed is a failed attempt at any effect: a provider's failure has
// the provider's kind. Key is the effect's.
type LLMAttemptFailed struct {
	Kind         string `json:"kind"`
	Message      string `json:"message"`
	Key          string `json:"key,omitempty"`
	RetryAfterMS int64  `json:"retry_after_ms,omitempty"`
	// NotAsked says that no request was made: the provider was known to refuse it, or
	// another planner has it.
	NotAsked bool   `json:"not_asked,omitempty"`
	Usage    *Usage `json:"usage,omitempty"`
	// Under is the event whose message the attempt was made under, and Delivery
	// which delivery of it that was, from 1: an attempt that was lost shows as a
	// delivery that is missing here.
	Under    uint64 `json:"under,omitempty"`
	Delivery int    `json:"delivery,omitempty"`
	// MessageID and Content are those of an interrupted reply, as far as it was
	// streamed. Before is the id of the message that comes after it in the
	// conversation; empty: none does.
	MessageID string `json:"message_id,omitempty"`
	Content   string `json:"content,omitempty"`
	Before    string `json:"before,omitempty"`
}

// FromProvider reports whether a provider was asked and failed.
func (p *LLMAttemptFailed) FromProvider() bool {
	return p.Kind != KindHandler && p.Kind != KindWorkerLost && !p.NotAsked && !p.Interrupted()
}

// Interrupted reports whether the event keeps what the user read of a reply that
// something from outside made obsolete. It counts as no attempt and as no reply.
func (p *LLMAttemptFailed) Interrupted() bool { return p.Kind == KindInterrupted && p.Content != "" }

// ToolCallDispatched sends one call of several to its tool's pool.
type ToolCallDispatched struct {
	CallID string `json:"call_id"`
}

// ToolCallStarted stands in the log before a call that must not run twice.
type ToolCallStarted struct {
	CallID string `json:"call_id"`
}

// ToolOutcome is how one call went.
type ToolOutcome struct {
	CallID      string `json:"call_id"`
	Success     bool   `json:"success"`
	Observation string `json:"observation"`
	Code        string `json:"code"`
	LatencyMS   int64  `json:"latency_ms"`
	Ref         *Ref   `json:"ref,omitempty"`
	// Attachments are what the tool returned beside text, such as images; the
	// observation says where each of them is kept.
	Attachments []Ref `json:"attachments,omitempty"`
	// Run is the run that answered the call, if one did, Usage what that used with
	// all the runs below it.
	Run   string `json:"run,omitempty"`
	Usage *Usage `json:"usage,omitempty"`
}

// ToolCallResult is the result of one call of several.
type ToolCallResult struct{ ToolOutcome }

// ToolSuccess ends a single call that went well (Outcome is set) or a batch of
// which at least one call did (Outcome is nil).
type ToolSuccess struct{ Outcome *ToolOutcome }

// ToolFailure ends a single call that failed (Outcome is set) or a batch of
// which every call did (Outcome is nil, or holds nothing but the code no_actor
// where no actor was left to end the batch).
type ToolFailure struct{ Outcome *ToolOutcome }

// Request is one call that waits for a human.
type Request struct {
	CallID    string `json:"call_id"`
	Tool      string `json:"tool"`
	Arguments string `json:"arguments"`
	Risk      string `json:"risk"`
	Reason    string `json:"reason"`
	// Asks is true where Reason is a question, and the decision has to be
	// modified, with the answer in its arguments.
	Asks bool `json:"asks,omitempty"`
}

// HumanApprovalRequired hands a reply's calls to a human. Deadline is RFC 3339.
type HumanApprovalRequired struct {
	ToolCallReply
	Requests []Request `json:"requests"`
	Deadline string    `json:"deadline,omitempty"`
}

// The decisions on a call.
const (
	DecisionApproved = "approved"
	DecisionRejected = "rejected"
	DecisionModified = "modified"
)

// Decision is what a named human said about one call.
type Decision struct {
	CallID    string `json:"call_id,omitempty"`
	Decision  string `json:"decision,omitempty"`
	Arguments string `json:"arguments,omitempty"`
	Reason    string `json:"reason,omitempty"`
	By        string `json:"by,omitempty"`
}

// HumanDecision is the decision on one call of several.
type HumanDecision struct{ Decision }

// HumanApproved lets a single call run as it is.
type HumanApproved struct{ Decision }

// HumanModified lets a single call run with other arguments.
type HumanModified struct{ Decision }

// HumanRejected refuses a single call, or (empty) a whole batch.
type HumanRejected struct{ Decision }

// HumanApprovedParallel lets the accepted calls of a batch run.
type HumanApprovedParallel struct{}

// ApprovalExpired rejects every call that waits.
type ApprovalExpired struct{}

// Continue commits the results and goes back to planning.
type Continue struct{}

// NeedsReflection commits the results and compresses the history first.
type NeedsReflection struct{}

// NeedsPaging commits the results and shrinks working memory first.
type NeedsPaging struct{}

// ReflectDone ends a reflection. An empty Summary keeps the history; Failed
// then says why.
type ReflectDone struct {
	Summary string `json:"summary,omitempty"`
	Failed  string `json:"failed,omitempty"`
	Model   string `json:"model,omitempty"`
	Usage   *Usage `json:"usage,omitempty"`
}

// Entry is a piece of working memory or storage under a sorted set of tags.
type Entry struct {
	Tags  []string `json:"tags"`
	Value string   `json:"value"`
}

// PageDone ends paging: Paged went to storage, Dropped had to go regardless of
// its priority to get below the hard limit.
type PageDone struct {
	Paged   []Entry `json:"paged,omitempty"`
	Dropped []Entry `json:"dropped,omitempty"`
}

// UserMessage is what the user said. A message whose id is known is ignored.
type UserMessage struct {
	MessageID string `json:"message_id"`
	Content   string `json:"content"`
}

// ContextWindowExpanded widens what the model sees by a number of messages.
type ContextWindowExpanded struct {
	Increment int `json:"increment"`
	// NextTurn says that the run waited for its user, so that the edit is for the
	// turn that begins next.
	NextTurn bool `json:"next_turn,omitempty"`
	// ContextReply is nil where the edit came from outside.
	*ContextReply
}

// ToolCallsAddedToContext shows the model earlier calls again.
type ToolCallsAddedToContext struct {
	CallIDs []string `json:"call_ids"`
	// NextTurn is that of [ContextWindowExpanded].
	NextTurn bool `json:"next_turn,omitempty"`
	// ContextReply is nil where the edit came from outside.
	*ContextReply
}

// WorkingMemoryAdded puts an entry into working memory, replacing one with the
// same tags.
type WorkingMemoryAdded struct{ Entry }

// WorkingMemoryRemoved removes the entry with exactly these tags.
type WorkingMemoryRemoved struct {
	Tags []string `json:"tags"`
}

// StorageSaved says that an entry was written to storage.
type StorageSaved struct{ Entry }

// StorageLoaded says what was found in storage under Tags; it is copied into
// working memory.
type StorageLoaded struct {
	Tags    []string `json:"tags"`
	Entries []Entry  `json:"entries"`
}

// Custom is an event of an application's own, by its registered name.
type Custom struct {
	Name Type
	Data json.RawMessage
}
