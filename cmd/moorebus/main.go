// Command moorebus runs agents: all roles in one process with an embedded
// server, for the first minute and for development, and the operator's tools for
// any bus.
package main

import (
	"os"

	"github.com/moorebus/moorebus/internal/cli"
	"github.com/moorebus/moorebus/internal/feature"
	"github.com/moorebus/moorebus/internal/feature/all"
	"github.com/moorebus/moorebus/internal/feature/backup"
	"github.com/moorebus/moorebus/internal/feature/retention"
	"github.com/moorebus/moorebus/internal/replaycmd"
	"github.com/moorebus/moorebus/internal/role/actor"
	gatewayrole "github.com/moorebus/moorebus/internal/role/gateway"
	"github.com/moorebus/moorebus/internal/role/observer"
	"github.com/moorebus/moorebus/internal/role/planner"
	"github.com/moorebus/moorebus/internal/role/telemetry"
	"github.com/spf13/cobra"
)

func main() { cli.Main(command()) }

func command() *cobra.Command {
	root := &cobra.Command{
		Use:   "moorebus",
		Short: "Run LLM agents as event logs on NATS JetStream",
		Long: `Moorebus runs LLM agents as event logs on NATS JetStream. Every transition of an
agent is one event on a stream. Memory, retries, replay and the live feed are derived
from that log.

run and dev start their own server and keep its data in $XDG_DATA_HOME/moorebus (--data,
MOOREBUS_DATA). The other commands use the bus of NATS_URL, NATS_CONTEXT or --nats, else
the process that serves the data directory, else the directory, else the bus of the
context selected in the nats CLI. The commands on runs also work through a gateway
(--url, MOOREBUS_URL), with its token (MOOREBUS_TOKEN) and without credentials of the
bus. planner, actor, observer, gateway and replay are also separate programs.`,
	}
	root.AddCommand(
		runCommand(), devCommand(), serveCommand(), mcpCommand(),
		tapCommand(), runsCommand(), showCommand(), traceCommand(), watchCommand(),
		cancelCommand(), pauseCommand(), resumeCommand(), sendCommand(),
		approveCommand(), rejectCommand(), answerCommand(), forkCommand(),
		agentsCommand(), toolsCommand(), tableCommand(), schemaCommand(),
		planCommand(),
		deadCommand(), initCommand(), certsCommand(), doctorCommand(), upgradeCommand(),
		planner.Command(), actor.Command(), observer.Command(), gatewayrole.Command(), replaycmd.New(os.Getenv),
		telemetry.Command(),
	)
	root.AddCommand(append(all.Features(), commandFeatures()...).Commands(openFeature)...)
	for name, instead := range map[string]string{
		"retry": "`moorebus dead retry RUN` runs a dead run again from before its failure, and `moorebus fork RUN --at N` any run from one of its events",
		"costs": "`moorebus show RUN --usage` has the costs of a run, and a gateway's console and GET /v1/costs those of all runs",
	} {
		root.AddCommand(pointer(name, instead))
	}
	return root
}

// commandFeatures are the features that only this command has.
func commandFeatures() feature.Set { return feature.Set{backup.Feature(), retention.Feature()} }

// pointer is a command that people look for and that has another name.
func pointer(name, instead string) *cobra.Command {
	return &cobra.Command{
		Use: name, Hidden: true, DisableFlagParsing: true,
		RunE: func(*cobra.Command, []string) error { return cli.Usage("there is no command %s: %s", name, instead) },
	}
}
