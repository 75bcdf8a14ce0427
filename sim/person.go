package sim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/moorebus/moorebus/internal/control"
	"github.com/moorebus/moorebus/internal/journaltest/simtest"
	"github.com/moorebus/moorebus/internal/refusal"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// person is who started a run, decides on its calls, talks to it and interferes.
// They ask again, of any gateway, until they have an answer.
type person struct {
	w    *world
	spec *runSpec
	rand *rand.Rand
	// batches draws what is sent together.
	batches   *rand.Rand
	cancelled bool
	// slow people let approvals expire.
	slow bool
	// forked says that the run is there already.
	forked bool
	// alone says that each input is its own request.
	alone bool
	// resumeAt is when a pause ends; zero: none.
	resumeAt time.Time
}

func newPerson(w *world, spec *runSpec) *person {
	p := &person{w: w, spec: spec, rand: rand.New(rand.NewPCG(spec.Chance, 2)), batches: rand.New(rand.NewPCG(spec.Chance, 4))}
	a := spec.Agent.Approval
	p.slow = a != nil && a.Expires != 0 && p.rand.IntN(2) == 0
	return p
}

// live does everything that the spec says, until the run has ended.
func (p *person) live(ctx context.Context) {
	if !p.forked {
		sleep(ctx, p.spec.At)
		p.start(ctx)
	}
	acts := slices.SortedFunc(slices.Values(p.spec.Acts), func(a, b actSpec) int { return int(a.At - b.At) })
	for began := time.Now(); ctx.Err() == nil; {
		pause := 500*time.Millisecond + time.Duration(p.rand.Int64N(int64(4*time.Second)))
		if len(acts) > 0 {
			pause = min(pause, max(0, acts[0].At-time.Since(began)))
		}
		sleep(ctx, pause)
		p.timed()
		v := p.w.audit.view(p.spec.ID)
		switch {
		case v.terminal:
			p.look(ctx, acts)
			return
		case len(acts) > 0 && time.Since(began) >= acts[0].At:
			p.act(ctx, acts[0])
			acts = acts[1:]
		case !p.resumeAt.IsZero() && !time.Now().Before(p.resumeAt):
			p.resumeAt = time.Time{}
			p.resume(ctx)
		case v.state == events.WaitingForHuman && len(v.undecided) > 0 && p.decides():
			p.decide(ctx, v, v.undecided[p.rand.IntN(len(v.undecided))])
		case len(v.clients) > 0 && p.rand.IntN(8) > 0:
			p.carryOut(ctx, v.clients, v.clients[p.rand.IntN(len(v.clients))])
		case v.state == events.WaitingForUser && p.rand.IntN(3) > 0:
			p.answer(ctx, v)
		}
	}
	v := p.w.audit.view(p.spec.ID)
	p.w.audit.violate(p.spec.ID, "end", "after %s the run is in state %s at event %d", patience, v.state, v.n)
}

// look goes back to a run that has ended and forks it, as planned.
func (p *person) look(ctx context.Context, acts []actSpec) {
	for _, act := range acts {
		if act.Kind == actFork {
			p.act(ctx, act)
		}
	}
}

func (p *person) start(ctx context.Context) {
	agent := p.spec.Agent
	p.ask(ctx, func(g *control.Controller) error {
		_, err := g.Start(ctx, "", control.StartRequest{Agent: &agent, Task: "Do it.", RunID: p.spec.ID})
		if is(err, nobodyUp...) {
			return errLater // nobody is up that could do it
		}
		return err
	}, refusal.CodeRunExists)
}

var errLater = errors.New("ask again later")

// nobodyUp are the codes of what nobody announces who is up.
var nobodyUp = []string{refusal.CodeUnknownTool, refusal.CodeUnknownProvider, refusal.CodePending}

// ask asks gateways until one answers. An answer that is an error has to have one
// of the codes; which one is returned.
func (p *person) ask(ctx context.Context, do func(*control.Controller) error, codes ...string) *refusal.Error {
	return p.askAt(ctx, func(at *process) error { return do(at.gateway) }, codes...)
}

func (p *person) askAt(ctx context.Context, do func(*process) error, codes ...string) (refused *refusal.Error) {
	for ctx.Err() == nil {
		at := p.w.reached(p.rand.IntN(8))
		if at == nil {
			sleep(ctx, 700*time.Millisecond)
			continue
		}
		err := do(at)
		heard := at.alive() && (p.w.answering == nil || p.w.answering(at))
		switch {
		case ctx.Err() != nil:
			return nil
		case err == nil && heard:
			return nil
		case err == nil, !heard, errors.Is(err, simtest.ErrCrashed), errors.Is(err, journal.ErrUnknownOutcome), errors.Is(err, errLater):
			sleep(ctx, 300*time.Millisecond)
		case p.w.scenario.GroupCommit && errors.As(err, &refused) && refused.Code == refusal.CodeUnavailable:
			sleep(ctx, 300*time.Millisecond) // appends take their time there, and it asks for that
		case errors.As(err, &refused) && contains(codes, refused.Code):
			return refused
		default:
			p.w.audit.violate(p.spec.ID, "answer", "the gateway answers %T %v, and only %v are expected", err, err, codes)
			return nil
		}
	}
	return nil
}

func is(err error, codes ...string) bool {
	var e *refusal.Error
	return errors.As(err, &e) && contains(codes, e.Code)
}

func (p *person) act(ctx context.Context, act actSpec) {
	switch act.Kind {
	case actCancel:
		p.cancelled = true
		p.ask(ctx, func(g *control.Controller) error {
			_, err := g.Cancel(ctx, "", p.spec.ID, events.By{By: "a person"})
			return err
		}, refusal.CodeRunEnded)
	case actSay:
		p.say(ctx, "and hurry")
	case actPause:
		p.ask(ctx, func(g *control.Controller) error {
			_, err := g.Pause(ctx, "", p.spec.ID, events.By{})
			return err
		}, refusal.CodeRunEnded)
		p.resumeAt = time.Now().Add(act.For)
	case actResume:
		p.resume(ctx)
	case actBudget:
		p.ask(ctx, func(g *control.Controller) error {
			_, err := g.RaiseBudget(ctx, "", p.spec.ID, events.Budget{MaxTotalTokens: 1_000_000}, events.By{})
			return err
		}, refusal.CodeRunEnded)
	case actKeep:
		p.inputs(ctx, control.KeepCustom{Key: "mine", Make: func(*reducer.Memory) (json.RawMessage, error) { return json.RawMessage("1"), nil }})
	case actExpand:
		p.inputs(ctx, control.ExpandContextWindow{Increment: 5})
	case actFork:
		p.fork(ctx, act.Patch)
	case actAdd:
		if v := p.w.audit.view(p.spec.ID); len(v.called) > 0 {
			p.inputs(ctx, control.AddToolCallsToContext{CallIDs: v.called[:1]})
		}
	case actPoison:
		v := p.w.audit.view(p.spec.ID)
		run := p.w.placed(p.spec.ID)
		at := events.Subject{Run: run, From: v.state, To: v.state, Pool: events.DefaultPool}
		p.w.journal.Inject(run.Shard, at.String(), []byte(poisonBody))
	}
}

func (p *person) resume(ctx context.Context) {
	p.ask(ctx, func(g *control.Controller) error {
		_, err := g.Resume(ctx, "", p.spec.ID, events.By{})
		return err
	}, refusal.CodeRunEnded, refusal.CodeNotPaused)
}

func (p *person) say(ctx context.Context, text string) {
	p.inputs(ctx, control.UserMessage{MessageID: fmt.Sprintf("said-%d", p.rand.Uint32()), Content: text})
}

func (p *person) inputs(ctx context.Context, in ...control.Input) {
	in = p.batch(in...)
	p.ask(ctx, func(g *control.Controller) error {
		_, err := g.Inputs(ctx, "", p.spec.ID, in)
		return err
	}, refusal.CodeRunEnded)
}

// batch returns inputs that go out in one request: often with others before, behind or between
// them, as clients send what they have.
func (p *person) batch(in ...control.Input) []control.Input {
	for !p.alone && p.batches.IntN(3) == 0 {
		in = slices.Insert(slices.Clone(in), p.batches.IntN(len(in)+1), p.aside())
	}
	return in
}

// aside is an input that any state takes.
func (p *person) aside() control.Input {
	switch p.batches.IntN(4) {
	case 0:
		return control.KeepCustom{Key: "aside", Make: func(*reducer.Memory) (json.RawMessage, error) { return json.RawMessage("2"), nil }}
	case 1:
		return control.ExpandContextWindow{Increment: 1}
	case 2:
		if v := p.w.audit.view(p.spec.ID); len(v.called) > 0 {
			return control.AddToolCallsToContext{CallIDs: v.called[:1]}
		}
	}
	return control.UserMessage{MessageID: fmt.Sprintf("beside-%d", p.batches.Uint32()), Content: "by the way"}
}

// answer continues with a conversation, or ends it.
func (p *person) answer(ctx context.Context, v view) {
	if v.turns < p.spec.Turns {
		p.say(ctx, "go on")
		return
	}
	p.ask(ctx, func(g *control.Controller) error {
		_, err := g.Close(ctx, "", p.spec.ID, events.By{})
		return err
	}, refusal.CodeNotWaiting, refusal.CodeRunEnded)
}

// refusals are the answers that a decision may get which comes too late.
var refusals = []string{
	refusal.CodeAlreadyDecided, refusal.CodeApprovalExpired, refusal.CodeNotWaiting, refusal.CodeRunEnded,
}

// decide decides about a call, and now and then once more, which must not count.
func (p *person) decide(ctx context.Context, v view, call string) {
	asks := contains(v.asking, call)
	first := p.decision(call, asks)
	if asks && first.Decision == events.DecisionApproved {
		p.wrong(ctx, first)
		return
	}
	late := p.put(ctx, first)
	if late != nil && !contains([]string{refusal.CodeAlreadyDecided}, late.Code) || p.rand.IntN(3) > 0 {
		return
	}
	again := p.decision(call, asks)
	if asks && again.Decision == events.DecisionApproved {
		again.Decision, again.Reason = events.DecisionRejected, "no"
	}
	refused := p.put(ctx, again)
	if ctx.Err() != nil || p.w.audit.violation() != nil {
		return
	}
	if refused == nil {
		p.w.audit.violate(p.spec.ID, "decision", "call %s was decided on twice: %+v, then %+v", call, first, again)
		return
	}
	if known, ok := refused.Fields["decision"].(events.Decision); ok && known.By != first.By {
		p.w.audit.violate(p.spec.ID, "decision", "the first decision on %s was %+v, the gateway says %+v", call, first, known)
	}
}

// wrong approves a question, which needs an answer.
func (p *person) wrong(ctx context.Context, d events.Decision) {
	refused := p.put(ctx, d, refusal.CodeAnswerNeeded)
	if refused == nil && ctx.Err() == nil {
		p.w.audit.violate(p.spec.ID, "decision", "the question %s was approved without an answer", d.CallID)
	}
}

// decides reports whether a person gets round to it.
func (p *person) decides() bool {
	if p.slow {
		return p.rand.IntN(20) == 0
	}
	return p.rand.IntN(3) > 0
}

func (p *person) decision(call string, asks bool) events.Decision {
	d := events.Decision{CallID: call, By: fmt.Sprintf("person-%d", p.rand.Uint32())}
	switch p.rand.IntN(4) {
	case 0:
		d.Decision, d.Reason = events.DecisionRejected, "better not"
	case 1:
		d.Decision, d.Arguments = events.DecisionModified, p.w.audit.other(p.spec.ID, call)
	default:
		d.Decision = events.DecisionApproved
	}
	if asks && d.Decision != events.DecisionRejected && p.rand.IntN(5) > 0 {
		d.Decision, d.Arguments = events.DecisionModified, `{"n":1,"answer":"Yes."}`
	} else if asks && d.Decision == events.DecisionModified {
		d.Decision, d.Arguments = events.DecisionApproved, ""
	}
	return d
}

func (p *person) put(ctx context.Context, d events.Decision, more ...string) *refusal.Error {
	return p.ask(ctx, func(g *control.Controller) error {
		_, err := g.Decide(ctx, "", p.spec.ID, d)
		return err
	}, append(more, refusals...)...)
}
