package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/moorebus/moorebus/internal/agentfile"
	"github.com/moorebus/moorebus/internal/cli"
	"github.com/moorebus/moorebus/internal/control/dead"
	"github.com/moorebus/moorebus/internal/datadir"
	"github.com/moorebus/moorebus/internal/doctor"
	"github.com/moorebus/moorebus/internal/httpapi/requests"
	"github.com/moorebus/moorebus/internal/natsbus"
	"github.com/moorebus/moorebus/internal/print"
	"github.com/moorebus/moorebus/internal/providers"
	"github.com/moorebus/moorebus/internal/setup"
	"github.com/moorebus/moorebus/internal/terminal"
	"github.com/moorebus/moorebus/pkg/events"
)

func initCommand() *cobra.Command {
	s, p := setup.Bus{}, setup.Permissions{}
	cmd := &cobra.Command{
		Use:   "init",
		Short: "Set up a bus: streams, consumers and buckets; safe to repeat",
		Long: `Init sets up an external bus: a stream for each shard, a consumer for each state and
each pool of tools, a stream for timers, and buckets for agents, tools, large results,
snapshots, the ids of purged runs, and the storage of the named agents. It updates what
exists and removes nothing. run and dev set up their data directory at every start;
--data does that without them, and lists what changed.

The number of shards cannot be changed later: it determines the stream of a run.

With --check it changes nothing and lists what it would do with the same flags. The exit
code is 0 if nothing is to be done, and 7 if something is.

With --print-permissions it needs no bus and writes a part of nats-server's
configuration: accounts, and a user for each role (an actor for each pool) with exactly
the permissions that the transition table gives it. See deploy/nats.`,
		Example: `  moorebus init --nats nats://bus.example:4222
  NATS_URL=nats://127.0.0.1:4222 moorebus init --shards 4 --pools web,gpu --wait
  moorebus init --replicas 3
  moorebus init --check -o json
  moorebus init --data ./moorebus --shards 4
  moorebus init --max-bytes 200GiB
  moorebus init --pool-max-ack-pending gpu=4
  moorebus init --pool-tools payments=pay,refund --pool-tools web=search
  moorebus init --print-permissions --pools web,gpu --credentials keys > permissions.conf
  moorebus init --print-permissions --service 'text=text.>' --credentials keys > permissions.conf`,
		Args: cobra.NoArgs,
	}
	flags := cmd.Flags()
	bus := cli.AddSetupFlags(flags, os.Getenv)
	flags.IntVar(&s.Init.Shards, "shards", 0, "number of streams (default: as many as there are, else 1)")
	flags.IntVar(&s.Init.Replicas, "replicas", 0, "number of servers that store each stream (default: unchanged, else 1)")
	flags.StringSliceVar(&s.Init.Pools, "pools", nil, "pools of tools that get a consumer, in addition to default")
	states := flags.StringSlice("states", nil, "states of an application's graph that get a consumer, in addition to the built-in ones")
	flags.DurationVar(&s.Init.AckWait, "ack-wait", 0, "how long a worker may be silent before its work goes to another one (default: unchanged, else 15s)")
	flags.IntVar(&s.Init.MaxAckPending, "max-ack-pending", 0, "deliveries of one consumer in flight, over all processes (default: unchanged, else 20000)")
	flags.StringToIntVar(&s.Init.PoolMaxAckPending, "pool-max-ack-pending", nil, "concurrent calls of single pools of tools, over all processes and shards, as in gpu=4,web=100 (default: unchanged, else no limit)")
	flags.StringArrayVar(&s.PoolTools, "pool-tools", nil, "`POOL=TOOL,TOOL` assigns tools to a pool: announcements of these names by other pools are ignored; may be repeated; replaces the pool's list, and an empty list clears it (default: as it is)")
	flags.StringArrayVar(&s.Storage, "storage", nil, "`NAMESPACE/AGENT` whose storage is created, may be repeated (default: a role with the permission creates it at its first use)")
	var maxBytes agentfile.Size
	flags.Var(&maxBytes, "max-bytes", "largest size of each stream of the log, such as 20GiB (default: unchanged, else the streams share two thirds of the server's storage limit, if its monitoring reports that)")
	flags.StringVar(&s.Monitor, "monitor", "", "`URL` of the monitoring of a server of the bus (default: port 8222 of the connected server)")
	flags.BoolVar(&s.Wait, "wait", false, "wait until the bus is up")
	check, output := flags.Bool("check", false, "list what would change, and change nothing"), ""
	print.AddOutputFlag(cmd, &output, print.Text, print.JSON)
	onlyPrint := flags.Bool("print-permissions", false, "write the users and their permissions for nats-server, and do nothing else")
	flags.StringVar(&p.Format, "format", setup.FormatConf, "with --print-permissions: nats-conf or json")
	flags.StringVar(&p.Credentials, "credentials", "", "with --print-permissions: directory of the users' nkeys; missing ones are created (default: passwords by variables)")
	out := flags.String("out", "", "with --print-permissions: `file` to write instead of stdout")
	flags.StringArrayVar(&p.Services, "service", nil, "with --print-permissions: `NAME=SUBJECT,SUBJECT` is a NATS service and the subjects of its endpoints, which actors may call; may be repeated")
	flags.StringSliceVar(&p.Observing, "observing-pools", nil, "with --print-permissions: pools whose actors are observers, too (actor --observe)")
	log := cli.AddLogFlags(flags, slog.LevelWarn)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		for _, state := range *states {
			s.Init.States = append(s.Init.States, events.State(state))
		}
		s.Init.MaxBytes = int64(maxBytes)
		if err := s.Check(); err != nil {
			return err
		}
		if *onlyPrint {
			p.Pools, p.Shards, p.Storage = s.Init.Pools, s.Init.Shards, s.Storage
			return p.WriteTo(*out, cmd.OutOrStdout())
		}
		if p.Credentials != "" || *out != "" || flags.Changed("format") || len(p.Services)+len(p.Observing) > 0 {
			return cli.Usage("--credentials, --format, --out, --service and --observing-pools are for --print-permissions")
		}
		format, err := print.ParseFormat(output, print.Text, print.JSON)
		if err != nil {
			return err
		}
		if flags.Changed("output") && !*check {
			return cli.Usage("--output is for --check")
		}
		if err := bus.NeedsBus("moorebus init"); err != nil {
			return err
		}
		raw, _, err := connectRaw(cmd, bus, log, !*check, s.Wait)
		if err != nil {
			return err
		}
		defer raw.Close()
		if *check { // the limit of a data directory follows its disk, at every start
			return s.Changes(cmd.Context(), raw.NATS, cmd.OutOrStdout(), format)
		}
		raw.Complete(&s.Init)
		return s.Run(cmd.Context(), raw.NATS, cmd.OutOrStdout())
	}
	return cmd
}

// connectRaw connects a command that sets a bus up, or asks about that. The caller closes the connection.
func connectRaw(cmd *cobra.Command, bus *cli.BusFlags, log *cli.LogFlags, create, wait bool) (*datadir.Raw, *slog.Logger, error) {
	logger, err := log.Logger()
	if err != nil {
		return nil, nil, err
	}
	raw, err := datadir.Connect(cmd.Context(), bus, cmd.Name(), create, datadir.Options{DialOptions: cli.DialOptions{Name: "moorebus/" + cmd.Name(), Logger: logger, Wait: wait}})
	if err == nil && raw.Note != "" {
		_, _ = fmt.Fprintln(cmd.ErrOrStderr(), raw.Note)
	}
	return raw, logger, err
}

func doctorCommand() *cobra.Command {
	var url, data, output string
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check bus, streams, keys and models, and say how to fix them",
		Long: `Doctor checks the bus and its streams, consumers and roles. If no bus is named, it
checks the data directory and the embedded server. It also checks the sandbox of exec
tools, and requests the lists of models of the configured providers: whether the model is
in the list, and its capabilities on Ollama. It changes nothing, and prints no key. These
variables configure providers:
` + providers.Help() + `

Each line is ok, a warning or bad, with what to do below it, or unseen if the user lacks
the permission to check it. It warns about users with more permissions than their role needs, and
about listeners that other machines reach without credentials. The exit code is 1 if any
line is bad.`,
		Example: `  moorebus doctor
  moorebus doctor --nats nats://bus.example:4222 -o json | jq '.findings[] | select(.level != "ok")'`,
		Args: cobra.NoArgs,
	}
	cmd.Flags().StringVar(&url, "nats", "", "servers of the bus, separated by commas (default NATS_URL and related variables)")
	cmd.Flags().StringVar(&data, "data", "", "data directory to check instead of a bus (default MOOREBUS_DATA, else the one of run and dev)")
	var monitor string
	cmd.Flags().StringVar(&monitor, "monitor", "", "`URL` of the server's monitoring, which says whether it flushes every message (default: port 8222 of the server)")
	print.AddOutputFlag(cmd, &output, print.Text, print.JSON)
	log := cli.AddLogFlags(cmd.Flags(), slog.LevelError)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		format, err := print.ParseFormat(output, print.Text, print.JSON)
		if err != nil {
			return err
		}
		logger, err := log.Logger()
		if err != nil {
			return err
		}
		if err := cli.NeedsBus("moorebus doctor", "", url != "" || data != "", os.Getenv); err != nil {
			return err
		}
		at, err := cli.FindPlace(url, data, os.Getenv)
		if err != nil {
			return err
		}
		var report doctor.Report
		checks := doctor.Checks{Getenv: os.Getenv, Bus: natsbus.Options{Logger: logger, Monitor: monitor}}
		if at.Note != "" {
			_, _ = fmt.Fprintln(cmd.ErrOrStderr(), at.Note)
		}
		if at.Remote {
			report.Add(doctor.AreaBus, natsbus.Finding{Level: natsbus.Good, What: fmt.Sprintf("the bus is %s, named by %s", at.Connect.Server(), at.From)})
			at.Connect.Name, at.Connect.Logger = "moorebus/doctor", logger
			checks.Remote(cmd.Context(), at.Connect, &report)
		} else {
			checks.Embedded(cmd.Context(), at.Dir, &report)
		}
		checks.Listener(&report)
		checks.Keys(cmd.Context(), &report)
		checks.Sandbox(cmd.Context(), &report)
		if err := cmd.Context().Err(); err != nil {
			return err
		}
		if err := report.Write(cmd.OutOrStdout(), format, terminal.Stdout.Color(os.Getenv)); err != nil {
			return err
		}
		if report.Bad > 0 {
			return &cli.ExitError{Code: cli.ExitFailure}
		}
		return nil
	}
	return cmd
}

func deadCommand() *cobra.Command {
	var q requests.DeadQuery
	cmd := &cobra.Command{
		Use:   "dead",
		Short: "List runs that failed and messages that belong to no run",
		Long: `Dead lists the namespace's runs that ended in error through no fault of their model:
a message was not a legal event (poison), all attempts or the time were used up, or no
worker handles a state. --all lists every run that ended with a FatalError. Messages
in the log that belong to no run are listed as SHARD:SEQ.

retry forks a run from just before the event that ended it. drop hides entries.`,
		Example: `  moorebus dead
  moorebus dead -o json | jq -r '.[] | select(.code == "attempts_exhausted") | .run' | xargs moorebus dead retry
  moorebus dead drop 0198c5a0-5a6b-7c00-8000-000000000001 0:17`,
		Args: cobra.NoArgs,
	}
	flags := addClientFlags(cmd, print.Table, print.JSON, print.YAML)
	queryFlags(cmd, &q.Options)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return flags.use(cmd, reads, func(ctx context.Context, c *client) error {
			found, err := requests.ListDead.Call(ctx, c.API, q)
			if err != nil {
				return err
			}
			return print.WriteDead(c.Out, c.Format, found.Dead)
		})
	}
	cmd.AddCommand(deadDropCommand(), deadRetryCommand())
	return cmd
}

// deadNames returns what arguments name, runs and messages.
func (c *client) deadNames(ctx context.Context, args []string) (names []string, err error) {
	for _, name := range args {
		if !strings.Contains(name, ":") {
			if name, err = c.FindRun(ctx, name); err != nil {
				return nil, err
			}
		}
		if _, err := dead.Key(name); err != nil {
			return nil, cli.Usage("%w", err)
		}
		names = append(names, name)
	}
	return names, nil
}

func deadDropCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "drop RUN|SHARD:SEQ…",
		Short: "Hide dead runs and messages",
		Long: `Drop hides the named dead runs and messages from the list, all or none. They stay unchanged in
the log. dead --dropped lists them.`,
		Args: cobra.MinimumNArgs(1), DisableFlagsInUseLine: true,
	}
	flags := addClientFlags(cmd, print.Text)
	cmd.RunE = func(cmd *cobra.Command, names []string) error {
		return flags.use(cmd, writes, func(ctx context.Context, c *client) error {
			names, err := c.deadNames(ctx, names)
			if err != nil {
				return err
			}
			if _, err := requests.DropDead.Call(ctx, c.API, requests.Drop{Body: requests.DropBody{Names: names}}); err != nil {
				return err
			}
			for _, name := range names {
				_, _ = fmt.Fprintln(c.Out, name, "dropped")
			}
			return nil
		})
	}
	return cmd
}

func deadRetryCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "retry RUN…",
		Short: "Fork dead runs from just before the event that ended them",
		Long: `Retry forks each named run from just before the poison, or before the first failed
attempt of the work that ended it. It prints the new runs. The old ones stay unchanged:
drop hides them.`,
		Args: cobra.MinimumNArgs(1), DisableFlagsInUseLine: true,
	}
	flags := addClientFlags(cmd, print.Text)
	flags.offerRuns(cmd, 0)
	cmd.RunE = func(cmd *cobra.Command, ids []string) error {
		return flags.use(cmd, writes, func(ctx context.Context, c *client) error {
			var errs error
			for _, id := range ids {
				if err := c.retry(ctx, id); err != nil {
					errs = errors.Join(errs, fmt.Errorf("%s: %w", id, err))
				}
			}
			return errs
		})
	}
	return cmd
}

func (c *client) retry(ctx context.Context, arg string) error {
	id, err := c.FindRun(ctx, arg)
	if err != nil {
		return err
	}
	fork, err := requests.Retry.Call(ctx, c.API, requests.RetryOf{Run: requests.ID(id)})
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(c.Out, "%s continues %s after event %d\n", fork.RunID, id, fork.At)
	return err
}
