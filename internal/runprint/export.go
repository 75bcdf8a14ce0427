package runprint

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/moorebus/moorebus/internal/cli"
	"github.com/moorebus/moorebus/internal/filelog"
	"github.com/moorebus/moorebus/internal/transfer"
	"github.com/moorebus/moorebus/pkg/journal"
)

// Exporter is what `moorebus export` and `replay export` have in common.
type Exporter struct {
	// All exports every run. Out is the file, - is stdout.
	All bool
	Out string
}

// Command returns the command with its flags, without what runs it.
func (x *Exporter) Command() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "export [RUN…|--all]",
		Short: "Write runs as JSON lines for import",
		Long: `Export writes runs as JSON lines: {subject, seq, body} for each event, the body byte
for byte, and {blob, data} for each large result that an event refers to. A fork comes
after its parent, which is written too. If the parent was not named and has not ended,
its subjects wake no worker, so an import does not continue it. With --all it is the
entire log, or that of --namespace.

A file gets its name only when it is complete and on disk. moorebus import restores
it; replay --file reads it as it is. moorebus export and replay export write the same
bytes.`,
	}
	cmd.Flags().BoolVar(&x.All, "all", false, "export every run")
	cmd.Flags().StringVarP(&x.Out, "out", "f", "-", "`file` to write; - is stdout")
	return cmd
}

// Check returns a usage error unless runs are named, or all are wanted.
func (x *Exporter) Check(args []string) error {
	if x.All == (len(args) > 0) {
		return cli.Usage("name the runs, or use --all for every run, but not both")
	}
	return nil
}

// Export writes the runs of the options. stderr gets what the log does not have, and how much
// a file got. Errors are those of [transfer.Export] and of the file.
func (x *Exporter) Export(ctx context.Context, log journal.Log, o transfer.ExportOptions, stdout, stderr io.Writer) error {
	o.All = x.All
	var done transfer.Exported
	write := func(w *filelog.Writer) (err error) {
		done, err = transfer.Export(ctx, log, w, o)
		return err
	}
	var err error
	if x.Out == "-" {
		w := filelog.NewWriter(stdout)
		err = errors.Join(write(w), w.Flush())
	} else {
		err = filelog.WriteFile(x.Out, write)
	}
	for _, m := range done.Missing {
		_, _ = fmt.Fprintf(stderr, "run %s: %s is not in the log\n", m.Run.ID, m.What)
	}
	if err == nil && x.Out != "-" {
		_, _ = fmt.Fprintf(stderr, "%d events and %d large results written to %s\n", done.Events, done.Blobs, x.Out)
	}
	return err
}
