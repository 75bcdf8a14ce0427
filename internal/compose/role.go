package compose

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"net/url"
	"os"
	"time"

	"github.com/moorebus/moorebus/internal/agentfile"
	"github.com/moorebus/moorebus/internal/certs"
	"github.com/moorebus/moorebus/internal/cli"
	"github.com/moorebus/moorebus/internal/control"
	"github.com/moorebus/moorebus/internal/control/webhooks"
	"github.com/moorebus/moorebus/internal/host"
	"github.com/moorebus/moorebus/internal/httpapi"
	"github.com/moorebus/moorebus/internal/metrics"
	"github.com/moorebus/moorebus/internal/natsbus"
	"github.com/moorebus/moorebus/internal/natsconn"
	"github.com/moorebus/moorebus/internal/observer"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/internal/worker"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Role is what a role's process gets: the bus, and what makes its roles.
type Role struct {
	*host.Process
	Bus *natsbus.Bus
	// Metrics has the numbers of the process.
	Metrics *metrics.Registry
	probe   *cli.Probe
}

// Ready says what makes the process ready while the log has a quorum: that each check returns
// nil. /readyz of --metrics-listen tells.
func (r *Role) Ready(checks ...func(context.Context) error) {
	r.probe.Set(func(ctx context.Context) error {
		for _, check := range append([]func(context.Context) error{r.Bus.Quorum}, checks...) {
			if err := check(ctx); err != nil {
				return err
			}
		}
		return nil
	})
}

// RoleCommand returns the command of a role's process. It has the flags of every role
// and those that flags adds. It calls check before it opens the bus, so that wrong
// settings are reported at once. It waits for bus and streams without a limit, and
// then calls run.
func RoleCommand(name, short, long string, flags func(*pflag.FlagSet), check func() error, run func(context.Context, Role) error) *cobra.Command {
	cmd := &cobra.Command{Use: name, Short: short, Long: long, Args: cobra.NoArgs}
	bus := cli.AddServerFlags(cmd.Flags(), os.Getenv)
	role := cli.AddRoleFlags(cmd.Flags())
	log := cli.AddLogFlags(cmd.Flags(), slog.LevelInfo)
	if flags != nil {
		flags(cmd.Flags())
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		logger, err := log.Logger()
		if err != nil {
			return err
		}
		logger = logger.With("role", name, "instance", role.Instance)
		slog.SetDefault(logger) // what has no logger of its own says who it is, too
		if check != nil {
			if err := check(); err != nil {
				return err
			}
		}
		stopProfiles, err := role.ServePprof(logger)
		if err != nil {
			return err
		}
		defer stopProfiles()
		registry, probe := metrics.New(), &cli.Probe{}
		stopMetrics, err := role.ServeMetrics(registry.Handler(), probe, logger)
		if err != nil {
			return err
		}
		defer stopMetrics()
		conn, err := bus.Dial(cmd.Context(), cli.DialOptions{
			Name: "moorebus/" + name + "/" + role.Instance, Wait: true, Bus: natsbus.Options{Meter: registry}, Logger: logger,
		})
		if err != nil {
			if cmd.Context().Err() != nil {
				return nil // asked to end while it waited, and does
			}
			return err
		}
		defer conn.NATS.Close()
		if err := os.Unsetenv(natsconn.SeedVariable); err != nil { // programs that this one starts need it not
			return err
		}
		registry.ReadCertificates(func() map[string]time.Time { return certs.EndsOf(conn.Bus.Conn().TLSConnectionState) })
		logger.Info("ready", "bus", conn.Where, "named_by", conn.From, "shards", conn.Bus.Shards())
		base := worker.Base{
			Instance: role.Instance, Store: runlog.New(storeOptions(name, conn.Bus, registry, logger)),
			Concurrency: role.Concurrency, Drain: role.Drain, Logger: logger,
		}
		open, stop := natsconn.WhileOpen(cmd.Context(), conn.Bus.Conn())
		defer stop()
		err = run(open, Role{Process: host.NewProcess(base, conn.Bus, conn.Bus, nil), Bus: conn.Bus, Metrics: registry, probe: probe})
		if open.Err() != nil && cmd.Context().Err() == nil {
			err = context.Cause(open) // another start may be let in
		}
		if errors.Is(err, journal.ErrDenied) {
			err = fmt.Errorf("%w\nthe user of this process may not do what the role %s needs: check whose key NATS_NKEY is, or print the permissions of this build again (`moorebus init --print-permissions`)", err, name)
		}
		return err
	}
	return cmd
}

// AddSnapshotFlag adds --snapshot-every, for processes with an observer.
func AddSnapshotFlag(flags *pflag.FlagSet, every *int) {
	flags.IntVar(every, "snapshot-every", observer.DefaultSnapshotEvery, "events between two snapshots of a run, more of a long one; 0: no snapshots")
	cli.NotNegative(flags, "snapshot-every")
}

// storeOptions say how a role reads runs. An actor changes the world, so it trusts
// stored events only: a snapshot is the observer's word.
func storeOptions(role string, bus *natsbus.Bus, registry *metrics.Registry, logger *slog.Logger) runlog.Options {
	o := runlog.Options{Log: bus, Snapshots: bus, Meter: registry, Appended: registry.Appended, Logger: logger}
	if role == "actor" {
		o.Snapshots = nil
	}
	return o
}

// BadConfig gives an error the exit code for wrong settings; nil stays nil, and so does
// [agentfile.ErrClientPool], which ends a process with exit code 1.
func BadConfig(err error) error {
	if err == nil || errors.Is(err, agentfile.ErrClientPool) {
		return err
	}
	return cli.NotConfigured("%w", err)
}

// TokenVariable is the environment variable with the bearer token that HTTP clients
// must send.
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
	// A2AAgent is the stored agent that programs find which speak A2A.
	A2AAgent string
	hosts    []string
}

// AddHTTPFlags adds --max-streams, --max-client-streams, --host and --a2a-agent.
func AddHTTPFlags(flags *pflag.FlagSet) *HTTPFlags {
	f := &HTTPFlags{}
	flags.StringSliceVar(&f.hosts, "host", nil, "further `names` by which clients without a token may address --listen; its own host, localhost and IP addresses are always allowed")
	flags.IntVar(&f.Max, "max-streams", httpapi.MaxStreams, "most open event streams, and never more than half of the files that the process may have open; a further one is refused with 429")
	flags.IntVar(&f.PerClient, "max-client-streams", httpapi.MaxClientStreams, "most open event streams of one address; a further one is refused with 429")
	flags.StringVar(&f.A2AAgent, "a2a-agent", os.Getenv("MOOREBUS_A2A_AGENT"),
		"stored `agent` of the default namespace whose A2A card is public at /.well-known/agent-card.json (MOOREBUS_A2A_AGENT, else, without a token, the only one)")
	cli.Positive(flags, "max-streams", "max-client-streams")
	return f
}

// Streams returns how many event streams may be open. Each is a connection, so half of the
// files that this process may have open stay for requests, the bus and the disk.
func (f *HTTPFlags) Streams(logger *slog.Logger) int {
	limit, known := OpenFiles()
	most := boundStreams(f.Max, limit, known)
	if most < f.Max {
		logger.Warn("fewer event streams may be open than --max-streams says: raise the limit of open files (ulimit -n, LimitNOFILE)", "open_files", limit)
	}
	return most
}

func boundStreams(wanted int, files uint64, known bool) int {
	if !known || uint64(wanted) <= files/2 {
		return wanted
	}
	return max(1, int(files/2))
}

// Hosts are the names by which clients may address a listener.
func (f *HTTPFlags) Hosts(listen string) []string {
	return append(cli.HostNames(listen), f.hosts...)
}

// GatewayFlags are --stall, --pool-wait, and those of webhooks, for processes with a gateway.
type GatewayFlags struct {
	StallAfter time.Duration

	poolWait   time.Duration
	flags      *pflag.FlagSet
	consoleURL string
	allowed    []string
	retries    []time.Duration
}

// AddGatewayFlags adds --stall, --pool-wait, --console-url, --webhook-allow and --webhook-retries.
func AddGatewayFlags(flags *pflag.FlagSet) *GatewayFlags {
	f := &GatewayFlags{flags: flags}
	flags.DurationVar(&f.StallAfter, "stall", control.StallAfter,
		"a run with work to do and no event for this long is driven again, twice at most, and ended after as long again; must be longer than any call of a model or a tool")
	flags.DurationVar(&f.poolWait, "pool-wait", control.PoolWait, "how long a pool may have no actor before its calls are answered with no_actor; 0: they wait until there is one")
	flags.StringVar(&f.consoleURL, "console-url", os.Getenv("MOOREBUS_CONSOLE_URL"), "`URL` under which people find the console, for links in webhooks (MOOREBUS_CONSOLE_URL)")
	flags.StringSliceVar(&f.allowed, "webhook-allow", nil, "`networks` that webhooks may reach besides public addresses, such as 10.1.0.0/16 (default: loopback, if HTTP is served on loopback or not at all)")
	flags.DurationSliceVar(&f.retries, "webhook-retries", webhooks.Schedule(), "`pauses` after failed attempts to deliver to a webhook; after one attempt more, the notice is given up")
	cli.Positive(flags, "stall")
	cli.NotNegative(flags, "pool-wait")
	return f
}

// PoolWait returns the gateway's setting, see control.Config.
func (f *GatewayFlags) PoolWait() time.Duration {
	if f.poolWait == 0 {
		return control.Unlimited
	}
	return f.poolWait
}

// Webhooks returns the settings of webhooks. listener serves HTTP; nil: nothing does.
func (f *GatewayFlags) Webhooks(listener net.Listener) (webhooks.Settings, error) {
	s := webhooks.Settings{ConsoleURL: f.consoleURL, Schedule: f.retries}
	for _, text := range f.allowed {
		network, err := netip.ParsePrefix(text)
		if err != nil {
			return s, cli.Usage("--webhook-allow: %q is not a network such as 10.1.0.0/16", text)
		}
		s.Allowed = append(s.Allowed, network.Masked())
	}
	if u, err := url.Parse(f.consoleURL); f.consoleURL != "" && (err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "") {
		return s, cli.Usage("--console-url: %q is not a URL of the form https://host", f.consoleURL)
	}
	for _, pause := range f.retries {
		if pause <= 0 {
			return s, cli.Usage("--webhook-retries: must be positive, and one is %s", pause)
		}
	}
	if f.flags.Changed("webhook-allow") {
		return s, nil
	}
	local := listener == nil
	if !local {
		at, is := listener.Addr().(*net.TCPAddr)
		local = is && at.IP.IsLoopback()
	}
	if local {
		s.Allowed = webhooks.Loopback()
	}
	return s, nil
}
