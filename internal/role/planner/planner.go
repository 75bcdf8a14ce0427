// Package planner is the command of the role planner. It links only the adapters of models.
package planner

import (
	"context"
	"os"

	"github.com/moorebus/moorebus/internal/approval"
	"github.com/moorebus/moorebus/internal/cli"
	"github.com/moorebus/moorebus/internal/compose/providerfile"
	"github.com/moorebus/moorebus/internal/modelrequests"
	"github.com/moorebus/moorebus/internal/planner"
	"github.com/moorebus/moorebus/internal/providers"
	"github.com/moorebus/moorebus/internal/role"
	"github.com/moorebus/moorebus/internal/schema"
	"github.com/moorebus/moorebus/internal/textprotocol"
	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Command returns the command of the role planner.
func Command() *cobra.Command {
	var file, pricesFile string
	var prices llm.Prices
	var noStream bool
	var connections int
	var callers map[string]llm.Caller
	return role.Command("planner", "Call models: the states Planning and Reflecting",
		`Planner consumes the events that enter Planning and Reflecting, asks the agent's
model provider, and appends its reply as an event.

The provider scripted is always available. These need one of two variables; a third
sets the model of agents that name none:
`+providers.Help()+`

--providers FILE adds providers. A name means the same in all planners of a bus: a
planner exits with 78 if a running planner has another address or default model for one
of its providers. --prices FILE sets the prices of models, for budgets in money.

--concurrency limits how many model calls are in flight at once (default 256). Each
needs its own connection if the model's server speaks HTTP/1.1. For thousands, raise the
limit of open files (ulimit -n) of this process and of that server, or limit the
connections with --connections.`,
		func(flags *pflag.FlagSet) {
			flags.StringVar(&file, "providers", "", "`file` of model providers (YAML or JSON)")
			AddPricesFlag(flags, &pricesFile)
			AddConnectionsFlag(flags, &connections)
			flags.BoolVar(&noStream, "no-stream", false, "request complete replies from models, and publish no chunks")
		},
		func() (err error) {
			if callers, err = providerfile.ProvidersOver(providerfile.ModelClient(connections), file, os.Getenv); err != nil {
				return cli.BadConfig(err)
			}
			prices, err = providerfile.Prices(pricesFile)
			return cli.BadConfig(err)
		},
		func(ctx context.Context, p role.Process) error {
			WarnOpenFiles(p.Concurrency, connections, p.Logger)
			made, err := planner.New(planner.Config{
				Base: p.Base, Providers: callers, Prices: prices, NoStream: noStream, Text: textprotocol.Wrap, Chat: modelrequests.Chat,
				Estimators: p.Estimators, Validator: schema.New(schema.Options{}), Approval: approval.New(),
			}.On(p.Bus))
			if err != nil {
				return err
			}
			p.Ready(made.Ready)
			return made.Run(ctx)
		})
}
