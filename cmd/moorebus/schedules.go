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
		Short: "Start runs at times that are named in advance",
		Long: `A schedule starts runs of a stored agent at the times of a cron expression or at an
interval. Each firing starts one run, however many gateways there are and however
often they restart. A gateway, run or dev has to be there when it fires.`,
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
		Short: "Store a schedule, in place of one of its name",
		Long: `Put stores a schedule and shows it with its next firings. New times count from now
on. The history of a schedule of that name stays.

--cron has minute, hour, day, month and weekday. A time of day that the clocks of --tz
skip fires when they are put forward. One that they show twice fires once.

A firing that is more than a minute late, since no gateway was there, is missed. With
--missed skip it starts no run, with once one run is for all missed firings, with all
each starts its run. While the last run has not ended, a firing starts its run all
the same (--overlap allow), starts none (skip), or waits for the end (queue).`,
		Example: `  moorebus schedules put news --cron '0 9 * * MON-FRI' --tz Europe/Berlin --agent researcher --task 'What is new?'
  moorebus schedules put check --every 15m --agent watchman --overlap skip`,
		Args: cobra.ExactArgs(1),
	}
	flags := addClientFlags(cmd, print.Table, print.JSON, print.YAML)
	cmd.Flags().StringVar(&d.Cron, "cron", "", "`expression` of the times: minute, hour, day, month and weekday, or @daily and the like")
	cmd.Flags().StringVar(&d.TZ, "tz", "", "time `zone` of --cron, such as Europe/Berlin (default UTC)")
	cmd.Flags().DurationVar(&every, "every", 0, "`time` between firings, from now on, such as 15m")
	cmd.Flags().StringVar(&d.Agent, "agent", "", "`name` of the stored agent to start (required)")
	cmd.Flags().StringVar(&d.Task, "task", "", "`task` of each run (default: the agent's own)")
	cmd.Flags().StringVar((*string)(&d.Missed), "missed", string(schedules.MissedSkip), "what missed firings do: skip, once or all")
	cmd.Flags().StringVar((*string)(&d.Overlap), "overlap", string(schedules.OverlapAllow), "what firings do while the last run has not ended: allow, skip or queue")
	complete(cmd, "missed", string(schedules.MissedSkip), string(schedules.MissedOnce), string(schedules.MissedAll))
	complete(cmd, "overlap", string(schedules.OverlapAllow), string(schedules.OverlapSkip), string(schedules.OverlapQueue))
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
	return aboutSchedule(&cobra.Command{Use: "show NAME", Short: "Show a schedule, its next ten firings, and what became of the last ones"}, &n,
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
	return aboutSchedule(&cobra.Command{Use: "history NAME", Short: "Print what became of the last firings of a schedule, newest first"}, &n,
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
	return changeSchedule(&cobra.Command{Use: "pause NAME", Short: "Stop the firings of a schedule until it is resumed"},
		func(ctx context.Context, c *client, name string) error {
			s, err := requests.PauseSchedule.Call(ctx, c.api, requests.Name(name))
			if err != nil {
				return err
			}
			return print.Schedules(c.out, c.format, []schedules.Schedule{s})
		})
}

func resumeScheduleCommand() *cobra.Command {
	return changeSchedule(&cobra.Command{Use: "resume NAME", Short: "Let a paused schedule fire again; what would have been due is not missed"},
		func(ctx context.Context, c *client, name string) error {
			s, err := requests.ResumeSchedule.Call(ctx, c.api, requests.Name(name))
			if err != nil {
				return err
			}
			return print.Schedules(c.out, c.format, []schedules.Schedule{s})
		})
}

func runScheduleCommand() *cobra.Command {
	return changeSchedule(&cobra.Command{Use: "run NAME", Short: "Start a run of a schedule now, paused or not, whether the last one has ended or not"},
		func(ctx context.Context, c *client, name string) error {
			f, err := requests.RunSchedule.Call(ctx, c.api, requests.Name(name))
			if err != nil {
				return err
			}
			if err := print.Firings(c.out, c.format, schedules.Definition{}, []schedules.Firing{f}); err != nil {
				return err
			}
			if f.Outcome == schedules.Failed {
				return failed("the run was not started: %s", f.Reason)
			}
			return nil
		})
}

func removeScheduleCommand() *cobra.Command {
	return changeSchedule(&cobra.Command{Use: "rm NAME", Short: "Remove a schedule; its runs go on"},
		func(ctx context.Context, c *client, name string) error {
			_, err := requests.DeleteSchedule.Call(ctx, c.api, requests.Name(name))
			return err
		})
}
