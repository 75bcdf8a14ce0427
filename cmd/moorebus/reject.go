package main

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/moorebus/moorebus/internal/cli"
	"github.com/moorebus/moorebus/internal/print"
	"github.com/moorebus/moorebus/pkg/events"
)

func rejectCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "reject RUN [CALL]",
		Short: "Reject a waiting call",
		Long: `Reject refuses a tool call that waits for a human: it does not run, and the model gets
the reason. CALL is optional if only one call of the run waits; show lists waiting
calls. It prints the run's state.

The first decision on a call is final; a second one fails and shows the first.`,
		Example: `  moorebus reject 0198c5a0-5a6b-7c00-8000-000000000001 --reason "use the test account"`,
		Args:    cobra.RangeArgs(1, 2),
	}
	flags := addClientFlags(cmd, print.Text, print.JSON)
	flags.offerRuns(cmd, 1)
	by := addByFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		d := decision(events.DecisionRejected, args, by())
		if strings.TrimSpace(d.Reason) == "" {
			return cli.Usage("--reason: is required: the model reads why the call does not run")
		}
		return flags.decide(cmd, args[0], d, nil)
	}
	return cmd
}
