package planner

import (
	"cmp"
	"context"
	"fmt"
	"reflect"
	"time"

	"github.com/moorebus/moorebus/internal/effects"
	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// Caller returns the model of a run for handlers of the application's own. What a request
// leaves empty is that of the run: the provider, the model, the sampling, and, without
// messages, the messages and tools that Planning would send. A provider that is rate limited
// is not asked. A run whose budget is used up gets an error; what the handler's calls cost is
// not in the log and does not count there. The caller keeps what it needs of the memory.
func (p *Planner) Caller(mem *reducer.Memory) llm.Caller {
	ref, _ := effects.Model(mem, reducer.Attempt{})
	own, kept := request(mem, ref), storedParts(mem)
	_, spent := overBudget(mem, mem.TotalUsage, 0, 0, time.Now())
	return llm.CallerFunc(func(ctx context.Context, req llm.Request, stream func(llm.Chunk)) (llm.Response, error) {
		if spent != "" {
			return nil, &llm.Error{Kind: llm.KindInvalid, Message: spent}
		}
		var err error
		if len(req.Messages) == 0 {
			if req.Messages, err = p.withStored(ctx, own.Messages, kept); err != nil {
				return nil, &llm.Error{Kind: llm.KindNetwork, Message: "the object store: " + err.Error(), Err: err}
			}
			req.Tools, req.OutputSchema, req.Memory = own.Tools, own.OutputSchema, own.Memory
		}
		if reflect.ValueOf(req.Sampling).IsZero() {
			req.Sampling = own.Sampling
		}
		if req.Provider == "" {
			req.Provider, req.Model = own.Provider, cmp.Or(req.Model, own.Model)
		}
		req.Run, req.Purpose, req.Settings, req.Replies, req.Observations = own.Run, own.Purpose, own.Settings, own.Replies, own.Observations
		return p.ask(ctx, req, stream)
	})
}

// ask calls a provider of this process unless it is rate limited.
func (p *Planner) ask(ctx context.Context, req llm.Request, stream func(llm.Chunk)) (llm.Response, error) {
	caller := p.cfg.Providers[req.Provider]
	if caller == nil {
		return nil, &llm.Error{Kind: llm.KindInvalid, Message: fmt.Sprintf("this process has no model provider %q", req.Provider)}
	}
	caller, err := p.speaking(caller, req)
	if err != nil {
		return nil, err
	}
	if req.Messages, err = p.wholeReasoning(ctx, req); err != nil {
		return nil, err
	}
	ticket, wait := p.limits.admit(req.Provider)
	if wait > 0 {
		return nil, &llm.Error{Kind: llm.KindRateLimited, Message: "the provider is rate limited", RetryAfter: wait}
	}
	reply, err := p.measured(ctx, caller, req, stream)
	p.limits.record(ticket, err)
	return reply, err
}
