package agent

import (
	"context"
	"iter"

	"github.com/moorebus/moorebus/internal/livetext"
	"github.com/moorebus/moorebus/internal/runstream"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// Events yields the events of the run from its first one on, as they come, and those of its
// sub-runs. Event.Run says whose event it is. The events of one run are in order. The
// iteration ends after the last event of the run and its sub-runs. An error, such as the end
// of ctx, is the last value. Records that are no legal events are omitted.
//
// A slow reader delays nothing: the events are read from the log.
func (r *Run) Events(ctx context.Context) iter.Seq2[*events.Event, error] {
	return follow(ctx, r, func(f *follower[*events.Event], _ events.Run) (teller, func(), error) {
		return func(_ *reducer.Memory, e *events.Event) { f.push(e) }, func() {}, nil
	})
}

// RunOutput is an output of the run with the id Run: the one that is watched, or a sub-run.
type RunOutput struct {
	Run string
	Output
}

// Outputs yields what the run and its sub-runs do, from the beginning on, as [Run.Events]
// does. The live text of the models comes as it is written. A reader that falls far behind
// misses live text and nothing else.
func (r *Run) Outputs(ctx context.Context) iter.Seq2[RunOutput, error] {
	return follow(ctx, r, func(f *follower[RunOutput], at events.Run) (teller, func(), error) {
		stream := runstream.NewStream(r.service.machine.Table(), func(o Output) {
			switch o.(type) {
			case LLMToken, ReasoningToken, ToolCallDelta:
				f.offer(RunOutput{at.ID, o})
			default:
				f.push(RunOutput{at.ID, o})
			}
		})
		stop, err := livetext.Listen(r.service.bus, at, stream.Chunk)
		return stream.Event, stop, err
	})
}

// Output is something that a run did: a value of one of the types below. Most outputs come
// from the log, in its order, each once, and again in a replay. [LLMToken],
// [ReasoningToken] and [ToolCallDelta] come from the live feed and may be missing.
type Output = runstream.Output

// The outputs. See the fields of each.
type (
	// StateStarted says that event N led the run to State.
	StateStarted = runstream.StateStarted
	// Action is the Event that led the run out of State, with its trace entry as Data.
	Action = runstream.Action
	// ToolCallStarted says that the call CallID of the tool Name started with Arguments,
	// after its approval if it needed one.
	ToolCallStarted = runstream.ToolCallStarted
	// ToolCallFinished is the outcome of a call: Success, Observation, Code, LatencyMS.
	ToolCallFinished = runstream.ToolCallFinished
	// FinalAnswer is the answer (Content) of a run, or of a turn of a conversation.
	FinalAnswer = runstream.FinalAnswer
	// RunError says why a run ended without an answer: Code and Message.
	RunError = runstream.Error
	// LLMToken is a piece (Text) of the model's message, at byte Offset. A smaller offset
	// than expected says that the message started over.
	LLMToken = runstream.LLMToken
	// ReasoningToken is a piece (Text) of what the model reasons, at byte Offset.
	ReasoningToken = runstream.ReasoningToken
	// Reasoned is what the model reasoned before the reply of event N.
	Reasoned = runstream.Reasoned
	// ToolCallDelta is a piece (Text) of the arguments of the reply's call at Index.
	ToolCallDelta = runstream.ToolCallDelta
)
