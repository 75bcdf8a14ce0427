package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/moorebus/moorebus/internal/console"
	"github.com/moorebus/moorebus/internal/control"
	"github.com/moorebus/moorebus/internal/control/access"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/spf13/cobra"
)

// change is a command that changes runs, each in the same way.
type change struct {
	name, short, long, example string
	// suffix follows the run's state in the output.
	suffix string
	// drives says that the command lets the run continue.
	drives bool
	do     func(c *control.Controller, ctx context.Context, ns, id string, by events.By) (access.Result, error)
}

func (x change) command() *cobra.Command {
	cmd := &cobra.Command{
		Use: x.name + " RUN…", Short: x.short, Long: x.long, Example: x.example, Args: cobra.MinimumNArgs(1),
		DisableFlagsInUseLine: true,
	}
	flags := addClientFlags(cmd, console.Text, console.JSON)
	by := addByFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, runs []string) error {
		return flags.use(cmd, writes, func(ctx context.Context, c *client) error { return x.all(ctx, c, runs, by()) })
	}
	return cmd
}

// all changes every run, even if another one fails.
func (x change) all(ctx context.Context, c *client, runs []string, by events.By) error {
	var failed error
	done := 0
	for _, id := range runs {
		result, err := x.do(c.control, ctx, c.namespace, id, by)
		if err == nil {
			done++
			err = c.writeState(id, result, x.suffix)
		} else {
			err = fmt.Errorf("%s: %w", id, err)
		}
		failed = errors.Join(failed, err)
	}
	if x.drives && done > 0 {
		c.noteOffline()
	}
	return failed
}

func (c *client) writeState(id string, r access.Result, suffix string) error {
	if c.format == console.JSON {
		return console.WriteJSON(c.out, struct {
			RunID string `json:"run_id"`
			access.Result
		}{id, r})
	}
	_, err := fmt.Fprintf(c.out, "%s %s%s\n", id, r.State, suffix)
	return err
}

// noteOffline says that no process continues a run.
func (c *client) noteOffline() {
	if c.offline() {
		c.notef("no process serves %s now: the run continues when `moorebus dev` does", c.Where)
	}
}

func cancelCommand() *cobra.Command {
	return change{
		name: "cancel", short: "Cancel runs",
		long: `Cancel ends runs by an event. Their model calls and tools are cancelled, whatever
process they are in. It prints the state of each run. A run that has already ended
stays as it is, and the exit code is 1.`,
		example: `  moorebus cancel 0198c5a0-5a6b-7c00-8000-000000000001 --reason "wrong file"
  moorebus runs --state planning -o json | jq -r '.runs[].run_id' | xargs moorebus cancel`,
		do: (*control.Controller).Cancel,
	}.command()
}

func pauseCommand() *cobra.Command {
	return change{
		name: "pause", short: "Pause runs",
		long: `Pause keeps runs from starting new model calls and tools. Calls in flight continue to
their end, and their results are kept. It prints the state of each run. See resume.`,
		example: `  moorebus pause 0198c5a0-5a6b-7c00-8000-000000000001`,
		suffix:  " (paused)",
		do:      (*control.Controller).Pause,
	}.command()
}

func resumeCommand() *cobra.Command {
	return change{
		name: "resume", short: "Resume paused runs",
		long: `Resume continues paused runs. Work that is still in flight since the pause does not
start again. It prints the state of each run. A run that is not paused stays as it
is, and the exit code is 1.`,
		example: `  moorebus resume 0198c5a0-5a6b-7c00-8000-000000000001`,
		drives:  true,
		do:      (*control.Controller).Resume,
	}.command()
}
