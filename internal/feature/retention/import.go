package retention

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/moorebus/moorebus/internal/cli"
	"github.com/moorebus/moorebus/internal/feature"
	"github.com/moorebus/moorebus/internal/filelog"
	"github.com/moorebus/moorebus/internal/print"
	"github.com/moorebus/moorebus/internal/transfer"
	"github.com/moorebus/moorebus/internal/verify"
	"github.com/moorebus/moorebus/internal/worker"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/reducer"
)

func importCommand(open feature.Open) *cobra.Command {
	var noResume bool
	cmd := &cobra.Command{
		Use:   "import FILE [RUN…]",
		Short: "Restore exported runs",
		Long: `Import appends the runs of an export to a log, byte for byte, with their large
results. A fork comes after its parent. The log may have any number of shards. Runs
keep their namespaces.

All or nothing: import first reads every line, verifies every run and compares it with
the log. It changes nothing and names the line if a line is malformed, if a run
diverges, if the log has a run of that id with other events, or if a fork's parent is
neither in the file nor in the log. It skips a run that the log has with the same
events, and completes a run of an interrupted import, so repeat a failed import. A
purged run can be restored from its own archive, and then no longer counts as purged.

The file is read more than once, so it cannot be a pipe. It is not signed: verifying
detects damage and changes inside a run, but not an invented run, or a changed last
event.

A run that has not ended continues. Workers wake when all of its events are in the log,
and a Resumed is appended if there is work to do (not with --no-resume). Do not import
such a run while it still runs on another bus. Import sets its timers, even if the log
already has the run: export and import a run that has lost its timers.

Some runs are in the file only because others were forked from them, or are not among
the named ones. If such a run has not ended, it is restored without timers, and no
worker continues it; its forks can be read. If this log has purged it, it still counts
as purged and cannot be forked. Import its own export or archive to complete it. That
is refused if another event was appended to it in this log.`,
		Example: `  moorebus import runs.jsonl
  gunzip run.jsonl.gz && moorebus import run.jsonl
  moorebus import archive/purged-20260102T030405.000Z.jsonl 0198c5a0-5a6b-7c00-8000-000000000001`,
		Args: cobra.MinimumNArgs(1),
	}
	use := open(cmd, print.Table, print.JSON, print.YAML)
	cmd.Flags().BoolVar(&noResume, "no-resume", false, "append nothing to unfinished runs and set no timers; work that their last 1,000 events wake continues anyway")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := cli.CheckRunIDs(args[1:]); err != nil {
			return err
		}
		f, err := openImport(args[0])
		if err != nil {
			return err
		}
		defer func() { _ = f.Close() }() // it was only read
		runs, err := pick(f, args[1:])
		if err != nil {
			return err
		}
		return use(cmd, feature.OnBus|feature.Creates, func(ctx context.Context, c *feature.Client) error {
			return importRuns(ctx, c, args[0], f, runs, noResume)
		})
	}
	return cmd
}

// openImport opens a file and refuses one that was truncated.
func openImport(path string) (*filelog.File, error) {
	f, err := filelog.Open(path)
	if err != nil {
		return nil, err
	}
	if torn := f.Torn(); torn != nil {
		return nil, errors.Join(fmt.Errorf("%s:%d: the last line is cut off, so the export is incomplete", path, torn.Line), f.Close())
	}
	return f, nil
}

// pick returns the runs with these ids, or all runs of the file if there are none.
func pick(f *filelog.File, ids []string) ([]events.Run, error) {
	all := f.Runs()
	if len(ids) == 0 {
		return all, nil
	}
	var runs []events.Run
	for _, id := range ids {
		found := false
		for _, run := range all {
			if run.ID == id {
				runs, found = append(runs, run), true
			}
		}
		if !found {
			return nil, cli.Usage("run %s is not in the file", id)
		}
	}
	return runs, nil
}

func importRuns(ctx context.Context, c *feature.Client, path string, f *filelog.File, runs []events.Run, noResume bool) error {
	if len(runs) == 0 {
		return cli.Failed("%s contains no runs", path)
	}
	machine := reducer.NewMachine(reducer.MachineOptions{})
	report, err := verify.Log(ctx, f, machine, verify.Options{Runs: runs})
	if err != nil {
		return err
	}
	diverged := 0
	for _, found := range report.Findings {
		if found.Outcome == verify.Diverged {
			diverged++
			run := events.NewRun(found.Namespace, found.Run, f.Shards())
			c.Notef("%s:%d: run %s at event %d: %s", path, f.Line(run, found.Seq), found.Run, found.N, found.Reason)
		}
	}
	if diverged > 0 {
		return cli.Failed("%d of %d runs diverge: %w; name the others to import them", diverged, len(runs), transfer.ErrRefused)
	}
	results, err := transfer.Import(ctx, f, c.Bus, transfer.ImportOptions{
		Runs: runs, NoResume: noResume, Source: worker.Source("gateway", cli.DefaultInstance()), Machine: machine,
	})
	if err != nil && !errors.Is(err, transfer.ErrRefused) {
		return err
	}
	if err != nil {
		for _, r := range results {
			if r.Fate == transfer.FateRefused {
				c.Notef("%s:%d: run %s: %s", path, f.Line(r.Run, r.Seq), r.Run.ID, r.Reason)
			}
		}
		return cli.Failed("%w; name the other runs to import them", err)
	}
	return showImported(c, results)
}

type importedRow struct {
	Run       string        `json:"run"`
	Namespace string        `json:"namespace"`
	Fate      transfer.Fate `json:"fate"`
	Events    int           `json:"events"`
	Resumed   bool          `json:"resumed"`
}

func showImported(c *feature.Client, results []transfer.ImportedRun) error {
	rows := make([]importedRow, len(results))
	cells := make([][]string, len(results))
	for i, r := range results {
		rows[i] = importedRow{r.Run.ID, r.Run.Namespace, r.Fate, r.Events, r.Resumed}
		resumed := ""
		if r.Resumed {
			resumed = "resumed"
		}
		cells[i] = []string{r.Run.ID, r.Run.Namespace, string(r.Fate), strconv.Itoa(r.Events), resumed}
	}
	if c.Format != print.Table {
		return print.Write(c.Out, c.Format, rows)
	}
	return print.WriteTable(c.Out, []string{"RUN", "NAMESPACE", "FATE", "EVENTS", ""}, cells)
}
