package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/moorebus/moorebus/internal/actor"
	"github.com/moorebus/moorebus/internal/agentfile"
	"github.com/moorebus/moorebus/internal/cli"
	"github.com/moorebus/moorebus/internal/compose"
	"github.com/moorebus/moorebus/internal/compose/providerfile"
	"github.com/moorebus/moorebus/internal/compose/toolfile"
	"github.com/moorebus/moorebus/internal/datadir"
	"github.com/moorebus/moorebus/internal/feature"
	"github.com/moorebus/moorebus/internal/host"
	"github.com/moorebus/moorebus/internal/interactive"
	"github.com/moorebus/moorebus/internal/metrics"
	"github.com/moorebus/moorebus/internal/natsbus"
	gatewayrole "github.com/moorebus/moorebus/internal/role/gateway"
	"github.com/moorebus/moorebus/internal/role/observer"
	"github.com/moorebus/moorebus/internal/role/planner"
	"github.com/moorebus/moorebus/internal/script"
	"github.com/moorebus/moorebus/internal/toolset"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/tool/exectool"
)

// localFlags are the flags of commands that run everything in this process.
type localFlags struct {
	bus       *cli.BusFlags
	serve     *datadir.ServeFlags
	role      *cli.RoleFlags
	gateway   *gatewayrole.Flags
	log       *cli.LogFlags
	agentFile string
	toolsFile string
	providers string
	prices    string
	namespace string
	// reasoning shows all that models reasoned.
	reasoning bool
	// share lets other processes of this user run roles on the data directory.
	share bool
	// lead lets one delivery lead a run, in a data directory that has no events.
	lead bool
	// dir is the data directory, once it is open.
	dir string
	// snapshotEvery is --snapshot-every.
	snapshotEvery int
	// clients are the limits for HTTP clients, if the command serves HTTP.
	clients *gatewayrole.HTTPFlags
	// hosts are the host names that HTTP requests may use, tls its settings; nil: no TLS.
	// encrypt are the flags of TLS; may be nil.
	hosts   []string
	tls     *tls.Config
	encrypt *cli.TLSFlags
	// tools are the tools of the host, once it runs.
	tools *toolset.Registry
}

// addLocalFlags adds them, and those of more features than gateways have.
func addLocalFlags(cmd *cobra.Command, more ...feature.Feature) *localFlags {
	return addLocalFlagsBeside(cmd, cli.AddLocalFlags(cmd.Flags(), os.Getenv), more...)
}

// addLocalFlagsBeside adds them to a command that already has the flags of a bus.
func addLocalFlagsBeside(cmd *cobra.Command, bus *cli.BusFlags, more ...feature.Feature) *localFlags {
	f := &localFlags{
		bus:     bus,
		serve:   datadir.AddServeFlags(cmd.Flags(), os.Getenv),
		role:    cli.AddRoleFlags(cmd.Flags()),
		gateway: gatewayrole.AddFlags(cmd.Flags(), more...), clients: &gatewayrole.HTTPFlags{},
		log: cli.AddLogFlags(cmd.Flags(), slog.LevelWarn),
	}
	cmd.Flags().StringVar(&f.agentFile, "agent", "", "`file` of the agent (YAML or JSON), - is stdin; the file may also contain its tools")
	cmd.Flags().StringVar(&f.toolsFile, "tools", "", "`file` of tools (YAML or JSON)")
	cmd.Flags().StringVar(&f.providers, "providers", "", "`file` of model providers (YAML or JSON)")
	planner.AddPricesFlag(cmd.Flags(), &f.prices)
	observer.AddSnapshotFlag(cmd.Flags(), &f.snapshotEvery)
	return f
}

func (f *localFlags) documents() (agentfile.Documents, error) {
	var err error
	if f.namespace, _, err = f.bus.Namespace(); err != nil {
		return agentfile.Documents{}, err
	}
	docs, err := compose.Documents(f.agentFile, f.toolsFile)
	return docs, toolfile.BadConfig(err)
}

// host runs every role while body runs.
func (f *localFlags) host(ctx context.Context, docs agentfile.Documents, listener net.Listener, body func(context.Context, *host.Host, interactive.Bus) error) error {
	logger, err := f.log.Logger()
	if err != nil {
		return err
	}
	stopProfiles, err := f.role.ServePprof(logger)
	if err != nil {
		return err
	}
	defer stopProfiles()
	registry, probe := metrics.New(), &cli.Probe{}
	stopMetrics, err := f.role.ServeMetrics(registry.Handler(), probe, logger)
	if err != nil {
		return err
	}
	defer stopMetrics()
	registry.ReadCertificates(f.encrypt.Ends)
	at := &feature.Place{Listener: listener}
	options, err := f.options(docs, at, logger)
	if err != nil {
		return err
	}
	serve, err := f.serve.Serve()
	if err != nil {
		return err
	}
	serve.Alone, serve.Share, serve.Lead = !f.share, f.share, f.lead
	if serve.Listen == "" {
		// This operator's other commands find the address in the data directory.
		serve.ServeOperator(os.Getenv)
		// Else no role of another process can be connected.
		serve.Init.Alone = !f.share
	}
	conn, err := datadir.Open(ctx, f.bus, datadir.Options{DialOptions: cli.DialOptions{Name: "moorebus/" + f.role.Instance, Bus: natsbus.Options{Meter: registry}, Logger: logger}, Serve: serve})
	if err != nil {
		return err
	}
	defer conn.Close()
	if conn.Server != nil {
		registry.ReadDisk(conn.Where, conn.Server.Full)
		exectool.Hide(conn.Where)
	}
	exectool.Hide(f.providers, f.prices)
	if f.encrypt != nil {
		exectool.Hide(f.encrypt.Key())
	}
	f.tools, f.dir = options.Tools, conn.Where
	at.Bus, at.Dir = conn.Bus, conn.Where
	toolfile.Connect(f.tools, conn.Bus.Conn())
	defer f.tools.Start(ctx, logger)()
	toolfile.AwaitTools(ctx, f.tools, logger)
	options.Bus, options.Ready, options.Metrics = conn.Bus, conn.Bus.Ready, registry
	options.Snapshots, options.SnapshotEvery, options.Tombstones = conn.Bus, f.snapshotEvery, conn.Bus
	h, err := host.New(options)
	if err != nil {
		return err
	}
	probe.Set(conn.Bus.Ready)
	return runHost(ctx, h, func(ctx context.Context) error { return body(ctx, h, conn.Bus) })
}

// where returns the flags with which this user's other commands find the runs of this
// process, such as --data DIR. It is empty if they need none.
func (f *localFlags) where() string {
	var flags []string
	if at, err := cli.FindPlace("", "", os.Getenv); err != nil || at.Remote || at.Dir != f.dir {
		flags = append(flags, "--data "+cli.ShellWord(f.dir))
	}
	if f.namespace != cmp.Or(os.Getenv("MOOREBUS_NAMESPACE"), events.DefaultNamespace) {
		flags = append(flags, "--namespace "+cli.ShellWord(f.namespace))
	}
	return strings.Join(flags, " ")
}

// show returns the command that shows a run of this process.
func (f *localFlags) show(run string) string {
	return strings.TrimRight(fmt.Sprintf("%s show %s %s", cli.Self(), run, f.where()), " ")
}

// dev returns the command that continues the runs of this process after it has ended.
func (f *localFlags) dev() string {
	command := []string{cli.Self(), "dev"}
	for _, flag := range [][2]string{{"--agent", f.agentFile}, {"--tools", f.toolsFile}, {"--providers", f.providers}, {"--prices", f.prices}} {
		switch flag[1] {
		case "":
		case compose.Stdin:
			command = append(command, flag[0], "FILE")
		default:
			command = append(command, flag[0], cli.ShellWord(flag[1]))
		}
	}
	if where := f.where(); where != "" {
		command = append(command, where)
	}
	return strings.Join(command, " ")
}

// awaitTools waits for the tools of MCP servers and NATS services and announces them.
func (f *localFlags) awaitTools(ctx context.Context, h *host.Host) error {
	if len(f.tools.Sources()) == 0 {
		return nil // all tools are announced already
	}
	f.tools.Ready(ctx)
	return h.Announce(ctx)
}

// runHost runs body beside the host and then stops the host. A signal ends only body's
// context: until body returns it needs the host.
func runHost(ctx context.Context, h *host.Host, body func(context.Context) error) error {
	hostCtx, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	bodyCtx, stopBody := context.WithCancelCause(ctx)
	defer stopBody(nil)
	if err := h.Announce(ctx); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() {
		err := h.Run(hostCtx)
		if err != nil {
			stopBody(err)
		}
		ended <- err
	}()
	err := body(bodyCtx)
	stop()
	if hostErr := <-ended; hostErr != nil {
		return hostErr
	}
	return err
}

func (f *localFlags) options(docs agentfile.Documents, at *feature.Place, logger *slog.Logger) (host.Options, error) {
	registry, secrets, err := toolfile.LocalTools(docs.Tools)
	if err != nil {
		return host.Options{}, toolfile.BadConfig(err)
	}
	providers, err := providerfile.Providers(f.providers, os.Getenv)
	if err != nil {
		return host.Options{}, toolfile.BadConfig(err)
	}
	prices, err := providerfile.Prices(f.prices)
	if err != nil {
		return host.Options{}, toolfile.BadConfig(err)
	}
	features, err := f.gateway.Features(at)
	if err != nil {
		return host.Options{}, err
	}
	return host.Options{
		Providers: providers, Prices: prices, Tools: registry, Subagents: toolfile.Subagents(docs.Tools), Results: actor.Results{Secrets: secrets},
		Instance: f.role.Instance, Listener: at.Listener, TLS: f.tls, Token: os.Getenv(cli.TokenVariable), Hosts: f.hosts, MaxStreams: f.clients.Streams(logger), MaxClientStreams: f.clients.PerClient, A2AAgent: f.clients.A2AAgent, CheckScript: script.Check,
		StallAfter: f.gateway.StallAfter, PoolWait: f.gateway.PoolWait(), Features: features, Concurrency: f.role.Concurrency, Drain: f.role.Drain, Logger: logger,
	}, nil
}
