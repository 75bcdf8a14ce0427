package retention

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"time"
)

// KeepOptions say what [Keep] keeps.
type KeepOptions struct {
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

// Keep purges now and then until ctx ends. What fails is logged, and tried again
// at the next turn. It reads the whole log each time.
func Keep(ctx context.Context, bus Bus, o KeepOptions) {
	ticker := time.NewTicker(o.Every)
	defer ticker.Stop()
	for {
		done, err := KeepOnce(ctx, bus, o)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			o.Logger.Error("runs that have ended could not be purged", "reason", err)
		case len(done.Runs) > 0:
			o.Logger.Info("purged runs that have ended", "runs", len(done.Runs), "events", done.Events, "bytes", done.Bytes,
				"results", done.Blobs, "snapshots", done.Snapshots, "archive", o.Archive)
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

// KeepOnce is one turn of [Keep].
func KeepOnce(ctx context.Context, bus Bus, o KeepOptions) (Purged, error) {
	options := PurgeOptions{KeepBytes: o.Bytes, Namespace: o.Namespace, Grace: o.Grace}
	now := time.Now()
	if o.Ended > 0 {
		options.EndedBefore = now.Add(-o.Ended)
	}
	if o.Archive != "" {
		options.Archive = func(write func(Sink) error) error {
			if err := os.MkdirAll(o.Archive, 0o700); err != nil {
				return err
			}
			return o.WriteFile(filepath.Join(o.Archive, ArchiveName(now)), write)
		}
	}
	return Purge(ctx, bus, options)
}

// ArchiveName is the name of the file that a purge at that time leaves in a
// directory of archives.
func ArchiveName(at time.Time) string {
	return "purged-" + at.UTC().Format("20060102T150405.000Z") + ".jsonl"
}
