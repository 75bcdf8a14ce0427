// Package runprint writes what happened in a run, event by event.
package runprint

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/moorebus/moorebus/internal/logwalk"
	"github.com/moorebus/moorebus/internal/print"
	"github.com/moorebus/moorebus/internal/retry"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/internal/terminal"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// Clock tells the time and waits; tests bring their own.
type Clock interface {
	Now() time.Time
	// Sleep waits, or returns the context's error if that ends first.
	Sleep(ctx context.Context, d time.Duration) error
}

// WallClock is the machine's clock.
type WallClock struct{}

// Now returns the time.
func (WallClock) Now() time.Time { return time.Now() }

// Sleep waits for d.
func (WallClock) Sleep(ctx context.Context, d time.Duration) error {
	retry.Wait(ctx, d)
	return ctx.Err()
}

// Options say how a run is shown; the zero value shows all that there is,
// at once, as text.
type Options struct {
	// Until stops after this event; 0: at the head.
	Until uint64
	// Follow continues with what is appended, until the run has ended.
	Follow bool
	// Speed shows the events in the rhythm in which they happened, this many
	// times as fast, and replies as they came, where that was recorded; 0: at once.
	Speed float64
	// In selects the events that happened in this state; empty: all.
	In events.State
	// JSON writes a [print.Line] for each event instead of text, Color colours text.
	JSON, Color bool
	// Reasoning shows all that the model reasoned instead of one line, in text.
	Reasoning bool
	// State adds the memory at the end, as JSON.
	State bool
	// Clock paces Speed; nil: the wall clock.
	Clock Clock
}

// Run writes a run's events and the states that they lead to, one on a line. A
// record that is not legal is shown as such and stops nothing. Of a fork its own
// events are shown. Errors are the log's, the writer's and the context's,
// [journal.ErrNotFound] if there is no such run or no event Until, and a
// *[runlog.ParentGoneError].
func Run(ctx context.Context, w io.Writer, log journal.Log, machine *reducer.Machine, run events.Run, o Options) error {
	if o.Clock == nil {
		o.Clock = WallClock{}
	}
	fold := runlog.NewFold(log, machine, run)
	p := &printer{w: w, o: o, machine: machine, reader: &print.Reader{Fold: fold}, mem: fold.Memory()}
	p.lines = &print.Timeline{Out: w, JSON: o.JSON, Color: o.Color, Reasoning: o.Reasoning}
	records := log.Read(ctx, run, 0)
	if o.Follow {
		records = log.Follow(ctx, run.Shard, journal.Filter{Namespace: run.Namespace, Run: run.ID}, 0)
	}
	for rec, err := range records {
		if err != nil {
			return err
		}
		if _, reason := logwalk.Place(log, run.Shard, rec.Subject); reason != "" {
			continue // it belongs to no run
		}
		if err := p.record(ctx, rec); err != nil {
			return err
		}
		if p.finished() {
			break
		}
	}
	switch {
	case p.mem.N == 0:
		return fmt.Errorf("run %s in namespace %s: %w", run.ID, run.Namespace, journal.ErrNotFound)
	case p.mem.N < o.Until:
		return fmt.Errorf("event %d of run %s: %w: the run has %d", o.Until, run.ID, journal.ErrNotFound, p.mem.N)
	}
	return p.finish()
}

type printer struct {
	w       io.Writer
	o       Options
	machine *reducer.Machine
	reader  *print.Reader
	mem     *reducer.Memory // the reader's
	lines   *print.Timeline

	// first is when the first event happened, begun when it was shown.
	// last is when the event before this one happened.
	first, begun, last time.Time
}

func (p *printer) finished() bool {
	if p.o.Until > 0 && p.mem.N >= p.o.Until {
		return true
	}
	return p.o.Follow && p.machine.Table().Terminal(p.mem.State)
}

func (p *printer) record(ctx context.Context, rec journal.Record) error {
	from := p.mem.State
	entry, err := p.reader.Entry(ctx, rec)
	if err != nil {
		return err
	}
	if e := entry.Event; e != nil {
		if err := p.speak(ctx, e); err != nil {
			return err
		}
		if err := p.waitFor(ctx, e.Time); err != nil {
			return err
		}
		p.last = e.Time
	}
	if p.o.In != "" && p.o.In != from {
		return nil
	}
	return p.lines.Write("", entry)
}

// waitFor waits until the event's time has come.
func (p *printer) waitFor(ctx context.Context, at time.Time) error {
	if p.first.IsZero() {
		p.first, p.begun = at, p.o.Clock.Now()
	}
	if p.o.Speed <= 0 {
		return nil
	}
	return p.until(ctx, at)
}

func writeLine(w io.Writer, v any) error {
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false)
	return encoder.Encode(v)
}

func (p *printer) finish() error {
	switch {
	case !p.o.State:
		return nil
	case p.o.JSON:
		return writeLine(p.w, map[string]any{"memory": p.mem})
	}
	return print.WriteJSON(p.w, p.mem)
}

// spoken is a part of a reply's text as JSON output has it, one on a line, before
// the reply's own event, which is event N.
type spoken struct {
	N        uint64 `json:"n"`
	OffsetMS int64  `json:"offset_ms"`
	Chunk    string `json:"chunk"`
}

// speak shows a reply's text in the rhythm in which it came, where that is in the
// log and events are shown in theirs.
func (p *printer) speak(ctx context.Context, e *events.Event) error {
	text, chunks := events.ChunksOf(e.Data)
	if p.o.Speed <= 0 || len(chunks) == 0 || p.first.IsZero() {
		return nil
	}
	// The log has the reply's time, which is right after its last part.
	began := e.Time.Add(-time.Duration(chunks[len(chunks)-1][0]) * time.Millisecond)
	if began.Before(p.last) {
		began = p.last
	}
	for _, part := range chunks {
		at := began.Add(time.Duration(part[0]) * time.Millisecond)
		if at.After(e.Time) {
			at = e.Time
		}
		if err := p.until(ctx, at); err != nil {
			return err
		}
		if err := p.say(at, text[:part[1]]); err != nil {
			return err
		}
		text = text[part[1]:]
	}
	if p.o.JSON {
		return nil
	}
	_, err := io.WriteString(p.w, "\n")
	return err
}

func (p *printer) say(at time.Time, text string) error {
	if p.o.JSON {
		return writeLine(p.w, spoken{N: p.mem.N, OffsetMS: at.Sub(p.first).Milliseconds(), Chunk: text})
	}
	_, err := io.WriteString(p.w, terminal.Visible(text))
	return err
}

// until waits for a time of the run.
func (p *printer) until(ctx context.Context, at time.Time) error {
	due := p.begun.Add(time.Duration(float64(at.Sub(p.first)) / p.o.Speed))
	if wait := due.Sub(p.o.Clock.Now()); wait > 0 {
		return p.o.Clock.Sleep(ctx, wait)
	}
	return nil
}
