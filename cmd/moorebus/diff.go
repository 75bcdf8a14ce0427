package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/moorebus/moorebus/internal/cli"
	"github.com/moorebus/moorebus/internal/httpapi/requests"
	"github.com/moorebus/moorebus/internal/print"
	"github.com/moorebus/moorebus/internal/terminal"
)

func diffCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "diff A B",
		Short: "Compare what two runs do: calls, answers, usage",
		Long: `Diff compares two runs after the last event that both share (a run and its fork, or two
forks of one run), or two unrelated runs from their first event. It aligns the tool calls:
~ marks other arguments, - a call of only the first run, + a call of only the second. A
call that a person changed has the changed arguments. A star marks the number of an event
in an ancestor of a fork.

The exit code is 0 if the runs behave the same: the same calls, and the same end. It is
3 if they do not, or have not ended. Wording, results and usage do not count.

replay diff compares two logs event by event instead, and shows the first difference.`,
		Example: `  moorebus diff 0198c5a0-5a6b-7c00-8000-000000000001 0198c5a0-5a6b-7c00-8000-000000000002
  moorebus diff $RUN $FORK -o json | jq '.calls[] | select(.op != "same")'`,
		Args: cobra.ExactArgs(2),
	}
	flags := addClientFlags(cmd, print.Text, print.JSON, print.YAML)
	flags.offerRuns(cmd, 2)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := cli.CheckRuns(args); err != nil {
			return err
		}
		return flags.use(cmd, reads, func(ctx context.Context, c *client) error { return c.diff(ctx, args[0], args[1]) })
	}
	return cmd
}

// wholeLines is the width for what is no terminal.
const wholeLines = 1 << 16

func (c *client) diff(ctx context.Context, a, b string) error {
	ids, err := c.runs(ctx, []string{a, b})
	if err != nil {
		return err
	}
	a, b = ids[0].ID, ids[1].ID
	found, err := requests.Compare.Call(ctx, c.api, requests.Pair{A: a, B: b})
	if err != nil {
		return err
	}
	if c.format == print.Text {
		columns := wholeLines
		if terminal.Stdout.IsTerminal() {
			columns = terminal.Stdout.Columns()
		}
		err = print.Comparison(c.out, a, b, found, columns, c.color)
	} else {
		err = print.Write(c.out, c.format, found)
	}
	if err == nil && !found.Same {
		return &cli.ExitError{Code: cli.ExitDiverged}
	}
	return err
}
