package schedules

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/moorebus/moorebus/internal/cli"
	"github.com/moorebus/moorebus/internal/feature"
	"github.com/moorebus/moorebus/internal/httpapi/requests"
	"github.com/moorebus/moorebus/internal/print"
	"github.com/moorebus/moorebus/pkg/events"
)

func command(open feature.Open) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "schedules",
		Short: "Start runs by cron expression or interval",
		Long: `A schedule starts runs of a stored agent at the times of a cron expression or at an
interval. Each firing starts exactly one run, with any number of gateways and restarts.
Firings need a running gateway, run or dev.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(putCommand(open), listCommand(open), showCommand(open), nextCommand(open), historyCommand(open),
		pauseCommand(open), resumeCommand(open), runCommand(open), removeCommand(open))
	return cmd
}

func putCommand(open feature.Open) *cobra.Command {
	var d Definition
	var every time.Duration
	cmd := &cobra.Command{
		Use:   "put NAME (--cron EXPRESSION | --every TIME) --agent AGENT",
		Short: "Store or replace a schedule",
		Long: `Put stores a schedule and shows it with its next firings. New times apply from now on.
The history of a schedule of that name stays.

--cron has minute, hour, day, month and weekday. A time of day that the clocks of --tz
skip fires when they go forward. A time that they show twice fires once.

A firing that is more than a minute late, because no gateway was running, is missed. With
--missed skip it starts no run, with once one run stands for all missed firings, with all
each starts its run. If the last run has not ended, a firing starts its run (--overlap
allow), starts none (skip), or waits for the end (queue).`,
		Example: `  moorebus schedules put news --cron '0 9 * * MON-FRI' --tz Europe/Berlin --agent researcher --task 'What is new?'
  moorebus schedules put check --every 15m --agent watchman --overlap skip`,
		Args: cobra.ExactArgs(1),
	}
	use := open(cmd, print.Table, print.JSON, print.YAML)
	cmd.Flags().StringVar(&d.Cron, "cron", "", "`expression` of the times: minute, hour, day, month and weekday, or @daily and similar")
	cmd.Flags().StringVar(&d.TZ, "tz", "", "time `zone` of --cron, such as Europe/Berlin (default UTC)")
	cmd.Flags().DurationVar(&every, "every", 0, "`time` between firings, from now on, such as 15m")
	cmd.Flags().StringVar(&d.Agent, "agent", "", "`name` of the stored agent to start (required)")
	cmd.Flags().StringVar(&d.Task, "task", "", "`task` of each run (default: the agent's own)")
	cmd.Flags().StringVar((*string)(&d.Missed), "missed", string(MissedSkip), "how missed firings are handled: skip, once or all")
	cmd.Flags().StringVar((*string)(&d.Overlap), "overlap", string(OverlapAllow), "how firings are handled before the last run has ended: allow, skip or queue")
	cli.Complete(cmd, "missed", string(MissedSkip), string(MissedOnce), string(MissedAll))
	cli.Complete(cmd, "overlap", string(OverlapAllow), string(OverlapSkip), string(OverlapQueue))
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		d.Every = events.Duration(every)
		return use(cmd, feature.Writes, func(ctx context.Context, c *feature.Client) error {
			s, err := PutSchedule.Call(ctx, c.API, NewSchedule{Named: requests.Name(args[0]), Definition: d})
			if err != nil {
				return err
			}
			if c.Unserved != "" {
				c.Notef("no process serves %s now: the schedule fires while `moorebus dev` does", c.Unserved)
			}
			return write(c.Out, c.Format, s)
		})
	}
	return cmd
}

func listCommand(open feature.Open) *cobra.Command {
	cmd := &cobra.Command{Use: "list", Short: "List the schedules with their next and last firings", Args: cobra.NoArgs}
	use := open(cmd, print.Table, print.JSON, print.YAML)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return use(cmd, feature.Reads, func(ctx context.Context, c *feature.Client) error {
			all, err := ListSchedules.Call(ctx, c.API, requests.Scope{})
			if err != nil {
				return err
			}
			return writeAll(c.Out, c.Format, all.Schedules)
		})
	}
	return cmd
}

// aboutSchedule makes a command that prints something of a schedule with its next n firings.
func aboutSchedule(open feature.Open, cmd *cobra.Command, n *int, show func(c *feature.Client, s Schedule) error) *cobra.Command {
	cmd.Args = cobra.ExactArgs(1)
	use := open(cmd, print.Table, print.JSON, print.YAML)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if *n < 1 || *n > MaxNext {
			return cli.Usage("--next: must be 1 to %d, is %d", MaxNext, *n)
		}
		return use(cmd, feature.Reads, func(ctx context.Context, c *feature.Client) error {
			s, err := GetSchedule.Call(ctx, c.API, ScheduleView{Named: requests.Name(args[0]), Next: *n})
			if err != nil {
				return err
			}
			return show(c, s)
		})
	}
	return cmd
}

func showCommand(open feature.Open) *cobra.Command {
	n := DefaultNext
	return aboutSchedule(open, &cobra.Command{Use: "show NAME", Short: "Show a schedule, its next ten firings, and the outcomes of the last ones"}, &n,
		func(c *feature.Client, s Schedule) error { return write(c.Out, c.Format, s) })
}

func nextCommand(open feature.Open) *cobra.Command {
	n := DefaultNext
	cmd := aboutSchedule(open, &cobra.Command{Use: "next NAME", Short: "Print when a schedule fires next"}, &n,
		func(c *feature.Client, s Schedule) error { return writeNext(c.Out, c.Format, s) })
	cmd.Flags().IntVar(&n, "next", n, fmt.Sprintf("number of firings, 1 to %d", MaxNext))
	return cmd
}

func historyCommand(open feature.Open) *cobra.Command {
	n := 1
	return aboutSchedule(open, &cobra.Command{Use: "history NAME", Short: "Print the outcomes of a schedule's last firings, newest first"}, &n,
		func(c *feature.Client, s Schedule) error {
			return writeFirings(c.Out, c.Format, s.Definition, slices.Concat(s.Pending, s.History))
		})
}

// changeSchedule makes a command that changes a schedule.
func changeSchedule(open feature.Open, cmd *cobra.Command, change func(ctx context.Context, c *feature.Client, name string) error) *cobra.Command {
	cmd.Args = cobra.ExactArgs(1)
	use := open(cmd, print.Table, print.JSON, print.YAML)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return use(cmd, feature.Writes, func(ctx context.Context, c *feature.Client) error { return change(ctx, c, args[0]) })
	}
	return cmd
}

func pauseCommand(open feature.Open) *cobra.Command {
	return changeSchedule(open, &cobra.Command{Use: "pause NAME", Short: "Pause a schedule: it does not fire until it is resumed"},
		func(ctx context.Context, c *feature.Client, name string) error {
			s, err := PauseSchedule.Call(ctx, c.API, requests.Name(name))
			if err != nil {
				return err
			}
			return writeAll(c.Out, c.Format, []Schedule{s})
		})
}

func resumeCommand(open feature.Open) *cobra.Command {
	return changeSchedule(open, &cobra.Command{Use: "resume NAME", Short: "Resume a paused schedule; firings during the pause do not count as missed"},
		func(ctx context.Context, c *feature.Client, name string) error {
			s, err := ResumeSchedule.Call(ctx, c.API, requests.Name(name))
			if err != nil {
				return err
			}
			return writeAll(c.Out, c.Format, []Schedule{s})
		})
}

func runCommand(open feature.Open) *cobra.Command {
	return changeSchedule(open, &cobra.Command{Use: "run NAME", Short: "Start a run now, even if the schedule is paused or its last run has not ended"},
		func(ctx context.Context, c *feature.Client, name string) error {
			f, err := RunSchedule.Call(ctx, c.API, requests.Name(name))
			if err != nil {
				return err
			}
			if err := writeFirings(c.Out, c.Format, Definition{}, []Firing{f}); err != nil {
				return err
			}
			if f.Outcome == Failed {
				return cli.Failed("the run was not started: %s", f.Reason)
			}
			return nil
		})
}

func removeCommand(open feature.Open) *cobra.Command {
	return changeSchedule(open, &cobra.Command{Use: "rm NAME", Short: "Remove a schedule; its runs continue"},
		func(ctx context.Context, c *feature.Client, name string) error {
			_, err := DeleteSchedule.Call(ctx, c.API, requests.Name(name))
			return err
		})
}
