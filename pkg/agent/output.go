package agent

import "github.com/moorebus/moorebus/internal/output"

// Output is something that a run does, to be shown: one of the types below, nothing
// else. Most outputs come from the log, in its order and each once, today and in a
// replay. [LLMToken] and [ToolCallDelta] come from the live feed: they may be missing.
type Output = output.Output

// The outputs. See the fields of each.
type (
	// StateStarted says that event N led the run to State.
	StateStarted = output.StateStarted
	// Action is the Event that took the run on from State, with what the trace says of
	// it as Data.
	Action = output.Action
	// ToolCallStarted says that the call CallID of the tool Name went to it with
	// Arguments, after its approval where that was needed.
	ToolCallStarted = output.ToolCallStarted
	// ToolCallFinished is what became of a call: Success, Observation, Code, LatencyMS.
	ToolCallFinished = output.ToolCallFinished
	// FinalAnswer is the answer (Content) of a run that ended well, or of a turn of a
	// conversation.
	FinalAnswer = output.FinalAnswer
	// RunError is why a run ended otherwise: Code and Message.
	RunError = output.Error
	// LLMToken is a piece (Text) of what the model says, from byte Offset of its message
	// on. A smaller offset than expected says that the message began anew.
	LLMToken = output.LLMToken
	// ToolCallDelta is a piece (Text) of the arguments of the call at Index of a reply.
	ToolCallDelta = output.ToolCallDelta
)
