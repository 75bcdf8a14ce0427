package main

import (
	"cmp"
	"context"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/moorebus/moorebus/internal/cli"
	"github.com/moorebus/moorebus/internal/httpapi/requests"
	"github.com/moorebus/moorebus/internal/print"
	"github.com/moorebus/moorebus/internal/refusal"
	"github.com/moorebus/moorebus/internal/retention"
	"github.com/moorebus/moorebus/internal/runprint"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

// Blob returns what a reference of an event points to. What is not there is journal.ErrNotFound.
func (c *client) Blob(ctx context.Context, ref events.Ref) ([]byte, error) {
	data, err := requests.Blob.Call(ctx, c.api, requests.Ref{Bucket: ref.Bucket, SHA256: ref.SHA256, Size: strconv.Itoa(ref.Size)})
	if refusal.Is(err, refusal.CodeUnknownRef) {
		err = fmt.Errorf("%w: %w", journal.ErrNotFound, err)
	}
	return data, err
}

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
			return x.Export(ctx, c.log, retention.ExportOptions{Runs: runs, Blobs: c, Namespace: c.only}, c.out, c.note)
		})
	}
	return cmd
}
