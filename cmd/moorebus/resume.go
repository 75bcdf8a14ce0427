package main

import (
	"context"
	"slices"

	"github.com/spf13/cobra"

	"github.com/moorebus/moorebus/internal/cli"
	"github.com/moorebus/moorebus/internal/control/list"
	"github.com/moorebus/moorebus/internal/control/runs"
	"github.com/moorebus/moorebus/internal/httpapi/requests"
	"github.com/moorebus/moorebus/internal/httpapi/route"
	"github.com/moorebus/moorebus/internal/print"
)

func resumeCommand() *cobra.Command {
	var restored bool
	x := change{drives: true}
	cmd := &cobra.Command{
		Use: "resume [RUN…]", Short: "Resume paused runs",
		Long: `Resume continues paused runs. Work that is still in flight since the pause does not
start again. It prints the state of each run. A run that is not paused stays unchanged,
and the exit code is 1.

--restored resumes the namespace's runs that moorebus restore paused. With names it resumes
only those. Runs that were paused before the backup, or by somebody since, stay paused.`,
		Example: `  moorebus resume 0198c5a0-5a6b-7c00-8000-000000000001
  moorebus resume --restored`,
		DisableFlagsInUseLine: true,
	}
	flags := addClientFlags(cmd, print.Text, print.JSON)
	flags.offerRuns(cmd, 0)
	by := addByFlags(cmd)
	cmd.Flags().BoolVar(&restored, "restored", false, "only runs that moorebus restore paused; without names, all of them")
	cmd.RunE = func(cmd *cobra.Command, runs []string) error {
		if x.do = resume(restored); !restored && len(runs) == 0 {
			return cli.Usage("name the runs, or resume those that a restore paused with --restored")
		}
		return flags.use(cmd, writes, func(ctx context.Context, c *client) (err error) {
			if len(runs) == 0 {
				if runs, err = c.restoredRuns(ctx); err != nil {
					return err
				}
			}
			return x.all(ctx, c, runs, by())
		})
	}
	return cmd
}

// resume resumes a run; true: only one that a restore paused.
type resume bool

// Call is that of [order].
func (restored resume) Call(ctx context.Context, c route.Client, in requests.Order) (runs.Result, error) {
	return requests.Resume.Call(ctx, c, requests.ResumeOrder{Run: in.Run, Body: requests.ResumeBody{By: in.By, Restored: bool(restored)}})
}

// restoredRuns returns the namespace's runs that a restore paused, the oldest first.
func (c *client) restoredRuns(ctx context.Context) (runs []string, err error) {
	q := list.Query{Filters: list.Filters{"paused": "restored"}, Limit: list.MaxLimit}
	for {
		page, err := requests.ListRuns.Call(ctx, c.API, requests.RunList{Query: q})
		if err != nil {
			return nil, err
		}
		for _, run := range page.Runs {
			runs = append(runs, run.RunID)
		}
		if q.Cursor = page.Next; q.Cursor == "" {
			break
		}
	}
	if len(runs) == 0 {
		c.Notef("no run of namespace %s is paused by a restore", c.Namespace)
	}
	slices.Reverse(runs)
	return runs, nil
}
