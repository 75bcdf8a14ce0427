package main

import (
	"cmp"
	"context"

	"github.com/spf13/cobra"

	"github.com/moorebus/moorebus/internal/cli"
	"github.com/moorebus/moorebus/internal/print"
	"github.com/moorebus/moorebus/internal/retention"
	"github.com/moorebus/moorebus/internal/runprint"
)

func exportCommand() *cobra.Command {
	var x runprint.Exporter
	cmd := x.Command()
	cmd.Example = `  moorebus export --all --out runs.jsonl
  moorebus export 0198c5a0-5a6b-7c00-8000-000000000001 | gzip > run.jsonl.gz`
	flags := addClientFlags(cmd, print.Text)
	flags.offerRuns(cmd, 0)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := cmp.Or(x.Check(args), cli.CheckRuns(args)); err != nil {
			return err
		}
		use := flags.use
		if x.All {
			use = flags.useBus
		}
		return use(cmd, reads, func(ctx context.Context, c *client) error {
			runs, err := c.runs(ctx, args)
			if err != nil {
				return err
			}
			return x.Export(ctx, c.log, retention.ExportOptions{Runs: runs, Blobs: c.control, Namespace: c.only}, c.out, c.note)
		})
	}
	return cmd
}
