package main

import (
	"fmt"
	"log/slog"
	"os"

	"github.com/moorebus/moorebus/internal/cli"
	"github.com/moorebus/moorebus/internal/console"
	"github.com/moorebus/moorebus/internal/natsbus"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/spf13/cobra"
)

func initCommand() *cobra.Command {
	var url string
	s, p := console.Setup{}, console.Permissions{}
	cmd := &cobra.Command{
		Use:   "init",
		Short: "Set up a bus: streams, consumers and buckets; safe to repeat",
		Long: `Init sets up an external bus: a stream for each shard, a consumer for each state and
each pool of tools, a stream for timers, and buckets for agents, tools, large results,
snapshots, the ids of purged runs, and the storage of the named agents. It updates what
exists and removes nothing. (run and dev set up their own server themselves.)

The number of shards cannot be changed later: it determines the stream of a run.

With --print-permissions it talks to no bus and writes a part of nats-server's
configuration: accounts, and a user for each role (an actor for each pool) with exactly
the permissions that the transition table gives it. See deploy/nats.`,
		Example: `  moorebus init --nats nats://bus.example:4222
  NATS_URL=nats://127.0.0.1:4222 moorebus init --shards 4 --pools web,gpu --wait
  moorebus init --replicas 3
  moorebus init --max-bytes 200GiB
  moorebus init --pool-max-ack-pending gpu=4
  moorebus init --pool-tools payments=pay,refund --pool-tools web=search
  moorebus init --print-permissions --pools web,gpu --credentials keys > permissions.conf`,
		Args: cobra.NoArgs,
	}
	flags := cmd.Flags()
	flags.StringVar(&url, "nats", "", "servers of the bus, with commas (default NATS_URL and its like)")
	flags.IntVar(&s.Init.Shards, "shards", 0, "number of streams (default: as many as there are, else 1)")
	flags.IntVar(&s.Init.Replicas, "replicas", 0, "number of servers that hold each stream (default: as it is, else 1)")
	flags.StringSliceVar(&s.Init.Pools, "pools", nil, "pools of tools that get a consumer, beside default")
	states := flags.StringSlice("states", nil, "states of an application's own graph that get a consumer, beside the built-in ones")
	flags.DurationVar(&s.Init.AckWait, "ack-wait", 0, "how long a worker may be silent before its work goes to another one (default: as it is, else 15s)")
	flags.IntVar(&s.Init.MaxAckPending, "max-ack-pending", 0, "deliveries of one consumer in flight, over all processes (default: as it is, else 20000)")
	flags.StringToIntVar(&s.Init.PoolMaxAckPending, "pool-max-ack-pending", nil, "the same for single pools of tools, as in gpu=4,web=100")
	flags.StringArrayVar(&s.PoolTools, "pool-tools", nil, "`POOL=TOOL,TOOL` assigns tools to a pool: announcements of these names by other pools are ignored; may be repeated; replaces the pool's list, and an empty list clears it (default: as it is)")
	flags.StringArrayVar(&s.Storage, "storage", nil, "`NAMESPACE/AGENT` whose storage is created, may be repeated (default: a role with the permission creates it at its first use)")
	var maxBytes cli.Size
	flags.Var(&maxBytes, "max-bytes", "largest size of each stream of the log, such as 20GiB (default: as it was set, else the streams share two thirds of what the server may store, if its monitoring reports that)")
	flags.StringVar(&s.Monitor, "monitor", "", "`URL` of the monitoring of a server of the bus (default: port 8222 of the server that is reached)")
	flags.BoolVar(&s.Wait, "wait", false, "wait until the bus is up")
	onlyPrint := flags.Bool("print-permissions", false, "write the users and their permissions for nats-server, and do nothing else")
	flags.StringVar(&p.Format, "format", console.FormatConf, "with --print-permissions: nats-conf or json")
	flags.StringVar(&p.Credentials, "credentials", "", "with --print-permissions: directory of the users' nkeys; missing ones are created (default: passwords by variables)")
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
			return p.Write(cmd.OutOrStdout())
		}
		if p.Credentials != "" || flags.Changed("format") {
			return cli.Usage("--credentials and --format are for --print-permissions")
		}
		at, err := cli.FindServer(url, os.Getenv)
		if err != nil {
			return err
		}
		if at.Note != "" {
			_, _ = fmt.Fprintln(cmd.ErrOrStderr(), at.Note)
		}
		if at.From == "" {
			return cli.NotConfigured("no bus is named: set NATS_URL or use --nats, as in `moorebus init --nats nats://127.0.0.1:4222`; `moorebus run` and `moorebus dev` need no init")
		}
		logger, err := log.Logger()
		if err != nil {
			return err
		}
		at.Connect.Name, at.Connect.Logger, at.Connect.Wait = "moorebus/init", logger, s.Wait
		conn, err := natsbus.Connect(cmd.Context(), at.Connect)
		if err != nil {
			return err
		}
		defer conn.Close()
		return s.Run(cmd.Context(), conn, cmd.OutOrStdout())
	}
	return cmd
}
