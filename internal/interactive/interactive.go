// Package interactive shows one run to a person: its transitions and the model's text as they
// happen. It asks for the next message if the run waits for one, and reports how the run
// ended. Ctrl-C cancels the run, or leaves it as it is if it waits for a person.
//
// Answers go to one writer (stdout), everything else to another (stderr).
package interactive

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/moorebus/moorebus/internal/control"
	"github.com/moorebus/moorebus/internal/livetext"
	"github.com/moorebus/moorebus/internal/refusal"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/internal/runstream"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// Bus is what a session reads.
type Bus interface {
	journal.Log
	journal.Feed
}

// Options say where a session reads and writes.
type Options struct {
	Bus     Bus
	Control *control.Controller
	Machine *reducer.Machine
	// In has the user's further messages, one per line. Its end closes the conversation.
	In io.Reader
	// Out gets answers, Show everything else.
	Out, Show io.Writer
	// Outputs gets the run's outputs, and Out gets nothing then. May be nil.
	Outputs func(runstream.Output)
	// Live shows a line that changes while the run works, for terminals.
	Live bool
	// Color colours what Show gets.
	Color bool
	// Reasoning shows all that the model reasoned instead of one line.
	Reasoning bool
	// Columns returns the width of the terminal. Required if Live.
	Columns func() int
	// Where are the flags with which the commands that are shown find the run, such as
	// --data DIR. May be empty.
	Where string
	// Prompt is shown before a message is read. May be empty.
	Prompt string
	// CancelTimeout bounds the attempt to cancel the run. Default 5 s.
	CancelTimeout time.Duration
}

// Session is one run being watched.
type Session struct {
	o    Options
	run  events.Run
	fold *runlog.Fold
	mem  *reducer.Memory // the fold's
	view *view
	in   *bufio.Scanner
	// heard is the model's text as it comes.
	heard *livetext.Listener
	// stream makes outputs; nil without Options.Outputs.
	stream *runstream.Stream
	waits  waits
}

// Outcome is how the session ended.
type Outcome struct {
	State events.State
	// Incomplete says that the last answer was truncated, and accepted all the same.
	Incomplete bool
	// Err is why the run ended in error, or nil.
	Err *reducer.RunError
	// Waits is what the run and its sub-runs wait for, if the run was left waiting for a
	// person. Then it has not ended.
	Waits []Wait
}

// Watch follows the run from its first event to its last. If ctx ends before that, a run that
// waits for a person is left as it is, and any other is cancelled.
func Watch(ctx context.Context, run events.Run, o Options) (Outcome, error) {
	if o.Machine == nil {
		o.Machine = reducer.NewMachine(reducer.MachineOptions{})
	}
	if o.CancelTimeout <= 0 {
		o.CancelTimeout = 5 * time.Second
	}
	fold := runlog.NewFold(o.Bus, o.Machine, run)
	s := &Session{o: o, run: run, fold: fold, mem: fold.Memory(), view: newView(o.Show, o.Live, o.Color, o.Columns), in: bufio.NewScanner(o.In)}
	s.view.reasoning = o.Reasoning
	s.in.Buffer(nil, journal.MaxBody)
	s.heard = livetext.NewListener(o.Bus, run)
	if o.Outputs != nil {
		s.stream = runstream.NewStream(o.Machine.Table(), o.Outputs)
	}
	stopChunks, err := o.Bus.WatchChunks(run, s.chunk)
	if err != nil {
		return Outcome{}, err
	}
	defer stopChunks()
	s.heard.Ask()
	stopTicks := s.view.start()
	defer stopTicks()
	watching, stopWatching := context.WithCancel(ctx)
	defer s.waits.watching.Wait()
	defer stopWatching()
	if err := s.follow(watching); err != nil {
		if ctx.Err() == nil {
			return Outcome{}, err
		}
		if waits := s.waiting(); len(waits) > 0 {
			return Outcome{State: s.mem.State, Waits: waits}, nil
		}
		if err := s.cancel(ctx); err != nil {
			return Outcome{}, err
		}
	}
	return Outcome{State: s.mem.State, Incomplete: s.mem.Control.Incomplete, Err: s.mem.Error}, nil
}

func (s *Session) follow(ctx context.Context) error {
	return s.fold.Follow(ctx, s.run, func(rec journal.Record, e *events.Event, refused error) error {
		s.show(ctx, rec, e, refused)
		return s.converse(ctx)
	})
}

// show shows the run's last record: its event, or why it is not a legal event.
func (s *Session) show(ctx context.Context, rec journal.Record, e *events.Event, refused error) {
	if refused != nil {
		s.view.line("! " + refused.Error())
		return
	}
	message, _ := livetext.MessageOf(rec.Body) // the event shows its text
	s.heard.Over(message)
	s.view.event(e, s.mem)
	if s.stream != nil {
		s.stream.Event(s.mem, e)
	}
	switch p := e.Data.(type) {
	case *events.LLMFinalAnswer:
		s.answer(p.Content)
	case *events.LLMMessageComplete:
		s.answer(p.Content)
	}
	s.noteWaits(ctx, s.mem, e)
}

func (s *Session) answer(text string) {
	if s.mem.Control.Incomplete {
		s.view.line("The answer is incomplete: it was cut off, and the agent takes such answers (on_cut: accept).")
	}
	if s.stream != nil {
		return // the outputs have it
	}
	s.view.clear()
	_, _ = fmt.Fprintln(s.o.Out, text)
}

// converse gives the run its next message if it waits for one.
func (s *Session) converse(ctx context.Context) error {
	if s.mem.State != events.WaitingForUser {
		return nil
	}
	text, err := s.read(ctx)
	if errors.Is(err, io.EOF) {
		_, err = s.o.Control.Close(ctx, s.run.Namespace, s.run.ID, events.By{Reason: "end of input"})
		return err
	}
	if err != nil {
		return err
	}
	_, err = s.o.Control.Inputs(ctx, s.run.Namespace, s.run.ID, []control.Input{
		control.UserMessage{MessageID: runlog.NewID(), Content: text},
	})
	return err
}

// read waits for a line that is not empty. A read cannot be interrupted. After a signal its
// goroutine stays until the process ends, which is soon.
func (s *Session) read(ctx context.Context) (string, error) {
	type line struct {
		text string
		err  error
	}
	lines := make(chan line, 1)
	s.view.prompt(s.o.Prompt)
	go func() {
		for s.in.Scan() {
			if text := s.in.Text(); text != "" {
				lines <- line{text: text}
				return
			}
		}
		err := s.in.Err()
		if err == nil {
			err = io.EOF
		}
		lines <- line{err: err}
	}()
	select {
	case l := <-lines:
		return l.text, l.err
	case <-ctx.Done():
		return "", ctx.Err()
	}
}

// cancel cancels the run and shows the events that follow.
func (s *Session) cancel(ctx context.Context) error {
	ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), s.o.CancelTimeout)
	defer stop()
	_, err := s.o.Control.Cancel(ctx, s.run.Namespace, s.run.ID, events.By{Reason: "interrupted"})
	if err != nil && !refusal.Is(err, refusal.CodeRunEnded) {
		return fmt.Errorf("the run could not be cancelled and may continue: %w", err)
	}
	for rec, err := range s.o.Bus.Read(ctx, s.run, 0) {
		if err != nil {
			return err
		}
		if e, err := s.o.Machine.Codec().Decode(rec.Body); err == nil && e.N > s.mem.N {
			e, err := s.fold.Apply(ctx, rec)
			if err != nil && !runlog.Refused(err) {
				return err
			}
			s.show(ctx, rec, e, err)
		}
	}
	return nil
}

func (s *Session) chunk(data []byte) {
	news, ok := s.heard.News(data)
	if !ok {
		return
	}
	if s.stream != nil {
		s.stream.Chunk(news)
	}
	var c livetext.Chunk
	if json.Unmarshal(news, &c) == nil && c.Kind != livetext.KindToolCall {
		s.view.words(c.Offset == 0, c.Text)
	}
}
