package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/moorebus/moorebus/internal/callname"
	"github.com/moorebus/moorebus/internal/clientmodel"
	"github.com/moorebus/moorebus/internal/control/runs"
	"github.com/moorebus/moorebus/internal/effects"
	"github.com/moorebus/moorebus/internal/ports"
	"github.com/moorebus/moorebus/internal/refusal"
	"github.com/moorebus/moorebus/internal/retry"
	"github.com/moorebus/moorebus/internal/runid"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/internal/runstart"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

const (
	// plannerWait is how long a reply waits for a planner, askWait how long one question
	// does before it is asked again, and askPause the pause before that.
	plannerWait = 10 * time.Second
	askWait     = 4 * time.Second
	askPause    = 250 * time.Millisecond
)

// asked is a run with a model that is its client, as it was when an input came.
type asked struct {
	at events.Run
	// client says that one of the agent's models is the client. waits says that a reply is
	// awaited, of whichever model, and pending is its request.
	client, waits bool
	pending       clientmodel.Request
	// timeout bounds the wait for a reply of the client; 0: nothing does.
	timeout time.Duration
	state   events.State
	n       uint64
	// index is the place of the input.
	index int
	// unknown says that the input's call is not the run's, others that an actor has it.
	unknown, others bool
}

// modelInputs carries out inputs that come from a model which is the run's client. mine is
// false for other inputs.
func (c *Controller) modelInputs(ctx context.Context, ns, id string, inputs []Input) (result InputsResult, mine bool, err error) {
	first, reply, others := modelParts(inputs)
	start, starts := inputs[0].(ToolCallStarted)
	starts = starts && len(inputs) == 1
	if first < 0 && !starts {
		return InputsResult{}, false, nil
	}
	run, err := c.asked(ctx, ns, id, start.CallID)
	if err != nil {
		return InputsResult{}, true, err
	}
	run.index = max(first, 0)
	if !starts && others >= 0 && run.client {
		return InputsResult{}, true, refusal.New(refusal.Invalid, refusal.CodeBadInput,
			"input %d: cannot be posted together with inputs of the run's model; post those separately: chunks, then at most one reply", others).With(map[string]any{"index": others})
	}
	if starts {
		if !run.client || start.Name == "" || start.Arguments == "" || !run.unknown && !run.others {
			return InputsResult{}, false, nil
		}
		reply = &LLMMessageComplete{
			MessageID: runid.Child(run.at.ID, "message/"+start.CallID), // a repetition has the same one
			Calls:     []events.Call{{ID: start.CallID, Name: start.Name, Arguments: start.Arguments}},
		}
		if found, _, err := c.find(ctx, run, reply.MessageID); err != nil || !found && (!run.unknown || !run.planning()) {
			return InputsResult{}, err != nil, err // the call is a tool's
		}
	}
	result, err = c.modelReply(ctx, run, inputs, reply)
	return result, true, err
}

// modelParts returns the place of the first input that only a model has, or -1, and its reply,
// nil if there is none. others is the place of the first input that excludes them, or -1.
func modelParts(inputs []Input) (first int, reply *LLMMessageComplete, others int) {
	first, others = -1, -1
	for i, in := range inputs {
		said, replies := in.(LLMMessageComplete)
		_, chunk := in.(LLMChunk)
		if first < 0 && (replies || chunk) {
			first = i
		}
		if others < 0 && (!replies && !chunk || reply != nil) {
			others = i
		}
		if replies {
			reply = &said
		}
	}
	return first, reply, others
}

// asked returns a run at the head of its log. call is that of an input, or empty.
func (c *Controller) asked(ctx context.Context, ns, id, call string) (asked, error) {
	var a asked
	err := c.View(ctx, ns, id, func(run *runlog.Run) error {
		mem := run.Memory()
		a = asked{at: run.ID, client: clientmodel.Asks(&mem.Control.Agent), state: mem.State, n: mem.N}
		a.pending, a.waits = clientmodel.Pending(c.Table, mem)
		a.timeout = time.Duration(mem.Control.Agent.LLM.Timeout)
		known := mem.ToolCalls[callname.Find(mem, call)]
		a.unknown = known == nil
		a.others = known != nil && mem.Tools[known.Name].Pool != events.ClientPool
		return nil
	})
	return a, err
}

// find looks for a message in the run's log. since is when the awaited reply was asked for.
func (c *Controller) find(ctx context.Context, run asked, message string) (found bool, since time.Time, err error) {
	found, at, err := clientmodel.Find(ctx, c.Log, run.at, 0, message, run.pending.N)
	return found, at.Time, err
}

// modelReply carries out chunks, and behind them a reply, which may be nil. What was accepted
// before is accepted again.
func (c *Controller) modelReply(ctx context.Context, run asked, inputs []Input, reply *LLMMessageComplete) (InputsResult, error) {
	done := InputsResult{Accepted: len(inputs), N: run.n}
	ids, key := chunkIDs(inputs), ""
	if reply != nil {
		ids, key = append(ids, reply.MessageID), reply.Key
		if n := len(ids) - 1; n > 0 && ids[n-1] == ids[n] {
			ids = ids[:n]
		}
	}
	known, since := 0, time.Time{}
	for i, id := range ids {
		if replies := reply != nil && i == len(ids)-1; !replies && c.chunks.has(run.at, run.pending.Key, id) {
			continue // it is in the log only once the request is answered
		}
		found, at, err := c.find(ctx, run, id)
		if err != nil {
			return InputsResult{}, err
		}
		since = at
		if found {
			known++
		}
	}
	if known > 0 && known == len(ids) {
		return done, nil
	}
	if err := run.refuse(key); err != nil {
		return InputsResult{}, err
	}
	undo, err := c.chunks.add(run.at, run.pending.Key, inputs)
	if err != nil || reply == nil {
		return done, err
	}
	err = c.deliverReply(ctx, run, reply, since)
	if err != nil {
		undo()
		return InputsResult{}, err
	}
	c.chunks.drop(run.at)
	after, err := c.asked(ctx, run.at.Namespace, run.at.ID, "")
	done.N = after.n
	return done, err
}

// chunkIDs returns the messages of the chunks, each once.
func chunkIDs(inputs []Input) (ids []string) {
	for _, in := range inputs {
		if chunk, ok := in.(LLMChunk); ok && (len(ids) == 0 || ids[len(ids)-1] != chunk.MessageID) {
			ids = append(ids, chunk.MessageID)
		}
	}
	return ids
}

// planning reports whether the client is asked for a step of the run, and not for a summary.
func (a *asked) planning() bool {
	return a.pending.Client && a.pending.Effect.Kind == effects.KindPlan
}

// refuse returns why no reply is accepted now, nil if one is. key is that of the request which
// the reply answers; empty: the one that waits.
func (a *asked) refuse(key string) error {
	conflict := func(code, format string, args ...any) error {
		return refusal.New(refusal.Conflict, code, "input %d: "+format, append([]any{a.index}, args...)...).
			With(map[string]any{"run": a.at.ID, "state": a.state, "n": a.n, "index": a.index})
	}
	switch {
	case !a.client, a.waits && !a.pending.Client:
		return conflict(refusal.CodeNotYours, "the run's model is not its client, so nobody but a planner gives its replies; agents with llm: {provider: client} wait for theirs")
	case key != "" && (!a.waits || key != a.pending.Key):
		return conflict(refusal.CodeObsolete, "the run does not wait for a reply to the request %q any more; GET /v1/runs/%s/request has the one that it waits for", key, a.at.ID)
	case !a.waits:
		return conflict(refusal.CodeNothingPending, "the run is in state %s and waits for no reply of its model", a.state)
	case a.pending.Paused:
		return conflict(refusal.CodePaused, "the run is paused; resume it and post the same again")
	}
	return nil
}

// deliverReply has a planner append a reply. since is when it was asked for.
func (c *Controller) deliverReply(ctx context.Context, run asked, reply *LLMMessageComplete, since time.Time) error {
	message := clientmodel.Message{ID: reply.MessageID, Calls: reply.Calls, Usage: reply.Usage, Model: reply.Model}
	if reply.Content != nil {
		message.Content = *reply.Content
	}
	if message.Content == "" && len(message.Calls) == 0 {
		text, err := c.chunks.text(ctx, run.at, run.pending.Key, reply.MessageID, since)
		if err != nil {
			return err
		}
		message.Content = text
	}
	answer, err := c.askPlanner(ctx, clientmodel.Question{
		Do: clientmodel.Reply, Namespace: run.at.Namespace, Run: run.at.ID, Key: run.pending.Key, Message: message,
	})
	if err == nil && answer == clientmodel.Done {
		return nil
	}
	if failed := c.wakeNext(ctx, run.at, run.pending.Key); err == nil {
		err = failed
	}
	if err != nil {
		return err
	}
	run.waits, run.pending.Paused = answer == clientmodel.Paused, answer == clientmodel.Paused
	return run.refuse(run.pending.Key)
}

// askPlanner asks the planners until one answers. Without any, or after a failed attempt, the
// error is Unavailable, and the same may be asked again.
func (c *Controller) askPlanner(ctx context.Context, q clientmodel.Question) (code string, err error) {
	question, err := json.Marshal(q)
	if err != nil {
		return "", err
	}
	ctx, stop := context.WithTimeout(ctx, plannerWait)
	defer stop()
	notStored := func(after time.Duration, format string, args ...any) error {
		e := refusal.New(refusal.Unavailable, refusal.CodeNoPlanner, format+"; post the same again", args...)
		e.RetryAfter = after
		return e
	}
	for failed := "no planner answers"; ; {
		if ctx.Err() != nil || c.cfg.Questions == nil {
			return "", notStored(retryMissing, "no planner stored the reply within %s: %s", plannerWait, failed)
		}
		answer, err := c.askOnce(ctx, question)
		switch {
		case errors.Is(err, journal.ErrTooLarge):
			return "", refusal.Wrap(err, refusal.TooLarge, refusal.CodeTooLarge, "the reply is larger than a message of the bus")
		case errors.Is(err, journal.ErrDenied):
			return "", err
		case err == nil && answer.Code != clientmodel.Failed:
			return answer.Code, nil
		case err == nil && answer.RetryAfter > 0: // each time counts as a failed attempt
			return "", notStored(time.Duration(answer.RetryAfter), "the planner could not store the reply: %s", answer.Reason)
		case err == nil:
			failed = answer.Reason
		case !errors.Is(err, ports.ErrNoAnswer):
			failed = err.Error()
		}
		retry.Wait(ctx, askPause)
	}
}

// retryMissing is when a reply that no planner took may be posted again.
const retryMissing = time.Second

func (c *Controller) askOnce(ctx context.Context, question []byte) (answer clientmodel.Answer, err error) {
	ctx, stop := context.WithTimeout(ctx, askWait)
	defer stop()
	data, err := c.cfg.Questions.Question(ctx, clientmodel.Topic, question)
	if err != nil {
		return answer, err
	}
	if err := json.Unmarshal(data, &answer); err != nil {
		return answer, fmt.Errorf("a planner's answer: %w", err)
	}
	return answer, nil
}

// expireReply ends the wait for a client's reply, if the run still waits for that one: a planner
// says so in the log. A wait without a key is of a run that was imported; it begins anew.
func (c *Controller) expireReply(ctx context.Context, at events.Run, wait clientmodel.Wait) error {
	if wait.Led {
		return c.driveLed(ctx, at, wait.Wake)
	}
	run, err := c.asked(ctx, at.Namespace, at.ID, "")
	if runs.IsMissing(err) {
		return nil
	}
	if err != nil {
		return err
	}
	mine := run.waits && run.pending.Client && !run.pending.Paused // Resumed sets a new timer
	switch {
	case mine && wait.Key == "" && run.timeout > 0:
		end := c.Store.Now().Add(run.timeout)
		return runstart.SetTimer(ctx, c.cfg.Timers, at, ports.TimerModel, end, run.pending.Note(end))
	case mine && wait.Key == run.pending.Key && wait.Wake == run.pending.Effect.Wake:
		if _, err := c.askPlanner(ctx, clientmodel.Question{Do: clientmodel.Expire, Namespace: at.Namespace, Run: at.ID, Key: wait.Key}); err != nil {
			return err
		}
	}
	return c.wakeNext(ctx, at, wait.Key)
}

// driveLed re-drives a run whose work is left to the delivery of event n, which went to Planning,
// although the run has gone on to another state: the planner that got it does not serve that state.
func (c *Controller) driveLed(ctx context.Context, at events.Run, n uint64) error {
	_, err := c.Change(ctx, at.Namespace, at.ID, func(mem *reducer.Memory) ([]runlog.Draft, error) {
		if !slices.ContainsFunc(effects.Of(c.Table, mem), func(e effects.Effect) bool { return e.Wake == n && e.State != events.Planning && !e.Held }) {
			return nil, nil
		}
		return runs.One(events.Control, &events.Resumed{By: events.By{Reason: "the process that led the run is gone", By: c.Source}, Redrive: true})
	})
	if refusal.Is(err, refusal.CodeRunEnded) || runs.IsMissing(err) {
		return nil
	}
	return err
}

// wakeNext re-drives a run if the request with that key failed, so that a planner asks the next
// model or ends the run: nothing else would wake one.
func (c *Controller) wakeNext(ctx context.Context, at events.Run, key string) error {
	_, err := c.Change(ctx, at.Namespace, at.ID, func(mem *reducer.Memory) ([]runlog.Draft, error) {
		now, waits := clientmodel.Pending(c.Table, mem)
		next := waits && !now.Paused && (now.Effect.Failed.Passed > 0 && now.Key != key || !now.Client)
		if last := len(mem.Trace) - 1; !next || last < 0 || mem.Trace[last].Event != string(events.TypeLLMAttemptFailed) {
			return nil, nil
		}
		return runs.One(events.Control, &events.Resumed{By: events.By{Reason: "the run's client gave no reply that counts", By: c.Source}, Redrive: true})
	})
	if refusal.Is(err, refusal.CodeRunEnded) {
		return nil
	}
	return err
}
