// Package gateway is the command of the role gateway. It links the HTTP API and no tool. It rebuilds
// requests to models, so it links their adapters, and it has no keys.
package gateway

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"os"
	"time"
	_ "time/tzdata" // people name time zones, and a container may have none

	"github.com/moorebus/moorebus/internal/a2a"
	"github.com/moorebus/moorebus/internal/agui"
	"github.com/moorebus/moorebus/internal/approval"
	"github.com/moorebus/moorebus/internal/cli"
	"github.com/moorebus/moorebus/internal/control"
	"github.com/moorebus/moorebus/internal/feature"
	"github.com/moorebus/moorebus/internal/httpapi"
	"github.com/moorebus/moorebus/internal/httpapi/route"
	"github.com/moorebus/moorebus/internal/modelrequests"
	"github.com/moorebus/moorebus/internal/role"
	"github.com/moorebus/moorebus/internal/schema"
	"github.com/moorebus/moorebus/internal/script"
	"github.com/moorebus/moorebus/internal/toolcall"
	"github.com/moorebus/moorebus/internal/worker"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Command returns the command of the role gateway.
func Command() *cobra.Command {
	var listen, namespace string
	var waits *Flags
	var clients *HTTPFlags
	var writeTimeout time.Duration
	var flags *pflag.FlagSet
	var redact []string
	var listener *net.TCPListener
	var encrypt *cli.TLSFlags
	var encryption *tls.Config
	var endWaiting func() error
	var features feature.Set
	return role.Command("gateway", "Serve HTTP: start runs, talk to them, watch them",
		`Gateway serves the HTTP API and the console. It appends the requests of people and
programs: starts, messages, decisions, cancelling. It also handles the timers: approvals
expire, runs end at their deadline, and the work of a stalled run is delivered again, at
most twice, before the run ends. One of several gateways delivers to webhooks.

Set MOOREBUS_TOKEN to require a bearer token. Without a token it listens on loopback
only, except with --insecure-no-auth, or with --client-ca, which accepts only clients
with a certificate. Without a bus it answers 503, and /healthz 200.`,
		func(all *pflag.FlagSet) {
			flags = all
			flags.StringVar(&listen, "listen", ListenAddress(os.Getenv), "`address` to serve HTTP on (MOOREBUS_LISTEN)")
			encrypt = cli.AddTLSFlags(flags, os.Getenv)
			waits = AddFlags(flags)
			flags.StringVar(&namespace, "namespace", os.Getenv("MOOREBUS_NAMESPACE"), "namespace of requests that name none (MOOREBUS_NAMESPACE, else default)")
			clients = AddHTTPFlags(flags)
			flags.StringArrayVar(&redact, "redact", nil, "regular expression whose matches are removed from the results of clients' tools, may be repeated")
			flags.DurationVar(&writeTimeout, "write-timeout", 30*time.Second, "how long a client may read nothing before the gateway disconnects it")
			cli.Positive(flags, "write-timeout")
		},
		func() (err error) {
			if namespace != "" && !events.ValidToken(namespace) {
				return cli.Usage("--namespace: %q is not a name; use [a-z0-9][a-z0-9_-]{0,62}", namespace)
			}
			if listener, encryption, err = encrypt.Listen(listen, cli.TokenVariable, slog.Default()); err != nil {
				return err
			}
			if features, err = waits.Features(&feature.Place{Listener: listener}); err != nil {
				return errors.Join(err, listener.Close())
			}
			endWaiting = httpapi.ServeWaiting(listener, encryption, slog.Default())
			return nil
		},
		func(ctx context.Context, p role.Process) error {
			if err := endWaiting(); err != nil {
				return err
			}
			c, err := control.New(control.Config{
				Base: p.Base, Tombstones: p.Bus, Requests: modelrequests.On(p.Bus, p.Store, nil, p.Logger),
				Validator: schema.New(schema.Options{}), CheckApproval: approval.New().Check, CheckEstimator: p.Estimators.Check,
				CheckScript: script.Check, DefaultNamespace: namespace,
				StallAfter: waits.StallAfter, PoolWait: waits.PoolWait(), Ready: p.Bus.Ready, Results: toolcall.Results{Patterns: redact},
			}.On(p.Bus))
			if err != nil {
				return errors.Join(err, listener.Close())
			}
			parts := features.On(c)
			face := agui.On(c, p.Bus, p.Logger)
			server, err := httpapi.New(httpapi.Config{
				Control: c, Rows: parts.Rows(), Pages: features.Pages(), Feed: p.Bus, Listener: listener, TLS: encryption, Token: os.Getenv(cli.TokenVariable), Hosts: clients.Hosts(listen),
				Faces:      []route.Face{face, a2a.New(a2a.Config{Control: c, Feed: p.Bus, Agent: clients.A2AAgent, Token: os.Getenv(cli.TokenVariable) != ""})},
				MaxStreams: clients.Streams(p.Logger), MaxClientStreams: clients.PerClient, WriteTimeout: writeTimeout, Drain: p.Drain, Metrics: p.Metrics.Handler(), Logger: p.Logger,
			})
			if err != nil {
				return errors.Join(err, listener.Close())
			}
			p.Ready(c.Ready)
			p.Metrics.ReadCertificates(encrypt.Ends)
			p.Logger.Info("listening", "url", encrypt.Scheme()+"://"+listener.Addr().String()+"/")
			return worker.RunAll(ctx, c.Run, parts.Run, server.Run, face.Run)
		})
}
