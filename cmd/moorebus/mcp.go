package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"

	"github.com/spf13/cobra"

	"github.com/moorebus/moorebus/internal/cli"
	"github.com/moorebus/moorebus/internal/console"
	"github.com/moorebus/moorebus/internal/host"
	"github.com/moorebus/moorebus/internal/mcpserve"
	"github.com/moorebus/moorebus/internal/session"
	"github.com/moorebus/moorebus/internal/terminal"
	"github.com/moorebus/moorebus/internal/wire"
)

func mcpCommand() *cobra.Command {
	var listen string
	var names []string
	cmd := &cobra.Command{
		Use:   "mcp",
		Short: "Offer agents as tools to programs that speak MCP",
		Long: `Mcp is an MCP server whose tools are agents. Each tool has one argument, the task, and
returns the answer. Its description is that of the agent's definition. A call starts a
run and waits for its end. A cancelled call cancels its run. A client that asks for
progress is told every transition.

It speaks over stdin and stdout, or with --listen over streamable HTTP at /mcp, where
MOOREBUS_TOKEN is the bearer token that clients must send. It may be empty on loopback
only, unless --insecure-no-auth says otherwise.

The agents are those stored on the bus, which needs workers (moorebus dev, or the
roles). With --agent FILE it is that agent only, on an embedded server in this
process.`,
		Example: `  moorebus mcp --agent examples/quickstart.yaml
  NATS_URL=nats://localhost moorebus mcp --agents researcher,writer
  claude mcp add moorebus -- moorebus mcp`,
		Args: cobra.NoArgs,
	}
	var local *localFlags
	bus := cli.AddDataFlags(cmd.Flags(), os.Getenv)
	bus.Local = func() bool { return local.agentFile != "" }
	local = addLocalFlagsBeside(cmd, bus)
	cmd.Flags().StringSliceVar(&names, "agents", nil, "names of the stored agents to offer, with commas (default all)")
	cmd.Flags().StringVar(&listen, "listen", "", "`address` to serve streamable HTTP on, instead of stdin and stdout")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		var listener net.Listener
		if listen != "" {
			tcp, err := cli.Listen(cmd.Flags(), "listen", listen, wire.TokenVariable, os.Getenv)
			if err != nil {
				return err
			}
			defer func() { _ = tcp.Close() }()
			listener = tcp
		}
		if local.agentFile != "" {
			if len(names) > 0 || cmd.Flags().Changed("nats") {
				return cli.Usage("--agent runs that agent on its own server: leave out --agents and --nats")
			}
			if local.agentFile == wire.Stdin && listener == nil {
				return cli.Usage("--agent -: the MCP client uses stdin; give the agent as a file")
			}
			return mcpLocal(cmd.Context(), local, listener)
		}
		remote := &clientFlags{bus: bus, log: local.log, output: string(console.Text), formats: []console.Format{console.Text}}
		return remote.use(cmd, reads, func(ctx context.Context, c *client) error {
			if c.offline() {
				return errors.New("no process runs agents there: start `moorebus dev`, name a bus with NATS_URL, or give --agent FILE")
			}
			return serveMCP(ctx, listener, mcpserve.Options{
				Log: c.Bus, Store: c.store, Control: c.control, Namespace: c.namespace, Names: names,
			})
		})
	}
	return cmd
}

// mcpLocal offers the agent of a file, which this process runs.
func mcpLocal(ctx context.Context, local *localFlags, listener net.Listener) error {
	docs, err := local.documents()
	if err != nil {
		return err
	}
	if err := wire.CheckProvider(*docs.Agent, local.providers, os.Getenv); err != nil {
		return err
	}
	return local.host(ctx, docs, nil, func(ctx context.Context, h *host.Host, bus session.Bus) error {
		if err := local.awaitTools(ctx, h); err != nil {
			return err
		}
		return serveMCP(ctx, listener, mcpserve.Options{
			Log: bus, Store: h.Store(), Control: h.Gateway(), Namespace: local.namespace, Agent: docs.Agent,
		})
	})
}

// serveMCP serves on the listener, or on stdin and stdout without one.
func serveMCP(ctx context.Context, listener net.Listener, o mcpserve.Options) error {
	s, err := mcpserve.New(ctx, o)
	if err != nil {
		return err
	}
	if listener == nil {
		return s.Serve(ctx, mcpserve.Lines(os.Stdin, terminal.Stdout))
	}
	_, _ = fmt.Fprintf(terminal.Stderr, "serving MCP at http://%s%s\n", listener.Addr(), mcpserve.Path)
	return s.ServeHTTP(ctx, listener, os.Getenv(wire.TokenVariable))
}
