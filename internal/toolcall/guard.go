package toolcall

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/moorebus/moorebus/internal/approval"
	"github.com/moorebus/moorebus/internal/retry"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/internal/worker"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
	"github.com/moorebus/moorebus/pkg/tool"
)

// Approval says whether a call has to wait for a human, and why. The error is that of a
// policy that cannot be evaluated; the call then waits.
type Approval interface {
	Required(policy *events.Approval, call events.Call, info reducer.ToolInfo, run string) (reason string, required bool, err error)
}

// pinsKept bounds the runs whose policies are kept in memory.
const pinsKept = 4096

// Guard stops calls that need an approval and have none. It trusts only stored events and
// their subjects. A memory may come from a snapshot, and a compromised planner may send
// calls past the humans. But only a process that may publish out of idle and
// waiting_for_human can make the guard accept a forged approval.
//
// An approval allows a call to run once. A call that is to run again because its outcome
// is unknown needs another one. A fork has the approvals that its parent had where it
// began.
type Guard struct {
	store    *runlog.Store
	log      journal.Log
	machine  *reducer.Machine
	policies Approval
	lookup   Lookup
	pins     *lru.Cache[events.Run, *pin]
}

// pin is what a run's first record says about approvals, and what the run was forked from.
type pin struct {
	approval *events.Approval
	tools    map[string]events.ToolSpec
	fork     *events.Forked
	// delegates says that some tools are agents, so that the run may be handed over.
	delegates bool
}

// NewGuard makes the guard of an actor. policies evaluates approval policies; nil: those
// of package approval. lookup returns the actor's own definition of a tool; nil: it has
// none.
func NewGuard(store *runlog.Store, policies Approval, lookup Lookup) (*Guard, error) {
	pins, err := lru.New[events.Run, *pin](pinsKept)
	if err != nil {
		return nil, err
	}
	g := &Guard{store: store, log: store.Log(), machine: store.Machine(), policies: policies, lookup: lookup, pins: pins}
	if g.policies == nil {
		g.policies = approval.New()
	}
	if g.lookup == nil {
		g.lookup = func(string) (tool.Definition, bool) { return tool.Definition{}, false }
	}
	return g, nil
}

// Lookup returns the definition of a tool, if there is one of that name.
type Lookup func(name string) (tool.Definition, bool)

// refusal returns why a call may not run, empty if it may. The error is the log's.
func (g *Guard) refusal(ctx context.Context, run events.Run, c tool.Call) (string, error) {
	pinned, err := g.inForce(ctx, run, 0)
	if err != nil {
		return "", err
	}
	info, here, own := g.info(pinned, c.Name)
	asked := events.Call{ID: c.ID, Name: c.Name, Arguments: c.Arguments}
	reason, required, err := g.policies.Required(pinned.approval, asked, info, run.ID)
	// This actor's file may say more than the announcement that was pinned, which another actor of
	// the pool may have made.
	if err == nil && !required && riskier(here, info.Risk) {
		info.Risk = here
		reason, required, err = g.policies.Required(pinned.approval, asked, info, run.ID)
	}
	if err == nil && !required && own != nil {
		reason, required, err = g.policies.Required(own, asked, info, run.ID)
	}
	switch {
	case err != nil:
		reason = "the approval policy cannot be evaluated: " + err.Error()
	case !required:
		return "", nil
	case info.Asks:
		reason = "it asks a human"
	}
	e, err := g.evidence(ctx, run, c.ID)
	if err != nil {
		return "", err
	}
	if lacks := e.lacks(c, info.Asks); lacks != "" {
		return fmt.Sprintf("%s was not run: it needs a human's approval (%s), and %s", c.Name, reason, lacks), nil
	}
	return "", nil
}

// info returns what the policy needs to know about a tool: as the run pins it, or as this
// actor has it if the run does not pin it. risk and own are this actor's risk of the tool, empty
// if it does not have it, and the policy of its tool file.
func (g *Guard) info(pinned *pin, name string) (info reducer.ToolInfo, risk string, own *events.Approval) {
	spec, known := pinned.tools[name]
	def, here := g.lookup(name)
	info = reducer.ToolInfo{Risk: spec.Risk, Asks: spec.Asks, Approval: spec.Approval}
	if here {
		info.Asks = info.Asks || def.Asks
		if risk = string(def.Risk); !known {
			info.Risk = risk
		}
		own = OwnApproval(def)
	}
	return info, risk, own
}

// riskier reports whether a risk is higher than another. Policies ask for an unknown one anyway.
func riskier(risk, than string) bool {
	high, _ := events.RiskRank(risk)
	low, known := events.RiskRank(than)
	return known && high > low
}

// OwnApproval is the policy of a tool's own file; nil: it has none.
func OwnApproval(def tool.Definition) *events.Approval {
	a := def.Approval
	if a == nil {
		return nil
	}
	return &events.Approval{Policy: events.ApprovalPolicy(a.Policy), Risk: string(a.Risk), Tools: slices.Clone(a.Tools), Expr: a.Expr}
}

// pinned returns what the run's first record pins. If the record does not say it, no call
// that needs approval runs.
func (g *Guard) pinned(ctx context.Context, run events.Run) (*pin, error) {
	if p, ok := g.pins.Get(run); ok {
		return p, nil
	}
	p, err := g.readPin(ctx, run, 0)
	if errors.Is(err, errNoPin) {
		return &pin{approval: &events.Approval{Policy: events.ApproveAlways}}, nil
	}
	if err != nil {
		return nil, err
	}
	g.pins.Add(run, p)
	return p, nil
}

// errNoPin says that a run's first record does not say what needs approval.
var errNoPin = errors.New("the run's first record pins no policy")

// readPin reads the run's first record, unless this process itself stored it.
func (g *Guard) readPin(ctx context.Context, run events.Run, depth int) (*pin, error) {
	e := g.store.First(run)
	if e == nil {
		var err error
		if e, err = g.readFirst(ctx, run); err != nil {
			return nil, err
		}
	}
	if e.Run != run.ID || e.N != 1 {
		return nil, errNoPin
	}
	var p *pin
	var err error
	switch first := e.Data.(type) {
	case *events.Start:
		p = newPin(first.Agent.Approval, first.Tools)
	case *events.Forked:
		p, err = g.forkedPin(ctx, run, first, depth)
	default:
		err = errNoPin
	}
	if err != nil {
		return nil, err
	}
	return p, nil
}

// readFirst returns the event of the run's first record.
func (g *Guard) readFirst(ctx context.Context, run events.Run) (*events.Event, error) {
	// Only the first record leaves the initial state. So the newest such record is the
	// first, or it is not to be trusted.
	filter := journal.Filter{Namespace: run.Namespace, From: g.machine.Table().Initial(), Run: run.ID}
	rec, err := g.log.Newest(ctx, run.Shard, filter)
	if errors.Is(err, journal.ErrNotFound) {
		return nil, errNoPin
	}
	if err != nil {
		return nil, fmt.Errorf("reading what run %s pins: %w", run.ID, err)
	}
	e, err := g.machine.Codec().Decode(rec.Body)
	if err != nil {
		return nil, errNoPin
	}
	return e, nil
}

// newPin copies the approval: the event may be the one that this process drafted, which others
// hold, too.
func newPin(a *events.Approval, tools []events.ToolSpec) *pin {
	if a != nil {
		own := *a
		own.Tools = slices.Clone(a.Tools)
		a = &own
	}
	p := &pin{approval: a, tools: make(map[string]events.ToolSpec, len(tools))}
	for _, t := range tools {
		p.tools[t.Name] = events.ToolSpec{Risk: t.Risk, Asks: t.Asks, Approval: t.Approval}
		p.delegates = p.delegates || t.Pool == events.AgentsPool
	}
	return p
}

// forkedPin returns what a fork pins: its own agent and tools, or its parent's.
func (g *Guard) forkedPin(ctx context.Context, run events.Run, fork *events.Forked, depth int) (*pin, error) {
	if fork.Agent != nil {
		p := newPin(fork.Agent.Approval, fork.Tools)
		p.fork = fork
		return p, nil
	}
	if depth >= reducer.MaxForks || events.CheckID(fork.Run) != nil {
		return nil, errNoPin
	}
	parent, err := g.readPin(ctx, events.NewRun(run.Namespace, fork.Run, g.log.Shards()), depth+1)
	if err != nil {
		return nil, err
	}
	return &pin{approval: parent.approval, tools: parent.tools, fork: fork, delegates: parent.delegates}, nil
}

// evidence is what the log says about the approval of one call.
type evidence struct {
	callID string
	// request is the last request to a human, decision the answer to it.
	request  *events.Request
	decision *events.Decision
	released bool
}

// evidence reads the requests and decisions of the run and of the runs that it was forked
// from.
func (g *Guard) evidence(ctx context.Context, run events.Run, callID string) (*evidence, error) {
	found := &evidence{callID: callID}
	return found, g.gather(ctx, run, 0, found.add)
}

// gather passes the events of the run's log up to event until (0: its head) to add, those of
// the oldest ancestor first, each with the state that its subject leaves. [Guard.pinned] has
// bounded the number of ancestors.
func (g *Guard) gather(ctx context.Context, run events.Run, until uint64, add func(events.State, events.Payload)) error {
	pinned, err := g.pinned(ctx, run)
	if err != nil {
		return err
	}
	if fork := pinned.fork; fork != nil && events.CheckID(fork.Run) == nil {
		if err := g.gather(ctx, events.NewRun(run.Namespace, fork.Run, g.log.Shards()), fork.At, add); err != nil {
			return err
		}
	}
	records, err := g.decisions(ctx, run)
	if err != nil {
		return err
	}
	for _, rec := range records {
		s, err := events.ParseSubject(rec.Subject)
		if err != nil {
			continue
		}
		e, err := g.machine.Codec().Decode(rec.Body)
		if err == nil && e.Run == run.ID && (until == 0 || e.N <= until) {
			add(s.From, e.Data)
		}
	}
	return nil
}

// decisions reads the run's records that lead to a human or come from one, in
// the log's order.
func (g *Guard) decisions(ctx context.Context, run events.Run) ([]journal.Record, error) {
	var records []journal.Record
	for _, filter := range []journal.Filter{{To: events.WaitingForHuman}, {From: events.WaitingForHuman}} {
		filter.Namespace, filter.Run = run.Namespace, run.ID
		for rec, err := range g.log.Scan(ctx, run.Shard, filter, 0) {
			if err != nil {
				return nil, fmt.Errorf("reading the approvals of run %s: %w", run.ID, err)
			}
			records = append(records, rec)
		}
	}
	slices.SortFunc(records, func(a, b journal.Record) int { return cmp.Compare(a.Seq, b.Seq) })
	return slices.CompactFunc(records, func(a, b journal.Record) bool { return a.Seq == b.Seq }), nil
}

// add adds the next event. Only the owner of the state that a subject leaves can have
// published it.
func (v *evidence) add(from events.State, p events.Payload) {
	if asked, ok := p.(*events.HumanApprovalRequired); ok {
		*v = evidence{callID: v.callID}
		if i := slices.IndexFunc(asked.Requests, func(r events.Request) bool { return r.CallID == v.callID }); i >= 0 {
			v.request = &asked.Requests[i]
		}
		return
	}
	if from != events.WaitingForHuman {
		return
	}
	switch p := p.(type) {
	case *events.HumanDecision:
		v.decide(p.Decision)
	case *events.HumanApproved:
		v.decide(p.Decision)
		v.released = true
	case *events.HumanModified:
		v.decide(p.Decision)
		v.released = true
	case *events.HumanApprovedParallel:
		v.released = true
	case *events.HumanRejected, *events.ApprovalExpired:
		*v = evidence{callID: v.callID}
	}
}

func (v *evidence) decide(d events.Decision) {
	if d.CallID == v.callID && v.decision == nil {
		v.decision = &d
	}
}

// lacks returns what is missing for the call to run, empty if nothing is. A tool that asks
// a human runs on an answer only.
func (v *evidence) lacks(c tool.Call, asks bool) string {
	if v.request == nil || v.decision == nil || !v.released {
		return "the log holds none"
	}
	arguments := v.request.Arguments
	switch {
	case v.decision.Decision == events.DecisionModified:
		arguments = v.decision.Arguments
	case v.decision.Decision != events.DecisionApproved:
		return "it was " + v.decision.Decision
	case asks:
		return "it was not answered"
	}
	if v.request.Tool != c.Name || arguments != c.Arguments {
		return "the one in the log is for another call"
	}
	return ""
}

// Refusal returns why a call may not run, empty if it may. It waits through an outage of
// the log. A bus that is still starting counts as one, since a failure would use up the
// call's attempts. The error is the log's or the context's.
func (g *Guard) Refusal(ctx context.Context, run events.Run, c tool.Call) (string, error) {
	var refusal string
	err := throughOutage(ctx, func(ctx context.Context) (err error) {
		refusal, err = g.refusal(ctx, run, c)
		return err
	})
	return strings.ToValidUTF8(refusal, "\uFFFD"), err
}

// throughOutage reads from the log, again after an outage.
func throughOutage(ctx context.Context, read func(context.Context) error) error {
	return worker.Outage.Do(ctx, func(ctx context.Context) error {
		err := read(ctx)
		if !worker.Passing(err) && !errors.Is(err, journal.ErrNotReady) {
			return retry.Stop(err)
		}
		return err
	}, nil)
}

// inForce returns what holds for the run's calls after its event until (0: now): what its
// first record or its last hand-off pins. Only the role subagent can have published a
// hand-off.
func (g *Guard) inForce(ctx context.Context, run events.Run, until uint64) (*pin, error) {
	for {
		first, err := g.pinned(ctx, run)
		if err != nil || !first.delegates {
			return first, err
		}
		p, err := g.handedOff(ctx, run, until)
		if err != nil || p != nil {
			return p, err
		}
		if first.fork == nil || first.fork.Agent != nil || events.CheckID(first.fork.Run) != nil {
			return first, nil
		}
		// [Guard.pinned] has bounded how many ancestors there are.
		run, until = events.NewRun(run.Namespace, first.fork.Run, g.log.Shards()), first.fork.At
	}
}

// handedOff returns what the run's last hand-off up to an event (0: its head) pins,
// nil if there is none.
func (g *Guard) handedOff(ctx context.Context, run events.Run, until uint64) (*pin, error) {
	var last *pin
	filter := journal.Filter{Namespace: run.Namespace, From: events.Acting, To: events.Nobody, Pool: events.AgentsPool, Run: run.ID}
	for rec, err := range g.log.Scan(ctx, run.Shard, filter, 0) {
		if err != nil {
			return nil, fmt.Errorf("reading the hand-offs of run %s: %w", run.ID, err)
		}
		e, err := g.machine.Codec().Decode(rec.Body)
		if err != nil || e.Run != run.ID || until > 0 && e.N > until {
			continue
		}
		if p, ok := e.Data.(*events.HandedOff); ok {
			last = newPin(p.Agent.Approval, p.Tools)
		}
	}
	return last, nil
}
