package main

import (
	"context"

	"github.com/moorebus/moorebus/internal/cli"
	"github.com/moorebus/moorebus/internal/console"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/reducer"
	"github.com/spf13/cobra"
)

func runsCommand() *cobra.Command {
	var state, after string
	var limit int
	cmd := &cobra.Command{
		Use:   "runs",
		Short: "List runs, newest first",
		Long: `Runs lists the namespace's runs, newest first. They are ordered by their start, or by
their end with --state done, error or cancelled. If there are more, --after continues
after the last one; stderr says how.`,
		Example: `  moorebus runs
  moorebus runs --state waiting_for_human -o json
  moorebus runs --state error --limit 10`,
		Args: cobra.NoArgs,
	}
	flags := addClientFlags(cmd, console.Table, console.JSON, console.YAML)
	cmd.Flags().StringVar(&state, "state", "", "only runs in this `state`")
	cmd.Flags().IntVar(&limit, "limit", 50, "number of runs to list, 1 to 1000")
	cmd.Flags().StringVar(&after, "after", "", "continue after this `run`")
	complete(cmd, "state", stateNames()...)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if limit < 1 {
			return cli.Usage("--limit: must be 1 to 1000, is %d", limit)
		}
		return flags.use(cmd, reads, func(ctx context.Context, c *client) error {
			page, err := c.control.Runs(ctx, c.namespace, events.State(state), limit, after)
			if err != nil {
				return err
			}
			if err := console.Runs(c.out, c.format, page); err != nil {
				return err
			}
			if page.Next != "" && c.format == console.Table {
				c.notef("there are more runs; continue with --after %s", page.Next)
			}
			return nil
		})
	}
	return cmd
}

func stateNames() []string {
	states := reducer.DefaultTable().States()
	names := make([]string, len(states))
	for i, s := range states {
		names[i] = string(s)
	}
	return names
}
