// Package planner is the command of the role planner. Of the adapters it links those of models.
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
			AddPricesFlag(flags, &pricesFile)
			AddConnectionsFlag(flags, &connections)
			flags.BoolVar(&noStream, "no-stream", false, "ask models for whole replies and publish no chunks")
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
