package print

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/moorebus/moorebus/internal/control/runs"
	"github.com/moorebus/moorebus/internal/runid"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// Run is a run as `moorebus show` prints it: its outcome and its events.
type Run struct {
	RunID  string       `json:"run_id"`
	State  events.State `json:"state"`
	N      uint64       `json:"n"`
	Mode   events.Mode  `json:"mode"`
	Agent  string       `json:"agent"`
	Task   string       `json:"task"`
	Paused bool         `json:"paused,omitempty"`
	// PauseReason is why the run is paused, as far as somebody said so.
	PauseReason string `json:"pause_reason,omitempty"`
	// Queued says that the run waits until it is admitted.
	Queued  bool      `json:"queued,omitempty"`
	Step    int       `json:"step"`
	Started time.Time `json:"started"`
	Updated time.Time `json:"updated"`
	// Parent is the call of another run that this run answers. Children are the sub-runs of
	// this run.
	Parent   *events.Parent `json:"parent,omitempty"`
	Children []Child        `json:"children,omitempty"`
	// ForkedFrom is the event that a fork continues from.
	ForkedFrom *reducer.Origin `json:"forked_from,omitempty"`
	// Usage sums the tokens and the cost of all replies.
	Usage reducer.TotalUsage `json:"usage"`
	// Answer is the final answer, Error why there is none. Incomplete says that the answer
	// was truncated.
	Answer     *string           `json:"answer,omitempty"`
	Incomplete bool              `json:"incomplete,omitempty"`
	Error      *reducer.RunError `json:"error,omitempty"`
	// PendingApproval are the calls that wait for a human.
	PendingApproval *reducer.PendingApproval `json:"pending_approval,omitempty"`
	// ClientCalls are the calls that wait for the run's client.
	ClientCalls []ClientCall `json:"client_calls,omitempty"`
	// WaitsFor is the pool whose actors are missing.
	WaitsFor *runs.WaitsFor `json:"waits_for,omitempty"`
	// Poison is the record that is not a legal event of the run.
	Poison *events.Poison `json:"poison,omitempty"`
	// Steps are the requests to models and the results of calls.
	Steps []Step `json:"steps"`
	// Events are the run's own events.
	Events []Line `json:"events"`
	// Reasoning has Write show all that the model reasoned instead of one line.
	Reasoning bool `json:"-"`

	entries []Entry
}

// ReadRun folds n records, or all if n is 0, into a run and its memory. The events that a
// fork has of its parent are folded and not shown.
func ReadRun(ctx context.Context, fold *runlog.Fold, n uint64, records iter.Seq2[journal.Record, error]) (*Run, *reducer.Memory, error) {
	mem, reader := fold.Memory(), &Reader{Fold: fold}
	r := &Run{Steps: []Step{}, Events: []Line{}}
	var last time.Time // of the event before
	for rec, err := range records {
		if err != nil {
			return nil, nil, err
		}
		entry, err := reader.Entry(ctx, rec)
		if err != nil {
			return nil, nil, err
		}
		if entry.Refused == nil {
			at := entry.Event.Time
			if last.IsZero() {
				last = at
			}
			r.stepsOf(mem, entry, at.Sub(last))
			last = at
		}
		r.entries = append(r.entries, entry)
		r.Events = append(r.Events, entry.Line())
		if mem.N == n {
			break
		}
	}
	r.fill(mem)
	return r, mem, nil
}

func (r *Run) fill(mem *reducer.Memory) {
	r.RunID, r.State, r.N, r.Mode, r.Agent, r.Task = mem.RunID, mem.State, mem.N, mem.Mode, mem.Control.Agent.Name, mem.Task
	r.Paused, r.Queued, r.Step, r.Started, r.Updated, r.Usage = mem.Control.Paused, mem.Queued(), mem.Step, mem.Started, mem.Updated, mem.TotalUsage
	r.PauseReason = mem.Control.PauseReason
	r.Answer, r.Error, r.PendingApproval, r.Poison = mem.FinalAnswer, mem.Error, mem.PendingApproval, mem.Control.Poison
	for _, call := range mem.ClientCalls() {
		if r.Error == nil && mem.State != events.Cancelled {
			r.ClientCalls = append(r.ClientCalls, ClientCall{call.ID, call.Name, call.Arguments, call.Deadline})
		}
	}
	r.ForkedFrom, r.Incomplete = mem.Control.ForkedFrom, mem.Control.Incomplete
	r.Parent, r.Children = mem.Control.Parent, children(mem)
	r.Reasoning = ShowsReasoning(mem)
	if r.Answer != nil {
		return
	}
	if last := len(mem.Messages) - 1; last >= 0 && mem.State == events.WaitingForUser && mem.Messages[last].Role == "assistant" {
		r.Answer = &mem.Messages[last].Content
	}
}

// rawJSON returns a body, as a JSON string if it is not JSON.
func rawJSON(body []byte) json.RawMessage {
	if json.Valid(body) {
		return body
	}
	text, err := json.Marshal(strings.ToValidUTF8(string(body), "\ufffd"))
	if err != nil {
		panic("a string does not marshal: " + err.Error())
	}
	return text
}

// Write writes the run as Text, JSON or YAML.
func (r *Run) Write(w io.Writer, f Format, color bool) error {
	if f != Text {
		return Write(w, f, r)
	}
	var b bytes.Buffer
	p := Palette{color}
	r.head(&b, p)
	b.WriteByte('\n')
	if len(r.Steps) > 0 {
		fmt.Fprintf(&b, "%s\n", p.Faint("steps"))
		if err := writeSteps(&b, r.Steps, p); err != nil {
			return err
		}
		fmt.Fprintf(&b, "\n%s\n", p.Faint("events"))
	}
	timeline := &Timeline{Out: &b, Color: color, Reasoning: r.Reasoning}
	for _, e := range r.entries {
		if err := timeline.Write("", e); err != nil {
			return err
		}
	}
	r.tail(&b, p)
	_, err := w.Write(b.Bytes())
	return err
}

func (r *Run) head(b *bytes.Buffer, p Palette) {
	state := string(r.State)
	if p.On {
		state = p.State(r.State, StateShape(r.State)+" "+state)
	}
	if r.Paused {
		state += " " + PausedFor(r.PauseReason)
	}
	if r.Queued {
		state += " (queued)"
	}
	usage := fmt.Sprintf("%d in, %d out", r.Usage.Input, r.Usage.Output)
	if r.Usage.Cost > 0 {
		usage += fmt.Sprintf(", $%.4f", r.Usage.Cost)
	}
	started := timestamp(r.Started)
	if !r.Started.IsZero() {
		started += ", last event " + Elapsed(r.Updated.Sub(r.Started))
	}
	fmt.Fprintf(b, "%s %s\n", p.Faint(Pad("run", 8)), r.RunID)
	r.writeSubruns(b, p)
	if from := r.ForkedFrom; from != nil {
		fmt.Fprintf(b, "%s %s at %d\n", p.Faint(Pad("fork of", 8)), Plain(from.Run), from.At)
	}
	for _, row := range [][2]string{
		{"state", state}, {"agent", strings.TrimSpace(r.Agent + " " + string(r.Mode))}, {"task", Cut(r.Task, 4*dataWidth)},
		{"started", started}, {"events", fmt.Sprintf("%d, step %d", r.N, r.Step)}, {"tokens", usage},
	} {
		fmt.Fprintf(b, "%s %s\n", p.Faint(Pad(row[0], 8)), row[1])
	}
}

// reasonWidth is how much of the reason of a pause stands beside a state, in columns.
const reasonWidth = 40

// PausedFor says beside a state that a run is paused, and why as far as that is known.
func PausedFor(reason string) string {
	if reason == "" {
		return "(paused)"
	}
	return "(paused: " + Cut(reason, reasonWidth) + ")"
}

// tail is what the run came to, or what it waits for.
func (r *Run) tail(b *bytes.Buffer, p Palette) {
	if a := r.PendingApproval; a != nil {
		b.WriteString("\n" + p.Yellow("waits for a human to approve or reject") + "\n")
		for _, q := range a.Requests {
			b.WriteString("  " + r.request(q) + "\n")
		}
		if a.Deadline != "" {
			fmt.Fprintf(b, "  until %s\n", Plain(a.Deadline))
		}
	}
	if len(r.ClientCalls) > 0 {
		b.WriteString("\n" + p.Yellow("waits for its client to answer") + "\n")
		for _, c := range r.ClientCalls {
			fmt.Fprintf(b, "  %s %s(%s), until %s (answer it with `moorebus return %s %s TEXT`)\n",
				Plain(c.CallID), Plain(c.Tool), Cut(c.Arguments, dataWidth), Plain(c.Deadline), r.RunID, Plain(c.CallID))
		}
	}
	if r.WaitsFor != nil {
		b.WriteString("\n" + p.Yellow(WaitsFor(r.WaitsFor)) + "\n")
	}
	switch {
	case r.Error != nil:
		fmt.Fprintf(b, "\n%s\n%s: %s\n", p.Red("error"), Plain(r.Error.Code), r.Error.Message)
	case r.Poison != nil:
		fmt.Fprintf(b, "\n%s\nevent %d (%s): %s\n", p.Red("poisoned"), r.Poison.N, Plain(r.Poison.Type), Plain(r.Poison.Reason))
	}
	if r.Answer != nil {
		title := "answer"
		if r.Incomplete {
			title = "answer, incomplete: it was cut off"
		}
		fmt.Fprintf(b, "\n%s\n%s\n", p.Green(title), strings.TrimRight(*r.Answer, " \n"))
	}
}

// WaitsFor says in a line which pool a run waits for.
func WaitsFor(w *runs.WaitsFor) string {
	return fmt.Sprintf("waits for an actor of pool %s since %s", Plain(w.Pool), timestamp(w.Since))
}

// request formats a waiting call with its decision, if it has one, or with the reason for the
// request. A question is not shortened.
func (r *Run) request(q events.Request) string {
	said := ""
	if i := slices.IndexFunc(r.PendingApproval.Decisions, func(d events.Decision) bool { return d.CallID == q.CallID }); i >= 0 {
		said = ": " + Plain(events.Summary(&events.HumanDecision{Decision: r.PendingApproval.Decisions[i]}))
	}
	switch {
	case q.Asks && said == "":
		return fmt.Sprintf("%s %s asks: %s (answer it with `moorebus answer %s %s TEXT`)", Plain(q.CallID), Plain(q.Tool), Plain(q.Reason), r.RunID, Plain(q.CallID))
	case said == "" && q.Reason != "":
		said = ": " + Cut(q.Reason, dataWidth)
	}
	return fmt.Sprintf("%s %s(%s), risk %s%s", Plain(q.CallID), Plain(q.Tool), Cut(q.Arguments, dataWidth), q.Risk, said)
}

// ClientCall is a call that waits for the run's client, until its deadline.
type ClientCall struct {
	CallID    string `json:"call_id"`
	Tool      string `json:"tool"`
	Arguments string `json:"arguments"`
	Deadline  string `json:"deadline"`
}

// Child is the sub-run that answers a call.
type Child struct {
	Run    string `json:"run"`
	CallID string `json:"call_id"`
}

// children returns the sub-runs of a run in the order of the calls, those that have not
// started too.
func children(mem *reducer.Memory) []Child {
	var all []Child
	for _, id := range mem.Control.CallOrder {
		if record := mem.ToolCalls[id]; record != nil && record.Run != "" {
			all = append(all, Child{Run: record.Run, CallID: id})
		} else if call := mem.Call(id); call != nil && call.Waits() {
			all = append(all, Child{Run: runid.Child(mem.RunID, id), CallID: id})
		}
	}
	return all
}

func (r *Run) writeSubruns(b *bytes.Buffer, p Palette) {
	if r.Parent != nil {
		fmt.Fprintf(b, "%s %s of run %s\n", p.Faint(Pad("answers", 8)), Plain(r.Parent.CallID), Plain(r.Parent.Run))
	}
	for _, c := range r.Children {
		fmt.Fprintf(b, "%s %s by run %s\n", p.Faint(Pad("answered", 8)), Plain(c.CallID), Plain(c.Run))
	}
}
