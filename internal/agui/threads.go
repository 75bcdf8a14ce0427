package agui

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/moorebus/moorebus/internal/buckets"
	"github.com/moorebus/moorebus/internal/control"
	"github.com/moorebus/moorebus/internal/control/decisions"
	"github.com/moorebus/moorebus/internal/control/runs"
	"github.com/moorebus/moorebus/internal/kv"
	"github.com/moorebus/moorebus/internal/refusal"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// thread is what is kept of a client's thread: its runs, the newest last. The newest may not
// have been started.
type thread struct {
	Runs []string `json:"runs"`
	// Turns are the numbers of the events that opened the turns of runs that have ended, by run
	// and turn. For other runs the log has them.
	Turns map[string]map[string]uint64 `json:"turns,omitempty"`
}

const (
	// maxRuns is how many runs of a thread are known.
	maxRuns = 16
	// maxTurnBytes bounds the ids of a run's turns that are kept with the thread.
	maxTurnBytes = 8 << 10
)

// errLostRace says that something else happened to the thread meanwhile.
var errLostRace = errors.New("another request was faster")

// openTries is how often a request is tried that loses races.
const openTries = 8

// place is a turn of a run. First is the number of its first event, again whether an earlier
// request opened it.
type place struct {
	run   events.Run
	first uint64
	again bool
}

// owner is the agent of a thread.
type owner struct{ Namespace, Agent string }

func (o owner) String() string { return o.Namespace + "/" + o.Agent }

// threadKey is the key of a thread. A client's name may be any text, so its digest is used.
func threadKey(of owner, id string) string {
	return of.Namespace + "." + of.Agent + "." + events.Hash([]byte(id))
}

func (s *server) thread(ctx context.Context, of owner, id string) (t thread, revision uint64, err error) {
	it, err := s.KV.Get(ctx, buckets.Threads, threadKey(of, id))
	switch {
	case errors.Is(buckets.OrNone(err), journal.ErrNotFound):
		return t, 0, nil
	case err == nil:
		err = json.Unmarshal(it.Value, &t)
	}
	if err != nil {
		return t, 0, fmt.Errorf("thread %.100q of %s: %w", id, of, err)
	}
	return t, it.Revision, nil
}

// open finds or opens the turn of a request. Opening appends what the request brings. It may
// be repeated at any point.
func (s *server) open(ctx context.Context, of owner, in *request) (place, error) {
	if _, err := s.Control.Agent(ctx, of.Namespace, of.Agent); err != nil {
		return place{}, err
	}
	for range openTries {
		p, err := s.tryOpen(ctx, of, in)
		if !errors.Is(err, errLostRace) {
			return p, err
		}
	}
	return place{}, refusal.New(refusal.Conflict, refusal.CodeTurnOpen, "other requests change the thread all the time; try again")
}

func (s *server) tryOpen(ctx context.Context, of owner, in *request) (place, error) {
	t, revision, err := s.thread(ctx, of, in.ThreadID)
	if err != nil {
		return place{}, err
	}
	for i, id := range slices.Backward(t.Runs) {
		turns, kept := t.Turns[id]
		if !kept {
			if turns, err = s.turns(ctx, of.Namespace, id); err != nil {
				return place{}, err
			}
		}
		if first := turns[in.RunID]; first > 0 {
			p := place{s.Control.Store.Place(of.Namespace, id), first, true}
			if i == len(t.Runs)-1 {
				err = s.repeat(ctx, p, in)
			}
			return p, err
		}
	}
	if len(t.Runs) > 0 {
		last := t.Runs[len(t.Runs)-1]
		now, err := s.position(ctx, s.Control.Store.Place(of.Namespace, last), in)
		switch {
		case refusal.Is(err, refusal.CodeRunNotFound):
			return s.start(ctx, of, t, in) // the request that named the run did not start it
		case refusal.Is(err, refusal.CodeRunPurged):
			now.ended = true
		case err != nil:
			return place{}, err
		}
		if !now.ended {
			return s.goOn(ctx, now)
		}
		// Once more, since it may have had a turn before it ended.
		turns, err := s.turns(ctx, of.Namespace, last)
		if err != nil {
			return place{}, err
		}
		t.ended(last, turns)
	}
	t.add(s.Control.Store.NewID())
	value, err := json.Marshal(t)
	if err != nil {
		return place{}, err
	}
	_, err = s.KV.Update(ctx, buckets.Threads, kv.Item{Key: threadKey(of, in.ThreadID), Value: value, Revision: revision})
	switch {
	case errors.Is(err, journal.ErrConflict):
		return place{}, errLostRace
	case err != nil:
		return place{}, fmt.Errorf("thread %.100q of %s: %w", in.ThreadID, of, err)
	}
	return s.start(ctx, of, t, in)
}

// ended keeps the turns of a run that has ended, if they are not too many.
func (t *thread) ended(run string, turns map[string]uint64) {
	size := 0
	for id := range turns {
		size += len(id)
	}
	if size == 0 || size > maxTurnBytes {
		return // it was purged, or the log has it
	}
	if t.Turns == nil {
		t.Turns = map[string]map[string]uint64{}
	}
	t.Turns[run] = turns
}

// add adds a run, and forgets the oldest ones.
func (t *thread) add(run string) {
	t.Runs = append(t.Runs, run)
	t.Runs = t.Runs[max(0, len(t.Runs)-maxRuns):]
	maps.DeleteFunc(t.Turns, func(id string, _ map[string]uint64) bool { return !slices.Contains(t.Runs, id) })
}

// turns returns the numbers of the events that opened the turns of a run, by turn; none of a
// run that is not there.
func (s *server) turns(ctx context.Context, ns, id string) (map[string]uint64, error) {
	records, err := s.Control.Events(ctx, ns, id, 1)
	if runs.IsMissing(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	turns, n := map[string]uint64{}, uint64(0)
	for rec, err := range records {
		if err != nil {
			return nil, err
		}
		n++
		if !bytes.Contains(rec.Body, []byte(customKey)) {
			continue
		}
		if e := s.Control.Decode(rec); e != nil {
			if t, ok := opens(e); ok && turns[t.RunID] == 0 {
				turns[t.RunID] = n
			}
		}
	}
	return turns, nil
}

// start starts the newest run of a thread.
func (s *server) start(ctx context.Context, of owner, t thread, in *request) (place, error) {
	id := t.Runs[len(t.Runs)-1]
	known := map[string]bool{}
	for _, earlier := range t.Runs[:len(t.Runs)-1] {
		err := s.Control.View(ctx, of.Namespace, earlier, func(run *runlog.Run) error {
			if err := checkTools(run.Memory(), in); err != nil {
				return err
			}
			kept := turnOf(run.Memory()).Known
			for _, m := range in.messages {
				known[m.ID] = known[m.ID] || run.Memory().Knows(m.ID) || slices.Contains(kept, m.ID)
			}
			return nil
		})
		if err != nil && !runs.IsMissing(err) {
			return place{}, err
		}
	}
	next := turn{RunID: in.RunID, State: in.kept(), Context: notNull(in.Context), Tools: in.tools}
	var messages []message
	for _, m := range in.messages {
		switch {
		case m.Role != roleUser || slices.Contains(next.Messages, m.ID):
		case known[m.ID]:
			next.Known = append(next.Known, m.ID)
		default:
			messages, next.Messages = append(messages, m), append(next.Messages, m.ID)
		}
	}
	value, err := json.Marshal(next)
	if err != nil {
		return place{}, err
	}
	req := control.StartRequest{
		AgentName: of.Agent, Mode: events.ModeChat, RunID: id, ClientTools: in.clientTools(), Labels: in.labels, Custom: map[string]json.RawMessage{customKey: value},
	}
	for i, m := range messages {
		if i == 0 {
			req.Task, req.Parts, req.MessageID = m.text, m.parts, m.ID
		} else {
			req.Messages = append(req.Messages, m.user())
		}
	}
	if _, err := s.Control.Start(ctx, of.Namespace, req); err != nil {
		if refusal.Is(err, refusal.CodeRunExists) {
			err = errLostRace
		}
		return place{}, err
	}
	return place{run: s.Control.Store.Place(of.Namespace, id), first: 1}, nil
}

func (m *message) input() control.Input {
	if m.Role == roleTool {
		return control.ToolCallResult{CallID: m.ToolCallID, Success: m.Error == "", Text: resultText(m)}
	}
	return m.user()
}

func (m *message) user() control.UserMessage {
	return control.UserMessage{MessageID: m.ID, Content: m.text, Parts: m.parts}
}

func resultText(m *message) string {
	switch {
	case m.Error != "":
		return m.Error
	case len(m.parts) > 0:
		return events.TextOf(m.parts)
	}
	return m.text
}

// position is where a run stands, and what a request brings to it.
type position struct {
	at     events.Run
	ended  bool
	n      uint64
	turn   turn
	inputs []control.Input
	// answers are the decisions on calls that wait for one.
	answers []brought
}

// position says what a request brings to a run that rests, or refuses it.
func (s *server) position(ctx context.Context, at events.Run, in *request) (now position, err error) {
	b, err := s.below(ctx, at)
	if err != nil {
		return now, err
	}
	answers, err := s.answersBelow(ctx, b, in)
	if err != nil {
		return now, err
	}
	err = s.Control.View(ctx, at.Namespace, at.ID, func(run *runlog.Run) (err error) {
		if len(b.waits) > 0 && run.Memory().N != b.n {
			return errLostRace
		}
		now, err = s.positionIn(at, run.Memory(), in, b, answers)
		return err
	})
	return now, err
}

// positionIn is [server.position] for a memory. Answers are the decisions for the run's sub-runs.
func (s *server) positionIn(at events.Run, mem *reducer.Memory, in *request, b below, answers []brought) (p position, err error) {
	last := turnOf(mem)
	if last.RunID == in.RunID {
		return p, errLostRace // the same request was faster
	}
	if err := checkTools(mem, in); err != nil {
		return p, err
	}
	if s.Control.Table.Terminal(mem.State) {
		return position{ended: true}, nil
	}
	conflict := func(code, format string, args ...any) *refusal.Error {
		return runs.Conflict(mem, code, format, args...)
	}
	interrupts := b.interrupts(last.Below)
	resting := rests(s.Control.Table, mem) || len(interrupts) > 0
	undecided := decisions.Undecided(mem.PendingApproval)
	for _, i := range interrupts {
		undecided = append(undecided, i.ID)
	}
	p = position{at: at, n: mem.N, answers: answers, turn: turn{
		RunID: in.RunID, State: in.kept(), Context: notNull(in.Context), Tools: in.tools, Known: last.Known, Results: map[string]string{},
		Interrupts: brief(interrupts),
	}}
	for _, a := range answers {
		if p.turn.Below == nil {
			p.turn.Below = map[string]uint64{}
		}
		p.turn.Below[a.interrupt] = a.n
	}
	for _, a := range in.answers {
		switch r := requestOf(mem, a.id); {
		case r != nil:
			d, err := a.to(r)
			if err == nil {
				// Before anything is appended: a turn whose decision is refused would not end.
				err = s.Control.CheckDecision(mem, d)
			}
			if err != nil {
				return p, err
			}
			p.answers, p.turn.Decisions = append(p.answers, brought{run: at, interrupt: a.id, decision: d}), append(p.turn.Decisions, d.CallID)
		case b.find(a.id) == nil && a.decision.Decision != events.DecisionRejected && resting:
			return p, conflict(refusal.CodeNotWaiting, "interrupt %.100q does not wait for an answer", a.id)
		}
	}
	switch {
	case !resting:
		return p, conflict(refusal.CodeTurnOpen, "the turn %.100q is open; wait for its end, or follow it with the same runId", last.RunID)
	case len(undecided) > 0 && len(p.answers) == 0:
		return p, conflict(refusal.CodeInterrupted, "calls wait for decisions; answer their interrupts in resume").With(map[string]any{"interrupts": undecided})
	}
	p.inputs = p.turn.take(mem, in)
	return p, nil
}

// checkTools refuses other tools than those of the thread's runs.
func checkTools(mem *reducer.Memory, in *request) error {
	if turnOf(mem).Tools == in.tools {
		return nil
	}
	return runs.Conflict(mem, refusal.CodeToolsChanged, "tools: are not those that the thread began with, and a thread's tools do not change; begin another thread")
}

// take notes which messages of the request are new to the run, and returns them.
func (t *turn) take(mem *reducer.Memory, in *request) (inputs []control.Input) {
	open := mem.ClientCalls()
	for i := range in.messages {
		m := &in.messages[i]
		switch {
		case m.Role == roleUser && !mem.Knows(m.ID) && !slices.Contains(t.Known, m.ID) && !slices.Contains(t.Messages, m.ID):
			t.Messages = append(t.Messages, m.ID)
		case m.Role == roleTool && t.Results[m.ToolCallID] == "" &&
			slices.ContainsFunc(open, func(c reducer.CallState) bool { return c.ID == m.ToolCallID }):
			t.Results[m.ToolCallID] = m.ID
		default:
			continue
		}
		inputs = append(inputs, m.input())
	}
	return inputs
}

// goOn opens the next turn of a run that rests.
func (s *server) goOn(ctx context.Context, p position) (place, error) {
	value, err := json.Marshal(p.turn)
	if err != nil {
		return place{}, err
	}
	opening := control.KeepCustom{Key: customKey, Make: func(mem *reducer.Memory) (json.RawMessage, error) {
		if mem.N != p.n {
			return nil, errLostRace
		}
		return value, nil
	}}
	_, err = s.Control.Inputs(ctx, p.at.Namespace, p.at.ID, append([]control.Input{opening}, p.inputs...))
	if refusal.Is(err, refusal.CodeRunEnded) {
		err = errLostRace
	}
	if err != nil {
		return place{}, err
	}
	return place{run: p.at, first: p.n + 1}, s.decide(ctx, p.answers)
}

// decide makes decisions, except those that somebody else made.
func (s *server) decide(ctx context.Context, answers []brought) error {
	for _, a := range answers {
		_, err := s.Control.Decide(ctx, a.run.Namespace, a.run.ID, a.decision)
		if err != nil && !refusal.Is(err, refusal.CodeAlreadyDecided, refusal.CodeApprovalExpired, refusal.CodeNotWaiting, refusal.CodeRunEnded) {
			return err
		}
	}
	return nil
}

// repeat makes the decisions that the first request for the turn did not come to make, as far as
// the turn is the run's last.
func (s *server) repeat(ctx context.Context, p place, in *request) error {
	if len(in.answers) == 0 {
		return nil
	}
	t, err := s.history(ctx, p.run)
	if err != nil || t.turn.RunID != in.RunID {
		return err
	}
	b, err := s.below(ctx, p.run)
	if err != nil {
		return err
	}
	var missing []brought
	for i := range in.answers {
		a := &in.answers[i]
		if w := b.find(a.id); w != nil && t.turn.Below[a.id] == w.n {
			d, err := a.to(&w.request)
			if err != nil {
				return err
			}
			missing = append(missing, brought{run: w.run, decision: d})
		}
		if !slices.Contains(t.undecided, a.id) {
			continue
		}
		err := s.Control.View(ctx, p.run.Namespace, p.run.ID, func(run *runlog.Run) error {
			r := requestOf(run.Memory(), a.id)
			if r == nil {
				return nil // somebody else decided
			}
			d, err := a.to(r)
			missing = append(missing, brought{run: p.run, decision: d})
			return err
		})
		if err != nil {
			return err
		}
	}
	return s.decide(ctx, missing)
}

// requestOf returns the request of a call that waits for a human, or nil.
func requestOf(mem *reducer.Memory, call string) *events.Request {
	if !slices.Contains(decisions.Undecided(mem.PendingApproval), call) {
		return nil
	}
	i := slices.IndexFunc(mem.PendingApproval.Requests, func(r events.Request) bool { return r.CallID == call })
	request := mem.PendingApproval.Requests[i] // the memory changes
	return &request
}

// history translates a run to the head of its log, for nobody.
func (s *server) history(ctx context.Context, run events.Run) (*Translator, error) {
	t := NewTranslator(s.Control.Table, "", nil)
	fold := runlog.NewFold(s.Control.Log, s.Control.Store.Machine(), run)
	for rec, err := range s.Control.Log.Read(ctx, run, 0) {
		if err != nil {
			return nil, err
		}
		if err := t.record(ctx, fold, rec); err != nil {
			return nil, err
		}
	}
	return t, nil
}

// record folds and translates the next record.
func (t *Translator) record(ctx context.Context, fold *runlog.Fold, rec journal.Record) error {
	if runs.NotOfLog(rec) {
		return nil
	}
	e, err := fold.Apply(ctx, rec)
	if err != nil && !runlog.Refused(err) {
		return err
	}
	if err != nil {
		e = nil // a client is shown that the run ends
	}
	return t.Event(fold.Memory(), e, rec.Body)
}
