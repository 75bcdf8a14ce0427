package reducer

import (
	"errors"
	"fmt"
	"time"

	"github.com/moorebus/moorebus/pkg/events"
)

// MaxForks is how many forks may stand on one another: a run with that many
// ancestors cannot be forked.
const MaxForks = 100

// Origin is the event of another run that a fork continues from.
type Origin struct {
	Run string `json:"run"`
	At  uint64 `json:"at"`
	// Depth counts the forks from a run that was started up to this one.
	Depth int `json:"depth"`
}

// ParentError says that the parent's memory is needed to fold a run's first event, a
// Forked: see [Memory.Adopt].
type ParentError struct {
	// Run is the parent, At the last of its events that the fork begins with.
	Run string
	At  uint64
	// Hash is the hash of that event's body, as the fork names it.
	Hash string
}

// Error names the parent.
func (e *ParentError) Error() string {
	return fmt.Sprintf("is forked from event %d of run %s, which has to be read first", e.At, e.Run)
}

// base is what the parent's log came to: its memory, or why there is none.
type base struct {
	mem     *Memory
	refused string
}

// Adopt gives a run without events the memory from which its first event, a Forked,
// continues: that of its parent after the event it names. The fold takes the memory over,
// so the caller may not use it afterwards. A run with events is left as it is.
func (mem *Memory) Adopt(parent *Memory) {
	if mem.N == 0 {
		mem.base = &base{mem: parent}
	}
}

// Disown makes the run's first event, a Forked, illegal for the reason. It is for a parent
// that can be read and may not be forked.
func (mem *Memory) Disown(reason string) {
	if mem.N == 0 {
		mem.base = &base{refused: reason}
	}
}

// inherited is the memory that was adopted, or nil.
func (mem *Memory) inherited() *Memory {
	if mem.base == nil {
		return nil
	}
	return mem.base.mem
}

// next is where an event leads: a fork continues in the state that its parent was
// in, anything else goes by the table.
func (m *Machine) next(mem *Memory, t events.Type) (events.State, bool) {
	if t != events.TypeForked {
		return m.table.Next(mem.State, t)
	}
	if parent := mem.inherited(); parent != nil && mem.N == 0 {
		return parent.State, true
	}
	return "", false
}

// checkFork says where a fork leads, and whether a run may begin by it. The error is a
// *[ParentError] where the parent has not been adopted yet.
func (m *Machine) checkFork(mem *Memory, p *events.Forked) (events.State, error) {
	switch {
	case mem.N > 0:
		return "", &TransitionError{From: mem.State, Event: events.TypeForked}
	case events.CheckID(p.Run) != nil, p.At == 0, p.Hash == "":
		return "", errors.New("does not name the run, the event and the hash that it is forked from")
	case p.Run == mem.RunID:
		return "", errors.New("is forked from itself")
	case p.Mode != "" && p.Mode != events.ModeTask && p.Mode != events.ModeChat:
		return "", fmt.Errorf("mode %q is neither task nor chat", p.Mode)
	case mem.base == nil:
		return "", &ParentError{Run: p.Run, At: p.At, Hash: p.Hash}
	case mem.base.refused != "":
		return "", errors.New(mem.base.refused)
	}
	parent := mem.base.mem
	if parent.RunID != p.Run || parent.N != p.At {
		return "", &ParentError{Run: p.Run, At: p.At, Hash: p.Hash}
	}
	return parent.State, m.Forkable(parent, p.Hash)
}

// Forkable returns an error that says why a run cannot be forked where it stands, or nil.
// hash is the hash of the last body that the fork names.
func (m *Machine) Forkable(parent *Memory, hash string) error {
	c := &parent.Control
	switch {
	case c.Head != hash:
		return fmt.Errorf("is forked from another event %d than run %s has: the hashes differ", parent.N, parent.RunID)
	case c.Poison != nil:
		return fmt.Errorf("is forked from run %s, which is poisoned at event %d", parent.RunID, c.Poison.N)
	case m.table.Terminal(parent.State):
		return fmt.Errorf("is forked from run %s, which has ended in %s at event %d", parent.RunID, parent.State, parent.N)
	case c.ForkedFrom != nil && c.ForkedFrom.Depth >= MaxForks:
		return fmt.Errorf("is forked from run %s, which stands on %d forks: no more may", parent.RunID, MaxForks)
	}
	return nil
}

func forkSteps(mem *Memory, _ events.Payload) int {
	if parent := mem.inherited(); parent != nil {
		return parent.Step
	}
	return 0
}

// foldForked makes the parent's memory that of the fork.
func foldForked(mem *Memory, e *events.Event) {
	run, n, parent := mem.RunID, mem.N, mem.base.mem
	*mem = *parent
	mem.RunID, mem.N, mem.State, mem.Started, mem.messageIDs = run, n, e.From, e.Time, nil
	mem.begin(e.Data.(*events.Forked), e.Time)
	mem.Control.TraceParent = e.TraceParent
	// The fork's first event is the one that all of its work answers.
	mem.Control.Armed, mem.Control.DispatchAfter = n, n
	for i := range mem.WorkingMemory {
		mem.WorkingMemory[i].N = n
	}
}

// begin makes a parent's memory that of its fork. Numbers of the parent's events mean
// nothing in the fork. So what the parent had in flight begins again, at that time, and so
// do the limits of one turn and the time for an approval.
func (mem *Memory) begin(p *events.Forked, at time.Time) {
	c := &mem.Control
	depth := 1
	if c.ForkedFrom != nil {
		depth += c.ForkedFrom.Depth
	}
	c.ForkedFrom = &Origin{Run: p.Run, At: p.At, Depth: depth}
	// The call that the parent answers has its answer from the parent.
	c.Parent, c.Admission = nil, nil
	c.Wake, c.Attempts = map[events.State]uint64{}, nil
	c.Paused, c.PauseReason, c.Restored = false, "", false
	for i := range c.Calls {
		call := &c.Calls[i]
		call.Wake, call.Dispatched, call.Started, call.Deadline = 0, 0, 0, ""
	}
	c.SinceUser = Counts{}
	if n := len(c.Turns); n > 0 {
		c.Turns[n-1].Part = false // what the parent's reply had besides is not the fork's
	}
	mem.repin(p)
	if a := mem.PendingApproval; a != nil {
		a.Deadline = c.Agent.Approval.Deadline(at)
	}
}

func (mem *Memory) repin(p *events.Forked) {
	if p.Task != "" {
		mem.retask(p.Task)
	}
	if p.TaskType != "" {
		mem.TaskType = p.TaskType
	}
	if p.Mode != "" {
		mem.Mode = p.Mode
	}
	if p.Agent == nil {
		return
	}
	was := mem.Control.Agent.Name
	mem.pinAnother(*p.Agent, p.AgentHash, p.Tools)
	if p.Agent.Name != was {
		mem.moveStorage(p.Agent.Name) // else it stays: of a run that was handed over it is another agent's
	}
	for i := range mem.Control.Calls {
		call := &mem.Control.Calls[i]
		if _, known := mem.Tools[call.Name]; known && !call.Answered {
			*call = mem.callState(call.Call)
		}
	}
}

func (mem *Memory) retask(task string) {
	mem.Task = task
	if len(mem.Messages) > 0 {
		m := &mem.Messages[0]
		m.Content, m.Parts = task, reworded(m.Parts, task)
	}
	if turns := mem.Control.Turns; len(turns) > 0 && turns[0].Kind == turnUser {
		t := &turns[0]
		t.Content, t.Parts = task, reworded(t.Parts, task)
	}
}

// reworded returns the parts of a message with another text: its images and files stay.
func reworded(parts []events.Part, text string) []events.Part {
	if len(parts) == 0 {
		return nil
	}
	changed := []events.Part{{Type: events.PartText, Text: text}}
	for _, p := range parts {
		if p.Type != events.PartText {
			changed = append(changed, p)
		}
	}
	return changed
}

// forkRoute is where a fork's first event goes: to the worker that a re-drive of its
// parent would wake.
func forkRoute(mem *Memory, p events.Payload) (events.State, string) {
	fork := mem.base.mem.Clone()
	fork.begin(p.(*events.Forked), fork.Updated)
	return fork.redrive()
}
