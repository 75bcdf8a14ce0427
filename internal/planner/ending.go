package planner

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/moorebus/moorebus/internal/codes"
	"github.com/moorebus/moorebus/internal/replyitem"
	"github.com/moorebus/moorebus/internal/worker"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// kindRefused is the kind of a refusal that is no answer. It is also the code of the run's
// end.
const kindRefused llm.ErrorKind = "refused"

// hasNothing reports whether a reply has neither text nor a call. Reasoning alone is nothing.
func hasNothing(content string) bool { return strings.TrimSpace(content) == "" }

// standIn is the text of a reply that consists of what the provider's own tools made, such as
// an image. It is empty for other replies.
func standIn(meta llm.Meta) string {
	var items []json.RawMessage
	for _, p := range meta.Reasoning {
		if p.Kind == events.ReasoningOpaque {
			items = append(items, p.Data)
		}
	}
	return replyitem.Stand(items)
}

// refusal returns the words of a reply by which the model or its provider refuses to answer.
func refusal(reply llm.Response) (words string, refuses bool) {
	if _, calls := reply.(llm.ToolCalls); calls {
		return "", false
	}
	words = strings.ToValidUTF8(textOf(reply), "\uFFFD")
	switch finish := reply.About().Finish; {
	case finish == llm.FinishRefusal:
	case finish == llm.FinishContentFilter && hasNothing(words):
	default:
		return "", false
	}
	if hasNothing(words) {
		words = llm.RefusedText
	}
	return words, true
}

// notUsed is the error of a reply that came and is not used.
func notUsed(kind llm.ErrorKind, message string, meta llm.Meta) *llm.Error {
	return &llm.Error{Kind: kind, Message: message, Usage: &meta.Usage, Reply: &meta}
}

// refused returns the error of a refusal. In a chat that no other model can answer, the
// refusal is the answer, in words. Other replies it returns as they are.
func (c modelCall) refused(reply llm.Response, mode events.Mode) (llm.Response, error) {
	words, refuses := refusal(reply)
	switch {
	case !refuses:
		return reply, nil
	case mode == events.ModeChat && !c.more:
		meta := reply.About()
		meta.Finish = llm.FinishRefusal
		return llm.Text{Meta: meta, Content: words}, nil
	}
	return nil, notUsed(kindRefused, words, reply.About())
}

// continues reports whether the model is to be asked for the rest of its answer.
func (ch *replyChecker) continues(reply llm.Response) bool {
	switch reply.(type) {
	case llm.Text, llm.Structured:
		return ch.onCut == events.CutContinue && !ch.speaksText && reply.About().Cut() && !hasNothing(textOf(reply))
	}
	return false
}

// goOn is what the model sees whose answer was truncated.
const goOn = "Your answer was cut off. Go on exactly where it stopped: give only the rest, without repeating anything and without an introduction."

// rest asks the model for the rest of an answer and returns the complete answer. An error has the
// cost of both calls. If the budget does not allow the second call, end ends the run.
func (p *Planner) rest(ctx context.Context, c modelCall, s *streamer, first llm.Response) (whole llm.Response, end events.Payload, err error) {
	meta := first.About()
	c.published = textOf(first)
	// A schema would make the model begin the answer again.
	c.req.OutputSchema, c.req.Rest = nil, true
	c.req.Messages = slices.Concat(c.req.Messages, []llm.Message{
		{Role: llm.RoleAssistant, Content: c.published, Reasoning: meta.Reasoning, Asked: c.asked},
		{Role: llm.RoleUser, Content: goOn},
	})
	p.readMemory(c.run, func(mem *reducer.Memory) {
		_, end = p.reserve(mem, c.req, meta.Usage)
	})
	if end != nil {
		return nil, end, notUsed(codeCutOff, "the answer was cut off, and the budget does not allow the call for its rest", meta)
	}
	second, err := p.call(ctx, c, s)
	if err == nil {
		return joined(first, second), nil, nil
	}
	return nil, nil, afterFirst(meta, err)
}

// afterFirst is the error of the call for the rest, with what the first call cost.
func afterFirst(first llm.Meta, err error) error {
	e := notUsed(llm.KindOther, err.Error(), first)
	var not *notAskedError
	var own *llm.Error
	switch {
	case errors.As(err, &own):
		e.Kind, e.RetryAfter, e.Status = own.Kind, own.RetryAfter, own.Status
		e.Message = own.Message
		if own.Usage != nil {
			sum := first.Usage.Plus(*own.Usage)
			e.Usage = &sum
		}
	case errors.As(err, &not):
		e.Kind = not.kind
	}
	e.Message, e.Err = "the answer was cut off, and the call for its rest failed: "+e.Message, err
	return e
}

// joined is one reply of an answer and its rest. It ends as the rest does.
func joined(first, rest llm.Response) llm.Response {
	m, r := first.About(), rest.About()
	m.Usage = m.Usage.Plus(r.Usage)
	calls, isCalls := rest.(llm.ToolCalls)
	if isCalls || !hasNothing(textOf(rest)) || r.Cut() {
		m.Finish, m.FinishRaw = r.Finish, r.FinishRaw
	}
	for _, part := range r.Reasoning {
		// What only the provider can read belongs to messages that are not in the log.
		if part.Kind != events.ReasoningOpaque {
			m.Reasoning = append(slices.Clip(m.Reasoning), part)
		}
	}
	content := textOf(first) + textOf(rest)
	switch _, structured := first.(llm.Structured); {
	case isCalls:
		return llm.ToolCalls{Meta: m, Content: content, Calls: calls.Calls}
	case structured:
		return llm.Structured{Meta: m, Content: content}
	}
	return llm.Text{Meta: m, Content: content}
}

// cutOff ends a run whose answer, or call, was truncated.
func (ch *replyChecker) cutOff(meta llm.Meta, content string, calls bool) events.Payload {
	what, remedy := "the answer", "raise llm.max_tokens, or take answers as far as they come (on_cut: accept)"
	if calls {
		what, remedy = "a tool call", "raise llm.max_tokens, or let the model make the call again (on_cut: continue)"
	}
	reason := fmt.Sprintf("%s was cut off (%s)", what, cmp.Or(meta.FinishRaw, string(meta.Finish)))
	if ch.onCut == events.CutContinue {
		reason += ", and the rest that the model was asked for did not end it"
	}
	if !hasNothing(content) {
		reason += fmt.Sprintf("; %d bytes came, and the last are %q", len(content), tail(content, 200))
	}
	u := usage(meta.Usage)
	return &events.FatalError{Outcome: events.Outcome{Code: codeCutOff, Message: clean(reason + "; " + remedy)}, Usage: &u, Facts: ch.factsOf(meta, calls)}
}

// tail returns the last characters of a text.
func tail(text string, most int) string {
	runes := []rune(text)
	return string(runes[max(0, len(runes)-most):])
}

// empty is the event of an empty reply. The model is asked again once.
func (ch *replyChecker) empty(meta llm.Meta) events.Payload {
	if meta.Cut() && ch.onCut == events.CutFail {
		return ch.cutOff(meta, "", false)
	}
	reason := "the reply is empty: answer in words or call a tool"
	if meta.Cut() {
		reason = "the reply was cut off before it held anything: answer in words or call a tool"
	}
	if meta.Finish == llm.FinishLength {
		reason = "the reply was cut off before it held anything: reason less, then answer in words or call a tool"
	}
	if ch.emptyBefore == 0 || ch.speaksText {
		return ch.invalid(meta, "", codes.EmptyReply, reason)
	}
	u := usage(meta.Usage)
	return &events.FatalError{
		Outcome: events.Outcome{Code: codes.EmptyReply, Message: fmt.Sprintf("%d replies in a row were empty, without text and without a tool call", ch.emptyBefore+1)},
		Usage:   &u, Facts: ch.facts(meta),
	}
}

// restOverBudget logs a reply that is not used, and ends the run that cannot pay for its rest.
func (p *Planner) restOverBudget(ctx context.Context, c modelCall, err error, billed *events.Usage, end events.Payload) worker.Result {
	var e *llm.Error
	errors.As(err, &e)
	return worker.Done(&events.LLMAttemptFailed{
		Key: c.key, MessageID: c.messageID, Kind: string(e.Kind), Message: clean(e.Message), Usage: billed, Facts: p.unused(ctx, e, c),
	}, end)
}
