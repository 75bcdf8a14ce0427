// Command bench measures Moorebus beside the least that its work can be.
//
//	go run ./bench all                         every benchmark that is not long
//	go run ./bench http --layout dev           the user's path
//	go run ./bench durable --runs 200          one benchmark, with its own flags
//	go run ./bench throughput --cpuprofile cpu.out --rounds 1
//
// Every figure stands beside its floor, measured in the same program on the same
// kind of server with bodies of the same sizes, each on a fresh data directory:
// quote the ratio, since machines differ and are noisy. docs/explanation/performance.md has the
// method. Data directories are made in TMPDIR, so that says which disk is measured.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime/pprof"
	"slices"
	"strings"
	"time"

	"github.com/moorebus/moorebus/internal/cli"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// benchmark is one command of the suite.
type benchmark struct {
	// name is the command's, short its line in the help.
	name, short string
	// about is the help below short; empty: none.
	about string
	// long is not part of `bench all`: it takes minutes by itself.
	long bool
	// flags declares what can be set; nil: nothing.
	flags func(*pflag.FlagSet)
	// run measures. It returns a usage error for flags that make no sense.
	run func(ctx context.Context) ([]figure, error)
}

// suite is every benchmark, in the order in which `bench all` runs them.
func suite() []*benchmark {
	return []*benchmark{
		httpBench(),
		throughputBench(),
		durableBench(),
		latencyBench(),
		splitBench(),
		shardsBench(),
		costBench(),
		scaleBench(),
		feedBench(),
		replayBench(),
		longBench(),
		manyBench(),
		viewsBench(),
	}
}

func main() { cli.Main(command()) }

// options are those of every command.
type options struct {
	output, profile string
}

func command() *cobra.Command {
	root := &cobra.Command{Use: "bench", Short: "Measure Moorebus beside its floor", Args: cobra.NoArgs}
	var o options
	root.PersistentFlags().StringVarP(&o.output, "output", "o", "table", "table or json")
	root.PersistentFlags().StringVar(&o.profile, "cpuprofile", "", "write a CPU profile of all that is measured to this `file`")
	root.PersistentFlags().BoolVar(&tmpfsAllowed, "allow-tmpfs", false, "measure flushes also where TMPDIR lies in memory, to try the benchmarks out")
	root.PersistentPreRunE = func(*cobra.Command, []string) error {
		if o.output != "table" && o.output != "json" {
			return cli.Usage("-o is table or json, not %q", o.output)
		}
		return nil
	}
	for _, b := range suite() {
		root.AddCommand(single(b, &o))
	}
	root.AddCommand(all(&o), bareStateCommand(), powerlossCommand(), powerlossLoadCommand())
	return root
}

// single is the command of one benchmark.
func single(b *benchmark, o *options) *cobra.Command {
	cmd := &cobra.Command{
		Use: b.name, Short: b.short, Long: strings.TrimSpace(b.short + "\n\n" + b.about), Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.report(cmd, func() ([]figure, error) { return b.run(cmd.Context()) })
		},
	}
	if b.flags != nil {
		b.flags(cmd.Flags())
	}
	return cmd
}

// all runs every benchmark that is not long, with its defaults, one after
// another. One that fails does not keep the others from being shown.
func all(o *options) *cobra.Command {
	var without []string
	cmd := &cobra.Command{
		Use: "all", Short: "Every benchmark that is not marked as long", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.report(cmd, func() (figures []figure, errs error) {
				for _, b := range suite() {
					if b.long || slices.Contains(without, b.name) || cmd.Context().Err() != nil {
						continue
					}
					if b.flags != nil {
						b.flags(pflag.NewFlagSet(b.name, pflag.ContinueOnError)) // sets the defaults
					}
					began := time.Now()
					more, err := b.run(cmd.Context())
					_, _ = fmt.Fprintf(os.Stderr, "bench: %s took %.0f s\n", b.name, time.Since(began).Seconds())
					if err != nil {
						errs = errors.Join(errs, fmt.Errorf("%s: %w", b.name, err))
					}
					figures = append(figures, more...)
				}
				return figures, errs
			})
		},
	}
	cmd.Flags().StringSliceVar(&without, "without", nil, "benchmarks to leave out")
	return cmd
}

// report measures, and shows the figures that there are, also beside an error.
func (o *options) report(cmd *cobra.Command, measure func() ([]figure, error)) error {
	stop, err := o.startProfile()
	if err != nil {
		return err
	}
	figures, err := measure()
	err = errors.Join(err, stop())
	if len(figures) == 0 {
		return err
	}
	return errors.Join(err, print(cmd.OutOrStdout(), o.output, figures))
}

// startProfile begins the CPU profile, if there is to be one.
func (o *options) startProfile() (stop func() error, err error) {
	if o.profile == "" {
		return func() error { return nil }, nil
	}
	file, err := os.Create(o.profile)
	if err != nil {
		return nil, err
	}
	if err := pprof.StartCPUProfile(file); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return func() error { pprof.StopCPUProfile(); return file.Close() }, nil
}
