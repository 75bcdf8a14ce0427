package main

import (
	"context"
	"fmt"
	"os"

	"github.com/moorebus/moorebus/internal/cli"
	"github.com/moorebus/moorebus/internal/host"
	"github.com/moorebus/moorebus/internal/session"
	"github.com/moorebus/moorebus/internal/wire"
	"github.com/spf13/cobra"
)

func devCommand() *cobra.Command {
	var listen string
	cmd := &cobra.Command{
		Use:   "dev",
		Short: "Run a server, every role and the web page",
		Long: `Dev starts the embedded server, every role and the HTTP API in this process, and
keeps them up until Ctrl-C. --agent stores the agents of the file under their names.
--tools gives it tools. --nats-listen lets other processes (further planners, actors,
taps) join the bus; they must present NATS_TOKEN if it is set here. Beyond loopback
--listen needs MOOREBUS_TOKEN and --nats-listen NATS_TOKEN, unless --insecure-no-auth
says otherwise. Neither is encrypted: on a network use a nats-server with TLS and a
user for each role.

With --keep-ended or --keep-bytes it archives and purges ended runs once an hour, as
moorebus purge does.`,
		Example: `  moorebus dev --agent examples/quickstart.yaml
  curl -s localhost:8080/v1/runs -d '{"agent": "quickstart", "task": "Count."}'`,
		Args: cobra.NoArgs,
	}
	local := addLocalFlags(cmd)
	local.keep.add(cmd.Flags())
	local.clients = wire.AddHTTPFlags(cmd.Flags())
	cmd.Flags().StringVar(&listen, "listen", wire.ListenAddress(os.Getenv), "`address` to serve HTTP on (MOOREBUS_LISTEN)")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		docs, err := local.documents()
		if err == nil {
			err = local.clients.Check()
		}
		if err != nil {
			return err
		}
		listener, err := cli.Listen(cmd.Flags(), "listen", listen, wire.TokenVariable, os.Getenv)
		if err != nil {
			return err
		}
		local.hosts = local.clients.Hosts(listen)
		defer func() { _ = listener.Close() }()
		return local.host(cmd.Context(), docs, listener, func(ctx context.Context, h *host.Host, _ session.Bus) error {
			if local.agentFile != "" {
				if err := wire.PutAgents(ctx, h.Gateway(), local.namespace, docs); err != nil {
					return err
				}
			}
			_, _ = fmt.Fprintf(cmd.ErrOrStderr(), "moorebus is up: http://%s/ (Ctrl-C ends it; runs continue when it starts again)\n", listener.Addr())
			<-ctx.Done()
			return nil
		})
	}
	return cmd
}
