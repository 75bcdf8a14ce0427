// Command actor is the role that runs tools. It is the only process that needs
// the tools' credentials.
package main

import (
	"context"
	"errors"
	"slices"

	"github.com/moorebus/moorebus/internal/actor"
	"github.com/moorebus/moorebus/internal/cli"
	"github.com/moorebus/moorebus/internal/subagent"
	"github.com/moorebus/moorebus/internal/wire"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/tool"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

func main() { cli.Main(command()) }

func command() *cobra.Command {
	var file string
	var pools, redact []string
	var registry *tool.Registry
	var secrets []string
	var agents []subagent.Tool
	return wire.RoleCommand("actor", "Run tools: the states Acting and ParallelActing",
		`Actor consumes the tool calls of the pools that it serves, runs them, and appends
each call's result. Without --tools it has the builtins ask_human, calculator,
current_time and those of memory. A tool file may name MCP servers too (the key
mcp), whose tools come and go with them. Tools that are agents (the keys agent and
handoff) belong to the pool agents: a call starts a run, whose answer is the call's
result. A call that needs approval runs only if the log holds the approval.`,
		func(flags *pflag.FlagSet) {
			flags.StringVar(&file, "tools", "", "`file` of tools (YAML or JSON); an agent may stand in it too")
			flags.StringSliceVar(&pools, "pool", nil, "pool of tools to serve, may be repeated; default: those of all its tools")
			flags.StringArrayVar(&redact, "redact", nil, "regular expression whose matches are removed from results, may be repeated")
		},
		func() (err error) {
			if registry, secrets, err = wire.ActorTools(file, pools); err != nil {
				return wire.BadConfig(err)
			}
			agents, err = wire.ActorSubagents(file, pools)
			return wire.BadConfig(err)
		},
		func(ctx context.Context, r wire.Role) error {
			defer registry.Start(ctx, r.Logger)()
			wire.Settle(ctx, registry, r.Logger)
			var roles []runner
			if own := slices.DeleteFunc(slices.Clone(pools), isAgents); len(own) > 0 || len(pools) == 0 {
				a, err := actor.New(actor.Config{
					Instance: r.Instance, Store: r.Store, Queue: r.Bus, Feed: r.Bus, Directory: r.Bus, Blobs: r.Bus, Storage: r.Bus,
					Tools: registry, Pools: own, Results: actor.Results{Secrets: secrets, Patterns: redact},
					Concurrency: r.Concurrency, Drain: r.Drain, Logger: r.Logger,
				})
				if err != nil {
					return err
				}
				roles = append(roles, a)
			}
			if len(agents) > 0 {
				s, err := wire.NewSubagents(r, agents)
				if err != nil {
					return err
				}
				roles = append(roles, s)
			}
			return runAll(ctx, roles)
		})
}

func isAgents(pool string) bool { return pool == events.AgentsPool }

type runner interface {
	Run(ctx context.Context) error
}

// runAll runs roles until ctx ends or one of them fails, and returns when all have
// ended.
func runAll(ctx context.Context, roles []runner) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	errs := make(chan error, len(roles))
	for _, r := range roles {
		go func() {
			err := r.Run(ctx)
			if err != nil {
				stop()
			}
			errs <- err
		}()
	}
	var all error
	for range roles {
		all = errors.Join(all, <-errs)
	}
	return all
}
