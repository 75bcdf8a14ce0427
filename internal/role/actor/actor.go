// Package actor is the command of the role actor. It links only the adapters of tools.
package actor

import (
	"context"
	"slices"

	"github.com/moorebus/moorebus/internal/actor"
	"github.com/moorebus/moorebus/internal/approval"
	"github.com/moorebus/moorebus/internal/cli"
	"github.com/moorebus/moorebus/internal/compose/toolfile"
	"github.com/moorebus/moorebus/internal/observer"
	"github.com/moorebus/moorebus/internal/role"
	observerrole "github.com/moorebus/moorebus/internal/role/observer"
	"github.com/moorebus/moorebus/internal/schema"
	"github.com/moorebus/moorebus/internal/script"
	"github.com/moorebus/moorebus/internal/subagent"
	"github.com/moorebus/moorebus/internal/toolcall"
	"github.com/moorebus/moorebus/internal/toolset"
	"github.com/moorebus/moorebus/internal/worker"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Command returns the command of the role actor.
func Command() *cobra.Command {
	var file string
	var pools, redact []string
	var services, observe bool
	var every int
	var registry *toolset.Registry
	var secrets []string
	var agents []subagent.Tool
	return role.Command("actor", "Run tools: the states Acting and ParallelActing",
		`Actor consumes the tool calls of the pools that it serves, runs them, and appends
each call's result. Without --tools it offers the builtins ask_human, calculator,
current_time and the memory tools. A tool file may name MCP servers (the key mcp) and
NATS services (entries {service: NAME}): their tools are offered while they run.
--services adds the tools of every NATS service. Tools that are agents (the keys agent
and handoff) belong to the pool agents: a call starts a run, whose answer is the call's
result. A call that needs approval runs only if the log has the approval.

With --observe the process is an observer, too. It then decides itself what follows the
results of its calls, so a step takes fewer messages and less processor time. Its user
needs the permissions of both roles (init --print-permissions --observing-pools).`,
		func(flags *pflag.FlagSet) {
			flags.StringVar(&file, "tools", "", "`file` of tools (YAML or JSON); the file may also contain an agent")
			flags.BoolVar(&services, "services", false, "also serve the tools of every NATS service: endpoints whose metadata has moorebus.tool")
			flags.StringSliceVar(&pools, "pool", nil, "pool of tools to serve, may be repeated (default: the pools of all its tools)")
			flags.BoolVar(&observe, "observe", false, "also be an observer, in place of a process of its own")
			observerrole.AddSnapshotFlag(flags, &every)
			flags.StringArrayVar(&redact, "redact", nil, "regular expression whose matches are removed from results, may be repeated")
		},
		func() (err error) {
			if !observe && every != observer.DefaultSnapshotEvery {
				return cli.Usage("--snapshot-every is for --observe")
			}
			if registry, secrets, err = toolfile.ActorTools(file, pools, services); err != nil {
				return toolfile.BadConfig(err)
			}
			agents, err = toolfile.ActorSubagents(file, pools)
			return toolfile.BadConfig(err)
		},
		func(ctx context.Context, p role.Process) error {
			toolfile.Connect(registry, p.Bus.Conn())
			defer registry.Start(ctx, p.Logger)()
			toolfile.AwaitTools(ctx, registry, p.Logger)
			policies := approval.New()
			var roles, checks []func(context.Context) error
			if observe {
				o, err := observer.New(observer.Config{Base: p.Base, Estimators: p.Estimators, Snapshots: p.Bus, SnapshotEvery: every}.On(p.Bus))
				if err != nil {
					return err
				}
				p.Follow = toolcall.Follow(o.Follow)
				roles, checks = append(roles, o.Run), append(checks, o.Ready)
			}
			if own := slices.DeleteFunc(slices.Clone(pools), isAgents); len(own) > 0 || len(pools) == 0 {
				a, err := actor.New(actor.Config{
					Base: p.Base, Tools: registry, Pools: own, Results: actor.Results{Secrets: secrets, Patterns: redact}, Approval: policies,
				}.On(p.Bus))
				if err != nil {
					return err
				}
				roles, checks = append(roles, a.Run), append(checks, a.Ready)
			}
			if len(agents) > 0 {
				s, err := subagent.New(subagent.Config{
					Base: p.Base, Tombstones: p.Bus, Tools: agents, Validator: schema.New(schema.Options{}), Approval: policies,
					CheckScript: script.Check, CheckApproval: policies.Check, CheckEstimator: p.Estimators.Check,
				}.On(p.Bus))
				if err != nil {
					return err
				}
				roles, checks = append(roles, s.Run), append(checks, s.Ready)
			}
			p.Ready(checks...)
			return worker.RunAll(ctx, roles...)
		})
}

func isAgents(pool string) bool { return pool == events.AgentsPool }
