package replaycmd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/moorebus/moorebus/internal/cli"
	"github.com/moorebus/moorebus/internal/control/list"
	"github.com/moorebus/moorebus/internal/control/runs"
	"github.com/moorebus/moorebus/internal/datadir"
	"github.com/moorebus/moorebus/internal/filelog"
	"github.com/moorebus/moorebus/internal/ports"
	"github.com/moorebus/moorebus/internal/print"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/internal/transfer"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// source is where runs are read from, and the flags that all commands share.
type source struct {
	bus    *cli.BusFlags
	logs   *cli.LogFlags
	files  []string
	output string
}

func addSource(flags *pflag.FlagSet, getenv func(string) string) *source {
	s := &source{bus: cli.AddDataFlags(flags, getenv), logs: cli.AddLogFlags(flags, slog.LevelWarn)}
	flags.StringArrayVar(&s.files, "file", nil, "read from this file instead of a bus")
	flags.StringVarP(&s.output, "output", "o", "text", "format of the output: text or json")
	return s
}

func (s *source) json() bool { return s.output == "json" }

// opened is an open log.
type opened struct {
	log journal.Log
	// snapshots are nil for a file, which has none.
	snapshots ports.Snapshots
	blobs     transfer.Blobs
	machine   *reducer.Machine
	// namespace is that of runs that are named, only the one that was asked for,
	// empty if none was.
	namespace, only string
	find            print.RunFinder
}

// runs returns the runs that arguments name.
func (l *opened) runs(ctx context.Context, args ...string) ([]events.Run, error) {
	return print.FindRuns(ctx, args, l.find, l.namespace, l.log.Shards())
}

// use opens the one log and closes it after fn.
func (s *source) use(ctx context.Context, fn func(*opened) error) error {
	if len(s.files) > 1 {
		return cli.Usage("--file: one file only, but for diff")
	}
	return s.open(ctx, 0, fn)
}

// offerRuns has the shell offer ids of runs for the first arguments, all of them with 0.
func (s *source) offerRuns(arguments int) cobra.CompletionFunc {
	return print.OfferRuns(arguments, func(cmd *cobra.Command, fn func(context.Context, print.RunFinder) error) error {
		return s.use(cmd.Context(), func(l *opened) error { return fn(cmd.Context(), l.find) })
	})
}

// useTwo opens the logs of two runs: two files, or one log twice.
func (s *source) useTwo(ctx context.Context, fn func(a, b *opened) error) error {
	if len(s.files) > 2 {
		return cli.Usage("--file: there are two runs, so two files at most")
	}
	return s.open(ctx, 0, func(a *opened) error {
		if len(s.files) < 2 {
			return fn(a, a)
		}
		return s.open(ctx, 1, func(b *opened) error { return fn(a, b) })
	})
}

func (s *source) open(ctx context.Context, file int, fn func(*opened) error) (err error) {
	if s.output != "text" && s.output != "json" {
		return cli.Usage("--output: %q is not a format; use text or json", s.output)
	}
	logger, err := s.logs.Logger()
	if err != nil {
		return err
	}
	l := &opened{machine: reducer.NewMachine(reducer.MachineOptions{})}
	var given bool
	if l.namespace, given, err = s.bus.Namespace(); err != nil {
		return err
	}
	if given {
		l.only = l.namespace
	}
	if len(s.files) == 0 {
		conn, err := datadir.Open(ctx, s.bus, datadir.Options{DialOptions: cli.DialOptions{Name: "moorebus/replay", Logger: logger}})
		if err != nil {
			return err
		}
		defer conn.Close()
		l.log, l.snapshots, l.blobs = conn.Bus, conn.Bus, conn.Bus
		l.find = func(ctx context.Context, prefix string, limit int) ([]list.Run, error) {
			store := runlog.New(runlog.Options{Log: l.log, Machine: l.machine, Logger: logger})
			all := list.New(&runs.Editor{Store: store, Log: l.log, Table: l.machine.Table(), Namespace: l.namespace}, nil)
			return all.Find(ctx, l.namespace, prefix, limit)
		}
		return fn(l)
	}
	f, err := filelog.Open(s.files[file])
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if torn := f.Torn(); torn != nil {
		logger.Warn(torn.Error())
	}
	l.log, l.blobs, l.find = f, f, print.FinderOf(f.Runs(), l.namespace)
	err = fn(l)
	var gone *runlog.ParentGoneError
	if errors.As(err, &gone) {
		return fmt.Errorf("%w; export it into the file too", err)
	}
	return err
}
