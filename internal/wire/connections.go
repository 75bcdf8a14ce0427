package wire

import (
	"log/slog"
	"net/http"

	"github.com/moorebus/moorebus/internal/cli"
	"github.com/moorebus/moorebus/internal/planner"
	"github.com/spf13/pflag"
)

// AddConnectionsFlag adds --connections, for what calls models.
func AddConnectionsFlag(flags *pflag.FlagSet, n *int) {
	flags.IntVar(n, "connections", 0, "most connections to one model server, for which further calls wait; 0: no limit")
}

// CheckConnections returns a usage error for a number that makes no sense.
func CheckConnections(n int) error {
	if n < 0 {
		return cli.Usage("--connections: must not be negative, is %d", n)
	}
	return nil
}

// ModelClient is the HTTP client of a process that has many calls of models in
// flight: at most so many connections to one server (0: no bound), which stay open
// for the calls to come. Most providers' servers speak HTTP/2 and take about a
// hundred calls on each connection; servers that speak HTTP/1.1, and all without
// TLS, take one.
func ModelClient(connections int) *http.Client {
	transport := &http.Transport{Proxy: http.ProxyFromEnvironment}
	if standard, ok := http.DefaultTransport.(*http.Transport); ok {
		transport = standard.Clone()
	}
	transport.MaxIdleConns = 0 // no bound but that of each server
	transport.MaxIdleConnsPerHost = maxIdle
	transport.MaxConnsPerHost = connections
	return &http.Client{Transport: transport}
}

const (
	// maxIdle is more than a process can have open. The idle time of the standard
	// transport, 90 s, closes what a burst left.
	maxIdle = 1 << 20
	// otherFiles is what a role has open beside its calls, and to spare.
	otherFiles = 64
)

// WarnOpenFiles says in the log if a planner may have more calls in flight than
// connections can be open in this process. 0 is the planner's own concurrency.
func WarnOpenFiles(concurrency, connections int, logger *slog.Logger) {
	limit, known := OpenFiles()
	if concurrency == 0 {
		concurrency = planner.Concurrency
	}
	if !known || connections > 0 || uint64(concurrency)+otherFiles <= limit {
		return
	}
	logger.Warn("calls of models may need more open files than this process may have, and fail then: "+
		"raise the limit (ulimit -n, LimitNOFILE), or bound the connections with --connections",
		"concurrency", concurrency, "open_files", limit)
}
