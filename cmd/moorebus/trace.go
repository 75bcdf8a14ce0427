package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/moorebus/moorebus/internal/cli"
	"github.com/moorebus/moorebus/internal/console"
	"github.com/moorebus/moorebus/internal/filelog"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
	"github.com/spf13/cobra"
)

func traceCommand() *cobra.Command {
	var state, file string
	cmd := &cobra.Command{
		Use:   "trace RUN",
		Short: "Show the trace of a run: step, state, event and what it said",
		Long: `Trace prints what happened in a run, one event per line. It reads the bus, the data
directory, or with --file what moorebus export wrote.`,
		Example: `  moorebus trace 0198c5a0-5a6b-7c00-8000-000000000001
  moorebus trace 0198c5a0-5a6b-7c00-8000-000000000001 --state planning -o json
  moorebus trace 0198c5a0-5a6b-7c00-8000-000000000001 --file runs.jsonl`,
		Args: cobra.ExactArgs(1),
	}
	flags := addClientFlags(cmd, console.Table, console.JSON)
	cmd.Flags().StringVar(&state, "state", "", "only what happened in this `state`")
	cmd.Flags().StringVar(&file, "file", "", "read from this `file` instead of a bus")
	complete(cmd, "state", stateNames()...)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := events.CheckID(args[0]); err != nil {
			return cli.Usage("%q is not a run: %w", args[0], err)
		}
		if file == "" {
			return flags.use(cmd, reads, func(ctx context.Context, c *client) error {
				return writeTrace(ctx, c, c.Bus, c.run(args[0]), events.State(state))
			})
		}
		return traceFile(cmd, flags, file, args[0], events.State(state))
	}
	return cmd
}

// traceFile writes the trace of a run in an export.
func traceFile(cmd *cobra.Command, flags *clientFlags, file, run string, state events.State) (err error) {
	c := &client{machine: reducer.NewMachine(reducer.MachineOptions{}), out: cmd.OutOrStdout()}
	if c.format, err = console.ParseFormat(flags.output, flags.formats...); err != nil {
		return err
	}
	namespace, _, err := flags.bus.Namespace()
	if err != nil {
		return err
	}
	f, err := filelog.Open(file)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if torn := f.Torn(); torn != nil {
		_, _ = fmt.Fprintln(cmd.ErrOrStderr(), torn)
	}
	return writeTrace(cmd.Context(), c, f, events.NewRun(namespace, run, f.Shards()), state)
}

func writeTrace(ctx context.Context, c *client, log journal.Log, run events.Run, state events.State) error {
	mem, err := runlog.Retrace(ctx, log, c.machine, run, func(journal.Record, *events.Event) {})
	if err != nil {
		return err
	}
	if mem.N == 0 {
		return fmt.Errorf("run %s in namespace %s: %w", run.ID, run.Namespace, journal.ErrNotFound)
	}
	if err := checkState(c.machine.Table(), state); err != nil {
		return err
	}
	return console.WriteTrace(c.out, mem.Trace, state, c.format)
}

// checkState returns a usage error for a state that the run's table does not have. Empty
// means every state.
func checkState(table *reducer.Table, state events.State) error {
	if states := table.States(); state != "" && !slices.Contains(states, state) {
		return cli.Usage("--state: %q is not a state of the run; use %s", state, strings.Join(texts(states), ", "))
	}
	return nil
}

func texts(states []events.State) []string {
	all := make([]string, len(states))
	for i, s := range states {
		all[i] = string(s)
	}
	return all
}
