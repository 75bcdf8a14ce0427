package interactive

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/moorebus/moorebus/internal/cli"
	"github.com/moorebus/moorebus/internal/control/decisions"
	"github.com/moorebus/moorebus/internal/print"
	"github.com/moorebus/moorebus/internal/runid"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// Wait is something that a run waits for and that only a person can give.
type Wait struct {
	// Run is the run that waits: the watched run, or a sub-run of any depth.
	Run string
	// Agent is the name of its agent.
	Agent string
	// Request is the call that waits for a decision, Call the one that waits for the run's
	// client. Paused: the run waits to be resumed. None of them: it waits for its user's next
	// message.
	Request *events.Request
	Call    *reducer.CallState
	Paused  bool
	// Reason is why the run is paused, as far as somebody said so.
	Reason string
}

// Commands returns the commands that give the run what it waits for, the usual one first.
// where are the flags that they need to find the run, such as --data DIR. It may be empty.
func (w Wait) Commands(where string) []string {
	if where != "" {
		where = " " + where
	}
	self := cli.Self()
	if w.Call != nil {
		return []string{fmt.Sprintf("%s return %s %s TEXT%s", self, w.Run, cli.ShellWord(w.Call.ID), where)}
	}
	if w.Paused {
		return []string{fmt.Sprintf("%s resume %s%s", self, w.Run, where)}
	}
	if w.Request == nil {
		return []string{fmt.Sprintf("%s send %s MESSAGE%s", self, w.Run, where)}
	}
	call := w.Run + " " + cli.ShellWord(w.Request.CallID)
	reject := fmt.Sprintf("%s reject %s --reason TEXT%s", self, call, where)
	if w.Request.Asks {
		return []string{fmt.Sprintf("%s answer %s TEXT%s", self, call, where), reject}
	}
	return []string{fmt.Sprintf("%s approve %s%s", self, call, where), reject}
}

type waits struct {
	mu    sync.Mutex
	order []string // the runs, in the order in which they were found
	of    map[string][]Wait
	// watching counts the followers of sub-runs.
	watching sync.WaitGroup
}

// noteWaits notes what the run or a sub-run waits for now, shows a request that e makes, and
// watches the run's own sub-runs.
func (s *Session) noteWaits(ctx context.Context, mem *reducer.Memory, e *events.Event) {
	ended := s.o.Machine.Table().Terminal(mem.State)
	var all []Wait
	if mem.Control.Paused && !ended {
		all = append(all, Wait{Run: mem.RunID, Agent: mem.Control.Agent.Name, Paused: true, Reason: mem.Control.PauseReason})
	}
	for _, id := range decisions.Undecided(mem.PendingApproval) {
		if mem.State != events.WaitingForHuman {
			break // the run ended, and its memory keeps the request
		}
		i := slices.IndexFunc(mem.PendingApproval.Requests, func(r events.Request) bool { return r.CallID == id })
		request := mem.PendingApproval.Requests[i] // a copy: the memory changes
		all = append(all, Wait{Run: mem.RunID, Agent: mem.Control.Agent.Name, Request: &request})
	}
	for _, call := range mem.ClientCalls() {
		if !ended {
			all = append(all, Wait{Run: mem.RunID, Agent: mem.Control.Agent.Name, Call: &call})
		}
	}
	if mem.State == events.WaitingForUser {
		all = append(all, Wait{Run: mem.RunID, Agent: mem.Control.Agent.Name})
	}
	s.waits.mu.Lock()
	if s.waits.of == nil {
		s.waits.of = map[string][]Wait{}
	}
	if !slices.Contains(s.waits.order, mem.RunID) {
		s.waits.order = append(s.waits.order, mem.RunID)
	}
	before := s.waits.of[mem.RunID]
	s.waits.of[mem.RunID] = all
	s.waits.mu.Unlock()
	for _, w := range all {
		if w.Call != nil && !slices.ContainsFunc(before, func(b Wait) bool { return b.Call != nil && b.Call.ID == w.Call.ID }) {
			s.view.line(fmt.Sprintf("%s%s waits for the run's client, until %s\n  `%s` answers it; Ctrl-C leaves the run waiting",
				s.who(w), w.Call.Name, w.Call.Deadline, w.Commands(s.o.Where)[0]))
		}
	}
	switch e.Data.(type) {
	case *events.HumanApprovalRequired:
		for _, w := range all {
			if w.Request != nil {
				s.showRequest(w)
			}
		}
	case *events.Paused:
		if len(all) > 0 && all[0].Paused {
			s.view.line(fmt.Sprintf("%sthe run is %s\n  `%s` resumes it; Ctrl-C leaves it as it is", s.who(all[0]), strings.Trim(print.PausedFor(all[0].Reason), "()"), all[0].Commands(s.o.Where)[0]))
		}
	}
	for _, call := range mem.Delegated() {
		s.watchSubrun(ctx, runid.Child(mem.RunID, call))
	}
}

// showRequest shows what a run asks a person.
func (s *Session) showRequest(w Wait) {
	who := s.who(w)
	commands := w.Commands(s.o.Where)
	if w.Request.Asks {
		s.view.line(fmt.Sprintf("%s%s asks: %s\n  answer it with `%s`; Ctrl-C leaves the run waiting", who, w.Request.Tool, print.Plain(w.Request.Reason), commands[0]))
		return
	}
	s.view.line(fmt.Sprintf("%s%s waits for a human\n  `%s` runs it, `%s` does not; Ctrl-C leaves the run waiting",
		who, w.Request.Tool, commands[0], commands[1]))
}

// who names the agent of a sub-run that waits.
func (s *Session) who(w Wait) string {
	if w.Run == s.run.ID {
		return ""
	}
	return fmt.Sprintf("agent %s, in a sub-run: ", w.Agent)
}

// watchSubrun follows a sub-run from its beginning to its end, unless it is followed already.
// The sub-run may not have started yet.
func (s *Session) watchSubrun(ctx context.Context, id string) {
	s.waits.mu.Lock()
	defer s.waits.mu.Unlock()
	if id == "" || slices.Contains(s.waits.order, id) {
		return
	}
	s.waits.order = append(s.waits.order, id)
	s.waits.watching.Go(func() {
		if err := s.followSubrun(ctx, events.NewRun(s.run.Namespace, id, s.o.Bus.Shards())); err != nil && ctx.Err() == nil {
			s.view.line(fmt.Sprintf("! sub-run %s cannot be watched: %s", id, err))
		}
	})
}

func (s *Session) followSubrun(ctx context.Context, run events.Run) error {
	fold := runlog.NewFold(s.o.Bus, s.o.Machine, run)
	return fold.Follow(ctx, run, func(_ journal.Record, e *events.Event, refused error) error {
		if refused == nil {
			s.noteWaits(ctx, fold.Memory(), e)
		}
		return nil
	})
}

func (s *Session) waiting() []Wait {
	s.waits.mu.Lock()
	defer s.waits.mu.Unlock()
	var all []Wait
	for _, run := range s.waits.order {
		all = append(all, s.waits.of[run]...)
	}
	return all
}

// Detached tells a person how to continue a run that was left waiting. keptIn is where the
// run is stored, serve the command that works on the runs there.
func (o Outcome) Detached(run, keptIn, serve, where string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "run %s waits for a person, so it was not cancelled. It stays in %s.\nTo continue:\n", run, keptIn)
	for _, w := range o.Waits {
		commands := w.Commands(where)
		fmt.Fprintf(&b, "  %s\n", commands[0])
		for _, other := range commands[1:] {
			fmt.Fprintf(&b, "    or: %s\n", other)
		}
	}
	if where != "" {
		where = " " + where
	}
	fmt.Fprintf(&b, "  %[1]s\n  %[2]s tap --run %[3]s --from 1%[4]s\nTo end it: %[2]s cancel %[3]s%[4]s", serve, cli.Self(), run, where)
	return b.String()
}
