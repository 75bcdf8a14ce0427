package gateway

import (
	"log/slog"
	"os"
	"time"

	"github.com/moorebus/moorebus/internal/cli"
	"github.com/moorebus/moorebus/internal/control"
	"github.com/moorebus/moorebus/internal/feature"
	"github.com/moorebus/moorebus/internal/feature/all"
	"github.com/moorebus/moorebus/internal/httpapi"
	"github.com/spf13/pflag"
)

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
	flags.StringSliceVar(&f.hosts, "host", nil, "further host `names` that clients without a token may use for --listen; its own host, localhost and IP addresses are always allowed")
	flags.IntVar(&f.Max, "max-streams", httpapi.MaxStreams, "most open event streams, at most half of the files that the process may have open; further ones are refused with 429")
	flags.IntVar(&f.PerClient, "max-client-streams", httpapi.MaxClientStreams, "most open event streams of one address; further ones are refused with 429")
	flags.StringVar(&f.A2AAgent, "a2a-agent", os.Getenv("MOOREBUS_A2A_AGENT"),
		"stored `agent` of the default namespace whose A2A card is public at /.well-known/agent-card.json (MOOREBUS_A2A_AGENT, else, without a token, the only one)")
	cli.Positive(flags, "max-streams", "max-client-streams")
	return f
}

// Streams returns how many event streams may be open. Each is a connection, so half of the
// files that this process may have open stay for requests, the bus and the disk.
func (f *HTTPFlags) Streams(logger *slog.Logger) int {
	limit, known := cli.OpenFiles()
	most := boundStreams(f.Max, limit, known)
	if most < f.Max {
		logger.Warn("the limit of open files allows fewer event streams than --max-streams: raise it (ulimit -n, LimitNOFILE)", "open_files", limit)
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

// Flags are --stall, --pool-wait, and those of features, for processes with a gateway.
type Flags struct {
	StallAfter time.Duration

	// Features checks the flags of features, once all are parsed, and returns the features as they say.
	Features func(at *feature.Place) (feature.Set, error)

	poolWait time.Duration
}

// AddFlags adds --stall, --pool-wait and those of all features and of more.
func AddFlags(flags *pflag.FlagSet, more ...feature.Feature) *Flags {
	f := &Flags{Features: append(all.Features(), more...).AddFlags(flags)}
	flags.DurationVar(&f.StallAfter, "stall", control.StallAfter,
		"time without an event after which the work of a run is delivered again, at most twice, before the run ends; must be longer than any model or tool call")
	flags.DurationVar(&f.poolWait, "pool-wait", control.PoolWait, "how long a pool may have no actor before its calls are answered with no_actor; 0: they wait until there is one")
	cli.Positive(flags, "stall")
	cli.NotNegative(flags, "pool-wait")
	return f
}

// PoolWait returns the gateway's setting, see control.Config.
func (f *Flags) PoolWait() time.Duration {
	if f.poolWait == 0 {
		return control.Unlimited
	}
	return f.poolWait
}
