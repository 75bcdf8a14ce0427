package roles

import (
	"context"
	"os"

	"github.com/moorebus/moorebus/internal/compose"
	"github.com/moorebus/moorebus/internal/planner"
	"github.com/moorebus/moorebus/internal/providers"
	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Planner returns the command of the role planner.
func Planner() *cobra.Command {
	var file, pricesFile string
	var prices llm.Prices
	var noStream bool
	var connections int
	var callers map[string]llm.Caller
	return compose.RoleCommand("planner", "Call models: the states Planning and Reflecting",
		`Planner consumes the events that enter Planning and Reflecting, asks the agent's
model provider, and appends its reply as an event.

The provider scripted is always there. The others need one of two variables; a
third one names the model for agents that name none:
`+providers.Help()+`

--providers FILE adds providers. A name means the same in all planners of a bus: a
planner whose provider has another address or default model than that of a running
planner ends with exit code 78. --prices FILE says what models cost, for budgets in
money.

--concurrency model calls are in flight at once (default 256). Each needs a connection
of its own if the model's server speaks HTTP/1.1. For thousands, raise the limit of
open files (ulimit -n) of this process and of that server, or bound the sockets with
--connections.`,
		func(flags *pflag.FlagSet) {
			flags.StringVar(&file, "providers", "", "`file` of model providers (YAML or JSON)")
			compose.AddPricesFlag(flags, &pricesFile)
			compose.AddConnectionsFlag(flags, &connections)
			flags.BoolVar(&noStream, "no-stream", false, "ask models for whole replies and publish no chunks")
		},
		func() (err error) {
			if callers, err = compose.ProvidersOver(compose.ModelClient(connections), file, os.Getenv); err != nil {
				return compose.BadConfig(err)
			}
			prices, err = compose.Prices(pricesFile)
			return compose.BadConfig(err)
		},
		func(ctx context.Context, r compose.Role) error {
			compose.WarnOpenFiles(r.Concurrency, connections, r.Logger)
			p, err := r.Planner(planner.Config{Providers: callers, Prices: prices, NoStream: noStream})
			if err != nil {
				return err
			}
			r.Ready(p.Ready)
			return p.Run(ctx)
		})
}
