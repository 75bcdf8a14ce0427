package a2a

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/moorebus/moorebus/internal/control/decisions"
	"github.com/moorebus/moorebus/internal/control/runs"
	"github.com/moorebus/moorebus/internal/httpapi/route"
	"github.com/moorebus/moorebus/internal/refusal"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// conversation is how a client knows a run: by its names, and at which base URL it reached the
// gateway.
type conversation struct {
	run       string
	contextID string
	messageID string
	base      string
}

// conversationOf returns the names in a run's first event.
func conversationOf(run, base string, first events.Payload) conversation {
	c := conversation{run: run, contextID: run, base: base}
	if start, ok := first.(*events.Start); ok {
		c.messageID = start.MessageID
		var kept customMemory
		// Custom memory that another program wrote names no context.
		if json.Unmarshal(start.Custom[customKey], &kept) == nil && kept.ContextID != "" {
			c.contextID = kept.ContextID
		}
	}
	return c
}

// customKey is the key of a run's custom memory that has the client's name of its conversation.
const customKey = "a2a"

type customMemory struct {
	ContextID string `json:"context_id"`
}

// customOf returns what a run's custom memory begins with.
func customOf(contextID string) map[string]json.RawMessage {
	if contextID == "" {
		return nil
	}
	kept, err := json.Marshal(customMemory{contextID})
	if err != nil {
		return nil // a text always has JSON
	}
	return map[string]json.RawMessage{customKey: kept}
}

// conversation reads the names of a run.
func (f *Face) conversation(ctx context.Context, to target) (conversation, error) {
	records, err := f.cfg.Control.Events(ctx, to.ns, to.run, 1)
	if err != nil {
		return conversation{}, err
	}
	for rec, err := range records {
		if err != nil {
			return conversation{}, err
		}
		if e := f.cfg.Control.Decode(rec); e != nil {
			return conversationOf(to.run, to.base, e.Data), nil
		}
		break
	}
	return conversationOf(to.run, to.base, nil), nil
}

// maxHistory is how many messages a task has unless the request says how many.
const maxHistory = 100

const historyLength = "historyLength"

// taskOf is the task of a run.
func (f *Face) taskOf(mem *reducer.Memory, c conversation, history *int) task1 {
	t := task1{
		ID: c.run, ContextID: c.contextID, Status: f.statusOf(mem, c), Artifacts: artifactsOf(mem, c.base),
		Metadata: map[string]any{"moorebus": map[string]any{"state": mem.State, "n": mem.N}},
	}
	limit := maxHistory
	if history != nil {
		limit = min(*history, maxHistory)
	}
	t.History = historyOf(mem, c, t.Status.Message, limit)
	return t
}

// statusOf is the status of a run. Its timestamp is that of the run's last event.
func (f *Face) statusOf(mem *reducer.Memory, c conversation) status {
	s := status{State: working, Timestamp: timestamp(mem.Updated)}
	say := func(id string, parts ...part) {
		s.Message = &message{MessageID: id, ContextID: c.contextID, TaskID: c.run, Role: roleAgent, Parts: parts}
	}
	terminal := f.cfg.Control.Table.Terminal(mem.State)
	waits := decisions.Undecided(mem.PendingApproval)
	switch {
	case mem.State == events.Cancelled:
		s.State = canceled
	case mem.State == events.Errored || mem.Control.Poison != nil:
		s.State = failed
		if mem.Error != nil {
			say(c.run+"/error", textPart(mem.Error.Code+": "+mem.Error.Message))
		}
	case terminal:
		s.State = completed
	case mem.State == events.WaitingForHuman && len(waits) > 0:
		s.State = inputRequired
		say(fmt.Sprintf("%s/%d/%d", c.run, mem.Control.Armed, len(waits)), questions(mem, waits)...)
	case mem.State == events.WaitingForUser:
		s.State = inputRequired
		if last := lastReply(mem); last != nil {
			say(last.ID, textPart(last.Content))
		}
	case len(mem.ClientCalls()) > 0:
		s.State = inputRequired
		calls := mem.ClientCalls()
		say(fmt.Sprintf("%s/%d/%d", c.run, mem.Control.Armed, len(calls)), toolRequests(calls)...)
	case mem.N == 1:
		s.State = submitted
	}
	return s
}

// questions are the parts that ask a human: in words, and as data.
func questions(mem *reducer.Memory, waits []string) []part {
	var words []string
	var open []events.Request
	for _, r := range mem.PendingApproval.Requests {
		if !slices.Contains(waits, r.CallID) {
			continue
		}
		open = append(open, r)
		if r.Asks {
			words = append(words, r.Reason)
		} else {
			words = append(words, fmt.Sprintf("May %s run with %s? Reason to ask: %s", r.Tool, r.Arguments, r.Reason))
		}
	}
	how := "Answer with a data part {call_id, decision, by} for each call."
	switch {
	case len(open) == 1 && open[0].Asks:
		how = "Answer with text."
	case len(open) == 1:
		how = "Answer approved or rejected, or with a data part {call_id, decision, by}."
	}
	data := map[string]any{"requests": open}
	if mem.PendingApproval.Deadline != "" {
		data["deadline"] = mem.PendingApproval.Deadline
	}
	return []part{textPart(strings.Join(append(words, how), "\n")), dataPart(map[string]any{"approval": data})}
}

// toolRequests are the parts that ask the client for the results of its tools.
func toolRequests(calls []reducer.CallState) []part {
	type open struct {
		events.Call
		Deadline string `json:"deadline"`
	}
	var names []string
	var all []open
	for _, call := range calls {
		names, all = append(names, call.Name), append(all, open{call.Call, call.Deadline})
	}
	return []part{
		textPart("Tools of the client are called: " + strings.Join(names, ", ") + ". Answer with a data part {type: tool-call-result, toolCallId, result} for each call."),
		dataPart(map[string]any{"client_calls": all}),
	}
}

func dataPart(v any) part {
	data, err := json.Marshal(v)
	if err != nil {
		panic("a part does not marshal: " + err.Error()) // it is of strings and numbers
	}
	return part{Data: data, MediaType: "application/json"}
}

// lastReply returns the last message if it is the agent's.
func lastReply(mem *reducer.Memory) *reducer.Message {
	if n := len(mem.Messages); n > 0 && mem.Messages[n-1].Role != "user" {
		return &mem.Messages[n-1]
	}
	return nil
}

// answerID is the id of the artifact that holds the final answer.
const answerID = "answer"

// artifactsOf returns the answer of a run that has ended, and the files of its tools. In a chat that
// continues, the last reply is the message of the status.
func artifactsOf(mem *reducer.Memory, base string) []artifact {
	return append(answerOf(mem), filesOf(mem, base)...)
}

func answerOf(mem *reducer.Memory) []artifact {
	if mem.FinalAnswer == nil || mem.State == events.WaitingForUser {
		return nil
	}
	a := artifact{ArtifactID: answerID, Name: answerID, Parts: []part{textPart(*mem.FinalAnswer)}}
	if len(mem.Control.Agent.OutputSchema) > 0 && json.Valid([]byte(*mem.FinalAnswer)) {
		a.Parts = []part{{Data: json.RawMessage(*mem.FinalAnswer), MediaType: "application/json"}}
	}
	if mem.Control.Incomplete {
		a.Metadata = map[string]any{"incomplete": true}
	}
	return []artifact{a}
}

// historyOf returns the last messages of a run, without the one that the status shows.
func historyOf(mem *reducer.Memory, c conversation, shown *message, limit int) []message {
	all := mem.Messages
	if shown != nil && len(all) > 0 && all[len(all)-1].ID == shown.MessageID {
		all = all[:len(all)-1]
	}
	first := max(0, len(all)-limit)
	var history []message
	for i, m := range all[first:] {
		said := message{MessageID: m.ID, ContextID: c.contextID, TaskID: c.run, Role: roleAgent, Parts: []part{textPart(m.Content)}}
		if m.Role == "user" {
			said.Role = roleUser
		}
		if first+i == 0 && c.messageID != "" {
			said.MessageID = c.messageID
		}
		if len(m.Parts) > 0 {
			said.Parts = partsOf(m.Parts, c.base)
		}
		history = append(history, said)
	}
	return history
}

// partsOf are the parts of a stored message. What is in the object store has a URL.
func partsOf(stored []events.Part, base string) []part {
	parts := make([]part, len(stored))
	for i := range stored {
		switch p := &stored[i]; {
		case p.URL != "":
			parts[i] = part{URL: p.URL, MediaType: p.MediaType, Filename: p.Name}
		case len(p.Data) > 0:
			parts[i] = part{Raw: p.Data, MediaType: p.MediaType, Filename: p.Name}
		case p.Ref != nil:
			parts[i] = storedPart(p.Ref, base, p.MediaType, p.Name)
		default:
			parts[i] = textPart(events.Shown("", stored[i:i+1]))
		}
	}
	return parts
}

// view calls fn with a task's memory at its head. A run that another agent began and has is no
// task of this one.
func (f *Face) view(ctx context.Context, ns, agent, id string, fn func(run *runlog.Run) error) error {
	err := f.cfg.Control.View(ctx, ns, id, func(run *runlog.Run) error {
		if c := &run.Memory().Control; c.StorageAgent != agent && c.Agent.Name != agent {
			return taskNotFound(id)
		}
		return fn(run)
	})
	if runs.IsMissing(err) {
		var missing *refusal.Error
		if errors.As(err, &missing) && missing.Code == refusal.CodeRunPurged {
			return err
		}
		return taskNotFound(id)
	}
	return err
}

// whole returns the current task, with its files.
func (f *Face) whole(ctx context.Context, to target, history *int) (task1, error) {
	t, err := f.task(ctx, to, history)
	f.fill(ctx, t.Artifacts)
	return t, err
}

// task returns a task as it is now. It has the URLs of files.
func (f *Face) task(ctx context.Context, to target, history *int) (t task1, err error) {
	c, err := f.conversation(ctx, to)
	if err != nil && !runs.IsMissing(err) {
		return t, err
	}
	err = f.view(ctx, to.ns, to.agent, to.run, func(run *runlog.Run) error {
		t = f.taskOf(run.Memory(), c, history)
		return nil
	})
	return t, err
}

func (f *Face) getTask(w http.ResponseWriter, r *http.Request) error {
	id, verb, _ := strings.Cut(r.PathValue("id"), ":")
	switch verb {
	case "subscribe":
		return f.subscribe(w, r, id, plain)
	case "":
	default:
		return refusal.New(refusal.NotFound, refusal.CodeNotFound, "there is nothing at %s", r.URL.Path)
	}
	return f.jsonAnswer(func(ctx context.Context, r *http.Request) (any, error) {
		history, err := lengthOf(parameters(r))
		if err != nil {
			return nil, err
		}
		return f.whole(ctx, targetOf(r, id), history)
	})(w, r)
}

// parameters returns the query's values. Keys that are not known are ignored, as the protocol has
// it.
func parameters(r *http.Request) map[string]string {
	values := map[string]string{}
	for key, all := range r.URL.Query() {
		values[key] = all[0]
	}
	return values
}

// lengthOf reads the parameter historyLength; nil: it is not given.
func lengthOf(values map[string]string) (*int, error) {
	text, given := values[historyLength]
	if !given {
		return nil, nil
	}
	n, err := strconv.ParseUint(text, 10, 31)
	if err != nil {
		return nil, route.BadParameter("%s: %.100q is not a number", historyLength, text)
	}
	length := int(n)
	return &length, nil
}

func (f *Face) postTask(w http.ResponseWriter, r *http.Request) error {
	id, verb, _ := strings.Cut(r.PathValue("id"), ":")
	switch verb {
	case "subscribe":
		return f.subscribe(w, r, id, plain)
	case "cancel":
		return f.jsonAnswer(func(ctx context.Context, r *http.Request) (any, error) {
			return f.cancel(ctx, targetOf(r, id))
		})(w, r)
	case "":
		w.Header().Set("Allow", http.MethodGet)
		return refusal.New(refusal.WrongMethod, refusal.CodeMethodNotAllowed, "%s is not possible at %s; use GET", r.Method, r.URL.Path)
	}
	return refusal.New(refusal.NotFound, refusal.CodeNotFound, "there is nothing at %s", r.URL.Path)
}

// cancel cancels a task. One that is cancelled already stays so, without an error.
func (f *Face) cancel(ctx context.Context, to target) (task1, error) {
	t, err := f.whole(ctx, to, nil)
	if err != nil || t.Status.State == canceled {
		return t, err
	}
	_, err = f.cfg.Control.Cancel(ctx, to.ns, to.run, events.By{By: by, Reason: "an A2A client cancelled the task"})
	if refusal.Is(err, refusal.CodeRunEnded) {
		return t, refusal.New(refusal.Invalid, refusal.CodeNotCancelable, "the task has ended").With(map[string]any{"run": to.run})
	}
	if err != nil {
		return t, err
	}
	return f.whole(ctx, to, nil)
}
