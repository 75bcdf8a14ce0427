// Command bench measures Moorebus beside the least that its work can be.
//
//	go run ./bench all                                 everything that fits in ten minutes
//	go run ./bench throughput                          1,000 runs of 10 tool steps, relaxed syncing
//	go run ./bench throughput --fsync always --runs 200
//
// Every figure stands beside its floor, measured in the same program, on the same
// server and data directory, with bodies of the same sizes: quote the ratio,
// since machines differ and are noisy. docs/performance.md has the method.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/moorebus/moorebus/internal/cli"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// benchmark is one command of the suite.
type benchmark struct {
	// name is the command's, short its line in the help.
	name, short string
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
		throughputBench(),
		replayBench(),
		manyBench(),
	}
}

func main() {
	cli.Main(func(ctx context.Context) error { return cli.Execute(ctx, command()) })
}

func command() *cobra.Command {
	root := &cobra.Command{Use: "bench", Short: "Measure Moorebus beside its floor", Args: cobra.NoArgs}
	var output string
	root.PersistentFlags().StringVarP(&output, "output", "o", "table", "table or json")
	root.PersistentPreRunE = func(*cobra.Command, []string) error {
		if output != "table" && output != "json" {
			return cli.Usage("-o is table or json, not %q", output)
		}
		return nil
	}
	for _, b := range suite() {
		root.AddCommand(single(b, &output))
	}
	root.AddCommand(all(&output))
	return root
}

// single is the command of one benchmark.
func single(b *benchmark, output *string) *cobra.Command {
	cmd := &cobra.Command{
		Use: b.name, Short: b.short, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			figures, err := b.run(cmd.Context())
			if err != nil {
				return err
			}
			return print(cmd.OutOrStdout(), *output, figures)
		},
	}
	if b.flags != nil {
		b.flags(cmd.Flags())
	}
	return cmd
}

// all runs every benchmark that is not long, with its defaults, one after
// another.
func all(output *string) *cobra.Command {
	return &cobra.Command{
		Use: "all", Short: "Every benchmark that is not marked as long", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var figures []figure
			for _, b := range suite() {
				if b.long {
					continue
				}
				_, _ = fmt.Fprintf(os.Stderr, "bench: %s\n", b.name)
				if b.flags != nil {
					b.flags(pflag.NewFlagSet(b.name, pflag.ContinueOnError)) // sets the defaults
				}
				more, err := b.run(cmd.Context())
				if err != nil {
					return fmt.Errorf("%s: %w", b.name, err)
				}
				figures = append(figures, more...)
			}
			return print(cmd.OutOrStdout(), *output, figures)
		},
	}
}
