package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/moorebus/moorebus/internal/cli"
	"github.com/moorebus/moorebus/internal/console"
	"github.com/moorebus/moorebus/internal/filelog"
	"github.com/moorebus/moorebus/internal/retention"
	"github.com/moorebus/moorebus/internal/verify"
	"github.com/moorebus/moorebus/internal/worker"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/spf13/cobra"
)

func importCommand() *cobra.Command {
	var noResume bool
	cmd := &cobra.Command{
		Use:   "import FILE [RUN…]",
		Short: "Put exported runs back, all of a file or those named",
		Long: `Import appends the runs of an export to a log, byte for byte, whatever number of
shards it has, with their large results, and each behind the run that it was forked
from. Runs keep their namespaces.

All or nothing: first every line is read and every run verified and held against the
log. If a line is broken, a run diverges from what it must be, the log has a run of
that name with other events, or a fork's parent is neither in the file nor in the
log, import says so with the line and changes nothing. A run that is there with the
same events is skipped; one of which only the beginning is there, from an import that
was cut off, is completed, so a failed import is simply done again. A purged run can
be put back, if it is the one that was purged; it is no longer held to be purged then.

The file is read more than once, so it is no pipe. It is not signed: verifying finds
what was broken or changed inside a run, not what somebody made anew from its
beginning, or changed in its last event.

A run that has not ended goes on where it was: workers wake when all of it is there,
and a Resumed is appended if there is something to do (not with --no-resume). Do not
import such a run while it still goes on elsewhere. Its timers are set anew, also
those of a run that is there already: to export a run and to import it again is how
one that has lost its timers gets them back.

A run that goes on and is in the file only because others were forked from it, or is
not among those named, is put back asleep: its forks can be read, but nobody works on
it and it has no timers. If it was purged here, it is still held to be purged, and
cannot be forked. Import its own export or archive to complete it; that is refused
once somebody has appended something else to it here.`,
		Example: `  moorebus import runs.jsonl
  gunzip run.jsonl.gz && moorebus import run.jsonl
  moorebus import archive/purged-20260102T030405.000Z.jsonl 0198c5a0-5a6b-7c00-8000-000000000001`,
		Args: cobra.MinimumNArgs(1),
	}
	flags := addClientFlags(cmd, console.Table, console.JSON, console.YAML)
	cmd.Flags().BoolVar(&noResume, "no-resume", false, "append nothing to runs that have not ended and set no timers; what their last 1,000 events wake goes on all the same")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := checkRunIDs(args[1:]); err != nil {
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
		return flags.use(cmd, creates, func(ctx context.Context, c *client) error {
			return c.importRuns(ctx, args[0], f, runs, noResume)
		})
	}
	return cmd
}

// openImport opens a file that must be whole.
func openImport(path string) (*filelog.File, error) {
	f, err := filelog.Open(path)
	if err != nil {
		return nil, err
	}
	if torn := f.Torn(); torn != nil {
		return nil, errors.Join(fmt.Errorf("%s:%d: the last line is torn, so the export is not complete", path, torn.Line), f.Close())
	}
	return f, nil
}

// pick returns the file's runs of the given ids, all of them if none is given.
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

func (c *client) importRuns(ctx context.Context, path string, f *filelog.File, runs []events.Run, noResume bool) error {
	if len(runs) == 0 {
		return failed("%s holds no runs", path)
	}
	report, err := verify.Log(ctx, f, c.machine, verify.Options{Runs: runs})
	if err != nil {
		return err
	}
	diverged := 0
	for _, found := range report.Findings {
		if found.Outcome == verify.Diverged {
			diverged++
			run := events.NewRun(found.Namespace, found.Run, f.Shards())
			c.notef("%s:%d: run %s at event %d: %s", path, f.Line(run, found.Seq), found.Run, found.N, found.Reason)
		}
	}
	if diverged > 0 {
		return failed("%d of %d runs diverge: %w; name the others to import them", diverged, len(runs), retention.ErrRefused)
	}
	results, err := retention.Import(ctx, f, c.Bus, retention.ImportOptions{
		Runs: runs, NoResume: noResume, Source: worker.Source("gateway", cli.DefaultInstance()), Machine: c.machine,
	})
	if err != nil && !errors.Is(err, retention.ErrRefused) {
		return err
	}
	if err != nil {
		for _, r := range results {
			if r.Fate == retention.FateRefused {
				c.notef("%s:%d: run %s: %s", path, f.Line(r.Run, r.Seq), r.Run.ID, r.Reason)
			}
		}
		return failed("%w; name the other runs to import them", err)
	}
	return c.showImported(results)
}

// importedRow is a run in the list of what was imported.
type importedRow struct {
	Run       string         `json:"run"`
	Namespace string         `json:"namespace"`
	Fate      retention.Fate `json:"fate"`
	Events    int            `json:"events"`
	Resumed   bool           `json:"resumed"`
}

func (c *client) showImported(results []retention.ImportedRun) error {
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
	if c.format != console.Table {
		return console.Write(c.out, c.format, rows)
	}
	return console.WriteTable(c.out, []string{"RUN", "NAMESPACE", "FATE", "EVENTS", ""}, cells)
}
