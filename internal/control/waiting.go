package control

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/moorebus/moorebus/internal/control/decisions"
	"github.com/moorebus/moorebus/internal/control/list"
	"github.com/moorebus/moorebus/internal/control/runs"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// WaitingPage is a page of runs that wait for people. Next, if not empty, is the cursor of the
// next one.
type WaitingPage struct {
	Runs []WaitingRun `json:"runs"`
	Next string       `json:"next,omitempty"`
}

// WaitingRun is a run that waits for people.
type WaitingRun struct {
	RunID string       `json:"run_id"`
	Agent string       `json:"agent"`
	Task  string       `json:"task"`
	State events.State `json:"state"`
	N     uint64       `json:"n"`
	// Since is when the run came to its state.
	Since time.Time `json:"since" jsonschema:"When the run began to wait."`
	// Parent is the run whose call this one answers.
	Parent string        `json:"parent,omitempty"`
	Calls  []WaitingCall `json:"calls" jsonschema:"The calls that wait for decisions or answers."`
	// Paused says that no new work of the run starts, PauseReason why.
	Paused      bool   `json:"paused,omitempty" jsonschema:"No new work of the run starts until it is resumed."`
	PauseReason string `json:"pause_reason,omitempty" jsonschema:"Why the run is paused. restored: a restore paused it."`
	// Message says that the run waits for the next message of its user.
	Message bool `json:"message,omitempty" jsonschema:"The run waits for a message of its user."`
	// Problem is why the run cannot be read, and its calls are not known.
	Problem string `json:"problem,omitempty" jsonschema:"Why the run cannot be read."`
}

// The kinds of a [WaitingCall].
const (
	KindApproval = "approval"
	KindQuestion = "question"
)

// WaitingCall is a call that waits for a decision, or a question for its answer.
type WaitingCall struct {
	CallID    string          `json:"call_id"`
	Name      string          `json:"name"`
	Arguments string          `json:"arguments" jsonschema:"JSON as text."`
	Kind      string          `json:"kind" jsonschema:"approval or question."`
	Risk      string          `json:"risk,omitempty"`
	Reason    string          `json:"reason,omitempty" jsonschema:"Why a human is asked; of a question its text."`
	Deadline  string          `json:"deadline,omitempty" jsonschema:"When the call is rejected without a decision (RFC 3339)."`
	Schema    json.RawMessage `json:"schema,omitempty" jsonschema:"The schema of the tool's arguments."`
}

// folders is how many runs are folded at once.
const folders = 8

// Waiting returns runs of the namespace that wait for people, in the order of
// [list.Lister.ForPeople]. A page may have fewer runs than its limit and still have a next one.
func (c *Controller) Waiting(ctx context.Context, ns string, limit int, cursor string) (WaitingPage, error) {
	found, next, err := c.ForPeople(ctx, ns, limit, cursor)
	if err != nil {
		return WaitingPage{}, err
	}
	runs, errs := make([]WaitingRun, len(found)), make([]error, len(found))
	slots := make(chan struct{}, folders)
	var all sync.WaitGroup
	for i, w := range found {
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			runs[i], errs[i] = c.waitingRun(ctx, ns, w)
		})
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		return WaitingPage{}, err
	}
	gone := func(r WaitingRun) bool { return r.RunID == "" }
	return WaitingPage{Runs: slices.DeleteFunc(runs, gone), Next: next}, nil
}

// waitingRun says what a run waits for. The zero value: it waits no more.
func (c *Controller) waitingRun(ctx context.Context, ns string, w list.Waits) (WaitingRun, error) {
	known := WaitingRun{RunID: w.RunID, Agent: w.Agent, Task: w.Task, State: w.State, N: w.N, Since: w.Since, Calls: []WaitingCall{}}
	var found WaitingRun
	err := c.View(ctx, ns, w.RunID, func(run *runlog.Run) error {
		mem := run.Memory()
		if mem.State != events.WaitingForHuman && mem.State != events.WaitingForUser {
			return nil
		}
		found = known
		found.State, found.N, found.Message = mem.State, mem.N, mem.State == events.WaitingForUser
		found.Paused, found.PauseReason = mem.Control.Paused, mem.Control.PauseReason
		if parent := mem.Control.Parent; parent != nil {
			found.Parent = parent.Run
		}
		if mem.State == events.WaitingForHuman {
			found.Calls = waitingCalls(mem)
		}
		return nil
	})
	var unknown *reducer.TableError
	var parentGone *runlog.ParentGoneError
	switch {
	case runs.IsMissing(err):
		return WaitingRun{}, nil
	case errors.As(err, &unknown), errors.As(err, &parentGone):
		known.Problem = err.Error()
		return known, nil
	}
	return found, err
}

func waitingCalls(mem *reducer.Memory) []WaitingCall {
	calls := []WaitingCall{}
	for _, id := range decisions.Undecided(mem.PendingApproval) {
		i := slices.IndexFunc(mem.PendingApproval.Requests, func(r events.Request) bool { return r.CallID == id })
		r := mem.PendingApproval.Requests[i]
		call := WaitingCall{
			CallID: id, Name: r.Tool, Arguments: r.Arguments, Kind: KindApproval, Risk: r.Risk, Reason: r.Reason, Deadline: mem.PendingApproval.Deadline,
		}
		if r.Asks {
			call.Kind = KindQuestion
		}
		if schema := mem.Tools[r.Tool].Schema; json.Valid([]byte(schema)) {
			call.Schema = json.RawMessage(schema)
		}
		calls = append(calls, call)
	}
	return calls
}
