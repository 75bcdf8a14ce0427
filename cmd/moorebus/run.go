package main

import (
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/moorebus/moorebus/internal/cli"
	"github.com/moorebus/moorebus/internal/console"
	"github.com/moorebus/moorebus/internal/control"
	"github.com/moorebus/moorebus/internal/host"
	"github.com/moorebus/moorebus/internal/providers"
	"github.com/moorebus/moorebus/internal/session"
	"github.com/moorebus/moorebus/internal/terminal"
	"github.com/moorebus/moorebus/internal/wire"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/spf13/cobra"
)

func runCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "run [TASK]",
		Short: "Run one task to its end, on an embedded server",
		Long: `Run starts the embedded server and every role in this process, runs one task to
its end, shows the transitions on stderr as they happen, and prints the answer on
stdout. The log is kept: see moorebus show and replay.

Ctrl-C cancels the run. A run that waits for a person (an approval, an answer, a
message), itself or in a sub-run, stays as it is, and stderr says which commands
continue it.

Without --agent it is an assistant with the builtin tools and the model of the
first provider that the environment configures:
` + providers.Help() + `

The first agent of a file runs, and the others are stored for it to call. An agent
in chat mode reads further messages from stdin, a line each.

With -o json stdout gets what the run does instead, one JSON object on a line:
states, words, calls, and at last the final_answer or the error.

Exit codes: 0 the run is done, 4 it ended in an error, 5 it was cancelled, 130
Ctrl-C left it waiting for a person, 78 no model is configured.`,
		Example: `  moorebus run --agent examples/quickstart.yaml
  OPENAI_API_KEY=… moorebus run "What is 17.5% of 2,340, plus 12?"`,
		Args: cobra.MaximumNArgs(1),
	}
	local := addLocalFlags(cmd)
	var format string
	addOutputFlag(cmd, &format, console.Text, console.JSON)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		f, err := console.ParseFormat(format, console.Text, console.JSON)
		if err != nil {
			return err
		}
		docs, err := local.documents()
		if err != nil {
			return err
		}
		if local.agentFile == wire.Stdin && docs.Agent.Mode == events.ModeChat {
			return cli.Usage("--agent -: an agent in chat mode reads further messages from stdin; give the agent as a file")
		}
		task := docs.Agent.Task
		if len(args) == 1 {
			task = args[0]
		}
		if strings.TrimSpace(task) == "" {
			return cli.Usage("there is no task: give one, as in `moorebus run \"…\"`, or add `task:` to the agent's file")
		}
		if err := wire.CheckProvider(*docs.Agent, local.providers, os.Getenv); err != nil {
			return err
		}
		return local.host(cmd.Context(), docs, nil, func(ctx context.Context, h *host.Host, bus session.Bus) error {
			if err := local.awaitTools(ctx, h); err != nil {
				return err
			}
			if len(docs.Others) > 0 || len(wire.Subagents(docs.Tools)) > 0 {
				if err := wire.PutAgents(ctx, h.Gateway(), local.namespace, docs); err != nil {
					return err
				}
			}
			a := *docs.Agent
			if local.agentFile == "" { // the assistant has all tools, those of MCP servers too
				a.Tools = wire.AssistantTools(docs.Tools, local.tools)
			}
			return local.runTask(ctx, h, bus, a, task, f)
		})
	}
	return cmd
}

// runTask starts the task and watches it to its end.
func (f *localFlags) runTask(ctx context.Context, h *host.Host, bus session.Bus, a events.Agent, task string, format console.Format) error {
	started, err := h.Gateway().Start(ctx, f.namespace, control.StartRequest{Agent: &a, Task: task})
	if err != nil {
		return err
	}
	show := terminal.Stderr
	say := func(format string, args ...any) { _, _ = fmt.Fprintf(show, format+"\n", args...) }
	say("run %s", started.RunID)
	if a.LLM.Provider == providers.Scripted {
		say("The model is scripted: its replies are in the agent's file, only the tools are real. For a real")
		real := providers.All()[0]
		say("model write `llm: {provider: %s}` there and set %s, or %s for your own.", real.Name, real.KeyVar, real.URLVar)
	}
	out := console.NewLossyWriter(terminal.Stdout)
	o := session.Options{
		Bus: bus, Control: h.Gateway(), In: os.Stdin, Out: out, Show: show, Live: show.IsTerminal(), Color: show.Color(os.Getenv),
		Columns: show.Columns, Where: f.where(),
	}
	if format == console.JSON {
		o.Outputs = console.OutputWriter(out, started.RunID, format, false)
	}
	if o.Live && terminal.New(os.Stdin).IsTerminal() {
		o.Prompt = "> "
	}
	outcome, err := session.Watch(ctx, h.Store().Place(f.namespace, started.RunID), o)
	if err != nil {
		return err
	}
	switch {
	case len(outcome.Waits) > 0:
		say("%s", outcome.Detached(started.RunID, f.dir, f.dev(), f.where()))
		return cli.Interrupted(ctx)
	case outcome.State == events.Done:
		return out.Lost()
	case outcome.State == events.Cancelled:
		say("cancelled; see the run with: moorebus show %s", started.RunID)
		return &cli.ExitError{Code: cli.ExitRunCancelled}
	}
	reason := "no reason was given"
	if outcome.Err != nil {
		reason = outcome.Err.Code + ": " + outcome.Err.Message
	}
	say("the run ended in %s: %s\nsee the run with: moorebus show %s", outcome.State, reason, started.RunID)
	return &cli.ExitError{Code: cli.ExitRunError}
}
