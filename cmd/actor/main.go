// Command actor is the role that runs tools. It is the only process that needs
// the tools' credentials.
package main

import (
	"context"

	"github.com/moorebus/moorebus/internal/cli"
	"github.com/moorebus/moorebus/internal/wire"
	"github.com/moorebus/moorebus/pkg/actor"
	"github.com/moorebus/moorebus/pkg/tool"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

func main() {
	cli.Main(func(ctx context.Context) error { return cli.Execute(ctx, command()) })
}

func command() *cobra.Command {
	var file string
	var pools, redact []string
	var registry *tool.Registry
	var secrets []string
	return wire.RoleCommand("actor", "Run tools: the states Acting and ParallelActing",
		`Actor consumes the tool calls of the pools that it serves, runs them, and appends
each call's result. Without --tools it has the builtins ask_human, calculator,
current_time and those of memory. A call that the run's approval policy wants approved is run only
if the log holds the approval.`,
		func(flags *pflag.FlagSet) {
			flags.StringVar(&file, "tools", "", "`file` of tools (YAML or JSON); an agent may stand in it too")
			flags.StringSliceVar(&pools, "pool", nil, "pool of tools to serve, may be repeated; default: those of all its tools")
			flags.StringArrayVar(&redact, "redact", nil, "regular expression whose matches are taken out of results, may be repeated")
		},
		func() (err error) {
			registry, secrets, err = wire.ActorTools(file, pools)
			return wire.BadConfig(err)
		},
		func(ctx context.Context, r wire.Role) error {
			defer registry.Start(ctx, r.Logger)()
			a, err := actor.New(actor.Config{
				Instance: r.Instance, Store: r.Store, Queue: r.Bus, Feed: r.Bus, Directory: r.Bus, Blobs: r.Bus, Storage: r.Bus,
				Tools: registry, Pools: pools, Results: actor.Results{Secrets: secrets, Patterns: redact},
				Concurrency: r.Concurrency, Drain: r.Drain, Logger: r.Logger,
			})
			if err != nil {
				return err
			}
			return a.Run(ctx)
		})
}
