package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/moorebus/moorebus/internal/callname"
	"github.com/moorebus/moorebus/internal/cli"
	"github.com/moorebus/moorebus/internal/control/decisions"
	"github.com/moorebus/moorebus/internal/httpapi/requests"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// decision returns a decision. Its call is empty if the arguments name none.
func decision(what string, args []string, by events.By) events.Decision {
	d := events.Decision{Decision: what, Reason: by.Reason, By: by.By}
	if len(args) > 1 {
		d.CallID = args[1]
	}
	return d
}

// decide sends a decision to a run. A decision that names no call is for the one call that
// waits. complete, which may be nil, fills in the decision for the waiting request.
func (f *clientFlags) decide(cmd *cobra.Command, arg string, d events.Decision, complete func(events.Request, *events.Decision) error) error {
	if strings.TrimSpace(d.By) == "" {
		return cli.Usage("--by: is required, because USER is not set: every decision names who made it")
	}
	return f.use(cmd, writes, func(ctx context.Context, c *client) error {
		id, err := c.FindRun(ctx, arg)
		if err != nil {
			return err
		}
		waits, err := c.waiting(ctx, id, d.CallID)
		if err != nil {
			return err
		}
		d.CallID = waits.CallID
		if complete != nil {
			if err := complete(waits, &d); err != nil {
				return err
			}
		}
		result, err := requests.Decide.Call(ctx, c.API, requests.NewDecision{Run: requests.ID(id), Decision: requests.Decision(d)})
		if err != nil {
			return err
		}
		c.noteOffline()
		return c.writeState(id, result, "")
	})
}

// waiting returns the request for the named call. Without a name it returns the only request
// that waits for a decision. It does not check that a named call waits: Decide does.
func (c *client) waiting(ctx context.Context, id, callID string) (events.Request, error) {
	state, err := c.state(ctx, id)
	if err != nil {
		return events.Request{}, err
	}
	var mem reducer.Memory
	if err := json.Unmarshal(state.Memory, &mem); err != nil {
		return events.Request{}, fmt.Errorf("memory of run %s: %w", id, err)
	}
	if callID == "" {
		switch waiting := decisions.Undecided(mem.PendingApproval); len(waiting) {
		case 0:
			return events.Request{}, fmt.Errorf("no call of run %s waits for a decision; it is in state %s", id, state.State)
		case 1:
			callID = waiting[0]
		default:
			return events.Request{}, cli.Usage("%d calls of run %s wait for a decision; name one of %s", len(waiting), id, strings.Join(waiting, ", "))
		}
	}
	callID = callname.Find(&mem, callID)
	if a := mem.PendingApproval; a != nil {
		for _, r := range a.Requests {
			if r.CallID == callID {
				return r, nil
			}
		}
	}
	return events.Request{CallID: callID}, nil
}
