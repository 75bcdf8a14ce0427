package print

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"slices"
	"strings"
	"sync"

	"github.com/moorebus/moorebus/internal/livetext"
	"github.com/moorebus/moorebus/internal/logwalk"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/internal/runstream"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// Tap shows events as they are stored. It only reads.
type Tap struct {
	// Log is what is read, Machine reads it. Required.
	Log     journal.Log
	Machine *reducer.Machine
	// Out gets a line for each event. Required.
	Out io.Writer
	// Namespace is the namespace whose runs are shown.
	Namespace string
	// States selects events that lead to one of the states or wake its workers, Types
	// those of one of the types. Empty: all. A record that is not a legal event is shown
	// only if neither is set.
	States []events.State
	Types  []events.Type
	// JSON writes a [Line] for each event instead of text.
	JSON bool
	// Color colours text.
	Color bool
	// Reasoning shows all that the model reasoned instead of one line.
	Reasoning bool
	// Outputs shows the outputs of a run instead of its events, those of the live feed too
	// if Feed is set.
	Outputs bool
	Feed    journal.Feed
	// Stored stops at the end of the log.
	Stored bool
}

// oneStream is a log that has the records of all shards in one stream.
type oneStream interface {
	FollowAll(ctx context.Context, namespace string, from logwalk.Position) iter.Seq2[journal.Record, error]
}

// All shows the events of all runs after a position of the log until ctx ends. It always
// returns the position that it reached, with an error too.
func (t *Tap) All(ctx context.Context, from logwalk.Position) (logwalk.Position, error) {
	at := slices.Clone(from)
	if log, is := t.Log.(oneStream); is {
		for rec, err := range log.FollowAll(ctx, t.Namespace, from) {
			if err == nil {
				err = t.showRecord(rec)
			}
			if err != nil {
				return at, err
			}
			if s, err := events.ParseSubject(rec.Subject); err == nil && s.Run.Shard < len(at) {
				at[s.Run.Shard] = rec.Seq
			}
		}
		return at, ctx.Err()
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var mu sync.Mutex // guards at, failed and the writer
	var failed error  // the first error, which ends the readers of all shards
	var readers sync.WaitGroup
	for shard, after := range from {
		readers.Go(func() {
			err := t.readShard(ctx, shard, journal.Filter{Namespace: t.Namespace}, after, func(rec journal.Record) error {
				mu.Lock()
				defer mu.Unlock()
				if failed != nil {
					return failed
				}
				if failed = t.showRecord(rec); failed == nil {
					at[shard] = rec.Seq
				}
				return failed
			})
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				if failed == nil {
					failed = err
				}
				stop()
			}
		})
	}
	readers.Wait()
	return at, failed
}

// readShard calls fn for a shard's records, until the end of the log if Stored, else until
// ctx ends.
func (t *Tap) readShard(ctx context.Context, shard int, filter journal.Filter, after uint64, fn func(journal.Record) error) error {
	records := t.Log.Follow(ctx, shard, filter, after)
	if t.Stored {
		records = t.Log.Scan(ctx, shard, filter, after)
	}
	for rec, err := range records {
		if err != nil {
			return err
		}
		if err := fn(rec); err != nil {
			return err
		}
	}
	return ctx.Err()
}

func (t *Tap) showRecord(rec journal.Record) error {
	s, err := events.ParseSubject(rec.Subject)
	if err != nil {
		return nil // it belongs to no run
	}
	e, err := t.Machine.Codec().Decode(rec.Body)
	entry := Entry{Record: rec, Event: e, Refused: err}
	if !t.selects(s, entry) {
		return nil
	}
	return t.timeline().Write(s.Run.ID+" ", entry)
}

// RunEnd is where the tap of a run ended. Next is the number of the first event that it did
// not reach, State the run's state, Lines how many lines were written.
type RunEnd struct {
	Next  uint64
	State events.State
	Ended bool
	Lines int
}

// Run shows the events of one run from number from on until the run or ctx ends. With from 0
// it shows only events that are stored after the call. A run that does not exist is
// [journal.ErrNotFound].
func (t *Tap) Run(ctx context.Context, run events.Run, from uint64) (RunEnd, error) {
	fold := runlog.NewFold(t.Log, t.Machine, run)
	r := runTap{Tap: t, reader: &Reader{Fold: fold}, mem: fold.Memory(), from: from, stream: t.stream(fold.Memory().RunID)}
	for rec, err := range t.Log.Read(ctx, run, 0) {
		if err == nil && !r.ended() {
			err = r.apply(ctx, rec)
		}
		if err != nil {
			return r.position(), err
		}
	}
	switch {
	case r.mem.N == 0:
		return r.position(), fmt.Errorf("run %s in namespace %s: %w", run.ID, run.Namespace, journal.ErrNotFound)
	case r.ended() || t.Stored:
		return r.position(), nil
	case from == 0:
		r.from = r.mem.N + 1
	}
	stopChunks, err := r.showChunks(run)
	if err != nil {
		return r.position(), err
	}
	defer stopChunks()
	err = t.readShard(ctx, run.Shard, journal.Filter{Namespace: run.Namespace, Run: run.ID}, r.seq, func(rec journal.Record) error {
		if err := r.apply(ctx, rec); err != nil {
			return err
		}
		if r.ended() {
			return errEnded
		}
		return nil
	})
	if errors.Is(err, errEnded) {
		err = nil
	}
	return r.position(), err
}

// errEnded stops reading at the run's end.
var errEnded = errors.New("the run has ended")

// runTap is the tap of one run. It folds the run to know when it ends and which records are
// legal.
type runTap struct {
	*Tap
	reader *Reader
	mem    *reducer.Memory // the reader's
	seq    uint64
	from   uint64
	lines  int
	// stream tells outputs; nil where events are shown.
	stream *runstream.Stream
}

func (r *runTap) ended() bool { return r.Machine.Table().Terminal(r.mem.State) }

func (r *runTap) position() RunEnd {
	return RunEnd{Next: max(r.mem.N+1, r.from), State: r.mem.State, Ended: r.ended(), Lines: r.lines}
}

func (r *runTap) apply(ctx context.Context, rec journal.Record) error {
	s, err := events.ParseSubject(rec.Subject)
	if err != nil {
		return nil // it belongs to no run
	}
	entry, err := r.reader.Entry(ctx, rec)
	if err != nil {
		return err
	}
	r.seq = rec.Seq
	if r.from == 0 || r.mem.N < r.from {
		return nil
	}
	if !r.selects(s, entry) {
		return nil
	}
	r.lines++
	if r.stream != nil {
		if entry.Refused == nil {
			r.stream.Event(r.mem, entry.Event)
		}
		return nil
	}
	return r.timeline().Write("", entry)
}

func (t *Tap) timeline() *Timeline {
	return &Timeline{Out: t.Out, JSON: t.JSON, Color: t.Color, Reasoning: t.Reasoning}
}

func (t *Tap) selects(s events.Subject, e Entry) bool {
	if e.Refused != nil {
		return len(t.States) == 0 && len(t.Types) == 0
	}
	if len(t.States) > 0 && !slices.Contains(t.States, e.Event.To) && !slices.Contains(t.States, s.To) {
		return false
	}
	return len(t.Types) == 0 || slices.Contains(t.Types, e.Event.Type())
}

// OutputWriter returns a function that writes a run's outputs, one per line: as JSON, or as
// short text. After a failed write it writes nothing more; w knows the error, see
// [LossyWriter].
func OutputWriter(w io.Writer, run string, f Format, color bool) func(runstream.Output) {
	var failed error
	return func(o runstream.Output) {
		if failed != nil {
			return
		}
		line := OutputLine(o, color)
		if f == JSON {
			data, err := runstream.Marshal(run, o)
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
func OutputLine(o runstream.Output, color bool) string {
	p := Palette{color}
	text := ""
	switch o := o.(type) {
	case runstream.StateStarted:
		text = p.State(o.State, string(o.State))
	case runstream.LLMToken:
		text = Cut(o.Text, dataWidth)
	case runstream.ReasoningToken:
		text = p.Faint(Cut(o.Text, dataWidth))
	case runstream.Reasoned:
		if o.Text != "" || o.Opaque > 0 || o.Ref != nil {
			text = reasoned(o.Text, o.Opaque, o.Ref)
		}
		text = p.Faint(text + Cut(strings.TrimSpace(o.Text+"  "+strings.Join(o.Items, "  ")), dataWidth))
	case runstream.ToolCallDelta:
		text = fmt.Sprintf("%d %s %s", o.Index, Plain(o.Name), Cut(o.Text, dataWidth))
	case runstream.ToolCallStarted:
		text = fmt.Sprintf("%s %s(%s)", Plain(o.CallID), Plain(o.Name), Cut(o.Arguments, dataWidth))
	case runstream.ToolCallFinished:
		text = fmt.Sprintf("%s %s: %s", Plain(o.CallID), Plain(o.Name), Cut(o.Observation, dataWidth))
	case runstream.Action:
		text = fmt.Sprintf("%s %s", o.Event, Cut(o.Data, dataWidth))
	case runstream.FinalAnswer:
		text = Cut(o.Content, 4*dataWidth)
	case runstream.Error:
		text = p.Red(fmt.Sprintf("%s: %s", Plain(o.Code), Cut(o.Message, dataWidth)))
	}
	return p.Bold(Pad(string(o.Kind()), len(runstream.KindToolCallFinished))) + "  " + text
}

// stream returns what writes a run's outputs, or nil if the tap shows events.
func (t *Tap) stream(run string) *runstream.Stream {
	if !t.Outputs {
		return nil
	}
	format := Text
	if t.JSON {
		format = JSON
	}
	return runstream.NewStream(t.Machine.Table(), OutputWriter(t.Out, run, format, t.Color))
}

// showChunks shows the run's live text beside its events, if outputs are shown.
func (r *runTap) showChunks(run events.Run) (stop func(), err error) {
	if r.stream == nil || r.Feed == nil {
		return func() {}, nil
	}
	return livetext.Listen(r.Feed, run, r.stream.Chunk)
}
