// Package history has what Moorebus keeps of runs beside the log, so that they are found: a row for each
// run, its texts, and sums by hour. All of it is made of the log, of the archive and of notes, and can be
// made again at any time.
package history

import (
	"time"

	"github.com/moorebus/moorebus/pkg/events"
)

// Run is a run's row. It is of the run's own events: of a fork only what came after the fork, but for
// Task and Agent, which a fork has from its parent.
type Run struct {
	Namespace string       `json:"namespace,omitzero"`
	ID        string       `json:"id,omitzero"`
	Shard     int          `json:"shard,omitzero"`
	State     events.State `json:"state,omitzero"`
	// N is the number of the last event, Head its hash.
	N    uint64      `json:"n,omitzero"`
	Head string      `json:"head,omitzero"`
	Mode events.Mode `json:"mode,omitzero"`
	// Agent is the last agent, Task the entire task.
	Agent string `json:"agent,omitzero"`
	Task  string `json:"task,omitzero"`
	// Started, Updated and Ended are the times of the first event, the last one, and the one that ended
	// the run. Ended is zero for a run that has not ended.
	Started time.Time `json:"started,omitzero"`
	Updated time.Time `json:"updated,omitzero"`
	Ended   time.Time `json:"ended,omitzero"`
	// Parent is the run whose call Call the run answers, ForkOf the run that it was forked from, after
	// event ForkAt.
	Parent string `json:"parent,omitzero"`
	Call   string `json:"call,omitzero"`
	ForkOf string `json:"fork_of,omitzero"`
	ForkAt uint64 `json:"fork_at,omitzero"`
	// Experiment is the experiment that the fork belongs to, By who started the run.
	Experiment string `json:"experiment,omitzero"`
	By         string `json:"by,omitzero"`
	// Model is the model that was asked last, Models all of them, as provider/model. Tools are those that
	// were called; refused calls do not count.
	Model  string   `json:"model,omitzero"`
	Models []string `json:"models,omitzero"`
	Tools  []string `json:"tools,omitzero"`
	// Steps counts the replies of models. CostUSD, Input, Output, Cached and Tokens are what the run's events
	// used. Tokens is the sum of the totals that the models reported. Priced says that a price was known.
	Steps   int     `json:"steps,omitzero"`
	CostUSD float64 `json:"cost_usd,omitzero"`
	Input   int     `json:"input,omitzero"`
	Output  int     `json:"output,omitzero"`
	Cached  int     `json:"cached,omitzero"`
	Tokens  int     `json:"tokens,omitzero"`
	Priced  bool    `json:"priced,omitzero"`
	// Waiting is for whom the run waits, by its events alone; empty: for nobody. Entered is when it came to
	// its state, Deadline until when it waits for a decision.
	Waiting  string    `json:"waiting,omitzero"`
	Entered  time.Time `json:"entered,omitzero"`
	Deadline time.Time `json:"deadline,omitzero"`
	// Outside says that a reply is asked of the run's client, Pools in which pools its calls wait.
	Outside bool     `json:"outside,omitzero"`
	Pools   []string `json:"pools,omitzero"`
	// Paused says that no new work starts, PauseReason why, Restored that a restore paused it.
	Paused      bool            `json:"paused,omitzero"`
	Restored    bool            `json:"restored,omitzero"`
	PauseReason string          `json:"pause_reason,omitzero"`
	Queued      bool            `json:"queued,omitzero"`
	Priority    events.Priority `json:"priority,omitzero"`
	// Error is the code of the error that the run ended with, CallErrors those of its failed calls.
	Error      string    `json:"error,omitzero"`
	CallErrors []string  `json:"call_errors,omitzero"`
	HandOffs   []HandOff `json:"hand_offs,omitzero"`
	// Labels are those of the run's first event. Notes change what is shown.
	Labels map[string]string `json:"labels,omitzero"`
	// Open is what the fold needs to go on, in its own form. It is empty once the run has ended.
	Open []byte `json:"open,omitzero"`
}

// HandOff is the event by which a run went over to another agent.
type HandOff struct {
	N  uint64 `json:"n"`
	To string `json:"to"`
}

// Kind is what a text is.
type Kind string

// The kinds of texts. A CallError is the result of a call that failed or was refused. An Error is of the
// run's end, or of a failed attempt.
const (
	Task      Kind = "task"
	Message   Kind = "message"
	Call      Kind = "call"
	Result    Kind = "result"
	Answer    Kind = "answer"
	Error     Kind = "error"
	CallError Kind = "call_error"
	Reasoning Kind = "reasoning"
)

// Text is a text of a run: of the event N, at its time. Code is an error's code. Ref is where the rest of
// it is that was too large for the log, until it was read.
type Text struct {
	N    uint64
	Kind Kind
	Code string
	Text string
	At   time.Time
	Ref  *events.Ref
}
