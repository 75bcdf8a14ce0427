package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/moorebus/moorebus/internal/cli"
	"github.com/moorebus/moorebus/internal/compose"
	"github.com/moorebus/moorebus/internal/compose/toolfile"
	"github.com/moorebus/moorebus/internal/control"
	"github.com/moorebus/moorebus/internal/host"
	"github.com/moorebus/moorebus/internal/interactive"
	"github.com/moorebus/moorebus/internal/mcpserve"
	"github.com/moorebus/moorebus/internal/print"
	"github.com/moorebus/moorebus/internal/providers"
	gatewayrole "github.com/moorebus/moorebus/internal/role/gateway"
	"github.com/moorebus/moorebus/internal/terminal"
	"github.com/moorebus/moorebus/internal/upgrade"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

func runCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "run [TASK]",
		Short: "Run one task to its end, on an embedded server",
		Long: `Run starts the embedded server and every role in this process, runs one task to
its end, shows the transitions on stderr as they happen, and prints the answer on
stdout. The data directory keeps the log: see moorebus show and replay.

Ctrl-C cancels the run. If the run or a sub-run waits for a person (an approval, an
answer, a message, a resume), the run stays unchanged, and stderr shows the commands
that continue it.

With --detach other processes do the work: moorebus dev on the data directory, or those
of the bus that --nats or NATS_URL names, or of the gateway of --url or MOOREBUS_URL.
They must offer the agent's model and tools.
Run then starts the run, prints its id and the command that follows it.

Without --agent the agent is an assistant with the builtin tools and the model of the
first provider that the environment configures:
` + providers.Help() + `

--attach adds an image or another file to the task, for models that accept such files.

The first agent of a file runs, and the others are stored for it to call. An agent
in chat mode reads further messages from stdin, a line each.

With -o json stdout instead gets what the run does, one JSON object per line:
states, words, calls, and at last the final_answer or the error.

Exit codes: 0 the run is done, 4 it ended in an error, 5 it was cancelled, 6 it is
done and its answer is incomplete, 130 Ctrl-C left it waiting for a person, 78 no
model is configured.`,
		Example: `  moorebus run --agent examples/quickstart.yaml
  OPENAI_API_KEY=… moorebus run "What is 17.5% of 2,340, plus 12?"
  moorebus run --detach --agent examples/quickstart.yaml`,
		Args: cobra.MaximumNArgs(1),
	}
	local := addLocalFlags(cmd)
	addReasoningFlag(cmd, &local.reasoning)
	priority := cmd.Flags().String("priority", "", "high, normal or low: the run's priority in the queue of a quota")
	cli.Complete(cmd, "priority", string(events.PriorityHigh), string(events.PriorityNormal), string(events.PriorityLow))
	given := cmd.Flags().StringArray("label", nil, "a label `KEY=VALUE` of the run; may be repeated")
	files := addAttachFlag(cmd)
	var format string
	print.AddOutputFlag(cmd, &format, print.Text, print.JSON)
	var away detached
	away.add(cmd.Flags(), local.bus)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		f, err := print.ParseFormat(format, print.Text, print.JSON)
		if err != nil {
			return err
		}
		if err := away.check(cmd.Flags()); err != nil {
			return err
		}
		docs, err := local.documents()
		if err != nil {
			return err
		}
		if local.agentFile == compose.Stdin && docs.Agent.Mode == events.ModeChat && !away.wanted {
			return cli.Usage("--agent -: an agent in chat mode reads further messages from stdin; give the agent as a file")
		}
		task := docs.Agent.Task
		if len(args) == 1 {
			task = args[0]
		}
		parts, err := attached(task, *files)
		if err != nil {
			return err
		}
		if strings.TrimSpace(task) == "" && parts == nil {
			return cli.Usage("there is no task: give one, as in `moorebus run \"…\"`, or add `task:` to the agent's file")
		}
		labels, err := labelsOf(*given)
		if err != nil {
			return err
		}
		start := control.StartRequest{Agent: docs.Agent, Task: task, Priority: events.Priority(*priority), Labels: labels}
		if parts != nil {
			start.Task, start.Parts = "", parts
		}
		if away.wanted {
			return local.detach(cmd, away, docs, start, f)
		}
		if err := compose.CheckProvider(*docs.Agent, local.providers, os.Getenv); err != nil {
			return err
		}
		return local.host(cmd.Context(), docs, nil, func(ctx context.Context, h *host.Host, bus interactive.Bus) error {
			if err := local.awaitTools(ctx, h); err != nil {
				return err
			}
			if len(docs.Others) > 0 || len(toolfile.Subagents(docs.Tools)) > 0 {
				if err := compose.PutAgents(ctx, h.Gateway(), local.namespace, docs); err != nil {
					return err
				}
			}
			if local.agentFile == "" { // the assistant has all tools, those of MCP servers too
				start.Agent.Tools = compose.AssistantTools(docs.Tools, local.tools)
			}
			return local.runTask(ctx, h, bus, start, f)
		})
	}
	return cmd
}

// runTask starts the task and watches it to its end.
func (f *localFlags) runTask(ctx context.Context, h *host.Host, bus interactive.Bus, start control.StartRequest, format print.Format) error {
	started, err := h.Gateway().Start(ctx, f.namespace, start)
	if err != nil {
		return err
	}
	show := terminal.Stderr
	say := func(format string, args ...any) { _, _ = fmt.Fprintf(show, format+"\n", args...) }
	say("run %s", started.RunID)
	if start.Agent.LLM.Provider == providers.Scripted {
		say("The model is scripted: its replies are in the agent's file, only the tools are real. For a real")
		real := providers.All()[0]
		say("model write `llm: {provider: %s}` there and set %s, or %s for your own.", real.Name, real.KeyVar, real.URLVar)
	}
	out := print.NewLossyWriter(terminal.Stdout)
	o := interactive.Options{
		Bus: bus, Control: h.Gateway(), In: os.Stdin, Out: out, Show: show, Live: show.IsTerminal(), Color: show.Color(os.Getenv),
		Columns: show.Columns, Where: f.where(), Reasoning: f.reasoning,
	}
	if format == print.JSON {
		o.Outputs = print.OutputWriter(out, started.RunID, format, false)
	}
	if o.Live && terminal.New(os.Stdin).IsTerminal() {
		o.Prompt = "> "
	}
	outcome, err := interactive.Watch(ctx, h.Store().Place(f.namespace, started.RunID), o)
	if err != nil {
		return err
	}
	switch {
	case len(outcome.Waits) > 0:
		say("%s", outcome.Detached(started.RunID, f.dir, f.dev(), f.where()))
		return cli.Interrupted(ctx)
	case outcome.State == events.Done && outcome.Incomplete:
		if err := out.Lost(); err != nil {
			return err
		}
		return &cli.ExitError{Code: cli.ExitIncomplete}
	case outcome.State == events.Done:
		return out.Lost()
	case outcome.State == events.Cancelled:
		say("cancelled; see the run with: %s", f.show(started.RunID))
		return &cli.ExitError{Code: cli.ExitRunCancelled}
	}
	reason := "no reason was given"
	if outcome.Err != nil {
		reason = outcome.Err.Code + ": " + outcome.Err.Message
	}
	say("the run ended in %s: %s\nsee the run with: %s", outcome.State, reason, f.show(started.RunID))
	return &cli.ExitError{Code: cli.ExitRunError}
}

func devCommand() *cobra.Command {
	var listen string
	cmd := &cobra.Command{
		Use:   "dev",
		Short: "Run a server, every role and the console",
		Long: `Dev starts the embedded server, every role and the HTTP API in this process, and
keeps them running until Ctrl-C. --agent stores the agents of the file under their names.
--tools adds tools. --nats-listen lets other processes (further planners, actors, taps)
join the bus; if dev has NATS_TOKEN, they must present it. Beyond loopback --listen needs
MOOREBUS_TOKEN or --client-ca, and --nats-listen NATS_TOKEN, except with
--insecure-no-auth. --tls-cert and --tls-key encrypt --listen. --nats-listen cannot be
encrypted: on a network use a nats-server with TLS and a user for each role.

With --lead it takes each run from step to step by itself, where it can, which takes a fifth less
processor time. Only a new data directory can be led, and earlier releases cannot continue its runs.

With --keep-ended or --keep-bytes it archives and purges ended runs once an hour, like
moorebus purge.`,
		Example: `  moorebus dev --agent examples/quickstart.yaml
  curl -s localhost:8080/v1/runs -d '{"agent": "quickstart", "task": "Count."}'`,
		Args: cobra.NoArgs,
	}
	local := addLocalFlags(cmd, commandFeatures()...)
	local.clients = gatewayrole.AddHTTPFlags(cmd.Flags())
	local.encrypt = cli.AddTLSFlags(cmd.Flags(), os.Getenv)
	cmd.Flags().BoolVar(&local.lead, "lead", false, "in a new data directory, take runs from step to step without a delivery for each; earlier releases cannot continue these runs")
	cmd.Flags().StringVar(&listen, "listen", gatewayrole.ListenAddress(os.Getenv), "`address` to serve HTTP on (MOOREBUS_LISTEN)")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		docs, err := local.documents()
		if err != nil {
			return err
		}
		logger, err := local.log.Logger()
		if err != nil {
			return err
		}
		listener, config, err := local.encrypt.Listen(listen, cli.TokenVariable, logger)
		if err != nil {
			return err
		}
		local.tls = config
		local.hosts = local.clients.Hosts(listen)
		defer func() { _ = listener.Close() }()
		return local.host(cmd.Context(), docs, listener, func(ctx context.Context, h *host.Host, bus interactive.Bus) error {
			if local.agentFile != "" {
				if err := compose.PutAgents(ctx, h.Gateway(), local.namespace, docs); err != nil {
					return err
				}
			}
			cli.Say("moorebus is up: %s://%s/ (Ctrl-C ends it; runs continue when it starts again)", local.encrypt.Scheme(), listener.Addr())
			sayUnreadable(ctx, bus)
			<-ctx.Done()
			return nil
		})
	}
	return cmd
}

// sayUnreadable says which runs this build cannot continue, and which the release before could not.
func sayUnreadable(ctx context.Context, log journal.Log) {
	found, err := upgrade.Unreadable(ctx, log)
	if err != nil && ctx.Err() == nil {
		cli.Say("whether all builds can read the runs is not known: %v", err)
	}
	for _, f := range found {
		cli.Say("%s\n%s", f.What, f.Mend)
	}
}

func mcpCommand() *cobra.Command {
	var listen string
	var names []string
	cmd := &cobra.Command{
		Use:   "mcp",
		Short: "Offer agents as tools to programs that speak MCP",
		Long: `Mcp is an MCP server whose tools are agents. Each tool has one argument, the task, and
returns the answer. Its description is that of the agent's definition. A call starts a
run and waits for its end. A cancelled call cancels its run. Clients that request
progress get every transition. Clients that support elicitation get the requests for
approvals and answers.

It uses stdin and stdout, or with --listen streamable HTTP at /mcp. Clients must send
MOOREBUS_TOKEN as the bearer token. The token may be empty only on loopback, with
--insecure-no-auth, or with --client-ca, which accepts only clients with a certificate.
--tls-cert and --tls-key encrypt the listener.

It offers the agents stored on the bus, which needs workers (moorebus dev, or the
roles). With --agent FILE it offers only that agent, on an embedded server in this
process. Several such processes share a data directory: one of them runs the server,
and when it ends another one takes over.`,
		Example: `  moorebus mcp --agent examples/quickstart.yaml
  NATS_URL=nats://localhost moorebus mcp --agents researcher,writer
  claude mcp add moorebus -- moorebus mcp`,
		Args: cobra.NoArgs,
	}
	var local *localFlags
	bus := cli.AddDataFlags(cmd.Flags(), os.Getenv)
	bus.Local = func() bool { return local.agentFile != "" }
	local = addLocalFlagsBeside(cmd, bus)
	local.share = true
	cmd.Flags().StringSliceVar(&names, "agents", nil, "names of the stored agents to offer, separated by commas (default all)")
	local.encrypt = cli.AddTLSFlags(cmd.Flags(), os.Getenv)
	cmd.Flags().StringVar(&listen, "listen", "", "`address` to serve streamable HTTP on, instead of stdin and stdout")
	cmd.AddCommand(loginCommand(), pinCommand(), pinDiffCommand())
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		var listener net.Listener
		if listen == "" && local.encrypt.Given() {
			return cli.Usage("--tls-cert, --tls-key and --client-ca are of a listener: give --listen too")
		}
		if listen != "" {
			logger, err := local.log.Logger()
			if err != nil {
				return err
			}
			tcp, config, err := local.encrypt.Listen(listen, cli.TokenVariable, logger)
			if err != nil {
				return err
			}
			defer func() { _ = tcp.Close() }()
			listener, local.tls = tcp, config
		}
		if local.agentFile != "" {
			if len(names) > 0 || cmd.Flags().Changed("nats") {
				return cli.Usage("--agent runs that agent on its own server: leave out --agents and --nats")
			}
			if local.agentFile == compose.Stdin && listener == nil {
				return cli.Usage("--agent -: the MCP client uses stdin; give the agent as a file")
			}
			return mcpLocal(cmd.Context(), local, listener)
		}
		remote := &clientFlags{bus: bus, gateway: cli.AddGatewayFlags(pflag.NewFlagSet("", pflag.ContinueOnError), os.Getenv), log: local.log, output: string(print.Text), formats: []print.Format{print.Text}}
		return remote.use(cmd, reads|onBus, func(ctx context.Context, c *client) error {
			if c.offline() {
				return errors.New("no process runs agents there: start `moorebus dev`, name a bus with NATS_URL, or give --agent FILE")
			}
			return serveMCP(ctx, listener, local.tls, mcpserve.Options{
				Log: c.Bus, Store: c.store, Control: c.controller, Namespace: c.Namespace, Names: names,
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
	if err := compose.CheckProvider(*docs.Agent, local.providers, os.Getenv); err != nil {
		return err
	}
	return local.host(ctx, docs, nil, func(ctx context.Context, h *host.Host, bus interactive.Bus) error {
		if err := local.awaitTools(ctx, h); err != nil {
			return err
		}
		return serveMCP(ctx, listener, local.tls, mcpserve.Options{
			Log: bus, Store: h.Store(), Control: h.Gateway(), Namespace: local.namespace, Agent: docs.Agent,
		})
	})
}

// serveMCP serves on the listener, or on stdin and stdout without one.
func serveMCP(ctx context.Context, listener net.Listener, config *tls.Config, o mcpserve.Options) error {
	s, err := mcpserve.New(ctx, o)
	if err != nil {
		return err
	}
	if listener == nil {
		return s.Serve(ctx, mcpserve.Lines(os.Stdin, terminal.Stdout))
	}
	scheme := "http"
	if config != nil {
		scheme = "https"
	}
	cli.Say("serving MCP at %s://%s%s", scheme, listener.Addr(), mcpserve.Path)
	return s.ServeHTTP(ctx, listener, config, os.Getenv(cli.TokenVariable))
}
