package planner

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/moorebus/moorebus/internal/worker"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// asked is who is asked by a request, with the name of the model that a provider chooses by
// itself, as far as it is known.
func (p *Planner) asked(req llm.Request) events.Asked {
	return events.Asked{Provider: req.Provider, Model: cmp.Or(req.Model, llm.Describe(p.cfg.Providers[req.Provider]).DefaultModel)}
}

const (
	// fallbackAttempts bounds the attempts of a call while another model can be asked, and
	// fallbackPatience the wait for one of them.
	fallbackAttempts = 3
	fallbackPatience = 5 * time.Second
	// atOnce is the delay of an attempt that need not wait.
	atOnce = time.Nanosecond
)

// retry decides whether and when a failed call is repeated, of the same model. Failures are counted
// by their kinds: that a provider was overloaded says nothing about a reply that breaks off.
func (p *Planner) retry(e *llm.Error, c modelCall) (delay time.Duration, again bool) {
	policy, before := p.cfg.Retry.withDefaults(), c.before
	failed := Failures{Kind: failuresOf(before, e.Kind) + 1, Unlimited: before.Provider + 1, All: before.Provider + before.RateLimited + 1}
	if c.more {
		policy.Attempts = min(policy.Attempts, fallbackAttempts)
		policy.RateLimitAttempts = min(policy.RateLimitAttempts, fallbackAttempts)
	}
	if delay, again = policy.Next(e, failed); !again {
		return 0, false
	}
	switch {
	case e.Kind == llm.KindRateLimited:
		delay = max(delay, p.limits.remaining(c.req.Provider)) // before that it would not be called
	case e.Kind == llm.KindBroken && c.before.Broken == 0:
		delay = atOnce
	}
	return delay, !c.more || delay <= fallbackPatience
}

// failed turns a call's error into another attempt, of the same model or of the next one, or
// into the run's end.
func (p *Planner) failed(ctx context.Context, err error, billed *events.Usage, c modelCall) worker.Result {
	if ctx.Err() != nil {
		return worker.Fail(err) // the reply is no longer wanted
	}
	var e *llm.Error
	if !errors.As(err, &e) {
		e = &llm.Error{Kind: llm.KindOther, Message: err.Error(), Err: err}
	}
	failure := events.LLMAttemptFailed{Kind: string(e.Kind), Message: clean(e.Message), Usage: billed, Facts: p.unused(ctx, e, c)}
	if e.Reply != nil {
		failure.MessageID = c.messageID
	}
	if result, ok := c.compact(failure); ok {
		return result
	}
	log := p.cfg.Logger.With("run", c.run.ID, "provider", c.asked.Provider, "model", c.asked.Model, "kind", failure.Kind, "reason", failure.Message)
	delay, again := p.retry(e, c)
	switch {
	case again && e.Kind == llm.KindBroken:
		log.Warn("the reply broke off: another call is made without streaming, and each call is billed", "failures", c.before.Provider+1)
	case again:
	case c.more && e.Kind != codeCutOff: // a replay's: such a reply ends the run whatever follows
		log.Warn("the agent's next model is asked")
		failure.Next, delay = true, atOnce
	default:
		if e.Kind == llm.KindContextTooLong && c.compacted {
			failure.Message += "; the conversation was shortened, and the request is still too long"
		}
		end := &events.FatalError{Outcome: events.Outcome{Code: failure.Kind, Message: failure.Message}, Usage: billed}
		if e.Reply != nil {
			end.Facts = failure.Facts
		}
		return worker.Done(end)
	}
	return worker.Retry(failure, delay)
}

// unused returns what the log keeps of a reply that is not used. Of a call without a reply
// that is who was asked.
func (p *Planner) unused(ctx context.Context, e *llm.Error, c modelCall) events.Facts {
	if e.Reply == nil {
		return events.Facts{Asked: &events.Asked{Provider: c.asked.Provider, Model: c.asked.Model}}
	}
	facts := factsOf(*e.Reply, c.asked, false)
	if e.Reply.Finish == "" {
		facts.Finish = string(llm.FinishUnknown)
	}
	if len(facts.Reasoning) > 0 {
		k := p.keepReasoning(ctx, c.run, *e.Reply, c.records)
		facts.Reasoning, facts.ReasoningRef = k.parts, k.ref
	}
	if events.PayloadSize(&events.FatalError{Facts: facts}) > p.cfg.Store.MaxPayload() {
		facts.Reasoning = nil
	}
	return facts
}

// passOver has the next model asked, if there is one, where a call was not made since its
// provider is rate limited for long. Otherwise the run waits as result says.
func passOver(result worker.Result, not *notAskedError, c modelCall) worker.Result {
	if not.elsewhere() || !c.more || not.delay <= fallbackPatience {
		return result
	}
	return worker.Retry(events.LLMAttemptFailed{Kind: string(not.kind), Message: clean(not.message), NotAsked: true, Next: true}, atOnce)
}

// failuresOf returns how many failures a provider had of this kind. Kinds without their own count
// share one.
func failuresOf(a reducer.Attempt, kind llm.ErrorKind) int {
	switch kind {
	case llm.KindRateLimited:
		return a.RateLimited
	case llm.KindOverloaded:
		return a.Provider - a.Broken - a.TooLong - a.Network - a.Other
	case llm.KindNetwork:
		return a.Network
	case llm.KindBroken:
		return a.Broken
	case llm.KindContextTooLong:
		return a.TooLong
	}
	return a.Other
}
