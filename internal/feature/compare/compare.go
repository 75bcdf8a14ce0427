// Package compare says how two runs behave differently: which calls of tools one of them makes
// and the other does not, how they ended, and what they used. Wording and results do not count.
package compare

import (
	"context"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// Comparison is how two runs a and b differ after the last event that both have.
type Comparison struct {
	// ForkPoint is nil if the runs have no event in common.
	ForkPoint *uint64 `json:"fork_point" jsonschema:"The number of the last event that both runs have, in the log of fork_run. null: they have none, and are compared as a whole."`
	ForkRun   string  `json:"fork_run,omitempty" jsonschema:"The run that has this event: a or b, or a run that both were forked from."`
	Same      bool    `json:"same" jsonschema:"All calls are the same, and both runs are done, failed or cancelled alike, or wait for their user."`
	Calls     []Op    `json:"calls" jsonschema:"The calls after the fork point, aligned."`
	Answer    Answers `json:"answer"`
	State     States  `json:"state"`
	Usage     Usage   `json:"usage" jsonschema:"What was used after the fork point."`
}

// The values of [Op.Op].
const (
	Same    = "same"
	Added   = "added"
	Removed = "removed"
	Changed = "changed"
)

// Op is a step from the calls of a to those of b. Added has no A, Removed no B.
type Op struct {
	Op string `json:"op" jsonschema:"same, added, removed or changed: the same tool with other arguments."`
	A  *Call  `json:"a,omitempty"`
	B  *Call  `json:"b,omitempty"`
}

// Call is a call that ran, runs, or waits.
type Call struct {
	N         uint64 `json:"n" jsonschema:"The number of the event that let the call go: the model's reply, or a human's decision. Of a call that waits for one it is the reply."`
	Run       string `json:"run,omitempty" jsonschema:"The run that has this event, if the compared run has it of a run that it was forked from."`
	Name      string `json:"name"`
	Arguments string `json:"arguments" jsonschema:"What the call ran with, as text. A human may have changed it. Of a question to a human it is the question."`
}

// Answers are the runs' answers, nil without one.
type Answers struct {
	A    *string `json:"a"`
	B    *string `json:"b"`
	Same bool    `json:"same"`
}

// States are the states of the runs.
type States struct {
	A events.State `json:"a"`
	B events.State `json:"b"`
}

// Usage is what each run used.
type Usage struct {
	A Use `json:"a"`
	B Use `json:"b"`
}

// Runs compares two runs up to their heads. Errors are the log's, a *[runlog.ParentGoneError]
// for a fork that cannot be read, and [journal.ErrNotFound] for a run that is not there.
func Runs(ctx context.Context, log journal.Log, machine *reducer.Machine, a, b events.Run) (*Comparison, error) {
	left, err := newTrace(ctx, log, machine, a)
	if err != nil {
		return nil, err
	}
	right := left // it may grow while it is read
	if a != b {
		if right, err = newTrace(ctx, log, machine, b); err != nil {
			return nil, err
		}
	}
	shared := 0
	for shared < min(len(left.steps), len(right.steps)) && left.steps[shared].place == right.steps[shared].place {
		shared++
	}
	c := &Comparison{
		Answer: Answers{A: left.answer, B: right.answer, Same: equal(left.answer, right.answer)},
		State:  States{left.state, right.state},
		Calls:  align(left.callsAfter(shared), right.callsAfter(shared)),
		Usage:  Usage{left.useAfter(shared), right.useAfter(shared)},
	}
	if shared > 0 {
		at := left.steps[shared-1].place
		c.ForkPoint, c.ForkRun = &at.n, at.run
	}
	ended := left.state == right.state && (machine.Table().Terminal(left.state) || left.state == events.WaitingForUser)
	c.Same = a == b || ended && allSame(c.Calls)
	return c, nil
}

func equal(a, b *string) bool {
	if a == nil || b == nil {
		return a == b
	}
	return *a == *b
}

func allSame(ops []Op) bool {
	for _, op := range ops {
		if op.Op != Same {
			return false
		}
	}
	return true
}
