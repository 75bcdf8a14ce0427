// Command bench measures Moorebus beside the least that its work can be.
//
//	go run ./bench throughput            1,000 runs of 10 tool steps, relaxed syncing
//	go run ./bench throughput --fsync always --runs 200
//
// Every figure stands beside its floor, measured in the same program, on the same
// server and data directory, with bodies of the same sizes: quote the ratio,
// since machines differ and are noisy.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"text/tabwriter"

	"github.com/moorebus/moorebus/internal/cli"
	"github.com/spf13/cobra"
)

func main() {
	cli.Main(func(ctx context.Context) error { return cli.Execute(ctx, command()) })
}

func command() *cobra.Command {
	root := &cobra.Command{Use: "bench", Short: "Measure Moorebus beside its floor", Args: cobra.NoArgs}
	root.AddCommand(throughputCommand())
	return root
}

func throughputCommand() *cobra.Command {
	var s settings
	var fsync, output string
	cmd := &cobra.Command{
		Use:   "throughput",
		Short: "Transitions per second of many scripted runs, beside the bare deliver-append-ack loop",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if fsync != "always" && fsync != "relaxed" || s.runs < 1 || s.steps < 1 || s.rounds < 1 {
				return cli.Usage("--fsync is always or relaxed; --runs, --steps and --rounds are at least 1")
			}
			s.syncAlways = fsync == "always"
			figures, err := throughput(cmd.Context(), s)
			if err != nil {
				return err
			}
			return print(output, figures)
		},
	}
	cmd.Flags().IntVar(&s.runs, "runs", 1000, "runs at once")
	cmd.Flags().IntVar(&s.steps, "steps", 10, "tool steps of each run")
	cmd.Flags().IntVar(&s.rounds, "rounds", 3, "rounds, Moorebus and floor in turn")
	cmd.Flags().StringVar(&fsync, "fsync", "relaxed", "when the log goes to the disk: always or relaxed")
	cmd.Flags().StringVarP(&output, "output", "o", "table", "table or json")
	return cmd
}

func print(format string, figures []figure) error {
	if format == "json" {
		enc := json.NewEncoder(os.Stdout)
		enc.SetIndent("", "  ")
		return enc.Encode(figures)
	}
	w := tabwriter.NewWriter(os.Stdout, 0, 8, 2, ' ', tabwriter.AlignRight)
	_, _ = fmt.Fprintln(w, "round\truns\ttransitions\tmoorebus/s\tfloor/s\tratio\tbody bytes\tB allocated\tallocations\t")
	for _, f := range figures {
		_, _ = fmt.Fprintf(w, "%d\t%d\t%d\t%.0f\t%.0f\t%.2f\t%.0f\t%.0f\t%.0f\t\n",
			f.Round, f.Runs, f.Transitions, f.Rate, f.FloorRate, f.Ratio, f.BodyBytes, f.AllocBytes, f.Allocs)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	_, err := fmt.Println("Bytes and allocations are per transition, server included.")
	return err
}
