package planner

import (
	"context"
	"errors"
	"time"

	"github.com/moorebus/moorebus/internal/meter"
	"github.com/moorebus/moorebus/pkg/llm"
)

// measured calls a provider, and notes how long the call and its first chunk took.
func (p *Planner) measured(ctx context.Context, caller llm.Caller, req llm.Request, stream func(llm.Chunk)) (llm.Response, error) {
	to := p.cfg.Store.Meter()
	if to == nil {
		return caller.Call(ctx, req, stream)
	}
	provider, model := meter.ProviderName(req.Provider), p.asked(req).Model
	began := time.Now()
	var first time.Duration
	if listener := stream; listener != nil {
		stream = func(c llm.Chunk) { // from one goroutine
			if first == 0 {
				first = max(time.Since(began), 1)
			}
			listener(c)
		}
	}
	reply, err := caller.Call(ctx, req, stream)
	if model == "" && err == nil {
		model = reply.About().Model // the provider chose it
	}
	if first > 0 {
		meter.Add(to, meter.FirstChunk, first.Seconds(), "chat", provider, model)
	}
	meter.Since(to, meter.ModelTime, began, "chat", provider, model, errorType(ctx, err))
	return reply, err
}

// errorType names the kind of a call's failure; "" is a reply.
func errorType(ctx context.Context, err error) string {
	var failed *llm.Error
	switch {
	case err == nil:
		return ""
	case ctx.Err() != nil && !errors.Is(context.Cause(ctx), errCallTimeout):
		return "cancelled"
	case errors.Is(context.Cause(ctx), errCallTimeout):
		return "timeout"
	case errors.As(err, &failed):
		return string(failed.Kind)
	}
	return string(llm.KindOther)
}
