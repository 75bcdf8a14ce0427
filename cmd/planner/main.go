// Command planner is the role that calls models. It is the only process that
// needs the keys of model providers.
package main

import (
	"context"
	"os"

	"github.com/moorebus/moorebus/internal/approval"
	"github.com/moorebus/moorebus/internal/cli"
	"github.com/moorebus/moorebus/internal/planner"
	"github.com/moorebus/moorebus/internal/schema"
	"github.com/moorebus/moorebus/internal/textprotocol"
	"github.com/moorebus/moorebus/internal/wire"
	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

func main() { cli.Main(command()) }

func command() *cobra.Command {
	var file, pricesFile string
	var prices llm.Prices
	var noStream bool
	var connections int
	var providers map[string]llm.Caller
	return wire.RoleCommand("planner", "Call models: the states Planning and Reflecting",
		`Planner consumes the events that enter Planning and Reflecting, asks the agent's
model provider, and appends what its reply comes to.

Providers: scripted is always there; openai if OPENAI_API_KEY or OPENAI_BASE_URL
is set (OPENAI_MODEL is asked where an agent names no model); anthropic if
ANTHROPIC_API_KEY or ANTHROPIC_BASE_URL is (ANTHROPIC_MODEL); further ones by
--providers FILE. A provider's name means the same in all planners of a bus: one
whose provider has another address or default model than that of a planner which is
running ends with exit code 78. What models cost, for budgets in money, stands in --prices FILE.

--concurrency calls of models are in flight at once (default 256). Each has a
connection of its own where the model's server speaks HTTP/1.1: for thousands,
raise the limit of open files (ulimit -n) of this process and of that server, or
bound the sockets with --connections.`,
		func(flags *pflag.FlagSet) {
			flags.StringVar(&file, "providers", "", "`file` of model providers (YAML or JSON)")
			wire.AddPricesFlag(flags, &pricesFile)
			wire.AddConnectionsFlag(flags, &connections)
			flags.BoolVar(&noStream, "no-stream", false, "ask models for whole replies and publish no chunks")
		},
		func() (err error) {
			if err := wire.CheckConnections(connections); err != nil {
				return err
			}
			if providers, err = wire.ProvidersOver(wire.ModelClient(connections), file, os.Getenv); err != nil {
				return wire.BadConfig(err)
			}
			prices, err = wire.Prices(pricesFile)
			return wire.BadConfig(err)
		},
		func(ctx context.Context, r wire.Role) error {
			wire.WarnOpenFiles(r.Concurrency, connections, r.Logger)
			p, err := planner.New(planner.Config{
				Instance: r.Instance, Store: r.Store, Queue: r.Bus, Feed: r.Bus, Directory: r.Bus, Providers: providers,
				Text: textprotocol.Wrap, Validator: schema.New(schema.Options{}), Approval: approval.New(), Prices: prices,
				Estimators: wire.Estimators(), NoStream: noStream,
				Concurrency: r.Concurrency, Drain: r.Drain, Logger: r.Logger,
			})
			if err != nil {
				return err
			}
			return p.Run(ctx)
		})
}
