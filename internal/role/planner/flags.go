package planner

import (
	"log/slog"
	"os"

	"github.com/spf13/pflag"

	"github.com/moorebus/moorebus/internal/cli"
	"github.com/moorebus/moorebus/internal/planner"
)

// AddPricesFlag adds --prices, for processes with a planner.
func AddPricesFlag(flags *pflag.FlagSet, file *string) {
	flags.StringVar(file, "prices", os.Getenv("MOOREBUS_PRICES"),
		"`file` of models' prices (YAML or JSON), for budgets in money; overrides the built-in prices (MOOREBUS_PRICES)")
}

// AddConnectionsFlag adds --connections, for processes that call models.
func AddConnectionsFlag(flags *pflag.FlagSet, n *int) {
	flags.IntVar(n, "connections", 0, "most connections to one model server; further calls wait for one; 0: no limit")
	cli.NotNegative(flags, "connections")
}

// otherFiles is a generous number of files that a role has open in addition to its calls.
const otherFiles = 64

// WarnOpenFiles logs a warning if a planner may have more calls in flight than this
// process may have open connections. A concurrency of 0 is the planner's default.
func WarnOpenFiles(concurrency, connections int, logger *slog.Logger) {
	limit, known := cli.OpenFiles()
	if concurrency == 0 {
		concurrency = planner.Concurrency
	}
	if !known || connections > 0 || uint64(concurrency)+otherFiles <= limit {
		return
	}
	logger.Warn("model calls may need more open files than this process may have, and then fail: "+
		"raise the limit (ulimit -n, LimitNOFILE), or limit the connections with --connections",
		"concurrency", concurrency, "open_files", limit)
}
