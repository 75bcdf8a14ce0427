package telemetry

import (
	"cmp"
	"slices"
	"strings"

	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"

	"github.com/moorebus/moorebus/internal/codes"
	"github.com/moorebus/moorebus/internal/effects"
	"github.com/moorebus/moorebus/internal/meter"
	"github.com/moorebus/moorebus/internal/tracecontext"
	"github.com/moorebus/moorebus/pkg/events"
)

// chat is one request to a model as its end shows it.
type chat struct {
	// key is the effect's; empty: the present one.
	key string
	// model is the name of the model that answered.
	model           string
	usage           *events.Usage
	facts           *events.Facts
	failed, message string
	// doubt is the model's confidence, if that was too low.
	doubt *float64
}

// chatOf returns the request to a model that an event ends, false if it ends none.
func chatOf(e *events.Event, was before) (c chat, ok bool) {
	c = chat{usage: events.Billed(e.Data), facts: events.FactsOf(e.Data)}
	switch p := e.Data.(type) {
	case *events.LLMAttemptFailed:
		c.key, c.failed, c.message = p.Key, p.Kind, p.Message
		model := strings.HasPrefix(p.Key, string(effects.KindPlan)+"/") || strings.HasPrefix(p.Key, string(effects.KindReflect)+"/")
		return c, (model || p.Key == "" && p.Interrupted()) && !p.NotAsked && p.Kind != codes.KindHandler
	case *events.ReflectDone:
		c.model, c.failed, c.message = p.Model, "", p.Failed
		if p.Failed != "" {
			c.failed = "reflection_failed"
		}
		return c, p.Usage != nil || p.Model != ""
	case *events.FatalError:
		c.failed, c.message = p.Code, p.Message
		return c, c.facts.Asked != nil
	case *events.LowConfidence:
		c.doubt = &p.Confidence
	}
	c.model = modelOf(e.Data)
	return c, was.state == events.Planning && c.facts != nil && !was.queued
}

// modelOf returns the name of the model that a reply is from.
func modelOf(p events.Payload) string {
	switch p := p.(type) {
	case *events.LLMToolCall:
		return p.Model
	case *events.LLMParallelToolCalls:
		return p.Model
	case *events.HumanApprovalRequired:
		return p.Model
	case *events.LLMFinalAnswer:
		return p.Model
	case *events.LLMMessageComplete:
		return p.Model
	case *events.LLMThought:
		return p.Model
	case *events.LowConfidence:
		return p.Model
	case *events.AnswerTooShort:
		return p.Model
	case *events.ToolBlacklisted:
		return p.Model
	case *events.ReplyInvalid:
		return p.Model
	}
	if r := events.ReplyOf(p); r != nil {
		return r.Model
	}
	return ""
}

func (r *run) endChat(e *events.Event, c chat, was before) {
	mem := r.fold.Memory()
	asks := r.model
	if c.key != "" && c.key != asks.key {
		if asks = r.earlier; c.key != asks.key {
			asks = effect{key: c.key}
		}
	}
	o := &open{op: opChat, id: r.chatID(asks, e), begin: r.asked, kind: tracepb.Span_SPAN_KIND_CLIENT}
	switch {
	case r.phase != nil && (r.phase.op == opPlan || r.phase.op == opReflect):
		o.up = r.phase.id
	case r.turn != nil:
		o.up = r.turn.id
	}
	r.common(o, e)
	ref, _ := effects.Model(mem, asks.failed)
	asked := events.Asked(ref)
	if c.facts != nil && c.facts.Asked != nil {
		asked = *c.facts.Asked
	}
	o.name = strings.TrimSpace(opChat + " " + cmp.Or(asked.Model, c.model))
	o.text(attrProvider, meter.ProviderName(asked.Provider))
	o.text(attrRequestModel, cmp.Or(asked.Model, c.model))
	o.text(attrResponseModel, c.model)
	if c.facts != nil && c.facts.Finish != "" {
		o.texts(attrFinish, c.facts.Finish)
	}
	if c.usage != nil {
		o.number(attrInputTokens, int64(c.usage.Input))
		o.number(attrOutputTokens, int64(c.usage.Output))
		o.number(attrCachedTokens, int64(c.usage.Cached))
		if c.usage.CostUSD != nil {
			o.real(attrCost, *c.usage.CostUSD)
		}
	}
	o.number(attrStep, int64(e.Step))
	o.text(attrInput, was.input)
	o.text(attrOutput, r.content.answer(e.Data))
	if c.doubt != nil {
		o.evals = append(o.evals, evaluation(e, *c.doubt))
	}
	r.emit(o.end(r.trace, e.Time, c.failed, r.content.text(c.message)))
}

// maxSaid is how many ids of requests are remembered.
const maxSaid = 32

// chatID returns the id that the request carried. If the log has two ends of one request, as
// of two workers that had the same delivery, the second one gets its own id.
func (r *run) chatID(asks effect, e *events.Event) tracecontext.SpanID {
	id := tracecontext.Chat(r.id.ID, asks.key, asks.failed.Total(), asks.failed.Lost)
	if slices.Contains(r.said, id) {
		id = tracecontext.Span(r.id.ID, opChat, e.ID)
	}
	if len(r.said) == maxSaid {
		r.said = r.said[1:]
	}
	r.said = append(r.said, id)
	return id
}
