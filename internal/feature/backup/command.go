package backup

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/moorebus/moorebus/internal/buildinfo"
	"github.com/moorebus/moorebus/internal/cli"
	"github.com/moorebus/moorebus/internal/feature"
	"github.com/moorebus/moorebus/internal/feature/row"
	"github.com/moorebus/moorebus/internal/print"
	"github.com/moorebus/moorebus/internal/retry"
	"github.com/moorebus/moorebus/internal/verify"
	"github.com/moorebus/moorebus/internal/worker"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// Feature returns the feature.
func Feature() feature.Feature {
	return feature.Feature{Row: row.Row{Name: "backup"}, Commands: []feature.Command{backupCommand, restoreCommand}}
}

// access is that of commands which read or write the entire bus. Each can be repeated.
const access = feature.OnBus | feature.Outlasts

func backupCommand(open feature.Open) *cobra.Command {
	var o Options
	var every time.Duration
	cmd := &cobra.Command{
		Use:   "backup DIR|URL",
		Short: "Back up a running bus into a directory or a bucket",
		Long: `Backup copies a running bus into a directory: the log of every shard up to its current
end, then agents, storage, threads, schedules and other buckets, tombstones, and large
results. The backup has each run's events up to some event.

The directory always has the last complete backup, even after a crash: files are written
under temporary names and renamed, the manifest last. Without --incremental a new backup
replaces the old one when it is complete. With --incremental it adds only new data; restore
needs all increments, and can go back to any time since the first one.

A URL names a directory (file:PATH) or a bucket of an S3-compatible server: s3://BUCKET/PREFIX,
with the parameters endpoint=URL, path_style=true and region=NAME, and the keys in
AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY. Verify and restore take the same URLs.

The files contain conversations, results and secrets of webhooks. Only their owner can read
them, and they are not encrypted. Copy the directory to another machine, and check the copy
with backup verify. Backup needs the user operator, or the user backup, which may change
nothing.`,
		Example: `  moorebus backup /var/backups/moorebus
  moorebus backup /var/backups/moorebus --incremental --every 1h
  moorebus backup 's3://backups/moorebus?endpoint=https://minio.example:9000&path_style=true'
  moorebus backup verify /var/backups/moorebus`,
		Args: cobra.ExactArgs(1),
	}
	use := open(cmd, print.Text, print.JSON)
	cmd.Flags().BoolVar(&o.Incremental, "incremental", false, "add to the existing backup")
	cmd.Flags().DurationVar(&every, "every", 0, "repeat at this interval, adding to the previous backup, until a signal ends it")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if every < 0 {
			return cli.Usage("--every: must not be negative")
		}
		o.Build = buildinfo.Read().Version
		if every > 0 {
			if !cmd.Flags().Changed("log-level") {
				if err := cmd.Flags().Set("log-level", "info"); err != nil { // each backup is told
					return err
				}
			}
			return use(cmd, access|feature.Reads|feature.Waits, func(ctx context.Context, c *feature.Client) error {
				takeEvery(ctx, c.Bus, args[0], o, every)
				return nil
			})
		}
		return use(cmd, access|feature.Reads, func(ctx context.Context, c *feature.Client) error {
			var taken Taken
			err := cli.Outlast(ctx, c.Notef, func(ctx context.Context) (err error) {
				taken, err = Take(ctx, c.Bus, args[0], o)
				return err
			})
			if errors.Is(err, journal.ErrDenied) {
				return fmt.Errorf("%w: a backup needs the user backup or the operator", err)
			}
			if err != nil {
				return err
			}
			return c.Report(taken, taken.String())
		})
	}
	cmd.AddCommand(verifyCommand())
	return cmd
}

// takeEvery backs up again and again until ctx ends. A failure is logged, and tried again a minute later
// at most.
func takeEvery(ctx context.Context, bus Bus, dir string, o Options, every time.Duration) {
	logger := slog.Default() // as --log-format says
	for next := time.Now(); ; {
		taken, err := Take(ctx, bus, dir, o)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			logger.Error("backup failed; it will be tried again", "dir", dir, "reason", err)
			if !retry.Wait(ctx, min(every, time.Minute)) {
				return
			}
			next = time.Now()
			continue
		}
		logger.Info("backed up", "dir", dir, "increment", taken.Number, "events", taken.Records, "values", taken.Values,
			"objects", taken.Objects, "bytes", taken.Bytes, "elapsed", taken.Elapsed)
		o.Incremental = true
		if next = next.Add(every); next.Before(time.Now()) {
			next = time.Now()
		}
		if !retry.Wait(ctx, time.Until(next)) {
			return
		}
	}
}

func verifyCommand() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "verify DIR|URL",
		Short: "Read and check a complete backup",
		Long: `Verify checks the checksum of every file of a backup, the digest of every large result,
and every run against the rules of the log: ordinals, hashes, transitions. It lists each
damaged file and each inconsistent run. It needs no bus. The exit code is 1 if anything is
wrong.`,
		Example: `  moorebus backup verify /var/backups/moorebus`,
		Args:    cobra.ExactArgs(1),
	}
	print.AddOutputFlag(cmd, &output, print.Text, print.JSON)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		format, err := print.ParseFormat(output, print.Text, print.JSON)
		if err != nil {
			return err
		}
		archive, err := Open(cmd.Context(), args[0], time.Time{})
		if err != nil {
			return &cli.ExitError{Code: cli.ExitFailure, Err: err}
		}
		report, err := Verify(cmd.Context(), archive, reducer.NewMachine(reducer.MachineOptions{}))
		if err != nil {
			return err
		}
		write := report.WriteText
		if format == print.JSON {
			write = func(w io.Writer) error { return print.WriteJSON(w, report) }
		}
		if err := write(cmd.OutOrStdout()); err != nil {
			return err
		}
		if report.Outcomes[verify.Diverged] > 0 {
			return &cli.ExitError{Code: cli.ExitFailure}
		}
		return nil
	}
	return cmd
}

func restoreCommand(open feature.Open) *cobra.Command {
	var until, hold string
	o := RestoreOptions{Source: worker.Source("gateway", cli.DefaultInstance())}
	cmd := &cobra.Command{
		Use:   "restore DIR|URL",
		Short: "Restore a backup into an empty bus",
		Long: `Restore verifies a backup and then writes it into a bus that is set up and empty: values
and large results first, then the runs, each event unchanged. The bus may have another
number of shards. If a restore is interrupted, repeat it: it continues and stores nothing
twice. At the end it reads the bus and verifies every run.

Runs continue where the backup ends. Runs that wait for a human or a user still wait.
Overdue timers fire within a minute or two. Pure and idempotent calls that were in flight run
again. A call of class once that had started, or could have started after the end of the
backup, does not run again: its outcome is unknown, and its agent or a human decides. Model
replies after the end of the backup are lost: runs that were planning call the model again,
and it may call a tool that has already run. So restore holds runs with tools of class once,
their own or of agents that they call: it restores them paused. Check them, and continue them
with moorebus resume --restored. --hold all holds every run that has not ended, and --hold
none holds no run.

If nothing ran after the end of the backup, because all roles were stopped first, pass
--calls-may-run-again. --until omits events that the log stored after that time.

Stop the old installation first: a run must not continue on two buses.`,
		Example: `  moorebus init --nats nats://new.example:4222
  moorebus restore /var/backups/moorebus --nats nats://new.example:4222
  moorebus restore /var/backups/moorebus --until 2026-03-01T12:00:00Z`,
		Args: cobra.ExactArgs(1),
	}
	use := open(cmd, print.Text, print.JSON)
	cmd.Flags().StringVar(&until, "until", "", "omit events that the log stored after this `time`, as in 2026-03-01T12:00:00Z")
	cmd.Flags().BoolVar(&o.CallsMayRunAgain, "calls-may-run-again", false, "nothing ran after the end of the backup, so calls that had not started run")
	cmd.Flags().StringVar(&hold, "hold", string(HoldOnce), "which unfinished `runs` are restored paused: once (those with a tool of class once), all or none")
	cli.Complete(cmd, "hold", string(HoldOnce), string(HoldAll), string(HoldNone))
	cmd.Flags().BoolVar(&o.Diverged, "diverged-too", false, "also restore runs whose events are inconsistent")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		var at time.Time
		if until != "" {
			var err error
			if at, err = time.Parse(time.RFC3339Nano, until); err != nil {
				return cli.Usage("--until: %q is not a time such as 2026-03-01T12:00:00Z", until)
			}
		}
		if o.Hold = Hold(hold); !slices.Contains([]Hold{HoldOnce, HoldAll, HoldNone}, o.Hold) {
			return cli.Usage("--hold: %q is not known; use once, all or none", hold)
		}
		archive, err := Open(cmd.Context(), args[0], at)
		if err != nil {
			return &cli.ExitError{Code: cli.ExitFailure, Err: err}
		}
		return use(cmd, access|feature.Creates, func(ctx context.Context, c *feature.Client) error {
			return restore(ctx, c, archive, o)
		})
	}
	return cmd
}

// noteHeld names the runs that are held, and says by namespace what lets them go on.
func noteHeld(c *feature.Client, held []HeldRun) {
	by := map[string]int{}
	for _, run := range held {
		by[run.Namespace]++
		c.Notef("run %s in namespace %s is paused: it may repeat calls that were made behind the end of the backup", run.Run, run.Namespace)
	}
	for _, namespace := range slices.Sorted(maps.Keys(by)) {
		c.Notef("look at the %d paused runs of namespace %s, cancel those that must not go on, and let the others go on with `moorebus resume --restored --namespace %s`", by[namespace], namespace, namespace)
	}
}

// restore restores an archive, and verifies what the bus has then.
func restore(ctx context.Context, c *feature.Client, a *Archive, o RestoreOptions) error {
	var done Restored
	err := cli.Outlast(ctx, c.Notef, func(ctx context.Context) (err error) {
		done, err = Restore(ctx, a, c.Bus, o)
		return err
	})
	if errors.Is(err, ErrNotEmpty) {
		return &cli.ExitError{Code: cli.ExitFailure, Err: err}
	}
	if err != nil {
		return fmt.Errorf("the restore is not complete; repeat it to go on: %w", err)
	}
	if done.Already {
		return c.Report(done, "this backup was restored here before; nothing was done")
	}
	var report *verify.Report
	err = cli.Outlast(ctx, c.Notef, func(ctx context.Context) (err error) {
		report, err = verify.Log(ctx, c.Bus, reducer.NewMachine(reducer.MachineOptions{}), verify.Options{All: true})
		return err
	})
	if err != nil {
		return err
	}
	for _, call := range done.Unknown {
		c.Notef("run %s in namespace %s: %d calls may have run since the backup; their outcome is unknown", call.Run, call.Namespace, call.Calls)
	}
	noteHeld(c, done.Held)
	for _, run := range done.Orphans {
		c.Notef("run %s was forked from a run that the backup does not have; nobody works on it", run)
	}
	text := fmt.Sprintf("%d runs, %d events, %d values, %d large results in %s\n%d runs wait for somebody, %d were resumed, %d are held, %d have calls of unknown outcome, %d were purged and are not restored",
		done.Runs, done.Events, done.Values, done.Objects, done.Elapsed.Round(time.Millisecond), done.Waiting, done.Resumed, len(done.Held), len(done.Unknown), done.Removed)
	if err := c.Report(done, text); err != nil {
		return err
	}
	if report.Outcomes[verify.Diverged] > 0 && !o.Diverged {
		return cli.Failed("%d runs of the bus diverge: run moorebus replay verify", report.Outcomes[verify.Diverged])
	}
	return nil
}
