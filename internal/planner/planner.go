// Package planner is the role that calls models: it owns the states Planning
// and Reflecting, and sends the calls of a reply to their pools.
//
// It is the only role with credentials for model providers. An event out of Planning is
// one checked reply of a model: accepted calls, a final answer, or why the reply could not
// be used. The request is not logged, since it follows from the run's earlier events.
//
// A provider that is rate limited is not called until the time that it named. Runs that
// need it wait in the log. While all of the planner's providers are limited, it takes no
// deliveries. After that it takes one at a time until a call is served. So a limit costs
// about one request for each wait, however many runs wait.
package planner

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/moorebus/moorebus/internal/announce"
	"github.com/moorebus/moorebus/internal/clientmodel"
	"github.com/moorebus/moorebus/internal/codes"
	"github.com/moorebus/moorebus/internal/effects"
	"github.com/moorebus/moorebus/internal/kv"
	"github.com/moorebus/moorebus/internal/ports"
	"github.com/moorebus/moorebus/internal/providers"
	"github.com/moorebus/moorebus/internal/tokens"
	"github.com/moorebus/moorebus/internal/toolcall"
	"github.com/moorebus/moorebus/internal/tracecontext"
	"github.com/moorebus/moorebus/internal/worker"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/moorebus/moorebus/pkg/reducer"
	"github.com/moorebus/moorebus/pkg/tool"
)

// Concurrency is how many model calls a planner has in flight at once by default.
const Concurrency = 256

// Config configures a [Planner].
type Config struct {
	// Base is what the process gives each of its roles. Concurrency is how many model
	// calls are in flight at once, by default [Concurrency].
	worker.Base
	// KV is where the providers are announced. Required.
	KV kv.Store
	// Providers are the callers by the name that agents use for them. Required.
	Providers map[string]llm.Caller
	// Agents are the digests of the definitions of the agents that this process serves,
	// by name. A process that serves another agent or provider under one of these names,
	// or of those of Providers, is refused. May be nil.
	Agents map[string]string
	// Text wraps a provider in the text protocol, for agents that want it. Nil: their
	// calls fail.
	Text func(llm.Caller) llm.Caller
	// Validator checks the model's arguments and structured answers. Required.
	Validator tool.Validator
	// Approval evaluates approval policies. Required.
	Approval toolcall.Approval
	// Prices says what models cost. Nil: prices are unknown, so runs with a budget in
	// money end.
	Prices llm.Prices
	// Estimators say how much of a budget a call reserves, by the names that agents use
	// for them. [tokens.Bytes4] is always available.
	Estimators tokens.Set
	// Blobs has what is too large for the log and is shown to the model: images, files and
	// long reasoning. Nil: a text tells the model that images and files are omitted, and the log
	// has all reasoning.
	Blobs journal.Blobs
	// Retry says when failed calls of a provider are tried again.
	Retry Policy
	// CallTimeout bounds one call of a model. Default 11 min: longer than the timeout of the
	// adapters, whose errors say what came of the reply.
	CallTimeout time.Duration
	// NoStream turns the streaming of model text off.
	NoStream bool
	// Timers bound the wait for replies of client models, and Questions bring these replies.
	// Nil: no such reply comes. Chat writes what such a model is asked, in the form of chat
	// completions.
	Timers    journal.Timers
	Questions ports.Questions
	Chat      llm.Writer
}

// Planner is the role. Make it with [New], use it once.
type Planner struct {
	cfg       Config
	directory *announce.Directory
	worker    *worker.Worker
	limits    *limits
	// streams are the calls in flight.
	streams streams
	names   *names
	// missed are the providers that runs need and no planner announces.
	missed *announce.Misses[string]
}

// New checks the configuration.
func New(cfg Config) (*Planner, error) {
	if cfg.Concurrency <= 0 {
		cfg.Concurrency = Concurrency
	}
	var err error
	cfg.Base, err = cfg.WithDefaults("planner")
	switch {
	case err != nil:
		return nil, err
	case cfg.KV == nil || cfg.Validator == nil || cfg.Approval == nil:
		return nil, errors.New("planner: KV, Validator and Approval are required")
	case cfg.Providers[events.ClientProvider] != nil:
		return nil, fmt.Errorf("planner: the provider name %s is reserved for models that are the run's own client; use another name", events.ClientProvider)
	case len(cfg.Providers) == 0:
		return nil, fmt.Errorf("planner: no model provider is configured: set one of %s", providers.Variables())
	}
	if cfg.CallTimeout <= 0 {
		cfg.CallTimeout = 11 * time.Minute
	}
	p := &Planner{cfg: cfg, directory: announce.NewDirectory(cfg.KV, cfg.Logger), limits: newLimits(cfg.Retry, cfg.Providers), names: newNames(cfg), missed: announce.NewMisses[string](forgetMissing)}
	p.worker, err = worker.New(worker.Config{
		Role: "planner", Base: cfg.Base,
		Inboxes: []journal.Inbox{
			{States: []events.State{events.Planning}, Pool: events.DefaultPool},
			{States: []events.State{events.Reflecting}, Pool: events.DefaultPool},
		},
		Handlers: map[effects.Kind]worker.Handler{
			effects.KindPlan:     worker.HandlerFunc(p.plan),
			effects.KindReflect:  worker.HandlerFunc(p.reflect),
			effects.KindDispatch: worker.HandlerFunc(dispatch),
		},
		Elsewhere: p.elsewhere,
		Gate:      &p.limits.gate,
		Leads:     leads,
		HandOver:  p.handOver,
	})
	return p, err
}

// Run announces the providers and works until ctx ends. Then it takes the announcement back.
// If another process uses one of the names, it returns a *[journal.NameTakenError] before it
// works on anything.
func (p *Planner) Run(ctx context.Context) error {
	stop, err := p.cfg.Feed.WatchAsks(p.streams.answer)
	if err != nil {
		return fmt.Errorf("planner: watching for listeners: %w", err)
	}
	defer stop()
	if err := p.claimNames(ctx); err != nil {
		return err
	}
	stopAnswers, err := p.answerGateways()
	if err != nil {
		return err
	}
	defer stopAnswers()
	return announce.During(ctx, p.cfg.Logger, p.Announce, p.Withdraw, p.worker.Run)
}

// Step works on one delivery of Planning or Reflecting.
func (p *Planner) Step(ctx context.Context) error { return p.worker.Step(ctx) }

// Ready returns nil if the bus has the consumers that the role needs.
func (p *Planner) Ready(ctx context.Context) error { return p.worker.Ready(ctx) }

// dispatch sends one call of a batch to its pool.
func dispatch(_ events.Run, _ *reducer.Memory, e effects.Effect) worker.Work {
	return func(context.Context) worker.Result {
		return worker.Done(&events.ToolCallDispatched{CallID: e.CallID})
	}
}

// plan is Planning: it checks the run's limits, calls the model once, and checks the reply.
func (p *Planner) plan(run events.Run, mem *reducer.Memory, e effects.Effect) worker.Work {
	return p.planWith(nil, run, mem, e)
}

// planWith is plan with the reply of a client model; nil: there is none yet.
func (p *Planner) planWith(said *clientmodel.Message, run events.Run, mem *reducer.Memory, e effects.Effect) worker.Work {
	if queued := mem.Control.Queued; len(queued) > 0 {
		return p.nextQueued(newReplyChecker(p.cfg, mem), queued[0])
	}
	if end := overPasses(mem); end != nil {
		return done(end)
	}
	ref, more := effects.Model(mem, e.Failed)
	req := request(mem, ref)
	bill, end := p.reserve(mem, req, llm.Usage{})
	if end != nil {
		return done(end)
	}
	if e.Client && said == nil {
		return p.await(run, mem)
	}
	ch := newReplyChecker(p.cfg, mem)
	ch.messageID, ch.asked = messageID(said, p.cfg.Store.NewID), p.asked(req)
	ch.readMemory = func(fn func(*reducer.Memory)) { p.readMemory(run, fn) }
	pl := planning{
		Planner: p, bill: bill, check: ch, first: mem.Step == 0, kept: storedParts(mem),
		call: modelCall{
			run: run, key: e.Key, before: e.Failed, trace: traceOf(mem, e), req: req, asked: ch.asked, messageID: ch.messageID, more: more, records: ch.records,
			compacts: p.compactable(mem), compacted: mem.Control.Compacted != "", said: said,
		},
	}
	asked := askedNow(mem)
	return func(ctx context.Context) worker.Result {
		if said != nil { // its text was published as it came
			return pl.ask(ctx, p.silent(run))
		}
		s := p.streamer(run, ch.messageID, ch.config.RecordChunks)
		s.unstreamed = s.unstreamed || e.Failed.Broken > 0
		p.streams.add(s)
		defer p.streams.remove(s)
		return pl.ask(ctx, s).Leaving(func(now *reducer.Memory) events.Payload { return pl.leaves(now, asked, s) })
	}
}

// planning is the work of Planning: one reply of a model, checked and paid for.
type planning struct {
	*Planner
	call  modelCall
	bill  bill
	check *replyChecker
	// first says that the run has no reply yet. kept are the parts of the request that are
	// in the object store.
	first bool
	kept  []storedPart
	// came is what is known of the reply that came last, and paid what it cost.
	came *llm.Error
	paid *events.Usage
}

// ask calls the model, a second time for the rest of an answer that was truncated, and turns
// the reply into events.
func (pl *planning) ask(ctx context.Context, s *streamer) worker.Result {
	messages, err := pl.withStored(ctx, pl.call.req.Messages, pl.kept)
	if err != nil {
		return pl.lost(ctx, &llm.Error{Kind: llm.KindNetwork, Message: "the object store: " + err.Error(), Err: err})
	}
	pl.call.req.Messages = messages
	reply, err := pl.Planner.call(ctx, pl.call, s)
	if result, not := notAsked(err); not != nil {
		return passOver(result, not, pl.call)
	}
	if err == nil && pl.check.continues(reply) {
		var end events.Payload
		if reply, end, err = pl.rest(ctx, pl.call, s, reply); end != nil {
			return pl.restOverBudget(ctx, pl.call, err, pl.bill.attempt(err), end)
		}
	}
	pl.note(reply, err)
	if err == nil {
		reply, err = pl.call.refused(reply, pl.check.mode)
	}
	if err != nil {
		return pl.lost(ctx, err)
	}
	pl.noteAdjusted(reply.About())
	pl.check.kept = pl.keepReasoning(ctx, pl.call.run, reply.About(), pl.check.records)
	pl.check.blob = func(ref events.Ref) ([]byte, error) { return pl.blob(ctx, ref) }
	all := pl.check.check(reply)
	last := len(all) - 1
	events.SetChunks(all[last], s.chunks())
	pl.noteDropped(pl.call.run, pl.call.req, reply.About(), all[last])
	if charged := pl.bill.charge(all[last], reply.About().Model); charged != all[last] {
		return worker.Done(charged) // the reply cannot be paid for, so none of it counts
	}
	return worker.Done(append(all, pl.dispatches(all[last])...)...)
}

// note keeps what is known of a reply for the case that the run no longer wants it.
func (pl *planning) note(reply llm.Response, err error) {
	if err == nil {
		pl.came = notUsed(codes.KindObsolete, "", reply.About())
	} else if errors.As(err, &pl.came); pl.came == nil || pl.came.Reply == nil {
		return
	}
	pl.paid = pl.bill.attempt(pl.came)
}

// lost is the result of a call without a reply that can be used.
func (pl *planning) lost(ctx context.Context, err error) worker.Result {
	var e *llm.Error
	if ctx.Err() == nil && errors.As(err, &e) && e.Kind == llm.KindToolUse {
		if e.Reply != nil {
			pl.check.kept = pl.keepReasoning(ctx, pl.call.run, *e.Reply, pl.check.records)
		}
		return worker.Done(pl.bill.charge(pl.check.toolUse(e), ""))
	}
	return pl.failed(ctx, err, pl.bill.attempt(err), pl.call)
}

// noteAdjusted says once in a run which of the agent's settings the model does not get.
func (pl *planning) noteAdjusted(m llm.Meta) {
	if !pl.first || len(m.Adjusted) == 0 {
		return
	}
	notes := make([]string, len(m.Adjusted))
	for i, a := range m.Adjusted {
		if notes[i] = a.Key + " is left out"; a.Sent != nil {
			notes[i] = a.Key + " is sent as " + string(a.Sent)
		}
	}
	pl.cfg.Logger.Info("the model does not take the agent's settings as they are", "run", pl.call.run.ID,
		"provider", pl.call.asked.Provider, "model", pl.call.asked.Model, "settings", strings.Join(notes, ", "))
}

// readMemory calls fn with a run's memory as it is now, under the run's lock.
func (p *Planner) readMemory(id events.Run, fn func(*reducer.Memory)) {
	run := p.cfg.Store.Acquire(id)
	defer p.cfg.Store.Release(run)
	run.Lock()
	defer run.Unlock()
	fn(run.Memory())
}

func done(p events.Payload) worker.Work {
	return func(context.Context) worker.Result { return worker.Done(p) }
}

// nextQueued accepts the next call of an earlier reply.
func (p *Planner) nextQueued(ch *replyChecker, call events.Call) worker.Work {
	return done(ch.accept(&events.ToolCallReply{Calls: []events.Call{call}, Confidence: ch.confidence}))
}

// modelCall is one call of a model. before counts the effect's failures until now.
type modelCall struct {
	run    events.Run
	before reducer.Attempt
	// trace is the traceparent that the request carries.
	trace string
	req   llm.Request
	asked events.Asked
	// messageID names the reply; empty for a summary, which nobody is shown.
	messageID string
	// more says that the agent has another model to ask, records that all reasoning is
	// recorded.
	more, records bool
	// published is the text that was published before, of an answer whose rest is asked for.
	published string
	// said is the reply, if the model is the run's client.
	said *clientmodel.Message
	// key is the effect's. compacts is what can be done if the request is too long, and
	// compacted says that something was.
	key       string
	compacts  reducer.Compaction
	compacted bool
}

// call calls the provider and streams the reply to listeners. If the call was not made, the
// error is a *[notAskedError].
func (p *Planner) call(ctx context.Context, c modelCall, s *streamer) (llm.Response, error) {
	caller := p.cfg.Providers[c.req.Provider]
	if c.said != nil {
		caller = clientCaller{c.said, p.cfg.Chat}
	}
	if caller == nil {
		return nil, p.missing(ctx, c)
	}
	caller, err := p.speaking(caller, c.req)
	if err != nil {
		return nil, err
	}
	if c.req.Messages, err = p.wholeReasoning(ctx, c.req); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, p.cfg.CallTimeout, errCallTimeout)
	defer cancel()
	var stream func(llm.Chunk)
	s.begin()
	if !s.unstreamed {
		stream = func(c llm.Chunk) {
			if ctx.Err() == nil { // a reply that became obsolete is published no further
				s.chunk(c)
			}
		}
	}
	ticket, wait := p.limits.admit(c.req.Provider)
	if wait > 0 {
		return nil, limited(c, wait)
	}
	ask := p.measured
	if c.said != nil { // it is here already
		ask = func(ctx context.Context, caller llm.Caller, req llm.Request, stream func(llm.Chunk)) (llm.Response, error) {
			return caller.Call(ctx, req, stream)
		}
	}
	reply, err := ask(tracecontext.With(ctx, c.trace), caller, c.req, p.noticeServing(ticket, stream))
	p.limits.record(ticket, err)
	if err != nil && errors.Is(context.Cause(ctx), errCallTimeout) {
		return nil, &llm.Error{Kind: llm.KindNetwork, Message: fmt.Sprintf("no reply within %s", p.cfg.CallTimeout), Err: err}
	}
	if err == nil && ctx.Err() == nil {
		s.complete(c.published + textOf(reply))
	}
	if err == nil && reply == nil {
		return nil, &llm.Error{Kind: llm.KindOther, Message: "the provider gave no reply"}
	}
	return reply, err
}

// noticeServing returns stream, and notes at its first chunk that the provider serves the call.
func (p *Planner) noticeServing(t ticket, stream func(llm.Chunk)) func(llm.Chunk) {
	if stream == nil {
		return nil
	}
	begun := false // chunks come from one goroutine
	return func(c llm.Chunk) {
		if !begun {
			begun = true
			p.limits.serving(t)
		}
		stream(c)
	}
}

var errCallTimeout = errors.New("the model call took too long")
