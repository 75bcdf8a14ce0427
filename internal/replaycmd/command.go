// Package replaycmd is the command replay, which is a program, and a command of moorebus.
package replaycmd

import (
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/moorebus/moorebus/bench/foldbench"
	"github.com/moorebus/moorebus/internal/cli"
	"github.com/moorebus/moorebus/internal/print"
	"github.com/moorebus/moorebus/internal/runprint"
	"github.com/moorebus/moorebus/internal/terminal"
	"github.com/moorebus/moorebus/internal/transfer"
	"github.com/moorebus/moorebus/internal/verify"
	"github.com/moorebus/moorebus/pkg/replay"
)

const long = `Replay reads runs from their log and shows what they did.

It reads the log of a bus (NATS_URL and related variables, or --nats), of a data
directory (--data, else the one that "moorebus run" uses), or an export of "replay
export" (--file). If "moorebus dev" uses the data directory, replay reads through it.

Exit codes: 0 all good, 1 failure, 2 usage, 3 the log diverged (also: poisoned runs
with --strict, runs that differ), 75 the bus is unreachable, 78 not configured,
130 and 143 ended by a signal.`

// New returns the command tree. getenv is os.Getenv, or a test's.
func New(getenv func(string) string) *cobra.Command {
	var o runprint.Options
	var speed string
	root := &cobra.Command{
		Use:   "replay RUN",
		Short: "Print, verify, compare and export runs from their log",
		Long:  long,
		Args:  cobra.ExactArgs(1),
		Example: `  replay 0198c5a0-5a6b-7c00-8000-000000000001 --until 12 --state
  replay 0198c5a0-5a6b-7c00-8000-000000000001 --follow
  replay 0198c5a0-5a6b-7c00-8000-000000000001 --speed 2x
  replay verify --all
  replay export --all -f runs.jsonl && replay verify --all --file runs.jsonl`,
	}
	src := addSource(root.PersistentFlags(), getenv)
	root.RunE = func(c *cobra.Command, args []string) (err error) {
		if o.Speed, err = parseSpeed(speed); err != nil {
			return err
		}
		if err := cli.CheckRuns(args); err != nil {
			return err
		}
		return src.use(c.Context(), func(l *opened) error {
			runs, err := l.runs(c.Context(), args...)
			if err != nil {
				return err
			}
			o.JSON, o.Color = src.json(), terminal.Stdout.Color(getenv)
			return runprint.Run(c.Context(), c.OutOrStdout(), l.log, l.machine, runs[0], o)
		})
	}
	root.ValidArgsFunction = src.offerRuns(1)
	flags := root.Flags()
	flags.Uint64Var(&o.Until, "until", 0, "stop after this event (default: the last one)")
	flags.BoolVar(&o.State, "state", false, "print the memory at the end, as JSON")
	flags.BoolVar(&o.Reasoning, "reasoning", false, "show the model's full reasoning, not only one line")
	flags.BoolVar(&o.Follow, "follow", false, "follow live until the run has ended")
	flags.StringVar(&speed, "speed", "", "show events at this multiple of their original speed, such as 1x, 2x or 0.5x, with the timing of replies if the agent has record_chunks")
	root.AddCommand(verifyCommand(src), diffCommand(src), exportCommand(src), benchCommand(src))
	return root
}

// parseSpeed reads "2x", "0.5x" or "3".
func parseSpeed(text string) (float64, error) {
	if text == "" {
		return 0, nil
	}
	speed, err := strconv.ParseFloat(strings.TrimSuffix(text, "x"), 64)
	if err != nil || !(speed > 0 && speed <= 1e6) {
		return 0, cli.Usage("--speed: %q is not a speed; use one such as 1x, 2x or 0.5x", text)
	}
	return speed, nil
}

func verifyCommand(src *source) *cobra.Command {
	var o verify.Options
	c := &cobra.Command{
		Use:   "verify [RUN…|--all]",
		Short: "Fold runs and check every event",
		Long: `Verify folds runs and checks each event: its ordinal, the chain of hashes, the
transition table, its origin, who may write which field, and that a fold through
a snapshot is equal, including the stored one. It names the first wrong event of each
run.

A poisoned run has a message that is not a legal event, and ends because of it: exit 3
only with --strict. A diverged run is not what was written: exit 3. A fork whose parent
is not in the log (orphaned) is exit 3 too. Unfinished runs are verified up to their
last event.`,
	}
	c.ValidArgsFunction = src.offerRuns(0)
	c.Flags().BoolVar(&o.All, "all", false, "verify every run (of --namespace, if that is given)")
	c.Flags().BoolVar(&o.Strict, "strict", false, "exit 3 for poisoned runs too")
	c.Flags().IntVar(&o.Workers, "workers", 0, "runs folded at once (default: one for each core)")
	c.RunE = func(c *cobra.Command, args []string) error {
		if err := allOrRuns(o.All, args); err != nil {
			return err
		}
		return src.use(c.Context(), func(l *opened) (err error) {
			if o.Runs, err = l.runs(c.Context(), args...); err != nil {
				return err
			}
			o.Namespace, o.Snapshots = l.only, l.snapshots
			report, err := verify.Log(c.Context(), l.log, l.machine, o)
			if err != nil {
				return err
			}
			write := report.WriteText
			if src.json() {
				write = func(w io.Writer) error { return print.WriteJSON(w, report) }
			}
			if err := write(c.OutOrStdout()); err != nil {
				return err
			}
			if !report.Clean() {
				return &cli.ExitError{Code: cli.ExitDiverged}
			}
			return nil
		})
	}
	return c
}

func allOrRuns(all bool, args []string) error {
	if all == (len(args) > 0) {
		return cli.Usage("name the runs, or use --all for every run, but not both")
	}
	return cli.CheckRuns(args)
}

func diffCommand(src *source) *cobra.Command {
	return &cobra.Command{
		Use:   "diff RUN RUN",
		Short: "Show the first event in which two runs differ",
		Long: `Diff compares two runs event by event, without ids, times, hashes and sources,
and shows the first difference and how the memories differ there: exit 3. A fork
has the events of its parent, so a run and its fork, or two forks of one run, are
compared from the fork point. Diff first says which run is a fork of which, with
its patch. With --file twice the first run is in the first file, the second in the
second.

"moorebus diff" compares what two runs do: it aligns their tool calls.`,
		Args: cobra.ExactArgs(2), ValidArgsFunction: src.offerRuns(2),
		RunE: func(c *cobra.Command, args []string) error {
			if err := cli.CheckRuns(args); err != nil {
				return err
			}
			return src.useTwo(c.Context(), func(a, b *opened) error {
				first, err := a.runs(c.Context(), args[0])
				if err != nil {
					return err
				}
				second, err := b.runs(c.Context(), args[1])
				if err != nil {
					return err
				}
				d, err := replay.Diff(c.Context(), a.machine, a.log, first[0], b.log, second[0])
				if err != nil {
					return err
				}
				if src.json() {
					err = print.WriteJSON(c.OutOrStdout(), d)
				} else {
					err = runprint.Difference(c.OutOrStdout(), d)
				}
				if err != nil {
					return err
				}
				if !d.Equal {
					return &cli.ExitError{Code: cli.ExitDiverged}
				}
				return nil
			})
		},
	}
}

func exportCommand(src *source) *cobra.Command {
	var x runprint.Exporter
	c := x.Command()
	c.ValidArgsFunction = src.offerRuns(0)
	c.RunE = func(c *cobra.Command, args []string) error {
		if err := allOrRuns(x.All, args); err != nil {
			return err
		}
		return src.use(c.Context(), func(l *opened) error {
			runs, err := l.runs(c.Context(), args...)
			if err != nil {
				return err
			}
			o := transfer.ExportOptions{Runs: runs, Blobs: l.blobs, Namespace: l.only}
			return x.Export(c.Context(), l.log, o, c.OutOrStdout(), c.ErrOrStderr())
		})
	}
	return c
}

func benchCommand(src *source) *cobra.Command {
	var o foldbench.Options
	c := &cobra.Command{
		Use:   "bench",
		Short: "Measure how fast the log is read and folded",
		Args:  cobra.NoArgs,
	}
	c.Flags().DurationVar(&o.Least, "time", 0, "least time for which each fold is repeated (default 1s)")
	c.Flags().IntVar(&o.Workers, "workers", 0, "cores of the parallel fold (default: all)")
	c.RunE = func(c *cobra.Command, _ []string) error {
		return src.use(c.Context(), func(l *opened) error {
			o.Namespace = l.only
			measures, err := foldbench.Run(c.Context(), l.log, l.machine, o)
			if err != nil {
				return err
			}
			if src.json() {
				return print.WriteJSON(c.OutOrStdout(), measures)
			}
			return foldbench.WriteMeasures(c.OutOrStdout(), measures)
		})
	}
	return c
}
