package roles

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"os"
	"time"
	_ "time/tzdata" // schedules name time zones, and a container may have none

	"github.com/moorebus/moorebus/internal/a2a"
	"github.com/moorebus/moorebus/internal/agui"
	"github.com/moorebus/moorebus/internal/cli"
	"github.com/moorebus/moorebus/internal/compose"
	"github.com/moorebus/moorebus/internal/control"
	"github.com/moorebus/moorebus/internal/control/webhooks"
	"github.com/moorebus/moorebus/internal/httpapi"
	"github.com/moorebus/moorebus/internal/httpapi/route"
	"github.com/moorebus/moorebus/internal/toolcall"
	"github.com/moorebus/moorebus/internal/worker"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/llm/scripted"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Gateway returns the command of the role gateway.
func Gateway() *cobra.Command {
	var listen, namespace string
	var waits *compose.GatewayFlags
	var clients *compose.HTTPFlags
	var writeTimeout time.Duration
	var flags *pflag.FlagSet
	var redact []string
	var listener *net.TCPListener
	var encrypt *cli.TLSFlags
	var encryption *tls.Config
	var endWaiting func() error
	var hooks webhooks.Settings
	return compose.RoleCommand("gateway", "Serve HTTP: start runs, talk to them, watch them",
		`Gateway serves the HTTP API and the console. It appends what comes from outside:
starts, messages, decisions, cancelling. It also owns the timers: approvals expire,
runs end at their deadline, and stalled work is driven again twice and then given up.
One of several gateways delivers to webhooks.
Set MOOREBUS_TOKEN to require a bearer token. Without one it listens on loopback
only, unless --insecure-no-auth says otherwise or --client-ca lets in only clients
with a certificate. Without a bus it answers 503, and /healthz 200.`,
		func(all *pflag.FlagSet) {
			flags = all
			flags.StringVar(&listen, "listen", compose.ListenAddress(os.Getenv), "`address` to serve HTTP on (MOOREBUS_LISTEN)")
			encrypt = cli.AddTLSFlags(flags, os.Getenv)
			waits = compose.AddGatewayFlags(flags)
			flags.StringVar(&namespace, "namespace", os.Getenv("MOOREBUS_NAMESPACE"), "namespace of requests that name none (MOOREBUS_NAMESPACE, else default)")
			clients = compose.AddHTTPFlags(flags)
			flags.StringArrayVar(&redact, "redact", nil, "regular expression whose matches are removed from the results of clients' tools, may be repeated")
			flags.DurationVar(&writeTimeout, "write-timeout", 30*time.Second, "how long a client may read nothing before it is disconnected")
			cli.Positive(flags, "write-timeout")
		},
		func() (err error) {
			if namespace != "" && !events.ValidToken(namespace) {
				return cli.Usage("--namespace: %q is not a name; use [a-z0-9][a-z0-9_-]{0,62}", namespace)
			}
			if listener, encryption, err = encrypt.Listen(listen, compose.TokenVariable, slog.Default()); err != nil {
				return err
			}
			if hooks, err = waits.Webhooks(listener); err != nil {
				return errors.Join(err, listener.Close())
			}
			endWaiting = httpapi.ServeWaiting(listener, encryption, slog.Default())
			return nil
		},
		func(ctx context.Context, r compose.Role) error {
			if err := endWaiting(); err != nil {
				return err
			}
			c, err := r.Controller(control.Config{
				CheckScript: scripted.CheckScript, DefaultNamespace: namespace,
				StallAfter: waits.StallAfter, PoolWait: waits.PoolWait(), Ready: r.Bus.Ready, Results: toolcall.Results{Patterns: redact},
				Webhooks: hooks,
			})
			if err != nil {
				return errors.Join(err, listener.Close())
			}
			face := agui.On(c, r.Bus, r.Logger)
			server, err := httpapi.New(httpapi.Config{
				Control: c, Feed: r.Bus, Listener: listener, TLS: encryption, Token: os.Getenv(compose.TokenVariable), Hosts: clients.Hosts(listen),
				Faces:      []route.Face{face, a2a.New(a2a.Config{Control: c, Feed: r.Bus, Agent: clients.A2AAgent, Token: os.Getenv(compose.TokenVariable) != ""})},
				MaxStreams: clients.Streams(r.Logger), MaxClientStreams: clients.PerClient, WriteTimeout: writeTimeout, Drain: r.Drain, Metrics: r.Metrics.Handler(), Logger: r.Logger,
			})
			if err != nil {
				return errors.Join(err, listener.Close())
			}
			r.Ready(c.Ready)
			r.Metrics.ReadCertificates(encrypt.Ends)
			r.Logger.Info("listening", "url", encrypt.Scheme()+"://"+listener.Addr().String()+"/")
			return worker.RunAll(ctx, c.Run, server.Run, face.Run)
		})
}
