package compare

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/moorebus/moorebus/internal/cli"
	"github.com/moorebus/moorebus/internal/feature"
	"github.com/moorebus/moorebus/internal/print"
	"github.com/moorebus/moorebus/internal/terminal"
)

func command(open feature.Open) *cobra.Command {
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
	use := open(cmd, print.Text, print.JSON, print.YAML)
	cmd.ValidArgsFunction = feature.OfferRuns(use, 2)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := cli.CheckRuns(args); err != nil {
			return err
		}
		return use(cmd, feature.Reads, func(ctx context.Context, c *feature.Client) error { return diff(ctx, c, args[0], args[1]) })
	}
	return cmd
}

// wholeLines is the width for what is no terminal.
const wholeLines = 1 << 16

func diff(ctx context.Context, c *feature.Client, a, b string) (err error) {
	if a, err = c.FindRun(ctx, a); err == nil {
		b, err = c.FindRun(ctx, b)
	}
	if err != nil {
		return err
	}
	found, err := Compare.Call(ctx, c.API, Pair{A: a, B: b})
	if err != nil {
		return err
	}
	if c.Format == print.Text {
		columns := wholeLines
		if terminal.Stdout.IsTerminal() {
			columns = terminal.Stdout.Columns()
		}
		err = write(c.Out, a, b, found, columns, c.Color)
	} else {
		err = print.Write(c.Out, c.Format, found)
	}
	if err == nil && !found.Same {
		return &cli.ExitError{Code: cli.ExitDiverged}
	}
	return err
}
