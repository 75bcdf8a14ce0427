package replay

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/moorebus/moorebus/internal/codes"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// Model returns a model that answers as the run's model did, so that the run can be
// carried once more without it. Its reply depends on [llm.Request.Replies] alone. A
// reply of low confidence left nothing in the log but its confidence: the model answers
// with an error that says so. A fork's replies begin with its parent's.
func Model(ctx context.Context, log journal.Log, machine *reducer.Machine, run events.Run) (llm.Caller, error) {
	replies, err := replies(ctx, log, machine, run)
	if err != nil {
		return nil, err
	}
	return recording(replies), nil
}

// replies are what the run's model answered, in the order in which the log counts it,
// with the provider's own ids of calls.
func replies(ctx context.Context, log journal.Log, machine *reducer.Machine, run events.Run) ([]recorded, error) {
	var all []recorded
	var parts []events.Call // of the reply whose last event comes next
	fold := runlog.NewFold(log, machine, run)
	for rec, err := range log.Read(ctx, run, 0) {
		if err != nil {
			return nil, err
		}
		before := fold.Memory().Control.Replies
		e, err := fold.Apply(ctx, rec)
		switch {
		case err != nil && !runlog.Refused(err):
			return nil, err
		case err != nil:
			return all, nil // a poisoned run's replies end here
		}
		if end, ok := e.Data.(*events.FatalError); ok && e.From == events.Planning && end.Finish != "" {
			return append(all, lastReply(end)), nil
		}
		counted := fold.Memory().Control.Replies
		own := events.ReplyOf(e.Data)
		if p, forked := e.Data.(*events.Forked); forked {
			all, err = replies(ctx, log, machine, events.NewRun(run.Namespace, p.Run, log.Shards()))
			if err != nil || len(all) < counted {
				return nil, errors.Join(err, fmt.Errorf("the replies of run %s: %w", p.Run, journal.ErrNotFound))
			}
			all = all[:counted:counted]
			parts = nil
		} else if counted > before {
			all, parts = append(all, whole(parts, reply(e.Data))), nil
		} else if own != nil {
			parts = append(parts, own.Calls...)
		}
	}
	return all, nil
}

func reply(p events.Payload) recorded {
	switch p := p.(type) {
	case *events.LLMToolCall:
		return callsReply(&p.ToolCallReply)
	case *events.LLMParallelToolCalls:
		return callsReply(&p.ToolCallReply)
	case *events.HumanApprovalRequired:
		return callsReply(&p.ToolCallReply)
	case *events.ToolBlacklisted:
		return refusedReply(&p.RefusedReply)
	case *events.ReplyInvalid:
		return refusedReply(&p.RefusedReply)
	case *events.LLMFinalAnswer:
		return textReply(p.Content, p.Model, p.Usage, &p.Facts)
	case *events.LLMMessageComplete:
		return textReply(p.Content, p.Model, p.Usage, &p.Facts)
	case *events.LLMThought:
		return thoughtReply(p)
	case *events.AnswerTooShort:
		return textReply(p.Content, p.Model, p.Usage, &p.Facts)
	case *events.ContextWindowExpanded:
		return contextReply(p.ContextReply)
	case *events.ToolCallsAddedToContext:
		return contextReply(p.ContextReply)
	case *events.LLMAttemptFailed:
		return recorded{Err: failedReply(p.Kind, p.Message, p.Usage, &p.Facts)}
	}
	return recorded{Err: &llm.Error{Kind: llm.KindInvalid, Message: "the log does not hold what this reply said (" + string(events.TypeOf(p)) + ")"}}
}

// lastReply is the reply that ended its run. The log does not have its text, so one that
// would have held some is given back as the failure that it came to.
func lastReply(end *events.FatalError) recorded {
	if end.Code == codes.EmptyReply {
		var usage events.Usage
		if end.Usage != nil {
			usage = *end.Usage
		}
		return textReply("", "", usage, &end.Facts)
	}
	return recorded{Err: failedReply(end.Code, end.Message, end.Usage, &end.Facts)}
}

// failedReply is a call that gave no reply which could be used. Facts that say how one ended
// are those of a reply that came.
func failedReply(kind, message string, usage *events.Usage, facts *events.Facts) *llm.Error {
	e := &llm.Error{Kind: llm.ErrorKind(kind), Message: message}
	if usage == nil {
		usage = &events.Usage{}
	} else {
		u := meta("", 1, *usage).Usage
		e.Usage = &u
	}
	if facts.Finish != "" {
		m := meta("", 1, *usage)
		addFacts(&m, facts)
		e.Reply = &m
	}
	return e
}

// whole is a reply with the calls that are in earlier events.
func whole(parts []events.Call, r recorded) recorded {
	calls, ok := r.Response.(llm.ToolCalls)
	if len(parts) == 0 || !ok {
		return r
	}
	all := make([]llm.Call, 0, len(parts)+len(calls.Calls))
	for _, c := range parts {
		all = append(all, providerCall(c))
	}
	calls.Calls = append(all, calls.Calls...)
	return recorded{Response: calls}
}

func contextReply(p *events.ContextReply) recorded {
	r := llm.ToolCalls{Meta: meta(p.Model, p.Confidence, p.Usage), Content: p.Content}
	addFacts(&r.Meta, &p.Facts)
	for _, c := range p.Calls {
		r.Calls = append(r.Calls, providerCall(c))
	}
	return recorded{Response: r}
}

func textReply(content, model string, usage events.Usage, facts *events.Facts) recorded {
	r := llm.Text{Meta: meta(model, 1, usage), Content: content}
	addFacts(&r.Meta, facts)
	return recorded{Response: r}
}

func callsReply(p *events.ToolCallReply) recorded {
	r := llm.ToolCalls{Meta: meta(p.Model, p.Confidence, p.Usage), Content: p.Content}
	addFacts(&r.Meta, &p.Facts)
	for _, c := range p.AllCalls() {
		r.Calls = append(r.Calls, providerCall(c))
	}
	for _, refused := range p.Refused {
		if refused.Code == cutOff && !r.Cut() {
			r.Finish = llm.FinishLength
		}
	}
	return recorded{Response: r}
}

func refusedReply(p *events.RefusedReply) recorded {
	code, reason := soleAnswer(p)
	switch code {
	case codes.MalformedReply, codes.TooLarge:
		r := llm.Invalid{Meta: meta(p.Model, 1, p.Usage), Content: p.Content, Reason: reason}
		addFacts(&r.Meta, &p.Facts)
		return recorded{Response: r}
	case string(llm.KindToolUse):
		return recorded{Err: failedReply(code, reason, &p.Usage, &p.Facts)}
	}
	if len(p.Calls) == 0 {
		return textReply(p.Content, p.Model, p.Usage, &p.Facts)
	}
	r := llm.ToolCalls{Meta: meta(p.Model, 1, p.Usage), Content: p.Content}
	addFacts(&r.Meta, &p.Facts)
	for _, answer := range p.Results {
		if answer.Code == cutOff && !r.Cut() {
			r.Finish = llm.FinishLength
		}
	}
	for _, c := range p.Calls {
		r.Calls = append(r.Calls, providerCall(c))
	}
	return recorded{Response: r}
}

// cutOff is the code of a call that was refused since its reply was truncated.
const cutOff = "cut_off"

func providerCall(c events.Call) llm.Call {
	id := c.ID
	if c.ProviderID != "" {
		id = c.ProviderID
	}
	return llm.Call{ID: id, Name: c.Name, Arguments: c.Arguments}
}

func meta(model string, confidence float64, u events.Usage) llm.Meta {
	return llm.Meta{Model: model, Confidence: confidence, ZeroConfidence: confidence == 0, Usage: llm.Usage{
		Input: u.Input, Output: u.Output, Cached: u.Cached, Total: u.Total, CostUSD: u.CostUSD,
	}}
}

// thoughtReply is a thinking pass of the text protocol, read already.
func thoughtReply(p *events.LLMThought) recorded {
	r := llm.Thought{Meta: meta(p.Model, 1, p.Usage), Content: p.Content, NextState: p.NextState, Note: p.Note}
	addFacts(&r.Meta, &p.Facts)
	return recorded{Response: r}
}

// soleAnswer returns the code of a reply without calls that could not be used, and what the
// model saw; empty for one with calls.
func soleAnswer(p *events.RefusedReply) (code, reason string) {
	if len(p.Results) != 1 || len(p.Calls) > 0 {
		return "", ""
	}
	return p.Results[0].Code, strings.TrimPrefix(p.Results[0].Observation, codes.ErrorPrefix)
}

// addFacts puts what the log keeps of a reply into its meta data.
func addFacts(m *llm.Meta, f *events.Facts) {
	m.Finish, m.FinishRaw, m.Dialect, m.RequestSHA256 = llm.Finish(f.Finish), f.FinishRaw, f.Dialect, f.RequestSHA256
	m.Reasoning, m.Citations, m.Adjusted = f.Reasoning, f.Citations, f.Adjusted
}
