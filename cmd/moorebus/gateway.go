package main

import (
	"context"
	"errors"
	"fmt"
	"iter"

	"github.com/spf13/cobra"

	"github.com/moorebus/moorebus/internal/agentfile"
	"github.com/moorebus/moorebus/internal/cli"
	"github.com/moorebus/moorebus/internal/compare"
	"github.com/moorebus/moorebus/internal/control"
	"github.com/moorebus/moorebus/internal/control/dead"
	"github.com/moorebus/moorebus/internal/control/forking"
	"github.com/moorebus/moorebus/internal/control/list"
	"github.com/moorebus/moorebus/internal/control/record"
	"github.com/moorebus/moorebus/internal/control/runs"
	"github.com/moorebus/moorebus/internal/control/schedules"
	"github.com/moorebus/moorebus/internal/control/webhooks"
	"github.com/moorebus/moorebus/internal/datadir"
	"github.com/moorebus/moorebus/internal/gatewayclient"
	"github.com/moorebus/moorebus/internal/refusal"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

// gateway is what commands ask and tell of runs. On a bus it is a [control.Controller] in this
// process, else a [gatewayclient.Client].
type gateway interface {
	Find(ctx context.Context, ns, prefix string, limit int) ([]list.Run, error)
	Runs(ctx context.Context, ns string, q list.Query) (list.Page, error)
	State(ctx context.Context, ns, id string, n uint64) (runs.RunState, error)
	Events(ctx context.Context, ns, id string, from uint64) (iter.Seq2[journal.Record, error], error)
	Request(ctx context.Context, ns, id string, at uint64) (control.ModelRequest, error)
	Compare(ctx context.Context, ns, a, b string) (*compare.Comparison, error)
	Tree(ctx context.Context, ns, id string) (list.Tree, error)
	Usage(ctx context.Context, ns, id string) (*record.Usage, error)

	Dead(ctx context.Context, ns string, o dead.Options) ([]dead.Dead, error)
	DropDead(ctx context.Context, ns string, names []string) error
	Retry(ctx context.Context, ns, id, key string) (dead.Retried, error)

	PutWebhook(ctx context.Context, ns, name string, c webhooks.Change) (webhooks.Info, error)
	Webhook(ctx context.Context, ns, name string) (webhooks.Info, error)
	Webhooks(ctx context.Context, ns string) ([]webhooks.Info, error)
	DeleteWebhook(ctx context.Context, ns, name string) error
	TestWebhook(ctx context.Context, ns, name string) (webhooks.Tested, error)
	WebhookDead(ctx context.Context, ns, name string) ([]webhooks.Undelivered, error)
	RetryWebhook(ctx context.Context, ns, name string, ids []string) (int, error)
	DropWebhook(ctx context.Context, ns, name string, ids []string) (int, error)

	Start(ctx context.Context, ns string, req control.StartRequest) (control.StartResult, error)
	Cancel(ctx context.Context, ns, id string, by events.By) (runs.Result, error)
	Pause(ctx context.Context, ns, id string, by events.By) (runs.Result, error)
	Resume(ctx context.Context, ns, id string, by events.By) (runs.Result, error)
	Release(ctx context.Context, ns, id string, by events.By) (runs.Result, error)
	Decide(ctx context.Context, ns, id string, d events.Decision) (runs.Result, error)
	Inputs(ctx context.Context, ns, id string, inputs []control.Input) (control.InputsResult, error)
	Fork(ctx context.Context, ns, id string, req forking.Request) (forking.Result, error)

	Tools(ctx context.Context) ([]events.ToolSpec, error)
	StoredAgents(ctx context.Context, ns string) ([]control.AgentInfo, error)
	Agent(ctx context.Context, ns, name string) ([]byte, error)
	PutAgent(ctx context.Context, ns, name string, data []byte, f agentfile.Format) (control.AgentInfo, error)
	Storages(ctx context.Context, ns string) ([]string, error)
	Stored(ctx context.Context, ns, agent string, q journal.StorageQuery) (journal.Found, error)
	StoredEntry(ctx context.Context, ns, agent string, tags []string) (events.Entry, error)
	SaveStored(ctx context.Context, ns, agent string, e events.Entry) (events.Entry, error)
	DeleteStored(ctx context.Context, ns, agent string, tags []string) error
	Blob(ctx context.Context, ref events.Ref) ([]byte, error)

	PutSchedule(ctx context.Context, ns, name string, d schedules.Definition) (schedules.Schedule, error)
	Schedule(ctx context.Context, ns, name string, n int) (schedules.Schedule, error)
	Schedules(ctx context.Context, ns string) ([]schedules.Schedule, error)
	PauseSchedule(ctx context.Context, ns, name string) (schedules.Schedule, error)
	ResumeSchedule(ctx context.Context, ns, name string) (schedules.Schedule, error)
	RunSchedule(ctx context.Context, ns, name string) (schedules.Firing, error)
	RemoveSchedule(ctx context.Context, ns, name string) error
}

// logAndFeed is the reading half of the log, and its live side.
type logAndFeed interface {
	journal.Log
	journal.Feed
}

var (
	_ gateway    = (*control.Controller)(nil)
	_ gateway    = (*gatewayclient.Client)(nil)
	_ logAndFeed = (*gatewayclient.Client)(nil)
)

// useGateway is use over HTTP.
func (f *clientFlags) useGateway(cmd *cobra.Command, c *client, o cli.Gateway, from string, fn func(context.Context, *client) error) error {
	g, err := openGateway(cmd.Context(), o, from)
	if err != nil {
		return err
	}
	defer g.Close()
	c.Conn, c.control, c.log, c.api = &datadir.Conn{Conn: cli.Conn{Where: o.URL, From: from}}, g, g, g.API
	c.api.Namespace = c.namespace
	return badFlag(fn(cmd.Context(), c))
}

// openGateway connects to a gateway. Settings that cannot be, and a wrong token, end the process
// with [cli.ExitConfig].
func openGateway(ctx context.Context, o cli.Gateway, from string) (*gatewayclient.Client, error) {
	c, err := gatewayclient.New(gatewayclient.Options(o))
	if err != nil {
		return nil, cli.NotConfigured("%s: %w", from, err)
	}
	err = c.Connect(ctx)
	switch {
	case refusal.Is(err, refusal.CodeUnauthorized):
		return nil, cli.NotConfigured("the gateway %s does not accept the token: set %s or --token", o.URL, cli.TokenVariable)
	case errors.Is(err, gatewayclient.ErrCertificateWanted):
		return nil, cli.NotConfigured("%s: %w: give --cert and --cert-key, or set %s and %s", o.URL, err, "MOOREBUS_CERT", "MOOREBUS_CERT_KEY")
	case err != nil:
		return nil, fmt.Errorf("the gateway %s, by %s: %w", o.URL, from, err)
	}
	return c, nil
}
