package sim

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/moorebus/moorebus/internal/codes"
	"github.com/moorebus/moorebus/internal/control/decisions"
	"github.com/moorebus/moorebus/internal/effects"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// poisonBody is what the simulation itself puts among a run's events. Nothing
// else that is stored may be illegal.
const poisonBody = "poison, not an event"

// owned says which states' edges the roles publish on.
var owned = map[string][]events.State{
	rolePlanner:  {events.Planning, events.Reflecting},
	roleActor:    {events.Acting, events.ParallelActing},
	roleObserver: {events.Observing, events.Paging},
	roleSubagent: {events.Idle, events.Acting, events.ParallelActing},
	roleGateway:  {events.Idle, events.WaitingForUser, events.WaitingForHuman, events.Control},
}

// violation is what must not be.
type violation struct {
	Run       string `json:"run,omitempty"`
	Invariant string `json:"invariant"`
	Detail    string `json:"detail"`
}

// auditor holds its own fold of every run and checks what must hold after
// every append and every acknowledgement. It sees them in their order, since the
// journal is locked meanwhile.
type auditor struct {
	machine *reducer.Machine
	// broken is closed at the first violation.
	broken chan struct{}
	// inWork reports whether a living process executes a call, by its key.
	inWork func(key string) bool
	// forks are those that no person has taken up.
	forks []fork
	// calm says that no worker is lost, so that none may be taken for lost.
	calm bool

	mu   sync.Mutex
	runs map[string]*auditedRun
	// snapshots counts those that were taken, carried the messages that wake where a message
	// wakes nobody: each was the last input of a request, behind a client's result.
	snapshots, carried int
	// led counts the events after which a process goes on by itself.
	led     int
	first   *violation
	records []journal.Record
}

type auditedRun struct {
	mem *reducer.Memory
	// head is the hash of the last body.
	head string
	// open are the records that wake somebody and are not settled, by n.
	open map[uint64]events.State
	// ns are the places of records by their sequence number.
	ns      map[uint64]uint64
	results map[string]int
	// codes counts the results by their codes.
	codes map[string]int
	// lost says that the bus lost a delivery that the run may need.
	lost bool
	// records are the run's, for its forks.
	records []journal.Record
	// parent is the run that it was forked from; empty: it was started.
	parent string
	// patched says that a fork changed the agent, inherited are the calls that a
	// fork has of its parent.
	patched   bool
	inherited map[string]bool
	// approved is where calls were approved, by call; 0 is before the fork.
	approved map[string]uint64
	// again counts how often a human let a call that was started run again.
	again map[string]int
}

func newAuditor(calm bool) *auditor {
	return &auditor{
		machine: reducer.NewMachine(reducer.MachineOptions{}), broken: make(chan struct{}), runs: map[string]*auditedRun{}, calm: calm,
	}
}

func (a *auditor) run(id string) *auditedRun {
	r := a.runs[id]
	if r == nil {
		r = &auditedRun{
			mem: a.machine.Initial(id), open: map[uint64]events.State{}, ns: map[uint64]uint64{}, results: map[string]int{}, codes: map[string]int{},
			again: map[string]int{}, approved: map[string]uint64{}, inherited: map[string]bool{},
		}
		a.runs[id] = r
	}
	return r
}

// violate notes a violation, if it is the first one.
func (a *auditor) violate(run, invariant, format string, args ...any) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.note(run, invariant, format, args...)
}

func (a *auditor) note(run, invariant, format string, args ...any) {
	if a.first == nil {
		a.first = &violation{Run: run, Invariant: invariant, Detail: fmt.Sprintf(format, args...)}
		close(a.broken)
	}
}

func (a *auditor) violation() *violation {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.first
}

// Appended checks records that were stored.
func (a *auditor) Appended(recs []journal.Record) {
	a.mu.Lock()
	defer a.mu.Unlock()
	var last *auditedRun
	for _, rec := range recs {
		a.records = append(a.records, rec)
		s, err := events.ParseSubject(rec.Subject)
		if err != nil {
			a.note("", "subject", "%v", err)
			return
		}
		last = a.run(s.Run.ID)
		a.fold(last, s, rec)
	}
	if last.lost = last.lost && (a.terminal(last) || a.undriven(last) != nil); !last.lost {
		a.liveness(last)
	}
	a.waiters(last)
}

// fold takes one record into the run and checks it.
func (a *auditor) fold(r *auditedRun, s events.Subject, rec journal.Record) {
	id, terminal := s.Run.ID, a.terminal(r)
	restarted := r.started()
	r.records = append(r.records, rec)
	e, err := a.apply(r.mem, rec)
	hash := events.Hash(rec.Body)
	r.ns[rec.Seq] = r.mem.N
	if s.To != events.Nobody {
		r.open[r.mem.N] = s.To
	}
	switch {
	case string(rec.Body) == poisonBody:
	case err != nil:
		a.note(id, "legal", "record %d (terminal before: %t): %v", rec.Seq, terminal, err)
	case terminal:
		a.note(id, "terminal", "%s was appended to a run that had ended", e.Type())
	case e.N != uint64(len(r.ns)):
		a.note(id, "n", "%s has n %d and is record %d of the run", e.Type(), e.N, len(r.ns))
	case e.Prev != r.head:
		a.note(id, "chain", "%s has another prev than the hash of the body before", e.Type())
	default:
		a.owner(id, s, e)
		if s.To == events.Nobody && s.From == e.From && (e.From != e.To && e.Type() != events.TypeLLMParallelToolCalls || e.Type() == events.TypeLLMThought) {
			a.led++
		}
		if _, said := e.Data.(*events.UserMessage); said && (s.To == events.Observing || s.To == events.ParallelActing) {
			a.carried++
		}
		a.result(r, id, e)
		a.inherit(r, e)
		r.approve(e)
		if p, starts := e.Data.(*events.ToolCallStarted); starts && r.mem.Control.Paused && !r.mem.ToolCalls[p.CallID].Client {
			a.note(id, "paused", "a call was started while the run was paused")
		}
		if p, failed := e.Data.(*events.LLMAttemptFailed); a.calm && failed && (p.Kind == codes.KindWorkerLost || p.Kind == codes.KindHandler) {
			a.note(id, "calm", "an attempt failed (%s: %s) where nothing goes wrong", p.Kind, p.Message)
		}
	}
	if e != nil {
		for _, call := range restarted {
			if state := r.mem.Call(call); state != nil && state.Started == 0 {
				r.again[call]++
			}
		}
	}
	r.head = hash
}

// started returns the calls that are marked as started and have no result.
func (r *auditedRun) started() []string {
	var all []string
	for _, c := range r.mem.Control.Calls {
		if c.Started > 0 && !c.Answered {
			all = append(all, c.ID)
		}
	}
	return all
}

// owner checks that the event came from a role that owns the edge.
func (a *auditor) owner(id string, s events.Subject, e *events.Event) {
	role := strings.Split(e.Source, "/")
	if len(role) != 3 || !slices.Contains(owned[role[1]], s.From) {
		a.note(id, "owner", "%s of %s was published out of %s", e.Type(), e.Source, s.From)
	}
}

// result checks that no call gets a second result.
func (a *auditor) result(r *auditedRun, id string, e *events.Event) {
	var o *events.ToolOutcome
	switch p := e.Data.(type) {
	case *events.ToolSuccess:
		o = p.Outcome
	case *events.ToolFailure:
		o = p.Outcome
	case *events.ToolCallResult:
		o = &p.ToolOutcome
	}
	if o != nil {
		r.codes[o.Code]++
	}
	if o == nil || o.CallID == "" { // the end of a batch that no actor is left to end
		return
	}
	if r.results[o.CallID]++; r.results[o.CallID] > 1 {
		a.note(id, "one result", "call %s has a second result: %s", o.CallID, e.Type())
	}
	a.reason(r, id, e, o)
}

// reason checks what a result gives as the reason that there is no other one.
func (a *auditor) reason(r *auditedRun, id string, e *events.Event, o *events.ToolOutcome) {
	if _, single := e.Data.(*events.ToolFailure); single && o.Code == codes.OutcomeUnknown && r.mem.Control.Agent.Approval != nil && r.mem.Control.Agent.Approval.OutcomeUnknown == events.AskHuman {
		a.note(id, "outcome unknown", "of call %s, and nobody was asked", o.CallID)
	}
	if o.Code == codes.NotApproved && (!r.patched || !r.inherited[o.CallID]) {
		a.note(id, "approval", "call %s was refused as not approved, and no fork brought in another policy since it was made", o.CallID)
	}
	if (o.Code == codes.OutcomeUnknown || o.Code == codes.NoActor) && a.inWork(id+"/"+o.CallID) {
		a.note(id, "outcome unknown", "of call %s (%s), which a living process executes", o.CallID, o.Code)
	}
}

// Finished checks that an acknowledgement left nothing behind.
func (a *auditor) Finished(rec journal.Record) {
	a.mu.Lock()
	defer a.mu.Unlock()
	s, err := events.ParseSubject(rec.Subject)
	if err != nil {
		return
	}
	r := a.run(s.Run.ID)
	delete(r.open, r.ns[rec.Seq])
	if !r.lost {
		a.liveness(r)
	}
	a.waiters(r)
}

// Lost notes that nobody will get a delivery. From then on until the run's work
// is re-driven, the run's timer is what keeps it alive.
func (a *auditor) Lost(rec journal.Record) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if s, err := events.ParseSubject(rec.Subject); err == nil {
		r := a.run(s.Run.ID)
		delete(r.open, r.ns[rec.Seq])
		r.lost = true
	}
}

// liveness checks that whatever the run wants done has a delivery that is
// responsible for it and was not acknowledged: so it is being done, or will be.
func (a *auditor) liveness(r *auditedRun) {
	if e := a.undriven(r); e != nil {
		a.note(r.mem.RunID, "liveness", "%s is due in %s, and the delivery of event %d to %q is not outstanding (open: %v)",
			e.Key, r.mem.State, e.Wake, e.State, r.open)
	}
}

// undriven returns what is due without a delivery, nil if there is nothing.
func (a *auditor) undriven(r *auditedRun) *effects.Effect {
	wants := effects.Of(a.machine.Table(), r.mem)
	for _, e := range wants {
		if e.Held || r.driven(e) {
			continue
		}
		// A call that is about to be sent out (again) gets its delivery then.
		if e.Kind == effects.KindTool && slices.ContainsFunc(wants, func(o effects.Effect) bool {
			return o.Kind == effects.KindDispatch && o.CallID == e.CallID && r.driven(o)
		}) {
			continue
		}
		return &e
	}
	return nil
}

// driven reports whether a delivery is outstanding that is responsible for the
// effect. The end of a run is anybody's who comes along.
func (r *auditedRun) driven(e effects.Effect) bool {
	if e.State == "" {
		return len(r.open) > 0 || r.waits()
	}
	to, open := r.open[e.Wake]
	return open && (to == e.State || to == events.Planning) // which leads the run
}

// waits reports whether the run waits for people.
func (r *auditedRun) waits() bool {
	return r.mem.Control.Paused || r.mem.State == events.WaitingForHuman || r.mem.State == events.WaitingForUser
}

func (a *auditor) terminal(r *auditedRun) bool { return a.machine.Table().Terminal(r.mem.State) }

// view is what people see of a run.
type view struct {
	state     events.State
	n         uint64
	terminal  bool
	paused    bool
	undecided []string
	// asking are the calls that ask for an answer, called those that were
	// answered.
	asking, called []string
	// clients are the calls that wait for the run's client.
	clients []string
	// turns is how many turns of the conversation are complete.
	turns   int
	outcome reducer.RunError
	answer  string
}

// view returns what the log leads to.
func (a *auditor) view(id string) view {
	a.mu.Lock()
	defer a.mu.Unlock()
	r := a.run(id)
	v := view{
		state: r.mem.State, n: r.mem.N, terminal: a.terminal(r), paused: r.mem.Control.Paused,
		undecided: decisions.Undecided(r.mem.PendingApproval),
	}
	if r.mem.PendingApproval != nil {
		for _, req := range r.mem.PendingApproval.Requests {
			if req.Asks {
				v.asking = append(v.asking, req.CallID)
			}
		}
	}
	for _, call := range r.mem.ClientCalls() {
		v.clients = append(v.clients, call.ID)
	}
	for _, id := range slices.Sorted(maps.Keys(r.mem.ToolCalls)) {
		if r.mem.ToolCalls[id].Result != nil {
			v.called = append(v.called, id)
		}
	}
	for i := range r.mem.Trace {
		if r.mem.Trace[i].Event == string(events.TypeLLMMessageComplete) {
			v.turns++
		}
	}
	if r.mem.Error != nil {
		v.outcome = *r.mem.Error
	}
	if r.mem.FinalAnswer != nil {
		v.answer = *r.mem.FinalAnswer
	}
	return v
}

// repeats is how often people let a call run again.
func (a *auditor) repeats(run, call string) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.run(run).again[call]
}

// finish checks a run that was to end.
func (a *auditor) finish(spec *runSpec, cancelled bool, executed func(key string) int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	r := a.run(spec.ID)
	mem := r.mem
	switch {
	case !a.terminal(r):
		a.note(spec.ID, "end", "the run is in %s after everything came to rest", mem.State)
	case mem.State == events.Cancelled && !cancelled:
		a.note(spec.ID, "end", "the run is cancelled, which nobody asked for")
	case mem.State == events.Errored && (mem.Error == nil || !slices.Contains(spec.Ends, mem.Error.Code)):
		a.note(spec.ID, "end", "the run ended with %+v, and only %v is expected", mem.Error, spec.Ends)
	}
	for id, record := range mem.ToolCalls {
		answered := record.Result != nil
		if mem.State == events.Done && !answered {
			a.note(spec.ID, "one result", "call %s has no result in a run that is done", id)
		}
		if answered && record.Result.Success != nil && !record.Client && !a.answeredBy(record) && !a.ranIn(spec.ID, id, executed) {
			a.note(spec.ID, "one result", "call %s succeeded and was never executed", id)
		}
	}
}
