package wire

import (
	"context"
	"log/slog"
	"os"
	"time"

	"github.com/moorebus/moorebus/internal/cli"
	"github.com/moorebus/moorebus/internal/gateway"
	"github.com/moorebus/moorebus/internal/natsbus"
	"github.com/moorebus/moorebus/internal/observer"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/pkg/tool/exectool"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Role is what a role's process has at hand: the bus and what its flags say.
type Role struct {
	Bus         *natsbus.Bus
	Store       *runlog.Store
	Instance    string
	Concurrency int
	Drain       time.Duration
	Logger      *slog.Logger
}

// RoleCommand is the command of a role's process. It has the flags of every
// role and those that flags adds. check is called before the bus is opened, so
// that what is wrong with the settings is said at once; run is called when bus
// and streams are there, for which the process waits for ever.
func RoleCommand(name, short, long string, flags func(*pflag.FlagSet), check func() error, run func(context.Context, Role) error) *cobra.Command {
	cmd := &cobra.Command{Use: name, Short: short, Long: long, Args: cobra.NoArgs}
	bus := cli.AddServerFlags(cmd.Flags(), os.Getenv)
	role := cli.AddRoleFlags(cmd.Flags())
	log := cli.AddLogFlags(cmd.Flags(), slog.LevelInfo)
	if flags != nil {
		flags(cmd.Flags())
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := role.Check(); err != nil {
			return err
		}
		logger, err := log.Logger()
		if err != nil {
			return err
		}
		logger = logger.With("role", name, "instance", role.Instance)
		if check != nil {
			if err := check(); err != nil {
				return err
			}
		}
		if err := exectool.Conceal(); err != nil { // keys and tokens are in the environment
			return err
		}
		stopProfiles, err := role.ServePprof(logger)
		if err != nil {
			return err
		}
		defer stopProfiles()
		conn, err := bus.Open(cmd.Context(), cli.OpenOptions{
			Name: "moorebus/" + name + "/" + role.Instance, RemoteOnly: true, Wait: true, Logger: logger,
		})
		if err != nil {
			if cmd.Context().Err() != nil {
				return nil // asked to end while it waited, and does
			}
			return err
		}
		defer conn.Close()
		logger.Info("ready", "bus", conn.Where, "named_by", conn.From, "shards", conn.Bus.Shards())
		return run(cmd.Context(), Role{
			Bus: conn.Bus, Store: runlog.New(storeOptions(name, conn.Bus, logger)), Instance: role.Instance,
			Concurrency: role.Concurrency, Drain: role.Drain, Logger: logger,
		})
	}
	return cmd
}

// AddSnapshotFlag adds --snapshot-every, for what runs an observer.
func AddSnapshotFlag(flags *pflag.FlagSet, every *int) {
	flags.IntVar(every, "snapshot-every", observer.DefaultSnapshotEvery, "events between two snapshots of a run; 0: no snapshots")
}

// CheckSnapshots says what is wrong with --snapshot-every.
func CheckSnapshots(every int) error {
	if every < 0 {
		return cli.Usage("--snapshot-every: must not be negative, is %d", every)
	}
	return nil
}

// storeOptions say how a role reads runs. An actor, which does things to the
// world, goes by stored events alone: a snapshot says what the observer says.
func storeOptions(role string, bus *natsbus.Bus, logger *slog.Logger) runlog.Options {
	o := runlog.Options{Log: bus, Snapshots: bus, Logger: logger}
	if role == "actor" {
		o.Snapshots = nil
	}
	return o
}

// BadConfig makes an error about settings end the process with the code for
// that; nil stays nil.
func BadConfig(err error) error {
	if err == nil {
		return nil
	}
	return cli.NotConfigured("%w", err)
}

// TokenVariable is the variable of the environment with the bearer token that HTTP
// clients must send.
const TokenVariable = "MOOREBUS_TOKEN"

// ListenAddress is where HTTP is served unless a flag says otherwise.
func ListenAddress(getenv func(string) string) string {
	if address := getenv("MOOREBUS_LISTEN"); address != "" {
		return address
	}
	return "127.0.0.1:8080"
}

// HTTPFlags bound what clients of a gateway's HTTP may do.
type HTTPFlags struct {
	// Max and PerClient are how many event streams may be open.
	Max, PerClient int
	hosts          []string
}

// AddHTTPFlags adds --max-streams, --max-client-streams and --host.
func AddHTTPFlags(flags *pflag.FlagSet) *HTTPFlags {
	f := &HTTPFlags{}
	flags.StringSliceVar(&f.hosts, "host", nil, "further `names` by which clients without a token may address --listen; its own host, localhost and IP addresses are always allowed")
	flags.IntVar(&f.Max, "max-streams", gateway.MaxStreams, "most open event streams; a further one is refused with 429")
	flags.IntVar(&f.PerClient, "max-client-streams", gateway.MaxClientStreams, "most open event streams of one address; a further one is refused with 429")
	return f
}

// Hosts are the names by which clients may address a listener.
func (f *HTTPFlags) Hosts(listen string) []string {
	return append(cli.HostNames(listen), f.hosts...)
}

// Check returns a usage error for a bound that makes no sense.
func (f *HTTPFlags) Check() error {
	if f.Max < 1 || f.PerClient < 1 {
		return cli.Usage("--max-streams and --max-client-streams: must be at least 1, are %d and %d", f.Max, f.PerClient)
	}
	return nil
}

// AddPoolWaitFlag adds --pool-wait, for what runs a gateway.
func AddPoolWaitFlag(flags *pflag.FlagSet, wait *time.Duration) {
	flags.DurationVar(wait, "pool-wait", 30*time.Second, "how long a pool may have no actor before its calls are answered with no_actor")
}

// CheckPoolWait returns a usage error for a wait that makes no sense.
func CheckPoolWait(wait time.Duration) error {
	if wait <= 0 {
		return cli.Usage("--pool-wait: must be more than nothing, is %s", wait)
	}
	return nil
}
