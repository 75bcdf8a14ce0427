package retention

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"time"
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
	// there; empty: none. WriteFile makes a file of what an export writes.
	Archive   string
	WriteFile func(path string, write func(Sink) error) error
	Logger    *slog.Logger
}

// Enforce purges now and then until ctx ends. What fails is logged, and tried again
// at the next turn. It reads the whole log each time.
func Enforce(ctx context.Context, bus Bus, l Limits) {
	ticker := time.NewTicker(l.Every)
	defer ticker.Stop()
	for {
		done, err := EnforceOnce(ctx, bus, l)
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

// EnforceOnce is one turn of [Enforce].
func EnforceOnce(ctx context.Context, bus Bus, l Limits) (Purged, error) {
	options := PurgeOptions{KeepBytes: l.Bytes, Namespace: l.Namespace, Grace: l.Grace}
	now := time.Now()
	if l.Ended > 0 {
		options.EndedBefore = now.Add(-l.Ended)
	}
	if l.Archive != "" {
		options.Archive = func(write func(Sink) error) error {
			if err := os.MkdirAll(l.Archive, 0o700); err != nil {
				return err
			}
			return l.WriteFile(filepath.Join(l.Archive, ArchiveName(now)), write)
		}
	}
	return Purge(ctx, bus, options)
}

// ArchiveName is the name of the file that a purge at that time leaves in a
// directory of archives.
func ArchiveName(at time.Time) string {
	return "purged-" + at.UTC().Format("20060102T150405.000Z") + ".jsonl"
}
