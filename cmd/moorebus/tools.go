package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/moorebus/moorebus/internal/httpapi/requests"
	"github.com/moorebus/moorebus/internal/print"
)

func toolsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "tools",
		Short: "List the tools that actors offer",
		Long: `Tools lists the tools that live actors announce. An agent may name these. A tool
disappears 30 seconds after its last announcement.`,
		Example: `  moorebus tools
  moorebus tools -o json | jq '.[] | select(.name == "search").schema'`,
		Args: cobra.NoArgs,
	}
	flags := addClientFlags(cmd, print.Table, print.JSON, print.YAML)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return flags.use(cmd, reads, func(ctx context.Context, c *client) error {
			tools, err := requests.Tools.Call(ctx, c.API, requests.None{})
			if err != nil {
				return err
			}
			if len(tools) == 0 && c.Format == print.Table {
				c.Notef("no actor announces tools; start `actor --tools FILE` or `moorebus dev`")
			}
			return print.Tools(c.Out, c.Format, tools)
		})
	}
	return cmd
}
