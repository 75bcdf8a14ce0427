package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/moorebus/moorebus/internal/cli"
	"github.com/moorebus/moorebus/internal/console"
	"github.com/moorebus/moorebus/internal/control/decisions"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/reducer"
	"github.com/spf13/cobra"
)

func approveCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "approve RUN [CALL]",
		Short: "Approve a waiting call",
		Long: `Approve runs a tool call that waits for a human. CALL is optional if only one call of
the run waits; show lists waiting calls. With --arguments the call runs with other
arguments, which the tool's schema has to allow. It prints the run's state.

The first decision on a call holds; a second one fails and says what the first was.`,
		Example: `  moorebus approve 0198c5a0-5a6b-7c00-8000-000000000001
  moorebus approve 0198c5a0-5a6b-7c00-8000-000000000001 call_2 --arguments '{"path": "notes.txt"}' --by ann`,
		Args: cobra.RangeArgs(1, 2),
	}
	flags := addClientFlags(cmd, console.Text, console.JSON)
	by := addByFlags(cmd)
	arguments := cmd.Flags().String("arguments", "", "run the call with these arguments instead, as `JSON`")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		d := decision(events.DecisionApproved, args, by())
		if cmd.Flags().Changed("arguments") {
			if *arguments == "" {
				return cli.Usage("--arguments: is empty; leave it out to let the call run as it is")
			}
			d.Decision, d.Arguments = events.DecisionModified, *arguments
		}
		return flags.decide(cmd, args[0], d, nil)
	}
	return cmd
}

func rejectCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "reject RUN [CALL]",
		Short: "Reject a waiting call",
		Long: `Reject refuses a tool call that waits for a human: it does not run, and the model is
told the reason. CALL is optional if only one call of the run waits; show lists
waiting calls. It prints the run's state.

The first decision on a call holds; a second one fails and says what the first was.`,
		Example: `  moorebus reject 0198c5a0-5a6b-7c00-8000-000000000001 --reason "use the test account"`,
		Args:    cobra.RangeArgs(1, 2),
	}
	flags := addClientFlags(cmd, console.Text, console.JSON)
	by := addByFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		d := decision(events.DecisionRejected, args, by())
		if strings.TrimSpace(d.Reason) == "" {
			return cli.Usage("--reason: is required: the model is told why the call does not run")
		}
		return flags.decide(cmd, args[0], d, nil)
	}
	return cmd
}

func answerCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "answer RUN [CALL] TEXT",
		Short: "Answer a question of a run",
		Long: `Answer answers an agent's question to a human, for example of the builtin tool
ask_human. CALL is optional if only one call of the run waits; show lists waiting
calls with their questions. It prints the run's state.

The first answer to a question holds; a second one fails and says what the first was.`,
		Example: `  moorebus answer 0198c5a0-5a6b-7c00-8000-000000000001 "the test account"`,
		Args:    cobra.RangeArgs(2, 3),
	}
	flags := addClientFlags(cmd, console.Text, console.JSON)
	by := addByFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		text := args[len(args)-1]
		if strings.TrimSpace(text) == "" {
			return cli.Usage("TEXT: is empty; give an answer, or reject the call")
		}
		return flags.decide(cmd, args[0], decision(events.DecisionModified, args[:len(args)-1], by()), answerTo(text))
	}
	return cmd
}

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
func (f *clientFlags) decide(cmd *cobra.Command, id string, d events.Decision, complete func(events.Request, *events.Decision) error) error {
	if strings.TrimSpace(d.By) == "" {
		return cli.Usage("--by: is required, because USER is not set: every decision names who made it")
	}
	return f.use(cmd, writes, func(ctx context.Context, c *client) error {
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
		result, err := c.control.Decide(ctx, c.namespace, id, d)
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
	state, err := c.control.State(ctx, c.namespace, id, 0)
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
	callID = mem.CallID(callID)
	if a := mem.PendingApproval; a != nil {
		for _, r := range a.Requests {
			if r.CallID == callID {
				return r, nil
			}
		}
	}
	return events.Request{CallID: callID}, nil
}

// answerTo returns a function that fills in the answer to a question.
func answerTo(text string) func(events.Request, *events.Decision) error {
	return func(waits events.Request, d *events.Decision) error {
		arguments := map[string]json.RawMessage{}
		if waits.Tool != "" && !waits.Asks {
			return fmt.Errorf("call %q of %s is not a question; use approve or reject", waits.CallID, waits.Tool)
		}
		if waits.Arguments != "" {
			if err := json.Unmarshal([]byte(waits.Arguments), &arguments); err != nil {
				return fmt.Errorf("the question's arguments: %w", err)
			}
		}
		answer, err := json.Marshal(text)
		if err != nil {
			return err
		}
		arguments["answer"] = answer
		all, err := json.Marshal(arguments)
		d.Arguments = string(all)
		return err
	}
}
