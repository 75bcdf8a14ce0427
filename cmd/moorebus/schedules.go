package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/moorebus/moorebus/internal/cli"
	"github.com/moorebus/moorebus/internal/control/schedules"
	"github.com/moorebus/moorebus/internal/httpapi/requests"
	"github.com/moorebus/moorebus/internal/print"
	"github.com/moorebus/moorebus/pkg/events"
)

func schedulesCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "schedules",
		Short: "Start runs by cron expression or interval",
		Long: `A schedule starts runs of a stored agent at the times of a cron expression or at an
interval. Each firing starts exactly one run, with any number of gateways and restarts.
Firings need a running gateway, run or dev.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(putScheduleCommand(), listSchedulesCommand(), showScheduleCommand(), nextScheduleCommand(), scheduleHistoryCommand(),
		pauseScheduleCommand(), resumeScheduleCommand(), runScheduleCommand(), removeScheduleCommand())
	return cmd
}

func putScheduleCommand() *cobra.Command {
	var d schedules.Definition
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
	flags := addClientFlags(cmd, print.Table, print.JSON, print.YAML)
	cmd.Flags().StringVar(&d.Cron, "cron", "", "`expression` of the times: minute, hour, day, month and weekday, or @daily and similar")
	cmd.Flags().StringVar(&d.TZ, "tz", "", "time `zone` of --cron, such as Europe/Berlin (default UTC)")
	cmd.Flags().DurationVar(&every, "every", 0, "`time` between firings, from now on, such as 15m")
	cmd.Flags().StringVar(&d.Agent, "agent", "", "`name` of the stored agent to start (required)")
	cmd.Flags().StringVar(&d.Task, "task", "", "`task` of each run (default: the agent's own)")
	cmd.Flags().StringVar((*string)(&d.Missed), "missed", string(schedules.MissedSkip), "how missed firings are handled: skip, once or all")
	cmd.Flags().StringVar((*string)(&d.Overlap), "overlap", string(schedules.OverlapAllow), "how firings are handled before the last run has ended: allow, skip or queue")
	cli.Complete(cmd, "missed", string(schedules.MissedSkip), string(schedules.MissedOnce), string(schedules.MissedAll))
	cli.Complete(cmd, "overlap", string(schedules.OverlapAllow), string(schedules.OverlapSkip), string(schedules.OverlapQueue))
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		d.Every = events.Duration(every)
		return flags.use(cmd, writes, func(ctx context.Context, c *client) error {
			s, err := requests.PutSchedule.Call(ctx, c.api, requests.NewSchedule{Named: requests.Name(args[0]), Definition: d})
			if err != nil {
				return err
			}
			if c.offline() {
				c.notef("no process serves %s now: the schedule fires while `moorebus dev` does", c.Where)
			}
			return print.Schedule(c.out, c.format, s)
		})
	}
	return cmd
}

func listSchedulesCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "list", Short: "List the schedules with their next and last firings", Args: cobra.NoArgs}
	flags := addClientFlags(cmd, print.Table, print.JSON, print.YAML)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return flags.use(cmd, reads, func(ctx context.Context, c *client) error {
			all, err := requests.ListSchedules.Call(ctx, c.api, requests.Scope{})
			if err != nil {
				return err
			}
			return print.Schedules(c.out, c.format, all.Schedules)
		})
	}
	return cmd
}

// aboutSchedule makes a command that prints something of a schedule with its next n firings.
func aboutSchedule(cmd *cobra.Command, n *int, write func(c *client, s schedules.Schedule) error) *cobra.Command {
	cmd.Args = cobra.ExactArgs(1)
	flags := addClientFlags(cmd, print.Table, print.JSON, print.YAML)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if *n < 1 || *n > schedules.MaxNext {
			return cli.Usage("--next: must be 1 to %d, is %d", schedules.MaxNext, *n)
		}
		return flags.use(cmd, reads, func(ctx context.Context, c *client) error {
			s, err := requests.GetSchedule.Call(ctx, c.api, requests.ScheduleView{Named: requests.Name(args[0]), Next: *n})
			if err != nil {
				return err
			}
			return write(c, s)
		})
	}
	return cmd
}

func showScheduleCommand() *cobra.Command {
	n := schedules.DefaultNext
	return aboutSchedule(&cobra.Command{Use: "show NAME", Short: "Show a schedule, its next ten firings, and the outcomes of the last ones"}, &n,
		func(c *client, s schedules.Schedule) error { return print.Schedule(c.out, c.format, s) })
}

func nextScheduleCommand() *cobra.Command {
	n := schedules.DefaultNext
	cmd := aboutSchedule(&cobra.Command{Use: "next NAME", Short: "Print when a schedule fires next"}, &n,
		func(c *client, s schedules.Schedule) error { return print.ScheduleNext(c.out, c.format, s) })
	cmd.Flags().IntVar(&n, "next", n, fmt.Sprintf("number of firings, 1 to %d", schedules.MaxNext))
	return cmd
}

func scheduleHistoryCommand() *cobra.Command {
	n := 1
	return aboutSchedule(&cobra.Command{Use: "history NAME", Short: "Print the outcomes of a schedule's last firings, newest first"}, &n,
		func(c *client, s schedules.Schedule) error {
			return print.Firings(c.out, c.format, s.Definition, slices.Concat(s.Pending, s.History))
		})
}

// changeSchedule makes a command that changes a schedule.
func changeSchedule(cmd *cobra.Command, change func(ctx context.Context, c *client, name string) error) *cobra.Command {
	cmd.Args = cobra.ExactArgs(1)
	flags := addClientFlags(cmd, print.Table, print.JSON, print.YAML)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return flags.use(cmd, writes, func(ctx context.Context, c *client) error { return change(ctx, c, args[0]) })
	}
	return cmd
}

func pauseScheduleCommand() *cobra.Command {
	return changeSchedule(&cobra.Command{Use: "pause NAME", Short: "Pause a schedule: it does not fire until it is resumed"},
		func(ctx context.Context, c *client, name string) error {
			s, err := requests.PauseSchedule.Call(ctx, c.api, requests.Name(name))
			if err != nil {
				return err
			}
			return print.Schedules(c.out, c.format, []schedules.Schedule{s})
		})
}

func resumeScheduleCommand() *cobra.Command {
	return changeSchedule(&cobra.Command{Use: "resume NAME", Short: "Resume a paused schedule; firings during the pause do not count as missed"},
		func(ctx context.Context, c *client, name string) error {
			s, err := requests.ResumeSchedule.Call(ctx, c.api, requests.Name(name))
			if err != nil {
				return err
			}
			return print.Schedules(c.out, c.format, []schedules.Schedule{s})
		})
}

func runScheduleCommand() *cobra.Command {
	return changeSchedule(&cobra.Command{Use: "run NAME", Short: "Start a run now, even if the schedule is paused or its last run has not ended"},
		func(ctx context.Context, c *client, name string) error {
			f, err := requests.RunSchedule.Call(ctx, c.api, requests.Name(name))
			if err != nil {
				return err
			}
			if err := print.Firings(c.out, c.format, schedules.Definition{}, []schedules.Firing{f}); err != nil {
				return err
			}
			if f.Outcome == schedules.Failed {
				return cli.Failed("the run was not started: %s", f.Reason)
			}
			return nil
		})
}

func removeScheduleCommand() *cobra.Command {
	return changeSchedule(&cobra.Command{Use: "rm NAME", Short: "Remove a schedule; its runs continue"},
		func(ctx context.Context, c *client, name string) error {
			_, err := requests.DeleteSchedule.Call(ctx, c.api, requests.Name(name))
			return err
		})
}
