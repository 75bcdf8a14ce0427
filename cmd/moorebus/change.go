package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/moorebus/moorebus/internal/control/runs"
	"github.com/moorebus/moorebus/internal/httpapi/requests"
	"github.com/moorebus/moorebus/internal/httpapi/route"
	"github.com/moorebus/moorebus/internal/print"
	"github.com/moorebus/moorebus/pkg/events"
)

// change is a command that changes runs, each in the same way.
type change struct {
	name, short, long, example string
	// suffix follows the run's state in the output.
	suffix string
	// drives says that the command lets the run continue.
	drives bool
	do     order
}

// order is a request that changes a run.
type order interface {
	Call(ctx context.Context, c route.Client, in requests.Order) (runs.Result, error)
}

func (x change) command() *cobra.Command {
	cmd := &cobra.Command{
		Use: x.name + " RUN…", Short: x.short, Long: x.long, Example: x.example, Args: cobra.MinimumNArgs(1),
		DisableFlagsInUseLine: true,
	}
	flags := addClientFlags(cmd, print.Text, print.JSON)
	flags.offerRuns(cmd, 0)
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
	for _, arg := range runs {
		result, id, err := x.one(ctx, c, arg, by)
		if err == nil {
			done++
			err = c.writeState(id, result, x.suffix)
		} else {
			err = fmt.Errorf("%s: %w", arg, err)
		}
		failed = errors.Join(failed, err)
	}
	if x.drives && done > 0 {
		c.noteOffline()
	}
	return failed
}

func (x change) one(ctx context.Context, c *client, arg string, by events.By) (result runs.Result, id string, err error) {
	if id, err = c.FindRun(ctx, arg); err == nil {
		result, err = x.do.Call(ctx, c.API, requests.Order{Run: requests.ID(id), By: by})
	}
	return result, id, err
}

func (c *client) writeState(id string, r runs.Result, suffix string) error {
	if c.Format == print.JSON {
		return print.WriteJSON(c.Out, struct {
			RunID string `json:"run_id"`
			runs.Result
		}{id, r})
	}
	_, err := fmt.Fprintf(c.Out, "%s %s%s\n", id, r.State, suffix)
	return err
}
