package retention

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/pflag"

	"github.com/moorebus/moorebus/internal/agentfile"
	"github.com/moorebus/moorebus/internal/cli"
	"github.com/moorebus/moorebus/internal/control"
	"github.com/moorebus/moorebus/internal/feature"
	"github.com/moorebus/moorebus/internal/filelog"
	"github.com/moorebus/moorebus/internal/transfer"
)

// Limits say which ended runs [Enforce] purges, and how often.
type Limits struct {
	// Ended is how long a run is kept after its end. 0: no such limit.
	Ended time.Duration
	// Bytes is as in [PurgeOptions.KeepBytes], Namespace and Grace too.
	Bytes     int64
	Namespace string
	Grace     time.Duration
	// Every is how often it purges. Required.
	Every time.Duration
	// Archive is the directory in which each purge leaves a file, made if it is not
	// there; empty: none.
	Archive string
	Logger  *slog.Logger
}

// Enforce purges now and then until ctx ends. What fails is logged, and tried again
// at the next turn. It reads the whole log each time.
func Enforce(ctx context.Context, bus Bus, l Limits) {
	ticker := time.NewTicker(l.Every)
	defer ticker.Stop()
	for {
		done, err := enforceOnce(ctx, bus, l)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			l.Logger.Error("runs that have ended could not be purged", "reason", err)
		case len(done.Runs) > 0:
			l.Logger.Info("purged runs that have ended", "runs", len(done.Runs), "events", done.Events, "bytes", done.Bytes,
				"results", done.Blobs, "snapshots", done.Snapshots, "archive", l.Archive)
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

// enforceOnce is one turn of [Enforce].
func enforceOnce(ctx context.Context, bus Bus, l Limits) (Purged, error) {
	options := PurgeOptions{KeepBytes: l.Bytes, Namespace: l.Namespace, Grace: l.Grace}
	now := time.Now()
	if l.Ended > 0 {
		options.EndedBefore = now.Add(-l.Ended)
	}
	if l.Archive != "" {
		options.Archive = func(write func(transfer.Sink) error) error {
			if err := os.MkdirAll(l.Archive, 0o700); err != nil {
				return err
			}
			return writeArchive(filepath.Join(l.Archive, archiveName(now)), write)
		}
	}
	return Purge(ctx, bus, options)
}

// archiveName is the name of the file that a purge at that time leaves in a
// directory of archives.
func archiveName(at time.Time) string {
	return "purged-" + at.UTC().Format("20060102T150405.000Z") + ".jsonl"
}

// writeArchive writes an export to a new file. It never replaces one: an archive may be all
// that is left of purged runs.
func writeArchive(path string, write func(transfer.Sink) error) error {
	err := filelog.NewFile(path, func(w *filelog.Writer) error { return write(w) })
	if errors.Is(err, fs.ErrExist) {
		return archiveExists(path)
	}
	return err
}

func archiveExists(path string) error {
	return cli.Usage("--archive: %s exists already and is not replaced; name another file, or use --every with a directory", path)
}

// purgeEvery is how often `moorebus dev` purges.
const purgeEvery = time.Hour

// addFlags adds --keep-ended, --keep-bytes and --archive, with which `moorebus dev` purges.
func addFlags(flags *pflag.FlagSet) func(at *feature.Place) (feature.New, error) {
	l := Limits{Every: purgeEvery}
	var bytes agentfile.Size
	flags.DurationVar(&l.Ended, "keep-ended", 0, "archive and purge runs that ended longer ago than this (default: they stay)")
	flags.Var(&bytes, "keep-bytes", "archive and purge runs in the order of their end until the rest has at most this many bytes, such as 20GiB (default: they stay)")
	flags.StringVar(&l.Archive, "archive", "", "`directory` of the archives (default: archive in the data directory)")
	return func(at *feature.Place) (feature.New, error) {
		switch l.Bytes = int64(bytes); {
		case l.Ended < 0:
			return nil, cli.Usage("--keep-ended: must not be negative, is %s", l.Ended)
		case l.Ended > 0 || l.Bytes > 0:
		case l.Archive != "":
			return nil, cli.Usage("--archive: requires --keep-ended or --keep-bytes")
		default:
			return nil, nil
		}
		return func(c *control.Controller) feature.Part {
			l.Archive, l.Logger = cmp.Or(l.Archive, filepath.Join(at.Dir, "archive")), c.Config().Logger
			return feature.Part{Run: func(ctx context.Context) error {
				Enforce(ctx, at.Bus, l)
				return nil
			}}
		}, nil
	}
}
