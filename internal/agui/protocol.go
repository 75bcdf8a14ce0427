// Package agui serves AG-UI 1.0, the protocol by which web clients talk to agents. A thread of
// a client is a chat run, and what AG-UI calls a run is a turn of it.
//
// [Translator] makes the protocol's events of a run's log and of the text that a model is
// writing. What it makes of the log depends on the log alone, so a turn can be streamed again,
// and joined at any event. [Face] has the requests.
package agui

import (
	"encoding/json"
)

// protocolVersion is what the server speaks.
const protocolVersion = "1.0"

// The types of the protocol's events.
const (
	runStarted       = "RUN_STARTED"
	runFinished      = "RUN_FINISHED"
	runError         = "RUN_ERROR"
	stepStarted      = "STEP_STARTED"
	stepFinished     = "STEP_FINISHED"
	textStart        = "TEXT_MESSAGE_START"
	textContent      = "TEXT_MESSAGE_CONTENT"
	textEnd          = "TEXT_MESSAGE_END"
	reasoningStart   = "REASONING_START"
	reasonStart      = "REASONING_MESSAGE_START"
	reasonContent    = "REASONING_MESSAGE_CONTENT"
	reasonEnd        = "REASONING_MESSAGE_END"
	reasoningEnd     = "REASONING_END"
	toolCallStart    = "TOOL_CALL_START"
	toolCallArgs     = "TOOL_CALL_ARGS"
	toolCallEnd      = "TOOL_CALL_END"
	toolCallResult   = "TOOL_CALL_RESULT"
	stateSnapshot    = "STATE_SNAPSHOT"
	stateDelta       = "STATE_DELTA"
	messagesSnapshot = "MESSAGES_SNAPSHOT"
	subagentStarted  = "SUBAGENT_STARTED"
	subagentFinished = "SUBAGENT_FINISHED"
	subagentError    = "SUBAGENT_ERROR"
)

// Event is an event of the protocol. Each type uses some of the fields.
type Event struct {
	// N is the number of the run's event that it comes from; 0: text that a model is writing.
	N    uint64 `json:"-"`
	Type string `json:"type"`
	// Timestamp is in milliseconds since 1970.
	Timestamp       int64  `json:"timestamp,omitempty"`
	ThreadID        string `json:"threadId,omitempty"`
	RunID           string `json:"runId,omitempty"`
	ProtocolVersion string `json:"protocolVersion,omitempty"`

	MessageID string  `json:"messageId,omitempty"`
	Role      string  `json:"role,omitempty"`
	Content   *string `json:"content,omitempty"`
	Delta     any     `json:"delta,omitempty"` // text, or a JSON Patch

	ToolCallID      string `json:"toolCallId,omitempty"`
	ToolCallName    string `json:"toolCallName,omitempty"`
	ParentMessageID string `json:"parentMessageId,omitempty"`

	StepName string          `json:"stepName,omitempty"`
	Snapshot json.RawMessage `json:"snapshot,omitempty"`
	Messages *[]Message      `json:"messages,omitempty"`

	SubagentRunID    string `json:"subagentRunId,omitempty"`
	Name             string `json:"name,omitempty"`
	ParentToolCallID string `json:"parentToolCallId,omitempty"`

	Outcome *Outcome `json:"outcome,omitempty"`
	Usage   []Usage  `json:"usage,omitempty"`
	Message string   `json:"message,omitempty"`
	Code    string   `json:"code,omitempty"`
}

// Outcome says how a turn, or a sub-agent's part of it, ended.
type Outcome struct {
	Type               string      `json:"type"`
	PendingToolCallIDs []string    `json:"pendingToolCallIds,omitempty"`
	Interrupts         []Interrupt `json:"interrupts,omitempty"`
}

// Interrupt is a call that waits for a human. Its id is the call's, and for a call of a sub-run
// SUBRUN/CALL. ToolCallID is the call of the thread's own run that waits.
type Interrupt struct {
	ID             string          `json:"id"`
	SubagentRunID  string          `json:"subagentRunId,omitempty"`
	Reason         string          `json:"reason"`
	Message        string          `json:"message,omitempty"`
	ToolCallID     string          `json:"toolCallId"`
	ResponseSchema json.RawMessage `json:"responseSchema,omitempty"`
	ExpiresAt      string          `json:"expiresAt,omitempty"`
	Metadata       map[string]any  `json:"metadata,omitempty"`
}

// Usage is what a turn used, in tokens.
type Usage struct {
	Input  int `json:"inputTokens"`
	Output int `json:"outputTokens"`
	Total  int `json:"totalTokens"`
	Cached int `json:"cachedInputTokens,omitempty"`
}

// Message is a message of the conversation. Raw, if not empty, is it as the client wrote it.
type Message struct {
	ID         string     `json:"id"`
	Role       string     `json:"role"`
	Content    any        `json:"content,omitempty"` // text, or parts of the user's message
	ToolCalls  []ToolCall `json:"toolCalls,omitempty"`
	ToolCallID string     `json:"toolCallId,omitempty"`

	Raw json.RawMessage `json:"-"`
}

// MarshalJSON writes what the client wrote, if it did.
func (m Message) MarshalJSON() ([]byte, error) {
	if len(m.Raw) > 0 {
		return m.Raw, nil
	}
	type plain Message
	if m.Content == nil && m.Role != roleAssistant {
		m.Content = ""
	}
	return json.Marshal(plain(m))
}

// The roles of messages.
const (
	roleUser      = "user"
	roleAssistant = "assistant"
	roleTool      = "tool"
	roleReasoning = "reasoning"
)

// ToolCall is a call that an assistant's message makes.
type ToolCall struct {
	ID       string       `json:"id"`
	Type     string       `json:"type"` // always function
	Function FunctionCall `json:"function"`
}

// FunctionCall is the name and the arguments of a call, which are JSON.
type FunctionCall struct {
	Name      string `json:"name"`
	Arguments string `json:"arguments"`
}
