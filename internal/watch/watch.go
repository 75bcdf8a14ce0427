// Package watch shows one run on a terminal at any of its moments: a timeline, and beside it
// what was said, what the run remembered, what the model saw and what is stored. It follows a
// run that works, goes back and forth in it, and plays it again.
//
// It reads the log and changes nothing but by [Options.Decide]. Text of runs is shown as
// [terminal.Visible] has it, so it cannot control the terminal.
package watch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	tea "charm.land/bubbletea/v2"

	"github.com/moorebus/moorebus/internal/control/runs"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// Verb is what a person decides about a call.
type Verb string

// The verbs. Answer is for questions.
const (
	Approve Verb = "approve"
	Reject  Verb = "reject"
	Answer  Verb = "answer"
)

// Options say what is watched, and how. Log, Machine and Run are required.
type Options struct {
	Log     journal.Log
	Machine *reducer.Machine
	Run     events.Run
	// Request returns what the model was asked for the reply that is event n, or with 0 what
	// it is asked now: a line about it, and JSON. Nil: it is not known.
	Request func(ctx context.Context, n uint64) (about string, body []byte, err error)
	// Decide decides about a call that waits. text is the reason of a rejection, or the answer.
	// Nil: nobody can decide here, and Refusal says why.
	Decide  func(ctx context.Context, waits events.Request, v Verb, text string) error
	Refusal string
	// Awaits calls say with a line when the run begins to wait for an actor, and with an empty one
	// when that is over, until stop is called. Nil: it is not known.
	Awaits func(ctx context.Context, say func(line string)) (stop func())
	// In and Out are the terminal, Env its environment. Out gets control sequences.
	In  io.Reader
	Out io.Writer
	Env []string
	// Color styles text.
	Color bool
	// Now is the clock, in whose time zone times of day are shown. Default time.Now.
	Now func() time.Time
}

// Messages to the model.
type (
	recordMsg journal.Record
	// brokenMsg says that the run can no longer be followed.
	brokenMsg struct{ error }
	// playMsg shows the next event, if gen is still the current playing.
	playMsg  struct{ gen int }
	clockMsg struct{}
	// awaitsMsg is for what the run waits; empty: for nothing.
	awaitsMsg  string
	requestMsg struct {
		n     uint64
		about string
		body  []byte
		err   error
	}
	decidedMsg struct {
		verb Verb
		err  error
	}
)

// Run shows the run until the person leaves or ctx ends. The run continues. A run that is not
// there is [journal.ErrNotFound].
func Run(ctx context.Context, o Options) error {
	m, last, err := load(ctx, o)
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	m.ctx = ctx
	p := tea.NewProgram(m, tea.WithContext(ctx), tea.WithInput(o.In), tea.WithOutput(o.Out), tea.WithEnvironment(o.Env), tea.WithoutSignalHandler())
	followed := make(chan struct{})
	go func() {
		defer close(followed)
		follow(ctx, o, last, p.Send)
	}()
	stopAwaits := func() {}
	if o.Awaits != nil {
		stopAwaits = o.Awaits(ctx, func(line string) { p.Send(awaitsMsg(line)) })
	}
	_, err = p.Run()
	stop()
	stopAwaits()
	<-followed
	if errors.Is(err, context.Canceled) {
		return context.Canceled
	}
	return err
}

// load reads what there is of the run, and returns the sequence number of the last record.
func load(ctx context.Context, o Options) (*model, uint64, error) {
	m, last := newModel(ctx, o), uint64(0)
	for rec, err := range o.Log.Read(ctx, o.Run, 0) {
		if err == nil {
			err = m.history.add(ctx, rec)
		}
		if err != nil {
			return nil, 0, err
		}
		last = rec.Seq
	}
	if m.history.len() == 0 {
		return nil, 0, fmt.Errorf("run %s in namespace %s: %w", o.Run.ID, o.Run.Namespace, journal.ErrNotFound)
	}
	m.at = m.history.len()
	return m, last, nil
}

func follow(ctx context.Context, o Options, after uint64, send func(tea.Msg)) {
	for rec, err := range o.Log.Follow(ctx, o.Run.Shard, journal.Filter{Namespace: o.Run.Namespace, Run: o.Run.ID}, after) {
		if err != nil {
			if ctx.Err() == nil {
				send(brokenMsg{err})
			}
			return
		}
		send(recordMsg(rec))
	}
}

// moment is the run after one of its records.
type moment struct {
	rec   journal.Record
	event *events.Event
	// refused says why the record is no legal event.
	refused error
	n       uint64
	state   events.State
	paused  bool
	// pauseReason is why, as far as somebody said so.
	pauseReason string
	usage       reducer.TotalUsage
	step        int
}

// history is a run's records, and its memory after any of them.
type history struct {
	o       Options
	fold    *runlog.Fold // at the head
	moments []moment
	// kept are memories that a fold may begin with, by the number of moments; now is the one
	// that was shown last, which changes.
	kept map[int]*reducer.Memory
	now  *reducer.Memory
	at   int
}

func newHistory(o Options) *history {
	return &history{o: o, fold: runlog.NewFold(o.Log, o.Machine, o.Run), kept: map[int]*reducer.Memory{}}
}

func (h *history) len() int { return len(h.moments) }

// moment returns the i-th moment, counted from 1.
func (h *history) moment(i int) *moment { return &h.moments[i-1] }

func (h *history) head() *reducer.Memory { return h.fold.Memory() }

func (h *history) started() time.Time {
	for i := range h.moments {
		if e := h.moments[i].event; e != nil {
			return e.Time
		}
	}
	return time.Time{}
}

// add folds the next record. Errors are those of [runlog.Fold.Apply] that are not about it.
func (h *history) add(ctx context.Context, rec journal.Record) error {
	if runs.NotOfLog(rec) {
		return nil
	}
	e, err := h.fold.Apply(ctx, rec)
	if err != nil && !runlog.Refused(err) {
		return err
	}
	mem := h.head()
	m := moment{rec: rec, event: e, refused: err, n: mem.N, state: mem.State, paused: mem.Control.Paused, pauseReason: mem.Control.PauseReason, usage: mem.TotalUsage, step: mem.Step}
	if err != nil {
		m.event = nil
	}
	h.moments = append(h.moments, m)
	return nil
}

// keptAtMost is how many memories are kept, about. A memory may have megabytes.
const keptAtMost = 16

// memory returns the memory after the i-th moment. It changes with the next call, and with the
// next record.
func (h *history) memory(ctx context.Context, i int) (*reducer.Memory, error) {
	if i == h.len() {
		return h.head(), nil
	}
	if h.now == nil || h.at > i {
		if err := h.rewind(ctx, i); err != nil {
			return nil, err
		}
	} else if best := h.nearest(i); best > h.at {
		h.now, h.at = h.kept[best].Clone(), best
	}
	every := max(32, h.len()/keptAtMost)
	for h.at < i {
		rec := h.moments[h.at].rec
		_, _ = h.o.Machine.Apply(h.now, rec.Subject, rec.Body) // what is refused, the memory shows
		if h.at++; h.at%every == 0 && h.kept[h.at] == nil && len(h.kept) < 2*keptAtMost {
			h.kept[h.at] = h.now.Clone()
		}
	}
	return h.now, nil
}

// nearest returns the last kept moment up to the i-th, 0 for none.
func (h *history) nearest(i int) (best int) {
	for at := range h.kept {
		if at <= i {
			best = max(best, at)
		}
	}
	return best
}

// rewind begins a fold that is not behind the i-th moment.
func (h *history) rewind(ctx context.Context, i int) error {
	if best := h.nearest(i); best > 0 {
		h.now, h.at = h.kept[best].Clone(), best
		return nil
	}
	first := runlog.NewFold(h.o.Log, h.o.Machine, h.o.Run) // a fork reads its parent here
	if _, err := first.Apply(ctx, h.moments[0].rec); err != nil && !runlog.Refused(err) {
		return err
	}
	h.now, h.at = first.Memory(), 1
	h.kept[1] = h.now.Clone()
	return nil
}
