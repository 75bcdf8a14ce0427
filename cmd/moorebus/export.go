package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/moorebus/moorebus/internal/cli"
	"github.com/moorebus/moorebus/internal/console"
	"github.com/moorebus/moorebus/internal/filelog"
	"github.com/moorebus/moorebus/internal/retention"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/spf13/cobra"
)

func exportCommand() *cobra.Command {
	var all bool
	var out string
	cmd := &cobra.Command{
		Use:   "export [RUN…|--all]",
		Short: "Write runs as JSON lines for import",
		Long: `Export writes runs as JSON lines: {subject, seq, body} for each event, the body byte
for byte, and {blob, data} for each large result that an event refers to. A fork comes
after its parent, which is written too. If the parent was not named and has not ended,
its subjects wake no worker, so an import does not continue it. With --all it is the
whole log, or that of --namespace.

A file gets its name only when it is complete and on disk. moorebus import restores
it; replay --file reads it as it is.`,
		Example: `  moorebus export --all --out runs.jsonl
  moorebus export 0198c5a0-5a6b-7c00-8000-000000000001 | gzip > run.jsonl.gz`,
	}
	flags := addClientFlags(cmd, console.Text)
	cmd.Flags().BoolVar(&all, "all", false, "export every run")
	cmd.Flags().StringVar(&out, "out", "-", "`file` to write; - is stdout")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if all == (len(args) > 0) {
			return cli.Usage("name the runs, or use --all for every run, but not both")
		}
		if err := cli.CheckRunIDs(args); err != nil {
			return err
		}
		return flags.use(cmd, reads, func(ctx context.Context, c *client) error {
			o := retention.ExportOptions{All: all, Runs: c.runs(args), Blobs: c.Bus, Namespace: c.only}
			var done retention.Exported
			write := func(w *filelog.Writer) (err error) {
				done, err = retention.Export(ctx, c.Bus, w, o)
				return err
			}
			var err error
			if out == "-" {
				w := filelog.NewWriter(c.out)
				err = write(w)
				err = errors.Join(err, w.Flush())
			} else {
				err = filelog.WriteFile(out, write)
			}
			c.noteMissing(done.Missing)
			if err == nil && out != "-" {
				c.notef("%d events and %d large results written to %s", done.Events, done.Blobs, out)
			}
			return err
		})
	}
	return cmd
}

func (c *client) noteMissing(missing []retention.Missing) {
	for _, m := range missing {
		c.notef("run %s: %s is not in the log", m.Run.ID, m.What)
	}
}

func (c *client) runs(ids []string) []events.Run {
	var runs []events.Run
	for _, id := range ids {
		runs = append(runs, c.run(id))
	}
	return runs
}

// failed returns an error that ends the process with exit code 1.
func failed(format string, args ...any) error {
	return &cli.ExitError{Code: cli.ExitFailure, Err: fmt.Errorf(format, args...)}
}
