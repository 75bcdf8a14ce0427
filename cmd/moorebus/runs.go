package main

import (
	"context"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/moorebus/moorebus/internal/cli"
	"github.com/moorebus/moorebus/internal/control/list"
	"github.com/moorebus/moorebus/internal/httpapi/requests"
	"github.com/moorebus/moorebus/internal/print"
	"github.com/moorebus/moorebus/internal/terminal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

func runsCommand() *cobra.Command {
	var q list.Query
	cmd := &cobra.Command{
		Use:   "runs",
		Short: "List runs, newest first",
		Long: `Runs lists the namespace's runs, newest first. They are ordered by their start, or by
their end with --state done, error or cancelled. If there are more, --cursor continues
after the last one; stderr says how.

A filter other than --state reads the entire log once. A gateway keeps its index.

On a terminal the table fits its width: it may shorten ids, omit columns and cut tasks. In
a file or a pipe it has full ids and times.`,
		Example: `  moorebus runs
  moorebus runs --state waiting_for_human -o json
  moorebus runs --state error --since 24h --text invoice
  moorebus runs --agent reporter --cost-above 0.5`,
		Args: cobra.NoArgs,
	}
	flags := addClientFlags(cmd, print.Table, print.JSON, print.YAML)
	queryFlags(cmd, &q)
	filterFlags(cmd, flags)
	cmd.RunE = func(cmd *cobra.Command, _ []string) (err error) {
		if q.Limit < 1 {
			return cli.Usage("--limit: must be 1 to 1000, is %d", q.Limit)
		}
		if q.Filters, err = filterValues(cmd); err != nil {
			return err
		}
		return flags.use(cmd, reads, func(ctx context.Context, c *client) error {
			if err := c.findRuns(ctx, q.Filters); err != nil {
				return err
			}
			page, err := requests.ListRuns.Call(ctx, c.API, requests.RunList{Query: q})
			if err != nil {
				return err
			}
			if err := print.Runs(c.Out, c.Format, page, screen()); err != nil {
				return err
			}
			if page.Next != "" && c.Format == print.Table {
				c.Notef("there are more runs; continue with --cursor %s", page.Next)
			}
			return nil
		})
	}
	return cmd
}

// screen is stdout, if it is a terminal.
func screen() print.Screen {
	s := print.Screen{Color: terminal.Stdout.Color(os.Getenv), Now: time.Now()}
	if terminal.Stdout.IsTerminal() {
		s.Columns = terminal.Stdout.Columns()
	}
	return s
}

// timeFlag reads a time, or how long ago it was.
func timeFlag(name, text string) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	if ago, err := time.ParseDuration(text); err == nil && ago >= 0 {
		return time.Now().Add(-ago), nil
	}
	at, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		return time.Time{}, cli.Usage("--%s: %q is neither a time such as 2026-01-02T15:04:05Z nor a duration such as 24h", name, text)
	}
	return at, nil
}

func stateNames() []string {
	var names []string
	for _, state := range reducer.DefaultTable().States() {
		names = append(names, string(state))
	}
	return names
}
