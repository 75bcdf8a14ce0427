package main

import (
	"context"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	"github.com/moorebus/moorebus/internal/cli"
	"github.com/moorebus/moorebus/internal/retention"
	"github.com/spf13/pflag"
)

// keepEvery is how often dev purges.
const keepEvery = time.Hour

// keepFlags say what `moorebus dev` purges. The zero value purges nothing.
type keepFlags struct {
	ended time.Duration
	bytes cli.Size
	dir   string
}

func (f *keepFlags) add(flags *pflag.FlagSet) {
	flags.DurationVar(&f.ended, "keep-ended", 0, "archive and purge runs that ended longer ago than this (default: they stay)")
	flags.Var(&f.bytes, "keep-bytes", "archive and purge runs in the order of their end until the rest has at most this many bytes, such as 20GiB (default: they stay)")
	flags.StringVar(&f.dir, "archive", "", "`directory` of the archives (default: archive in the data directory)")
}

func (f *keepFlags) check() error {
	switch {
	case f.ended < 0:
		return cli.Usage("--keep-ended: must not be negative, is %s", f.ended)
	case f.dir != "" && f.ended == 0 && f.bytes == 0:
		return cli.Usage("--archive: requires --keep-ended or --keep-bytes")
	}
	return nil
}

// start purges in the background until the returned function is called.
func (f *keepFlags) start(ctx context.Context, conn *cli.Conn, logger *slog.Logger) (stop func()) {
	if f.ended == 0 && f.bytes == 0 {
		return func() {}
	}
	o := retention.KeepOptions{
		Ended: f.ended, Bytes: int64(f.bytes), Every: keepEvery, Archive: f.dir, WriteFile: writeArchive, Logger: logger,
	}
	if o.Archive == "" {
		o.Archive = filepath.Join(conn.Where, "archive")
	}
	ctx, cancel := context.WithCancel(ctx)
	var keeping sync.WaitGroup
	keeping.Go(func() { retention.Keep(ctx, conn.Bus, o) })
	return func() {
		cancel()
		keeping.Wait()
	}
}
