package reducer

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/moorebus/moorebus/internal/codec"
	"github.com/moorebus/moorebus/pkg/events"
)

// Memory is everything that is known of a run: what SPEC section 3 names, and under Control
// what the runtime needs. It is a projection of the log and can be rebuilt at any time.
type Memory struct {
	RunID        string       `json:"run_id"`
	State        events.State `json:"state"`
	N            uint64       `json:"n"`
	Task         string       `json:"task"`
	TaskType     string       `json:"task_type"`
	SystemPrompt string       `json:"system_prompt"`
	Mode         events.Mode  `json:"mode"`

	Step            int            `json:"step"`
	RetryCount      int            `json:"retry_count"`
	ConfidenceScore float64        `json:"confidence_score"`
	TotalUsage      TotalUsage     `json:"total_usage"`
	Budget          *events.Budget `json:"budget"`

	CurrentToolCall  *ToolCall        `json:"current_tool_call"`
	PendingToolCalls []ToolCall       `json:"pending_tool_calls"`
	ParallelResults  []ToolResult     `json:"parallel_results"`
	LastObservation  *string          `json:"last_observation"`
	PendingApproval  *PendingApproval `json:"pending_approval"`

	History     []HistoryEntry `json:"history"`
	FinalAnswer *string        `json:"final_answer"`
	Error       *RunError      `json:"error"`

	Messages     []Message                  `json:"messages"`
	Tools        map[string]ToolInfo        `json:"tools"`
	ToolCalls    map[string]*ToolCallRecord `json:"tool_calls"`
	ReactContext *ReactContext              `json:"react_context"`

	WorkingMemory []MemoryEntry `json:"working_memory"`
	ThinkingLog   []Thought     `json:"thinking_log"`

	Config    events.Config `json:"config"`
	Blacklist []string      `json:"blacklist"`
	Trace     Trace         `json:"trace"`

	// Custom holds what an application's own folds remember, by its own keys.
	Custom map[string]json.RawMessage `json:"custom,omitempty"`

	Started time.Time `json:"started"`
	Updated time.Time `json:"updated"`
	Control Control   `json:"control"`

	// base is what was adopted, until the first event is folded.
	base *base
	// messageIDs are the ids of Messages, nil until somebody asks.
	messageIDs map[string]struct{}

	// settings is [Memory.Settings], nil until somebody asks.
	settings json.RawMessage

	// derived belongs to [Messages] and [Memory.Results].
	derived derived
}

// TotalUsage sums the usage of every reply. Cost is in US dollars.
type TotalUsage struct {
	Input  int     `json:"input"`
	Output int     `json:"output"`
	Cached int     `json:"cached"`
	Total  int     `json:"total"`
	Cost   float64 `json:"cost"`
}

// ToolCall is a call as memory shows it.
type ToolCall struct {
	ID        string `json:"id"`
	Name      string `json:"name"`
	Arguments string `json:"arguments"`
}

// ToolResult is the result of one call of several.
type ToolResult struct {
	ToolCall
	Success     bool   `json:"success"`
	Observation string `json:"observation"`
	Code        string `json:"code"`
	LatencyMS   int64  `json:"latency_ms"`
}

// HistoryEntry is a committed tool call.
type HistoryEntry struct {
	Step        int      `json:"step"`
	Tool        ToolCall `json:"tool"`
	Observation string   `json:"observation"`
	Success     bool     `json:"success"`
	Code        string   `json:"code"`
}

// summaryTool is the tool name of the one history entry that a reflection
// leaves.
const summaryTool = "[SUMMARY]"

// PendingApproval is what waits for a human, and what was decided so far.
type PendingApproval struct {
	Requests  []events.Request  `json:"requests"`
	Decisions []events.Decision `json:"decisions"`
	Deadline  string            `json:"deadline,omitempty"`
}

// RunError is why a run ended in Error.
type RunError struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

// Message is one message of the conversation: role user or assistant.
type Message struct {
	ID        string    `json:"id"`
	Role      string    `json:"role"`
	Content   string    `json:"content"`
	Timestamp time.Time `json:"timestamp"`
	// Parts are there where the message is more than text.
	Parts []events.Part `json:"parts,omitempty"`
	// Interrupted says that the reply was not complete when a request of a client made it
	// obsolete; its time is that of what comes after it.
	Interrupted bool `json:"interrupted,omitempty"`
}

// ToolInfo is what a run knows of a tool by name. Schema is JSON text.
type ToolInfo struct {
	Description string `json:"description"`
	Schema      string `json:"schema"`
	Effect      string `json:"effect"`
	Pool        string `json:"pool"`
	Risk        string `json:"risk"`
	Asks        bool   `json:"asks,omitempty"`
	// Client is true for a tool of the run's own client, Timeout how long its calls wait.
	Client  bool            `json:"client,omitempty"`
	Timeout events.Duration `json:"timeout,omitempty"`
	// Approval is the policy of the tool's file, which applies in addition to the agent's.
	Approval *events.Approval `json:"approval,omitempty"`
}

// ToolCallRecord is a call with its result, nil while there is none.
type ToolCallRecord struct {
	Name       string      `json:"name"`
	Parameters string      `json:"parameters"`
	Timestamp  time.Time   `json:"timestamp"`
	Result     *CallResult `json:"result"`
	ProviderID string      `json:"provider_id,omitempty"`
	Ref        *events.Ref `json:"ref,omitempty"`
	// Attachments are the images and files that the tool returned.
	Attachments []events.Attachment `json:"attachments,omitempty"`
	// Run is the run that answered the call, if one did.
	Run string `json:"run,omitempty"`
	// Client is true for a call that the run's own client answers.
	Client bool `json:"client,omitempty"`
}

// CallResult is either a success or a failure.
type CallResult struct {
	Success *Success `json:"success,omitempty"`
	Failed  *Failed  `json:"failed,omitempty"`
}

// Success holds a tool's raw result.
type Success struct {
	Content string `json:"content"`
}

// Failed holds what the model sees of a failure, `ERROR: …` or
// `REJECTED: …`.
type Failed struct {
	Error string `json:"error"`
}

// Text returns what the model is sent for the result.
func (r *CallResult) Text() string {
	switch {
	case r == nil:
		return ""
	case r.Success != nil:
		return r.Success.Content
	case r.Failed != nil:
		return r.Failed.Error
	}
	return ""
}

// ReactContext is the current loop's context: how many messages the model sees
// (0: all) and which calls belong to it. Edits is what was shown in addition to the
// agent's window, as far as it still is.
type ReactContext struct {
	ContextWindowSize int       `json:"context_window_size"`
	ToolCallIDs       []string  `json:"tool_call_ids"`
	Edits             []Edit    `json:"edits,omitempty"`
	StartedAt         time.Time `json:"started_at"`
}

// MemoryEntry is an entry of working memory; N is the event that put it there, Step
// the run's step then. Loaded is true for one that came from storage, or under whose tags
// something was saved there since.
type MemoryEntry struct {
	Tags   []string `json:"tags"`
	Value  string   `json:"value"`
	N      uint64   `json:"n"`
	Step   int      `json:"step"`
	Loaded bool     `json:"loaded,omitempty"`
}

// Thought is an entry of the thinking log.
type Thought struct {
	Name    string `json:"name"`
	Content string `json:"content"`
}

// Control is the runtime's part of memory.
type Control struct {
	Agent     events.Agent `json:"agent"`
	AgentHash string       `json:"agent_hash"`
	// StorageAgent is the agent whose storage the run's memory goes to and comes
	// from: the one that the run began with, also after a hand-off.
	StorageAgent string         `json:"storage_agent"`
	TableHash    string         `json:"table_hash"`
	Parent       *events.Parent `json:"parent,omitempty"`
	// TraceParent is the W3C trace context in which the run was started; empty: none.
	TraceParent string `json:"traceparent,omitempty"`
	// ForkedFrom is where a fork continues from, nil for a run that was started.
	ForkedFrom *Origin `json:"forked_from,omitempty"`

	// Labels are those that the run began with; a fork has its parent's.
	Labels events.Labels `json:"labels,omitempty"`

	// Admission is how far a run is that began in the queue; nil: it did not.
	Admission *Admission `json:"admission,omitempty"`

	// Head is the hash of the last body, LastID the id of the last event that
	// could be read, LastResult the pool whose actor ends a batch that has all
	// its results.
	Head       string `json:"head"`
	LastID     string `json:"last_id"`
	LastResult string `json:"last_result,omitempty"`

	// Armed is the event that the current state's work answers; it is part of
	// that work's key.
	Armed uint64 `json:"armed"`
	// Wake holds, for each `<to>`, the last event that went there.
	Wake map[events.State]uint64 `json:"wake"`
	// Observed is the event by which the run left Observing the last time, 0 if it
	// has not: a fork by its own events.
	Observed uint64 `json:"observed,omitempty"`
	// DispatchAfter is the event since which a call has to be dispatched.
	DispatchAfter uint64 `json:"dispatch_after,omitempty"`
	// Calls are the calls of the current reply, Refused those of them that
	// were answered at once, Queued those that go out on later passes.
	Calls   []CallState      `json:"calls,omitempty"`
	Refused []events.Refusal `json:"refused,omitempty"`
	Queued  []events.Call    `json:"queued,omitempty"`
	// Batch is true while Calls is answered by several events. Last is the
	// result of a single call until it is committed.
	Batch bool        `json:"batch,omitempty"`
	Last  *ToolResult `json:"last,omitempty"`

	Attempts []Attempt `json:"attempts,omitempty"`
	Turns    []Turn    `json:"turns"`
	// Asked is the place in Turns of the user's last message.
	Asked int `json:"asked,omitempty"`
	// Opened is the place in [Memory.Messages] of the message that opened the turn.
	Opened int `json:"opened,omitempty"`
	// NextTurn are the edits of the context that were made while the run waits for its
	// user, as far as they are to show.
	NextTurn *Edit `json:"next_turn,omitempty"`
	// CallOrder lists the run's calls as they were made, Moorebus' own among them.
	CallOrder []string `json:"call_order,omitempty"`
	// Internal are the calls of Moorebus' own tools in the current loop, in order.
	Internal []InternalCall `json:"internal,omitempty"`
	Replies  int            `json:"replies"`
	// SinceUser counts since the last user message (or Start).
	SinceUser  Counts `json:"since_user"`
	QueuedPass bool   `json:"queued_pass,omitempty"`
	LowPending bool   `json:"low_pending,omitempty"`
	// Compacted is what was done so far so that the request which is due fits the model.
	Compacted Compaction `json:"compacted,omitempty"`
	Thoughts  int        `json:"thoughts,omitempty"`
	// Paused says that no new work starts. PauseReason is why, as far as somebody said so.
	Paused      bool   `json:"paused,omitempty"`
	PauseReason string `json:"pause_reason,omitempty"`
	// Restored says that a restore paused the run, and nobody else has since.
	Restored bool `json:"restored,omitempty"`
	// Incomplete says that the final answer was truncated, and the agent takes it all the same.
	Incomplete bool `json:"incomplete,omitempty"`
	// Redriven is true if the last Resumed was a re-drive of a stalled run.
	Redriven bool `json:"redriven,omitempty"`
	// TextState is how a model that speaks the text protocol is asked next, empty
	// for the others: thinking, executing, or what a foreign writer put there.
	TextState string `json:"text_state,omitempty"`
	// Stored is true once something that the model is shown is in the object store.
	Stored bool `json:"stored,omitempty"`
	// Poison describes the first record that was not legal.
	Poison *events.Poison `json:"poison,omitempty"`
}

// Admission is what became of a run that began in the queue. It never changes; memory gets
// another one.
type Admission struct {
	// Queued is true until the run is admitted, at the time At.
	Queued   bool            `json:"queued,omitempty"`
	Priority events.Priority `json:"priority,omitempty"`
	At       time.Time       `json:"at,omitzero"`
}

// Counts are the counts that a user's message starts again in chat mode.
type Counts struct {
	Steps   int `json:"steps"`
	Changes int `json:"changes"`
	// Invalid counts the last replies in a row that were of no use, under the text
	// protocol.
	Invalid int `json:"invalid,omitempty"`
	// Empty counts the last replies in a row that held nothing.
	Empty int `json:"empty,omitempty"`
}

// CallState is where a call of the current reply stands. The numbers are
// events of the run, 0 for none.
type CallState struct {
	events.Call
	Pool       string `json:"pool"`
	Effect     string `json:"effect"`
	Wake       uint64 `json:"wake,omitempty"`
	Dispatched uint64 `json:"dispatched,omitempty"`
	Started    uint64 `json:"started,omitempty"`
	Answered   bool   `json:"answered,omitempty"`
	// HandedOff says that the run has gone over to the agent that the call names.
	HandedOff bool `json:"handed_off,omitempty"`
	// Client says that the run's own client answers the call. Deadline is until when it may,
	// as [events.TimeFormat]; empty: the call has not gone out.
	Client   bool   `json:"client,omitempty"`
	Deadline string `json:"deadline,omitempty"`
}

// Running reports whether a delivery started the call and is responsible for it
// until it has its result.
func (c *CallState) Running() bool { return c.Started > 0 && c.Wake > 0 && !c.Delegated() }

// MaxWorkersLost is how many workers in a row an effect may lose before it is given up.
const MaxWorkersLost = 10

// Attempt counts the failed attempts of one effect. RateLimited are a provider's
// refusals that pass with time, NotAsked the attempts that waited for that without
// a request, Provider its other failures: each has its own bound.
type Attempt struct {
	Key         string `json:"key"`
	Handler     int    `json:"handler,omitempty"`
	Lost        int    `json:"worker_lost,omitempty"`
	RateLimited int    `json:"rate_limited,omitempty"`
	NotAsked    int    `json:"not_asked,omitempty"`
	Provider    int    `json:"provider,omitempty"`
	// Broken are those of Provider that were replies without an ending.
	Broken int `json:"broken,omitempty"`
	// TooLong are those of Provider that were requests which were too long.
	TooLong int `json:"too_long,omitempty"`
	// Network are those of Provider that found no network, or no answer in time.
	Network int `json:"network,omitempty"`
	// Other are those of Provider whose kind has no separate count. The rest of Provider are
	// overloads.
	Other int `json:"other,omitempty"`
	// Passed is how many of the agent's models were given up for this effect. The counts of
	// refusals and failures above are those of the model that is asked now, Before is the
	// sum of the others'.
	Passed int `json:"passed,omitempty"`
	Before int `json:"before,omitempty"`
	// Last is what the handler's last failure says, cut.
	Last string `json:"last,omitempty"`
	// Under and Delivery are those of the last failure.
	Under    uint64 `json:"under,omitempty"`
	Delivery int    `json:"delivery,omitempty"`
}

// Total returns the number of all failures.
func (a Attempt) Total() int {
	return a.Handler + a.Lost + a.RateLimited + a.NotAsked + a.Provider + a.Before
}

// The kinds of a turn.
const (
	turnUser    = "user"
	turnReply   = "reply"
	turnNote    = "note"
	turnSummary = "summary"
	turnPaged   = "paged"
)

// Turn is one step of the conversation as the model sees it. A reply's results
// stand in ToolCalls.
type Turn struct {
	Kind    string `json:"kind"`
	Content string `json:"content"`
	// Parts are there where the user's message is more than text.
	Parts []events.Part `json:"parts,omitempty"`
	Calls []string      `json:"calls,omitempty"`
	// Reasoning is what the model reasoned before the reply.
	Reasoning events.Reasoning `json:"reasoning,omitempty"`
	// ReasoningRef points to it where it is too large for the log.
	ReasoningRef *events.Ref `json:"reasoning_ref,omitempty"`
	// Asked is who was asked for the reply, nil in logs of older builds.
	Asked *events.Asked `json:"asked,omitempty"`
	// Raw is true for a reply of the text protocol that could not be read.
	Raw bool `json:"raw,omitempty"`
	// Aside marks text that is none of the conversation's messages: the window
	// does not count it.
	Aside bool `json:"aside,omitempty"`
	// Interrupted marks a reply that was not complete.
	Interrupted bool `json:"interrupted,omitempty"`
	// Part marks a reply whose further calls are in the events that follow: they
	// join it.
	Part bool `json:"part,omitempty"`
}

// TraceEntry is one line of the trace.
type TraceEntry struct {
	Step      int       `json:"step"`
	State     string    `json:"state"`
	Event     string    `json:"event"`
	Data      string    `json:"data"`
	Timestamp time.Time `json:"timestamp"`
}

// Clone returns a copy that shares nothing that changes.
func (m *Memory) Clone() *Memory {
	data, err := codec.Append(nil, m)
	if err != nil {
		panic("memory does not marshal: " + err.Error())
	}
	c := new(Memory)
	if err := codec.Unmarshal(data, c); err != nil {
		panic("memory does not unmarshal: " + err.Error())
	}
	if b := m.base; b != nil {
		c.base = &base{refused: b.refused}
		if b.mem != nil {
			c.base.mem = b.mem.Clone()
		}
	}
	return c
}

// Note adds a text to the conversation as a message of the user, so that the model sees it.
// It is for an application's folds.
func (m *Memory) Note(text string) { m.addTurn(Turn{Kind: turnNote, Content: text}) }

// Keep stores a value under a key of [Memory.Custom] and replaces what was there. It is for
// an application's folds. It panics on a value that has no JSON, which poisons the run.
func (m *Memory) Keep(key string, value any) {
	data, err := json.Marshal(value)
	if err != nil {
		panic(fmt.Sprintf("custom memory %q: %v", key, err))
	}
	if m.Custom == nil {
		m.Custom = map[string]json.RawMessage{}
	}
	m.Custom[key] = data
}

// Kept decodes what [Memory.Keep] put under a key into value, a pointer. If there is nothing
// or it does not fit, Kept returns false and leaves value as it is.
func (m *Memory) Kept(key string, value any) bool {
	data, ok := m.Custom[key]
	return ok && json.Unmarshal(data, value) == nil
}

// Settings returns the agent's `llm` block as JSON where it holds a script, for
// providers that read more of it than others need; nil where it does not. It is the
// same until the run has another definition, and must not be changed.
func (mem *Memory) Settings() json.RawMessage {
	l := &mem.Control.Agent.LLM
	if mem.settings == nil && len(l.Script) > 0 {
		// It came out of JSON, so it goes back in.
		mem.settings, _ = json.Marshal(l)
	}
	return mem.settings
}
