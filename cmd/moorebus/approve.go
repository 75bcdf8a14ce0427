package main

import (
	"github.com/spf13/cobra"

	"github.com/moorebus/moorebus/internal/cli"
	"github.com/moorebus/moorebus/internal/print"
	"github.com/moorebus/moorebus/pkg/events"
)

func approveCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "approve RUN [CALL]",
		Short: "Approve a waiting call",
		Long: `Approve runs a tool call that waits for a human. CALL is optional if only one call of
the run waits; show lists waiting calls. With --arguments the call runs with other
arguments, which must match the tool's schema. It prints the run's state.

The first decision on a call is final; a second one fails and shows the first.`,
		Example: `  moorebus approve 0198c5a0-5a6b-7c00-8000-000000000001
  moorebus approve 0198c5a0-5a6b-7c00-8000-000000000001 call_2 --arguments '{"path": "notes.txt"}' --by ann`,
		Args: cobra.RangeArgs(1, 2),
	}
	flags := addClientFlags(cmd, print.Text, print.JSON)
	flags.offerRuns(cmd, 1)
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
