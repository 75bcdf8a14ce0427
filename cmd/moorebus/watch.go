package main

import (
	"cmp"
	"context"
	"os"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/moorebus/moorebus/internal/cli"
	"github.com/moorebus/moorebus/internal/httpapi/requests"
	"github.com/moorebus/moorebus/internal/print"
	"github.com/moorebus/moorebus/internal/providers"
	"github.com/moorebus/moorebus/internal/terminal"
	"github.com/moorebus/moorebus/internal/watch"
	"github.com/moorebus/moorebus/pkg/events"
)

func watchCommand() *cobra.Command {
	var by string
	cmd := &cobra.Command{
		Use:   "watch RUN",
		Short: "Show a run live, step back and replay it",
		Long: `Watch shows a run in full screen: its events, and for the selected event the
conversation, the memory with the changes, the model request, and the stored event. It
follows an unfinished run.

  ← →        the previous, the next event   Home End   the first, the last event
  space      play, stop                     + -        faster, slower: 0.5 to 16 times
  L          follow the run                 Tab        the next panel
  /          find an event with a text      ↑ ↓ PgUp PgDn  move in the panel
  y n        approve or answer, reject the waiting call
  ?          help                           q          quit; the run continues

NO_COLOR turns colours off. Without a terminal use moorebus tap.`,
		Example: `  moorebus watch 0198c5a0-5a6b-7c00-8000-000000000001`,
		Args:    cobra.ExactArgs(1),
	}
	flags := addClientFlags(cmd, print.Text)
	flags.offerRuns(cmd, 1)
	cmd.Flags().StringVar(&by, "by", "", "who decides, for the log (default USER)")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := cli.CheckRuns(args); err != nil {
			return err
		}
		if !terminal.Stdout.IsTerminal() || !term.IsTerminal(int(os.Stdin.Fd())) {
			return cli.Usage("watch needs a terminal; use `moorebus tap --run %s --from 1`", args[0])
		}
		if !cmd.Flags().Changed("log-level") {
			flags.log.Mute() // a line of the log would stand in the screen
		}
		return flags.use(cmd, reads, func(ctx context.Context, c *client) error {
			return c.watch(ctx, args[0], cmp.Or(by, cli.Person(os.Getenv)))
		})
	}
	return cmd
}

func (c *client) watch(ctx context.Context, arg, by string) error {
	id, err := c.FindRun(ctx, arg)
	if err != nil {
		return err
	}
	if _, err := c.state(ctx, id); err != nil {
		return err // it is no run
	}
	o := watch.Options{
		Log: c.Log, Machine: c.machine, Run: c.run(id), Color: c.Color, In: os.Stdin, Out: terminal.Stdout.File(), Env: os.Environ(),
		Request: func(ctx context.Context, n uint64) (string, []byte, error) { return c.requestAt(ctx, id, n) },
	}
	if !c.offline() {
		o.Awaits = func(ctx context.Context, say func(string)) func() { return c.followAwaits(ctx, id, say) }
	}
	switch {
	case c.offline():
		o.Refusal = "no process serves " + c.Where + ": start " + cli.Self() + " dev to decide"
	case by == "":
		o.Refusal = "leave, and say with --by who decides: USER is not set"
	default:
		o.Decide = func(ctx context.Context, waits events.Request, v watch.Verb, text string) error {
			d := events.Decision{CallID: waits.CallID, Decision: events.DecisionApproved, By: by}
			switch v {
			case watch.Reject:
				d.Decision, d.Reason = events.DecisionRejected, text
			case watch.Answer:
				d.Decision = events.DecisionModified
				if err := answerTo(text)(waits, &d); err != nil {
					return err
				}
			}
			_, err := requests.Decide.Call(ctx, c.API, requests.NewDecision{Run: requests.ID(id), Decision: requests.Decision(d)})
			return err
		}
	}
	return watch.Run(ctx, o)
}

// requestAt returns what the model was asked for the reply that is event n, with a line about it.
func (c *client) requestAt(ctx context.Context, id string, n uint64) (string, []byte, error) {
	req, err := c.request(ctx, id, n)
	if err != nil {
		return "", nil, err
	}
	about := req.Dialect + " " + req.Model
	if req.Exact != nil && !*req.Exact && req.Dialect != providers.Scripted {
		about += "; what was sent may differ"
	}
	return about, req.Body, nil
}
