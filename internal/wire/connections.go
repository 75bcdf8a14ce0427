package wire

import (
	"log/slog"
	"net/http"

	"github.com/moorebus/moorebus/internal/cli"
	"github.com/moorebus/moorebus/internal/planner"
	"github.com/spf13/pflag"
)

// AddConnectionsFlag adds --connections, for processes that call models.
func AddConnectionsFlag(flags *pflag.FlagSet, n *int) {
	flags.IntVar(n, "connections", 0, "most connections to one model server, for which further calls wait; 0: no limit")
	cli.NotNegative(flags, "connections")
}

// ModelClient returns the HTTP client of a process that has many model calls in
// flight. It opens at most the given number of connections to one server (0: no
// bound) and keeps them open for later calls. Most providers' servers speak HTTP/2
// and take about a hundred calls on each connection; servers that speak HTTP/1.1,
// and all without TLS, take one.
func ModelClient(connections int) *http.Client {
	transport := &http.Transport{Proxy: http.ProxyFromEnvironment}
	if standard, ok := http.DefaultTransport.(*http.Transport); ok {
		transport = standard.Clone()
	}
	transport.MaxIdleConns = 0 // only the bound of each server
	transport.MaxIdleConnsPerHost = maxIdle
	transport.MaxConnsPerHost = connections
	return &http.Client{Transport: transport}
}

const (
	// maxIdle is more than a process can have open. The standard transport closes
	// idle connections after 90 s.
	maxIdle = 1 << 20
	// otherFiles is a generous number of files that a role has open beside its calls.
	otherFiles = 64
)

// WarnOpenFiles logs a warning if a planner may have more calls in flight than this
// process may have open connections. A concurrency of 0 is the planner's default.
func WarnOpenFiles(concurrency, connections int, logger *slog.Logger) {
	limit, known := OpenFiles()
	if concurrency == 0 {
		concurrency = planner.Concurrency
	}
	if !known || connections > 0 || uint64(concurrency)+otherFiles <= limit {
		return
	}
	logger.Warn("model calls may need more open files than this process may have, and then fail: "+
		"raise the limit (ulimit -n, LimitNOFILE), or bound the connections with --connections",
		"concurrency", concurrency, "open_files", limit)
}
