// Package clienttools has the calls of the tools that a run's client carries out: it checks the results that
// clients post, and ends calls that a client leaves unanswered. It checks each result only against the run's
// memory, so a repeated request gets the same answer from any gateway, after the run's end too.
//
// The core has the vocabulary (pkg/events, pkg/reducer) and the inputs in which results come. It asks the
// feature by the port [control.ClientTools].
package clienttools

import (
	"context"
	"errors"
	"fmt"

	"github.com/moorebus/moorebus/internal/callname"
	"github.com/moorebus/moorebus/internal/control"
	"github.com/moorebus/moorebus/internal/control/runs"
	"github.com/moorebus/moorebus/internal/control/timers"
	"github.com/moorebus/moorebus/internal/feature"
	"github.com/moorebus/moorebus/internal/feature/clienttools/row"
	"github.com/moorebus/moorebus/internal/ports"
	"github.com/moorebus/moorebus/internal/refusal"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/internal/worker"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// Feature returns the feature.
func Feature() feature.Feature {
	return feature.Feature{Row: row.Row(), Commands: []feature.Command{command}, New: func(c *control.Controller) feature.Part {
		return feature.Part{Run: New(c).Run}
	}}
}

// Calls are the calls of clients' tools. They are safe for concurrent use.
type Calls struct {
	c *control.Controller
	*worker.Worker
}

// New makes them the [control.ClientTools] of a controller.
func New(c *control.Controller) *Calls {
	w := c.Serve(events.ClientPool, timers.Wait{Kind: ports.TimerClient, Deadline: deadline, Expire: expire, Has: has}, join)
	calls := &Calls{c, w}
	c.ClientTools = calls
	return calls
}

// Run works on what goes out to clients, and joins the batches that they end. A user with the permissions of
// an older build may not: then runs without clients' tools continue as before.
func (k *Calls) Run(ctx context.Context) error {
	return runs.UntilSetUp(ctx, k.c.Config().Logger, "calls of clients' tools do not time out", k.Worker.Run)
}

// has reports whether a run may wait for its client.
func has(mem *reducer.Memory) bool {
	for _, info := range mem.Tools {
		if info.Pool == events.ClientPool {
			return true
		}
	}
	return false
}

// Keep is that of [control.ClientTools].
func (k *Calls) Keep(ctx context.Context, inputs []control.Input, blobs journal.Blobs) (large bool, err error) {
	results := k.c.Config().Results
	for i, in := range inputs {
		r, ok := in.(control.ToolCallResult)
		if !ok {
			continue
		}
		if r.Kept, r.Ref, err = results.Fit(ctx, blobs, events.DefaultPool, r.Text); err != nil {
			return large, fmt.Errorf("input %d: the result cannot be kept: %w", i, err)
		}
		inputs[i], large = r, large || r.Kept != r.Text
	}
	return large, nil
}

func (k *Calls) begin(mem *reducer.Memory, ended bool) *answers {
	return &answers{mem: mem, now: k.c.Store.Now(), ended: ended, given: map[string]*control.ToolCallResult{}, begun: map[string]bool{}}
}

// Begin is that of [control.ClientTools].
func (k *Calls) Begin(mem *reducer.Memory, ended bool) func(control.Input) (events.Payload, error) {
	a := k.begin(mem, ended)
	return func(in control.Input) (events.Payload, error) {
		if in, started := in.(control.ToolCallStarted); started {
			return a.started(in.CallID, in.Name, in.Arguments)
		}
		return a.result(in.(control.ToolCallResult))
	}
}

// Late is that of [control.ClientTools].
func (k *Calls) Late(mem *reducer.Memory, in control.Input) (ends []runlog.Draft, refused error) {
	r, _ := in.(control.ToolCallResult)
	call := mem.Call(callname.Find(mem, r.CallID))
	if now := k.c.Store.Now(); call != nil && overdue(call, now) {
		return expire(mem, now), k.begin(mem, false).answered(call.ID, false, unanswered(call))
	}
	return nil, nil
}

// Explain is that of [control.ClientTools]: it answers unknown_call for a call that was refused when the
// model made it. No client knows such a call. Only the log distinguishes it from a call of another tool.
func (k *Calls) Explain(ctx context.Context, ns, id string, err error) error {
	var refused *refusal.Error
	if !errors.As(err, &refused) || refused.Code != refusal.CodeNotYours {
		return err
	}
	call, _ := refused.Fields["call_id"].(string)
	place, placeErr := k.c.Place(ns, id)
	if placeErr != nil || call == "" {
		return err
	}
	turnedDown := false
	_, logErr := runlog.Retrace(ctx, k.c.Log, k.c.Store.Machine(), place, func(_ journal.Record, e *events.Event) {
		turnedDown = turnedDown || refusedAtOnce(e.Data, call)
	})
	if logErr != nil {
		return logErr
	}
	if turnedDown {
		refused.Kind, refused.Code = refusal.NotFound, refusal.CodeUnknownCall
		refused.Message = fmt.Sprintf("input %v: call %q was refused as soon as the model made it, and went to nobody", refused.Fields["index"], call)
	}
	return refused
}
