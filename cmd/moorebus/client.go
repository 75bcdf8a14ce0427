package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/moorebus/moorebus/internal/cli"
	"github.com/moorebus/moorebus/internal/control"
	"github.com/moorebus/moorebus/internal/datadir"
	"github.com/moorebus/moorebus/internal/feature"
	"github.com/moorebus/moorebus/internal/feature/all"
	"github.com/moorebus/moorebus/internal/host"
	"github.com/moorebus/moorebus/internal/httpapi/requests"
	"github.com/moorebus/moorebus/internal/httpapi/route"
	"github.com/moorebus/moorebus/internal/print"
	"github.com/moorebus/moorebus/internal/refusal"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/internal/script"
	"github.com/moorebus/moorebus/internal/terminal"
	"github.com/moorebus/moorebus/internal/worker"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
	"github.com/spf13/cobra"
)

// clientFlags are the flags of commands that read or change runs: the bus, the log
// output, and -o.
type clientFlags struct {
	bus     *cli.BusFlags
	gateway *cli.GatewayFlags
	log     *cli.LogFlags
	output  string
	formats []print.Format
}

// addClientFlags adds them; the first format is the default.
func addClientFlags(cmd *cobra.Command, formats ...print.Format) *clientFlags {
	f := &clientFlags{
		bus: cli.AddDataFlags(cmd.Flags(), os.Getenv), gateway: cli.AddGatewayFlags(cmd.Flags(), os.Getenv), log: cli.AddLogFlags(cmd.Flags(), slog.LevelWarn), formats: formats,
	}
	print.AddOutputFlag(cmd, &f.output, formats...)
	return f
}

// openFeature opens what the command of a feature uses.
func openFeature(cmd *cobra.Command, formats ...print.Format) feature.Use {
	f := addClientFlags(cmd, formats...)
	return func(cmd *cobra.Command, a feature.Access, do func(ctx context.Context, c *feature.Client) error) error {
		return f.use(cmd, a, func(ctx context.Context, c *client) error { return do(ctx, &c.Client) })
	}
}

// client is an open bus with the gateway's services on it without the role, or a gateway.
type client struct {
	// Client is what commands of features have of it. On a bus its API is this process.
	feature.Client
	// Conn is the bus. Over HTTP it has none.
	*datadir.Conn
	// events returns those of a run from a number on, and refuses a run that is not there.
	events  func(ctx context.Context, ns, id string, from uint64) (iter.Seq2[journal.Record, error], error)
	machine *reducer.Machine
	// controller and store are nil over HTTP.
	controller *control.Controller
	store      *runlog.Store
}

// What a command does to a data directory, and that it needs the bus.
const (
	reads, writes, creates, onBus = feature.Reads, feature.Writes, feature.Creates, feature.OnBus
)

// use opens the bus, or the gateway that is named, calls fn and closes it.
func (f *clientFlags) use(cmd *cobra.Command, a feature.Access, fn func(ctx context.Context, c *client) error) error {
	var gateway cli.Gateway
	var from string
	var err error
	if a.Has(onBus) {
		err = f.gateway.Without(f.bus, cmd.CommandPath())
	} else {
		gateway, from, err = f.gateway.Gateway(f.bus)
	}
	if err != nil {
		return err
	}
	c, logger, err := f.client(cmd)
	switch {
	case err != nil:
		return err
	case from != "":
		return f.useGateway(cmd, c, gateway, from, fn)
	}
	return f.open(cmd, c, a, logger, fn)
}

// client returns a client that is not connected, and its logger.
func (f *clientFlags) client(cmd *cobra.Command) (*client, *slog.Logger, error) {
	format, err := print.ParseFormat(f.output, f.formats...)
	if err != nil {
		return nil, nil, err
	}
	namespace, given, err := f.bus.Namespace()
	if err != nil {
		return nil, nil, err
	}
	logger, err := f.log.Logger()
	if err != nil {
		return nil, nil, err
	}
	c := &client{machine: reducer.NewMachine(reducer.MachineOptions{})}
	c.Client = feature.Client{
		Namespace: namespace, Format: format, Out: cmd.OutOrStdout(), Color: terminal.Stdout.Color(os.Getenv), Post: c.post, Find: c.begins,
		Notef: func(format string, args ...any) {
			_, _ = fmt.Fprintln(cmd.ErrOrStderr(), cli.AsStarted(fmt.Sprintf(format, args...)))
		},
	}
	if given {
		c.Only = namespace
	}
	return c, logger, nil
}

// open opens the bus, calls fn and closes the bus.
func (f *clientFlags) open(cmd *cobra.Command, c *client, a feature.Access, logger *slog.Logger, fn func(ctx context.Context, c *client) error) error {
	options := datadir.Options{DialOptions: cli.DialOptions{Name: "moorebus/" + cmd.Name() + "/" + cli.DefaultInstance(), Logger: logger, Wait: a.Has(feature.Waits)}}
	at, err := f.bus.Place()
	if err != nil {
		return err
	}
	if a.To() == creates || a.To() == writes && !at.Missing() {
		options.Serve = &datadir.Serve{}
	}
	var conn *datadir.Conn
	open := func(ctx context.Context) (err error) {
		conn, err = datadir.Open(ctx, f.bus, options)
		return err
	}
	if a.Has(feature.Outlasts) && at.Remote && strings.Contains(at.Connect.Server(), ",") {
		err = cli.Outlast(cmd.Context(), c.Notef, open)
	} else {
		err = open(cmd.Context())
	}
	if err != nil {
		return err
	}
	defer conn.Close()
	c.Conn, c.Bus, c.Log = conn, conn.Bus, conn.Bus
	if conn.Server != nil {
		c.Unserved = conn.Where
	}
	if err := c.newControl(logger); err != nil {
		return err
	}
	return badFlag(fn(cmd.Context(), c))
}

// firstCheck is when a gateway first checks a run that a command started or forked. The
// command does not know the gateway's stall time.
const firstCheck = time.Minute

func (c *client) newControl(logger *slog.Logger) (err error) {
	c.store = runlog.New(runlog.Options{Log: c.Bus, Machine: c.machine, Snapshots: c.Bus, Logger: logger})
	process := host.NewProcess(worker.Base{Instance: cli.DefaultInstance(), Store: c.store, Logger: logger}, c.Bus, c.Bus, nil)
	c.controller, err = process.Controller(control.Config{
		CheckScript: script.Check,
		StallAfter:  4 * firstCheck, // a gateway checks every quarter of it
	}, nil)
	if err != nil {
		return err
	}
	c.events = c.controller.Events
	c.API = route.Client{Transport: route.NewInProcess(append(requests.Rows(c.controller), all.Features().Clients().On(c.controller).Rows()...)), Namespace: c.Namespace}
	return nil
}

func (c *client) run(id string) events.Run { return events.NewRun(c.Namespace, id, c.Log.Shards()) }

// offline reports whether this process holds the data directory itself: then no role works
// on the runs in it.
func (c *client) offline() bool { return c.Unserved != "" }

// badFlag turns a refused parameter into a usage error. The message of the refusal begins
// with the parameter, which has the name of a flag.
func badFlag(err error) error {
	var refused *refusal.Error
	if errors.As(err, &refused) && refused.Code == refusal.CodeBadParameter {
		return cli.Usage("--%w", refused)
	}
	return err
}

func addByFlags(cmd *cobra.Command) func() events.By {
	var by events.By
	cmd.Flags().StringVar(&by.Reason, "reason", "", "why, for the log")
	cmd.Flags().StringVar(&by.By, "by", "", "who, for the log (default USER, else the system's name of the user)")
	return func() events.By {
		by.By = cmp.Or(by.By, cli.Person(os.Getenv))
		return by
	}
}

// noteOffline says that no process continues a run.
func (c *client) noteOffline() {
	if c.offline() {
		c.Notef("no process serves %s now: the run continues when `moorebus dev` does", c.Where)
	}
}
