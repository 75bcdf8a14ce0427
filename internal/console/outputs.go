package console

import (
	"fmt"
	"io"
	"sync"

	"github.com/moorebus/moorebus/internal/livetext"
	"github.com/moorebus/moorebus/internal/output"
	"github.com/moorebus/moorebus/pkg/events"
)

// OutputWriter returns a function that writes a run's outputs, one per line: as JSON, or as
// short text. After a failed write it writes nothing more; w knows the error, see
// [LossyWriter].
func OutputWriter(w io.Writer, run string, f Format, color bool) func(output.Output) {
	var failed error
	return func(o output.Output) {
		if failed != nil {
			return
		}
		line := OutputLine(o, color)
		if f == JSON {
			data, err := output.Marshal(run, o)
			if err != nil {
				return // cannot happen: outputs are made of decoded JSON
			}
			line = string(data)
		}
		_, failed = fmt.Fprintln(w, line)
	}
}

// LossyWriter passes writes on and keeps the first error, for callers that cannot return it.
// It is safe for concurrent use.
type LossyWriter struct {
	mu  sync.Mutex
	out io.Writer
	err error
}

// NewLossyWriter returns one that writes to out.
func NewLossyWriter(out io.Writer) *LossyWriter { return &LossyWriter{out: out} }

// Write writes data. After an error it returns the same error again.
func (w *LossyWriter) Write(data []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err != nil {
		return 0, w.err
	}
	n, err := w.out.Write(data)
	w.err = err
	return n, err
}

// Lost returns why output was lost, or nil.
func (w *LossyWriter) Lost() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err == nil {
		return nil
	}
	return fmt.Errorf("the output is not complete: %w", w.err)
}

// OutputLine shows an output on one line.
func OutputLine(o output.Output, color bool) string {
	p := palette{color}
	text := ""
	switch o := o.(type) {
	case output.StateStarted:
		text = p.state(o.State, string(o.State))
	case output.LLMToken:
		text = Cut(o.Text, dataWidth)
	case output.ToolCallDelta:
		text = fmt.Sprintf("%d %s %s", o.Index, Plain(o.Name), Cut(o.Text, dataWidth))
	case output.ToolCallStarted:
		text = fmt.Sprintf("%s %s(%s)", Plain(o.CallID), Plain(o.Name), Cut(o.Arguments, dataWidth))
	case output.ToolCallFinished:
		text = fmt.Sprintf("%s %s: %s", Plain(o.CallID), Plain(o.Name), Cut(o.Observation, dataWidth))
	case output.Action:
		text = fmt.Sprintf("%s %s", o.Event, Cut(o.Data, dataWidth))
	case output.FinalAnswer:
		text = Cut(o.Content, 4*dataWidth)
	case output.Error:
		text = p.red(fmt.Sprintf("%s: %s", Plain(o.Code), Cut(o.Message, dataWidth)))
	}
	return p.bold(pad(string(o.Kind()), len(output.KindToolCallFinished))) + "  " + text
}

// stream returns what writes a run's outputs, or nil if the tap shows events.
func (t *Tap) stream(run string) *output.Stream {
	if !t.Outputs {
		return nil
	}
	format := Text
	if t.JSON {
		format = JSON
	}
	return output.NewStream(t.Machine.Table(), OutputWriter(t.Out, run, format, t.Color))
}

// showChunks shows the run's live text beside its events, if outputs are shown.
func (r *runTap) showChunks(run events.Run) (stop func(), err error) {
	if r.stream == nil || r.Feed == nil {
		return func() {}, nil
	}
	return livetext.Listen(r.Feed, run, r.stream.Chunk)
}
