package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"slices"

	"github.com/spf13/cobra"

	"github.com/moorebus/moorebus/internal/announce"
	"github.com/moorebus/moorebus/internal/certs"
	"github.com/moorebus/moorebus/internal/cli"
	"github.com/moorebus/moorebus/internal/datadir"
	"github.com/moorebus/moorebus/internal/metrics"
	"github.com/moorebus/moorebus/internal/natsbus"
	"github.com/moorebus/moorebus/internal/setup"
	"github.com/moorebus/moorebus/pkg/events"
)

// serverAddress is where the roles of this machine look for a server.
const serverAddress = "127.0.0.1:4222"

func serveCommand() *cobra.Command {
	s, secure := setup.Bus{}, setup.Secure{}
	cmd := &cobra.Command{
		Use:   "server",
		Short: "Run a server for roles in separate processes",
		Long: `Server starts a NATS server with JetStream on the data directory, sets it up like init,
and keeps it running until SIGTERM. It runs no role and serves no HTTP: start gateway,
planner, actor and observer separately, with the server's address as NATS_URL.

Unlike a nats-server it flushes events to the disk in groups (--fsync): an event is
acknowledged and delivered when it is on the disk, and waiting events share one flush.
This needs a data directory on ext4. On other file systems it flushes each event.

With --secure DIR the server uses TLS and has a user for each role, with exactly the
permissions of init --print-permissions. DIR/tls has its certificate (see certs), and
DIR/keys the users' keys; the server creates missing ones. It uses a renewed certificate
without a restart. A role needs its own key and DIR/tls/ca.pem. Name all pools, services
and storage at each start: anything you don't name gets no user. If --permissions names a
file of init --print-permissions, the server needs only the operator's key.

Without --secure, clients must present the server's NATS_TOKEN if it is set. Beyond
loopback it is required, except with --insecure-no-auth. The connections are then not
encrypted, and every client may do everything.`,
		Example: `  moorebus server --data /var/lib/moorebus
  moorebus server --data /var/lib/moorebus --secure /etc/moorebus --host bus.example.org --nats-listen :4222 --pools web,gpu
  NATS_TOKEN=… moorebus server --data /var/lib/moorebus --nats-listen 10.0.0.5:4222 --pools web,gpu`,
		Args: cobra.NoArgs,
	}
	flags := cmd.Flags()
	bus, serve, log := cli.AddStoreFlags(flags, os.Getenv), datadir.AddServeFlags(flags, os.Getenv), cli.AddLogFlags(flags, slog.LevelInfo)
	cli.AddInsecureFlag(flags)
	counts := cli.AddMetricsFlag(flags, os.Getenv)
	listen := flags.Lookup("nats-listen")
	listen.DefValue, listen.Usage = serverAddress, "`address` for clients, host:port; they must present NATS_TOKEN"
	flags.IntVar(&s.Init.Shards, "shards", 0, "number of streams of the log (default: as many as there are, else 1)")
	flags.StringSliceVar(&s.Init.Pools, "pools", nil, "pools of tools that get a consumer, in addition to default")
	states := flags.StringSlice("states", nil, "states of an application's graph that get a consumer, in addition to the built-in ones")
	flags.DurationVar(&s.Init.AckWait, "ack-wait", 0, "how long a worker may be silent before its work goes to another one (default: unchanged, else 15s)")
	flags.StringArrayVar(&s.Storage, "storage", nil, "`NAMESPACE/AGENT` whose storage is created, may be repeated")
	flags.StringVar(&secure.Dir, "secure", "", "`DIR` with certificates and keys: TLS, and a user for each role (default: neither)")
	flags.StringSliceVar(&secure.Hosts, "host", nil, "with --secure: names and addresses by which clients reach the server (default: those of its certificate, else of this machine)")
	flags.StringVar(&secure.File, "permissions", "", "with --secure: `FILE` of users that replace those for --pools, --storage, --service and --observing-pools")
	flags.StringArrayVar(&secure.Users.Services, "service", nil, "with --secure: `NAME=SUBJECT,SUBJECT` is a NATS service and the subjects of its endpoints, which actors may call; may be repeated")
	flags.StringSliceVar(&secure.Users.Observing, "observing-pools", nil, "with --secure: pools whose actors are observers, too (actor --observe)")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if !listen.Changed {
			if err := listen.Value.Set(serverAddress); err != nil {
				return err
			}
		}
		logger, err := log.Logger()
		if err != nil {
			return err
		}
		for _, state := range *states {
			s.Init.States = append(s.Init.States, events.State(state))
		}
		if err := s.Check(); err != nil {
			return err
		}
		if secure.Dir == "" && (len(secure.Hosts) > 0 || secure.File != "" || len(secure.Users.Services)+len(secure.Users.Observing) > 0) {
			return cli.Usage("--host, --permissions, --service and --observing-pools are for --secure")
		}
		var certificates *certs.Watched
		serve.Users = secure.Dir != ""
		how, err := serve.Serve()
		if err != nil {
			return err
		}
		if serve.Users {
			secure.Users.Pools, secure.Users.Shards, secure.Users.Storage = s.Init.Pools, s.Init.Shards, s.Storage
			if how.Config, how.NKey, err = secure.Config(); err != nil {
				return &cli.ExitError{Code: cli.ExitConfig, Err: fmt.Errorf("--secure: %w", err)}
			}
			if certificates, err = certs.Watch(secure.Certificates(), certs.Server, logger); err != nil {
				return cli.NotConfigured("--secure: %w", err)
			}
			how.TLS = certificates.Config()
		}
		s.Init.MaxBytes = how.Init.MaxBytes
		how.Alone, how.Init = true, s.Init
		registry, probe := metrics.New(), &cli.Probe{}
		stopMetrics, err := counts.ServeMetrics(registry.Handler(), probe, logger)
		if err != nil {
			return err
		}
		defer stopMetrics()
		conn, err := datadir.Open(cmd.Context(), bus, datadir.Options{DialOptions: cli.DialOptions{Name: "moorebus/server", Bus: natsbus.Options{Meter: registry}, Logger: logger}, Serve: how})
		if err != nil {
			return err
		}
		defer conn.Close()
		registry.ReadDisk(conn.Where, conn.Server.Full)
		if certificates != nil {
			registry.ReadCertificates(certificates.Ends)
		}
		probe.Set(conn.Bus.Ready)
		if shards := conn.Bus.Shards(); serve.Users && secure.File == "" && shards != max(1, s.Init.Shards) {
			return cli.NotConfigured("the log has %d shards, and users have permissions for %d: use --shards %d", shards, max(1, s.Init.Shards), shards)
		}
		if serve.Users && secure.File == "" {
			if err := warnOfPools(cmd.Context(), conn.Bus, s.Init.Pools, logger); err != nil {
				return err
			}
		}
		cli.Say("the server is up: NATS_URL=%s (Ctrl-C ends it)", conn.Server.ClientURL())
		<-cmd.Context().Done()
		return nil
	}
	return cmd
}

// warnOfPools logs the pools of the log that are not named, and so have no users.
func warnOfPools(ctx context.Context, bus *natsbus.Bus, named []string, logger *slog.Logger) error {
	pools, err := announce.NewDirectory(bus, logger).Pools(ctx)
	for _, p := range pools {
		if p.Name != events.DefaultPool && p.Name != events.ClientPool && !slices.Contains(named, p.Name) {
			logger.Warn("the log has a pool that --pools does not name: its actors are refused", "pool", p.Name)
		}
	}
	return err
}
