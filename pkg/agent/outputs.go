package agent

import (
	"context"
	"log/slog"
	"runtime/debug"
	"sync"

	"github.com/moorebus/moorebus/internal/output"
)

// maxBehind is how many outputs may wait for a callback before tokens are dropped.
const maxBehind = 4096

// outputs passes outputs to a callback in a goroutine of its own.
type outputs struct {
	fn     func(Output)
	logger *slog.Logger
	wake   chan struct{}
	// quit makes the goroutine end at once.
	quit    chan struct{}
	endOnce sync.Once

	mu    sync.Mutex
	queue []Output
	// busy says that the callback is running. empty is closed and replaced when the
	// callback has seen all outputs.
	busy  bool
	empty chan struct{}
}

func newOutputs(fn func(Output), logger *slog.Logger) *outputs {
	o := &outputs{fn: fn, logger: logger, wake: make(chan struct{}, 1), quit: make(chan struct{}), empty: make(chan struct{})}
	go o.run()
	return o
}

// push adds an output and never blocks. Outputs of the log are never dropped.
func (o *outputs) push(out Output) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.queue) >= maxBehind {
		switch out.(type) {
		case LLMToken, ReasoningToken, ToolCallDelta:
			return
		}
	}
	o.queue = append(o.queue, out)
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

func (o *outputs) run() {
	defer o.stop() // the callback may end its goroutine
	muted := false
	for {
		select {
		case <-o.wake:
		case <-o.quit:
			return
		}
		for {
			batch := o.next()
			if len(batch) == 0 {
				break
			}
			for _, out := range batch {
				select {
				case <-o.quit:
					return
				default:
				}
				muted = muted || o.call(out)
			}
		}
	}
}

// next empties the queue. If it was empty, next closes o.empty.
func (o *outputs) next() []Output {
	o.mu.Lock()
	defer o.mu.Unlock()
	batch := o.queue
	o.queue, o.busy = nil, len(batch) > 0
	if !o.busy {
		close(o.empty)
		o.empty = make(chan struct{})
	}
	return batch
}

// call calls the callback and reports whether it panicked.
func (o *outputs) call(out Output) (panicked bool) {
	defer func() {
		if p := recover(); p != nil {
			o.logger.Error("the output callback panicked; the run's further outputs are dropped", "panic", p, "stack", string(debug.Stack()))
			panicked = true
		}
	}()
	o.fn(out)
	return false
}

// wait waits until the callback has seen all outputs that were pushed before pushed was
// closed. The error is the context's.
func (o *outputs) wait(ctx context.Context, pushed <-chan struct{}) error {
	select {
	case <-pushed:
	case <-ctx.Done():
		return ctx.Err()
	}
	for {
		o.mu.Lock()
		done, empty := len(o.queue) == 0 && !o.busy, o.empty
		o.mu.Unlock()
		if done {
			return nil
		}
		select {
		case <-empty:
		case <-o.quit:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// end stops the calls after the present one.
func (o *outputs) stop() { o.endOnce.Do(func() { close(o.quit) }) }

// Output is something that a run did: a value of one of the types below. Most outputs come
// from the log, in its order, each once, and again in a replay. [LLMToken],
// [ReasoningToken] and [ToolCallDelta] come from the live feed and may be missing.
type Output = output.Output

// The outputs. See the fields of each.
type (
	// StateStarted says that event N led the run to State.
	StateStarted = output.StateStarted
	// Action is the Event that led the run out of State, with its trace entry as Data.
	Action = output.Action
	// ToolCallStarted says that the call CallID of the tool Name started with Arguments,
	// after its approval if it needed one.
	ToolCallStarted = output.ToolCallStarted
	// ToolCallFinished is the outcome of a call: Success, Observation, Code, LatencyMS.
	ToolCallFinished = output.ToolCallFinished
	// FinalAnswer is the answer (Content) of a run, or of a turn of a conversation.
	FinalAnswer = output.FinalAnswer
	// RunError says why a run ended without an answer: Code and Message.
	RunError = output.Error
	// LLMToken is a piece (Text) of the model's message, at byte Offset. A smaller offset
	// than expected says that the message started over.
	LLMToken = output.LLMToken
	// ReasoningToken is a piece (Text) of what the model reasons, at byte Offset.
	ReasoningToken = output.ReasoningToken
	// Reasoned is what the model reasoned before the reply of event N.
	Reasoned = output.Reasoned
	// ToolCallDelta is a piece (Text) of the arguments of the reply's call at Index.
	ToolCallDelta = output.ToolCallDelta
)
