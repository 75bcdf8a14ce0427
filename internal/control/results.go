package control

import (
	"context"
	"errors"
	"fmt"

	"github.com/moorebus/moorebus/internal/control/clients"
	"github.com/moorebus/moorebus/internal/refusal"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// keepResults makes the client's results what the log has of them: without secrets, and with
// large ones in the object store, as far as the run takes them.
func (c *Controller) keepResults(ctx context.Context, ns, id string, inputs []Input) error {
	var large []int
	for i, in := range inputs {
		r, ok := in.(ToolCallResult)
		if !ok {
			continue
		}
		text := c.cfg.Results.Redact(r.Text)
		kept, _, err := c.cfg.Results.Fit(ctx, nil, "", text)
		if err != nil {
			return err
		}
		if kept != text {
			large = append(large, i)
		}
		r.kept = &clients.Result{CallID: r.CallID, Success: r.Success, Text: text, Kept: kept}
		inputs[i] = r
	}
	if len(large) == 0 || c.cfg.Blobs == nil {
		return nil
	}
	wanted := false
	err := c.View(ctx, ns, id, func(run *runlog.Run) error {
		if c.Table.Terminal(run.Memory().State) {
			return nil // at most a repeated one
		}
		drafts, err := c.inputDrafts(run.Memory(), inputs, false)
		wanted = err == nil && len(drafts) > 0
		return nil // the commit says what is wrong
	})
	if err != nil || !wanted {
		return err
	}
	for _, i := range large {
		r := inputs[i].(ToolCallResult).kept
		if r.Kept, r.Ref, err = c.cfg.Results.Fit(ctx, c.cfg.Blobs, events.DefaultPool, r.Text); err != nil {
			return fmt.Errorf("input %d: the result cannot be kept: %w", i, err)
		}
	}
	return nil
}

// judge returns the event of an input about a client's call, nil if it is a repetition.
func judge(answers *clients.Answers, in Input) (events.Payload, error) {
	switch in := in.(type) {
	case ToolCallStarted:
		return answers.Started(in.CallID, in.Name, in.Arguments)
	case ToolCallResult:
		return answers.Result(*in.kept)
	}
	return nil, nil
}

// expire ends the calls that are past their deadline if one of the inputs is such a call's
// result, and returns the refusal of that input.
func (c *Controller) expire(mem *reducer.Memory, inputs []Input) ([]runlog.Draft, error) {
	drafts := clients.Expire(mem, c.Store.Now())
	if len(drafts) == 0 {
		return nil, nil
	}
	answers := clients.Begin(mem, c.Store.Now(), false)
	for i, in := range inputs {
		if r, ok := in.(ToolCallResult); ok {
			if err := answers.Late(drafts, r.CallID); err != nil {
				return drafts, at(err, i)
			}
		}
	}
	return nil, nil
}

// at names the input that a refusal is about.
func at(err error, i int) error {
	var refused *refusal.Error
	if errors.As(err, &refused) {
		refused.Message = fmt.Sprintf("input %d: %s", i, refused.Message)
		refused.Fields["index"] = i
	}
	return err
}

// explain answers unknown_call for a call that was refused when the model made it. No client
// knows such a call. Only the log distinguishes it from a call of another tool.
func (c *Controller) explain(ctx context.Context, ns, id string, err error) error {
	var refused *refusal.Error
	if !errors.As(err, &refused) || refused.Code != refusal.CodeNotYours {
		return err
	}
	call, _ := refused.Fields["call_id"].(string)
	place, placeErr := c.Place(ns, id)
	if placeErr != nil || call == "" {
		return err
	}
	turnedDown := false
	_, logErr := runlog.Retrace(ctx, c.Log, c.Store.Machine(), place, func(_ journal.Record, e *events.Event) {
		turnedDown = turnedDown || clients.Refused(e.Data, call)
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
