package roles

import (
	"context"
	"slices"

	"github.com/moorebus/moorebus/internal/actor"
	"github.com/moorebus/moorebus/internal/compose"
	"github.com/moorebus/moorebus/internal/subagent"
	"github.com/moorebus/moorebus/internal/toolset"
	"github.com/moorebus/moorebus/internal/worker"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/llm/scripted"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Actor returns the command of the role actor.
func Actor() *cobra.Command {
	var file string
	var pools, redact []string
	var services bool
	var registry *toolset.Registry
	var secrets []string
	var agents []subagent.Tool
	return compose.RoleCommand("actor", "Run tools: the states Acting and ParallelActing",
		`Actor consumes the tool calls of the pools that it serves, runs them, and appends
each call's result. Without --tools it has the builtins ask_human, calculator,
current_time and those of memory. A tool file may name MCP servers (the key mcp) and
NATS services (entries {service: NAME}), whose tools come and go with them. --services
adds those of every NATS service. Tools that are agents (the keys agent and handoff)
belong to the pool agents: a call starts a run, whose answer is the call's result. A
call that needs approval runs only if the log holds the approval.`,
		func(flags *pflag.FlagSet) {
			flags.StringVar(&file, "tools", "", "`file` of tools (YAML or JSON); an agent may stand in it too")
			flags.BoolVar(&services, "services", false, "also serve the tools of every NATS service: endpoints whose metadata has moorebus.tool")
			flags.StringSliceVar(&pools, "pool", nil, "pool of tools to serve, may be repeated; default: those of all its tools")
			flags.StringArrayVar(&redact, "redact", nil, "regular expression whose matches are removed from results, may be repeated")
		},
		func() (err error) {
			if registry, secrets, err = compose.ActorTools(file, pools, services); err != nil {
				return compose.BadConfig(err)
			}
			agents, err = compose.ActorSubagents(file, pools)
			return compose.BadConfig(err)
		},
		func(ctx context.Context, r compose.Role) error {
			compose.Connect(registry, r.Bus.Conn())
			defer registry.Start(ctx, r.Logger)()
			compose.AwaitTools(ctx, registry, r.Logger)
			var roles, checks []func(context.Context) error
			if own := slices.DeleteFunc(slices.Clone(pools), isAgents); len(own) > 0 || len(pools) == 0 {
				a, err := r.Actor(actor.Config{Tools: registry, Pools: own, Results: actor.Results{Secrets: secrets, Patterns: redact}})
				if err != nil {
					return err
				}
				roles, checks = append(roles, a.Run), append(checks, a.Ready)
			}
			if len(agents) > 0 {
				s, err := r.Subagents(subagent.Config{Tools: agents, CheckScript: scripted.CheckScript})
				if err != nil {
					return err
				}
				roles, checks = append(roles, s.Run), append(checks, s.Ready)
			}
			r.Ready(checks...)
			return worker.RunAll(ctx, roles...)
		})
}

func isAgents(pool string) bool { return pool == events.AgentsPool }
