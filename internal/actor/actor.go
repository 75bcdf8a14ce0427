// Package actor is the role that runs tools. It owns the states Acting and ParallelActing
// for one or more pools of tools.
//
// It is the only role with the tools' credentials. Every call gets exactly one result: an
// observation for the model, a success flag and a machine-readable code. A tool's failure,
// panic or missing reply never ends a run. Before a result is logged, the actor removes
// its secrets and moves large results to the object store.
//
// A call that the run's approval policy wants approved runs only if the approval is in the
// log, whatever the planner and the run's memory say: see [codes.NotApproved].
package actor

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/moorebus/moorebus/internal/announce"
	"github.com/moorebus/moorebus/internal/callctx"
	"github.com/moorebus/moorebus/internal/codes"
	"github.com/moorebus/moorebus/internal/effects"
	"github.com/moorebus/moorebus/internal/kv"
	"github.com/moorebus/moorebus/internal/ports"
	"github.com/moorebus/moorebus/internal/retry"
	"github.com/moorebus/moorebus/internal/toolcall"
	"github.com/moorebus/moorebus/internal/toolset"
	"github.com/moorebus/moorebus/internal/tracecontext"
	"github.com/moorebus/moorebus/internal/worker"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
	"github.com/moorebus/moorebus/pkg/tool"
)

// Results says what becomes of a tool's result before it reaches the log.
type Results = toolcall.Results

// Config configures an [Actor].
type Config struct {
	worker.Base
	// KV is where the tools are announced, and keeps what agents save. Required.
	KV kv.Store
	// Peers lends calls of tools that this actor does not have to actors of the same pool
	// that do. Default: Queue, if it can lend.
	Peers ports.Peers
	// Tools are the tools of this process. Required.
	Tools *toolset.Registry
	// Pools are the pools to serve. Empty: those of Tools, and those of the tools that
	// sources add while the actor runs.
	Pools []string
	// Blobs takes results that are too large; nil cuts them.
	Blobs journal.Blobs
	// Results bounds and cleans results.
	Results Results
	// Approval evaluates approval policies. Default: those of package approval.
	Approval toolcall.Approval
}

// On returns the configuration with all that a bus gives an actor.
func (c Config) On(bus journal.Bus) Config {
	c.Queue, c.Feed, c.KV, c.Blobs = bus, bus, bus, bus
	return c
}

// Actor is the role. Make it with [New], use it once.
type Actor struct {
	cfg       Config
	directory *announce.Directory
	guard     *toolcall.Guard
	worker    *worker.Worker
	// elsewhere lends calls of tools that this actor does not have.
	elsewhere *toolcall.Elsewhere

	// anyPool says that the actor serves the pools of tools that appear, too.
	anyPool bool

	// announcing has one who announces: an announcement of tools as they were must not come
	// after one of tools as they are.
	announcing chan struct{}

	saying sync.Mutex
	left   map[string][]string // what each pool's announcement leaves out
}

// New checks the configuration.
func New(cfg Config) (*Actor, error) {
	var err error
	if cfg.Base, err = cfg.WithDefaults("actor"); err != nil {
		return nil, err
	}
	if cfg.KV == nil || cfg.Tools == nil {
		return nil, errors.New("actor: KV and Tools are required")
	}
	anyPool := len(cfg.Pools) == 0
	if anyPool {
		cfg.Pools = cfg.Tools.Pools()
	}
	if len(cfg.Pools) == 0 {
		cfg.Pools = []string{events.DefaultPool} // an actor without tools answers "not found"
	}
	for pool, whose := range map[string]string{events.AgentsPool: "agents that are called as tools", events.ClientPool: "the tools of a run's client"} {
		if slices.Contains(cfg.Pools, pool) || slices.Contains(cfg.Tools.Pools(), pool) {
			return nil, fmt.Errorf("actor: the pool %q is reserved for %s", pool, whose)
		}
	}
	if cfg.Results, err = cfg.Results.Prepare(cfg.Store.MaxBody); err != nil {
		return nil, fmt.Errorf("actor: %w", err)
	}
	if cfg.Peers == nil {
		cfg.Peers = toolcall.PeersOf(cfg.Queue)
	}
	a := &Actor{cfg: cfg, directory: announce.NewDirectory(cfg.KV, cfg.Logger), anyPool: anyPool, announcing: make(chan struct{}, 1), left: map[string][]string{}}
	a.elsewhere = toolcall.NewElsewhere(a.directory, cfg.Logger)
	if a.guard, err = toolcall.NewGuard(cfg.Store, cfg.Approval, definitions(cfg.Tools)); err != nil {
		return nil, err
	}
	inboxes := make([]journal.Inbox, len(cfg.Pools))
	for i, pool := range cfg.Pools {
		inboxes[i] = journal.Inbox{States: []events.State{events.Acting, events.ParallelActing}, Pool: pool}
	}
	a.worker, err = worker.New(worker.Config{
		Role: "actor", Base: cfg.Base, Inboxes: inboxes,
		Handlers: map[effects.Kind]worker.Handler{
			effects.KindTool: worker.HandlerFunc(a.act),
			effects.KindJoin: worker.HandlerFunc(toolcall.Join),
		},
		Peers: cfg.Peers, Lends: a.lends, Leads: a.leads,
	})
	return a, err
}

// Announce announces once which tools this actor runs, and offers them to the other actors
// of its pools. Run repeats it.
//
// Tools that do not fit into a pool's announcement are omitted, see [fit].
func (a *Actor) Announce(ctx context.Context) error {
	select {
	case a.announcing <- struct{}{}:
		defer func() { <-a.announcing }()
	case <-ctx.Done():
		return ctx.Err()
	}
	// All offers come first: if an announcement fails, none of them must be stale.
	for _, pool := range a.cfg.Pools {
		if err := a.worker.Offer(pool, toolcall.Names(Specs(a.cfg.Tools, pool))); err != nil {
			return err
		}
	}
	for _, pool := range a.cfg.Pools {
		specs := Specs(a.cfg.Tools, pool)
		for i := range specs { // what a server says of a tool may hold a key that it was given, as a result may
			specs[i].Description, specs[i].Guide = a.cfg.Results.Redact(specs[i].Description), a.cfg.Results.Redact(specs[i].Guide)
		}
		specs, left := fit(specs, a.cfg.Tools.SourceOf, a.cfg.Store.MaxBody())
		a.sayLeft(pool, left)
		if err := a.directory.Announce(ctx, pool, a.cfg.Instance, specs); err != nil {
			return err
		}
	}
	return nil
}

// Withdraw withdraws the announcements. The error is the bus's; then they expire.
func (a *Actor) Withdraw(ctx context.Context) error {
	var errs []error
	for _, pool := range a.cfg.Pools {
		errs = append(errs, a.directory.Withdraw(ctx, pool, a.cfg.Instance))
	}
	return errors.Join(errs...)
}

// Run announces the tools and works until ctx ends. Then it withdraws the announcement.
// Tools that come or go meanwhile are announced at once.
func (a *Actor) Run(ctx context.Context) error {
	changed := a.cfg.Tools.Changed()
	return announce.During(ctx, a.cfg.Logger, a.Announce, a.Withdraw, func(ctx context.Context) error {
		watching, stop := context.WithCancel(ctx)
		var watcher sync.WaitGroup
		watcher.Go(func() { a.announceChanges(watching, changed, &watcher) })
		defer func() { stop(); watcher.Wait() }()
		return a.worker.Run(ctx)
	})
}

// servePools runs an actor for each pool of a tool that this one does not serve yet, until
// ctx ends.
func (a *Actor) servePools(ctx context.Context, served map[string]bool, running *sync.WaitGroup) {
	for _, pool := range a.cfg.Tools.Pools() {
		if served[pool] {
			continue
		}
		served[pool] = true
		cfg := a.cfg
		cfg.Pools = []string{pool}
		running.Go(func() {
			cfg.Logger.Info("serving the pool of a new tool", "pool", pool)
			other, err := New(cfg)
			if err == nil {
				err = other.Run(ctx)
			}
			if err != nil {
				cfg.Logger.Error("the pool of a new tool is not served any more", "pool", pool, "reason", err)
			}
		})
	}
}

// announceEvery is the shortest time between two announcements of changed tools.
const announceEvery = time.Second

// announceChanges announces the tools when a source changes them, first when changed is
// closed, until ctx ends. If tools change all the time, it announces them in intervals.
// The next refresh repeats an announcement that failed. It also serves new pools.
func (a *Actor) announceChanges(ctx context.Context, changed <-chan struct{}, running *sync.WaitGroup) {
	served := map[string]bool{events.AgentsPool: true, events.ClientPool: true}
	for _, pool := range a.cfg.Pools {
		served[pool] = true
	}
	for {
		if a.anyPool {
			a.servePools(ctx, served, running)
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		}
		changed = a.cfg.Tools.Changed()
		if err := a.Announce(ctx); err != nil && ctx.Err() == nil {
			a.cfg.Logger.Warn("changed tools cannot be announced; it will be retried", "reason", err)
		}
		retry.Wait(ctx, announceEvery)
	}
}

// Step works on one delivery of Acting or ParallelActing.
func (a *Actor) Step(ctx context.Context) error { return a.worker.Step(ctx) }

// Ready returns nil if the bus has the consumers that the role needs.
func (a *Actor) Ready(ctx context.Context) error { return a.worker.Ready(ctx) }

// Specs returns a pool's tools as they are announced.
func Specs(tools *toolset.Registry, pool string) []events.ToolSpec {
	specs := []events.ToolSpec{}
	for _, d := range tools.Definitions() {
		if d.Pool == pool {
			specs = append(specs, events.ToolSpec{
				Name: d.Name, Description: d.Description, Schema: d.Schema,
				Effect: string(d.Effect), Pool: d.Pool, Risk: string(d.Risk), Asks: d.Asks, Services: d.Services, Guide: d.Guide, Approval: toolcall.OwnApproval(d), Sandbox: d.Sandbox,
			})
		}
	}
	return specs
}

// call is one call in flight. info and policy say whether a human decides about it if its
// outcome is unknown.
type call struct {
	tool.Call
	at     events.Run
	pool   string
	batch  bool
	info   reducer.ToolInfo
	policy *events.Approval
	// started says that the log says, when the tool runs, that the call has started.
	started bool
	// sandbox is what held the tool's program.
	sandbox []string
}

// act plans Acting and ParallelActing for one call.
func (a *Actor) act(run events.Run, mem *reducer.Memory, e effects.Effect) worker.Work {
	state := mem.Call(e.CallID)
	if state == nil {
		return toolcall.NoCurrentCall
	}
	// This actor's file may say more than the announcement that was pinned, as for the approval.
	repeatable := tool.Effect(state.Effect).Repeatable()
	if t, here := a.cfg.Tools.Lookup(state.Name); here {
		repeatable = repeatable && t.Definition().Effect.Repeatable()
	}
	c := call{
		Call: tool.Call{Run: run.ID, ID: state.ID, Name: state.Name, Arguments: state.Arguments, TraceParent: tracecontext.In(mem.RunID, mem.Control.TraceParent, tracecontext.Tool(mem.RunID, state.ID))},
		at:   run, pool: state.Pool, batch: mem.Control.Batch, info: mem.Tools[state.Name], policy: mem.Control.Agent.Approval,
		started: e.Started > 0 || !repeatable,
	}
	work := a.remembers(run, mem, c)
	if work == nil {
		work = func(ctx context.Context) worker.Result { return a.run(ctx, run, c) }
	}
	switch {
	case repeatable:
		return a.awaited(c, a.admitted(run, c, work))
	case e.Started > 0:
		return func(context.Context) worker.Result { return a.workerLost(c) }
	}
	return a.awaited(c, a.admitted(run, c, func(context.Context) worker.Result {
		return worker.Then(&events.ToolCallStarted{CallID: c.ID}, work)
	}))
}

// lends reports whether the effect is a call of a tool that this actor does not have. If
// the tool's source is away, the call first waits for the source and keeps its slot:
// deliveries beyond the slots go to actors that have the tool.
func (a *Actor) lends(mem *reducer.Memory, e effects.Effect) bool {
	state := mem.Call(e.CallID)
	if e.Kind != effects.KindTool || state == nil {
		return false
	}
	if _, here := a.cfg.Tools.Lookup(state.Name); here {
		return false
	}
	return !slices.ContainsFunc(a.cfg.Tools.Sources(), func(s tool.Source) bool {
		source, ok := s.(toolset.Returning)
		return ok && source.Claims(state.Name)
	})
}

// leads reports whether the delivery that leads a run may go on with the call of a reply: this actor has the
// tool, the call may run again, and nobody bounds the pool's calls, which counts their deliveries.
func (a *Actor) leads(mem *reducer.Memory, p events.Payload) bool {
	reply, is := p.(*events.LLMToolCall)
	if !is || len(reply.Calls) != 1 {
		return false
	}
	t := mem.Tools[reply.Calls[0].Name]
	if _, here := a.cfg.Tools.Lookup(reply.Calls[0].Name); !here || t.Effect != string(tool.Pure) && t.Effect != string(tool.Idempotent) {
		return false
	}
	limited, err := a.cfg.Queue.Limited(context.Background(), cmp.Or(t.Pool, events.DefaultPool))
	return err == nil && !limited
}

// workerLost ends a call that must not run twice and was started by a worker that is gone.
func (a *Actor) workerLost(c call) worker.Result {
	if c.asksOutcome() {
		return a.askOutcome(c, "the call had started when its worker was lost; it may or may not have taken effect")
	}
	return c.result(events.ToolOutcome{
		Code: codes.OutcomeUnknown,
		Observation: codes.ErrorPrefix + fmt.Sprintf(
			"the outcome of %s is unknown: its worker was lost after the call had started. It may or may not have taken effect; check before you call it again.", c.Name),
	})
}

// asksOutcome reports whether a human decides about the call if its outcome is unknown. In a
// batch the model decides instead.
func (c call) asksOutcome() bool {
	return !c.batch && c.policy != nil && c.policy.OutcomeUnknown == events.AskHuman
}

// askOutcome asks a human whether a call of unknown outcome runs again. To approve means
// that it took no effect, or that a second effect is acceptable.
func (a *Actor) askOutcome(c call, why string) worker.Result {
	risk := c.info.Risk
	if risk == "" {
		risk = string(tool.Low)
	}
	return worker.Done(&events.HumanApprovalRequired{
		ToolCallReply: events.ToolCallReply{Calls: []events.Call{}},
		Requests: []events.Request{{
			CallID: c.ID, Tool: c.Name, Arguments: c.Arguments, Risk: risk, Asks: c.info.Asks,
			Reason: "the outcome is unknown: " + why + ". Approved, it runs again",
		}},
		Deadline: c.policy.Deadline(a.cfg.Store.Now()),
	})
}

// result returns the call's outcome as a result.
func (c call) result(o events.ToolOutcome) worker.Result {
	o.CallID = c.ID
	return worker.Done(toolcall.Outcome(o, c.batch))
}

// definitions returns the lookup of a registry.
func definitions(tools *toolset.Registry) toolcall.Lookup {
	return func(name string) (tool.Definition, bool) {
		t, ok := tools.Lookup(name)
		if !ok {
			return tool.Definition{}, false
		}
		return t.Definition(), true
	}
}

// awaited does the work when the call's tool is there, see [toolset.Registry.Await]. If only
// another actor of the pool has the tool, or this actor's source of it does not come up,
// the call is lent. If the tool does not come, the call is answered and never begins.
func (a *Actor) awaited(c call, work worker.Work) worker.Work {
	return func(ctx context.Context) worker.Result {
		began := a.cfg.Store.Now()
		if away := a.cfg.Tools.Await(ctx, c.Name); away != nil {
			gone := func(ctx context.Context) worker.Result {
				return a.outcome(ctx, c, toolset.Outcome{Failure: away, Latency: a.cfg.Store.Now().Sub(began)}, nil)
			}
			if away.Code == codes.Cancelled || c.info.Pool != c.pool {
				return gone(ctx)
			}
			return a.elsewhere.TryLend(c.pool, c.Name, gone)(ctx)
		}
		if _, here := a.cfg.Tools.Lookup(c.Name); !here {
			a.cfg.Tools.Ready(ctx) // an actor that starts may get calls before its sources have listed their tools
		}
		if _, here := a.cfg.Tools.Lookup(c.Name); here || c.info.Pool != c.pool {
			return work(ctx)
		}
		return a.elsewhere.Lend(c.pool, c.Name, work)(ctx)
	}
}

// admitted does the work if the call may run, and answers the call if not.
func (a *Actor) admitted(run events.Run, c call, work worker.Work) worker.Work {
	return func(ctx context.Context) worker.Result {
		refusal, err := a.guard.Refusal(ctx, run, c.Call)
		switch {
		case err != nil:
			return worker.Fail(err)
		case refusal == "":
			return work(ctx)
		}
		a.cfg.Logger.Warn("a call was not run", "run", run.ID, "call", c.ID, "tool", c.Name, "reason", refusal)
		return c.result(events.ToolOutcome{Code: codes.NotApproved, Observation: codes.ErrorPrefix + refusal})
	}
}

// run runs the tool.
func (a *Actor) run(ctx context.Context, run events.Run, c call) worker.Result {
	asked := &questions{redact: a.cfg.Results.Redact, unasked: c.unasked()}
	if !c.info.Asks && toolcall.MayAnswer(c.Arguments) && asked.unasked == "" {
		var err error
		if asked.answers, c.Call, err = a.guard.Answers(ctx, run, c.Call); err != nil {
			return worker.Fail(err)
		}
	}
	kept := &attachments{blobs: a.cfg.Blobs, pool: c.pool, redact: a.cfg.Results.Redact}
	var held atomic.Pointer[[]string] // a tool that does not end in time may note it later
	noting := callctx.WithSandbox(ctx, func(by []string) { held.Store(&by) })
	out := a.cfg.Tools.Execute(callctx.WithUnwanted(asked.under(kept.under(noting)), worker.ErrUnwanted), c.Call)
	if question := asked.unanswered(); question.text != "" && out.Failure != nil && ctx.Err() == nil && asked.unasked == "" {
		return a.ask(c, question)
	}
	if by := held.Load(); by != nil {
		c.sandbox = *by
	}
	return a.outcome(ctx, c, out, kept.taken())
}

// outcome turns a tool's outcome into a result that fits into the log. attached are the
// attachments that were stored.
func (a *Actor) outcome(ctx context.Context, c call, out toolset.Outcome, attached []events.Attachment) worker.Result {
	if ctx.Err() != nil {
		return worker.Fail(context.Cause(ctx)) // the result is no longer wanted
	}
	o := events.ToolOutcome{Success: out.Failure == nil, Code: codes.OK, LatencyMS: out.Latency.Milliseconds(), Attachments: attached, Sandbox: c.sandbox}
	text, prefix := out.Result, codes.SuccessPrefix
	if out.Failure != nil {
		o.Code, text, prefix = a.cfg.Results.Redact(strings.ToValidUTF8(out.Failure.Code, "\uFFFD")), out.Failure.Message, codes.ErrorPrefix
	}
	text = a.cfg.Results.Redact(strings.ToValidUTF8(text, "\uFFFD"))
	if o.Code == codes.OutcomeUnknown && c.asksOutcome() {
		return a.askOutcome(c, text)
	}
	text, ref, err := a.cfg.Results.Fit(ctx, a.cfg.Blobs, c.pool, text)
	if err != nil {
		a.cfg.Logger.Warn("a large result cannot be kept in full", "run", c.Run, "call", c.ID, "bytes", len(text), "reason", err)
	}
	o.Ref, o.Observation = ref, prefix+text
	if size, most := events.PayloadSize(toolcall.Outcome(o, c.batch)), a.cfg.Store.MaxPayload(); size > most {
		// The tool has run, and to run it again would not help.
		return c.result(events.ToolOutcome{Code: codes.TooLarge, LatencyMS: o.LatencyMS, Observation: codes.ErrorPrefix + fmt.Sprintf(
			"%s has run, and its outcome of %d bytes does not fit into the log: at most %d bytes fit", c.Name, size, most)})
	}
	return c.result(o)
}

// sized is a tool and its size in an announcement, in bytes.
type sized struct {
	index int
	size  int
}

// fit returns the tools that fit into one announcement of at most so many bytes, and the
// names of the others. Tools without a source are never omitted. Of the others it leaves
// out the largest of the source that takes the most, so that one source cannot crowd out
// small ones.
func fit(specs []events.ToolSpec, source func(name string) string, most int) (kept []events.ToolSpec, left []string) {
	total := len("[]")
	takes := map[string]int{}
	of := map[string][]sized{}
	for i, spec := range specs {
		size := encodedSize(spec) + len(",")
		total += size
		if from := source(spec.Name); from != "" {
			takes[from] += size
			of[from] = append(of[from], sized{i, size})
		}
	}
	if total <= most {
		return specs, nil
	}
	for _, tools := range of {
		slices.SortStableFunc(tools, func(a, b sized) int { return cmp.Compare(a.size, b.size) })
	}
	out := map[int]bool{}
	for total > most && len(of) > 0 {
		from := greediest(takes)
		last := of[from][len(of[from])-1]
		of[from] = of[from][:len(of[from])-1]
		out[last.index] = true
		total, takes[from] = total-last.size, takes[from]-last.size
		if len(of[from]) == 0 {
			delete(of, from)
			delete(takes, from)
		}
	}
	for i, spec := range specs {
		if out[i] {
			left = append(left, spec.Name)
		} else {
			kept = append(kept, spec)
		}
	}
	return kept, left
}

// greediest returns the source that takes the most; of several the first by name.
func greediest(takes map[string]int) (most string) {
	for from, size := range takes {
		if most == "" || size > takes[most] || size == takes[most] && from < most {
			most = from
		}
	}
	return most
}

// encodedSize returns the length of a tool as JSON, without the escapes of HTML, as the
// directory stores it.
func encodedSize(spec events.ToolSpec) int {
	var data bytes.Buffer
	enc := json.NewEncoder(&data)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(spec); err != nil {
		return 0 // the announcement fails with the reason
	}
	return data.Len()
}

// maxSaid bounds how many left-out tools the log names.
const maxSaid = 20

// sayLeft logs what a pool's announcement leaves out, if that has changed.
func (a *Actor) sayLeft(pool string, left []string) {
	a.saying.Lock()
	defer a.saying.Unlock()
	if slices.Equal(a.left[pool], left) {
		return
	}
	a.left[pool] = left
	if len(left) > 0 {
		a.cfg.Logger.Warn("not all tools of a pool fit into its announcement: agents do not find the others; give a server fewer tools, or its own pool",
			"pool", pool, "left_out", len(left), "tools", left[:min(len(left), maxSaid)])
	}
}
