// Package retention is what an operator does with runs as a whole: [Purge] removes those that have ended,
// and [Enforce] does so now and then. Its commands also export and import runs.
//
// A run is kept or removed altogether. Its log is never cut, and the stream has no
// limits of its own that could eat the beginning of a run that waits.
//
// What is removed leaves a tombstone, written before the first event goes, so that
// its id is not started again. All of it can be rebuilt from an export.
package retention

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/moorebus/moorebus/internal/agentfile"
	"github.com/moorebus/moorebus/internal/cli"
	"github.com/moorebus/moorebus/internal/feature"
	"github.com/moorebus/moorebus/internal/feature/row"
	"github.com/moorebus/moorebus/internal/print"
	"github.com/moorebus/moorebus/internal/transfer"
)

// Feature returns the feature.
func Feature() feature.Feature {
	return feature.Feature{Row: row.Row{Name: "retention"}, Flags: addFlags, Commands: []feature.Command{exportCommand, importCommand, purgeCommand}}
}

type purgeFlags struct {
	endedBefore time.Duration
	keepBytes   agentfile.Size
	archive     string
	noArchive   bool
	dryRun      bool
	parents     bool
	grace       time.Duration
	every       time.Duration
}

func purgeCommand(open feature.Open) *cobra.Command {
	var f purgeFlags
	cmd := &cobra.Command{
		Use:   "purge [RUN…]",
		Short: "Archive and remove runs that have ended",
		Long: `Purge removes runs that have ended: the named ones, those that ended longer ago than
--ended-before, and the first ones to end until the rest has at most --keep-bytes. The
snapshot of a run is removed with it, and so are large results that no other run refers
to. A run is removed only after it is on disk in --archive, a file that must not exist
yet. moorebus import restores an archive. --dry-run lists what would be removed.

A run that has not ended is never purged. If one of the named runs has not ended, none
is purged. The parent of a kept fork stays too, except with --parents-of-kept; such a
fork cannot be read until its parent is imported again. A purged run leaves a
tombstone, so that its id cannot start again and it cannot be forked.

It reads the entire log once, then waits for --grace between tombstones and removal.
With --every it continues until a signal ends it, and --archive is a directory.

Only operators have the permission to purge the streams. A log from before purging
existed cannot be purged: export it and import it into a new one.`,
		Example: `  moorebus purge --ended-before 720h --dry-run
  moorebus purge --ended-before 720h --archive runs-2026-01.jsonl
  moorebus purge --keep-bytes 20GiB --archive /var/lib/moorebus/archive --every 1h
  moorebus purge 0198c5a0-5a6b-7c00-8000-000000000001 --no-archive`,
	}
	use := open(cmd, print.Text, print.JSON, print.YAML)
	cmd.ValidArgsFunction = feature.OfferRuns(use, 0)
	cmd.Flags().DurationVar(&f.endedBefore, "ended-before", 0, "purge runs that ended longer ago than this")
	cmd.Flags().Var(&f.keepBytes, "keep-bytes", "purge runs in the order of their end until the rest has at most this many bytes, such as 500MiB or 20GiB")
	cmd.Flags().StringVar(&f.archive, "archive", "", "`file` for the runs, written first, which must not exist yet (with --every: a directory)")
	cmd.Flags().BoolVar(&f.noArchive, "no-archive", false, "remove the runs permanently")
	cmd.Flags().BoolVar(&f.dryRun, "dry-run", false, "list what would be removed, and remove nothing")
	cmd.Flags().BoolVar(&f.parents, "parents-of-kept", false, "also purge parents of kept forks")
	cmd.Flags().DurationVar(&f.grace, "grace", DefaultGrace, "time between tombstones and removal; longer than any append takes")
	cmd.Flags().DurationVar(&f.every, "every", 0, "repeat at this interval")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := f.check(args); err != nil {
			return err
		}
		access := feature.OnBus | feature.Writes
		if f.dryRun {
			access = feature.OnBus | feature.Reads
		}
		return use(cmd, access, func(ctx context.Context, c *feature.Client) error {
			if f.every > 0 {
				Enforce(ctx, c.Bus, Limits{
					Ended: f.endedBefore, Bytes: int64(f.keepBytes), Namespace: c.Only, Grace: f.grace, Every: f.every,
					Archive: f.archive, Logger: slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), nil)),
				})
				return nil
			}
			return f.purge(ctx, c, args)
		})
	}
	return cmd
}

func (f *purgeFlags) check(ids []string) error {
	limits := f.endedBefore > 0 || f.keepBytes > 0
	switch {
	case f.endedBefore < 0 || f.grace <= 0 || f.every < 0:
		return cli.Usage("--ended-before, --grace and --every: must be positive")
	case limits == (len(ids) > 0):
		return cli.Usage("name the runs, or select them with --ended-before or --keep-bytes")
	case f.every > 0 && (!limits || f.dryRun || f.parents):
		return cli.Usage("--every: requires --ended-before or --keep-bytes, and cannot be combined with --dry-run or --parents-of-kept")
	case !f.dryRun && (f.archive == "") == !f.noArchive:
		return cli.Usage("name a file for the runs with --archive, or remove them for good with --no-archive")
	}
	return errors.Join(cli.CheckRuns(ids), f.checkArchive())
}

// checkArchive checks --archive at once: the archive is written only after the entire log
// was read.
func (f *purgeFlags) checkArchive() error {
	if f.archive == "" {
		return nil
	}
	info, err := os.Lstat(f.archive)
	switch {
	case err != nil:
		return nil // it will be created
	case f.every == 0:
		return archiveExists(f.archive)
	case info.Mode().IsRegular():
		return cli.Usage("--archive: %s is a file; with --every it is a directory", f.archive)
	}
	return nil
}

func (f *purgeFlags) purge(ctx context.Context, c *feature.Client, ids []string) error {
	runs, err := c.Runs(ctx, ids)
	if err != nil {
		return err
	}
	o := PurgeOptions{
		Runs: runs, KeepBytes: int64(f.keepBytes), Namespace: c.Only, ParentsOfKept: f.parents,
		DryRun: f.dryRun, Grace: f.grace,
	}
	if f.endedBefore > 0 {
		o.EndedBefore = time.Now().Add(-f.endedBefore)
	}
	if f.archive != "" {
		o.Archive = func(write func(transfer.Sink) error) error { return writeArchive(f.archive, write) }
	}
	done, err := Purge(ctx, c.Bus, o)
	for _, m := range done.Missing {
		c.Notef("run %s: %s is not in the log", m.Run.ID, m.What)
	}
	if err != nil {
		return err
	}
	return c.Report(done, done.text(f.dryRun))
}

// text says it for people; dry says that nothing was removed.
func (done Purged) text(dry bool) string {
	var b strings.Builder
	for _, r := range done.Runs {
		fmt.Fprintf(&b, "%s  %s, ended in %s at %s, %d events, %d bytes\n", r.Run, r.Space, r.State, r.Ended.Format(time.RFC3339), r.Events, r.Bytes)
	}
	for _, k := range done.Kept {
		fmt.Fprintf(&b, "%s  %s, kept: %s\n", k.Run, k.Space, k.Reason)
	}
	verb := "removed"
	if dry {
		verb = "would remove"
	}
	fmt.Fprintf(&b, "%s %d runs, %d events, %d bytes, %d large results of %d bytes, %d snapshots",
		verb, len(done.Runs), done.Events, done.Bytes, done.Blobs, done.BlobBytes, done.Snapshots)
	if done.BlobsLeft > 0 {
		fmt.Fprintf(&b, "\n%d large results stay: another run refers to them, or they were stored within the last hour", done.BlobsLeft)
	}
	return b.String()
}
