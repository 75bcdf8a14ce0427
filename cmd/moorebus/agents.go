package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/moorebus/moorebus/internal/agentfile"
	"github.com/moorebus/moorebus/internal/agentfile/strict"
	"github.com/moorebus/moorebus/internal/cli"
	"github.com/moorebus/moorebus/internal/compose/toolfile"
	"github.com/moorebus/moorebus/internal/control"
	"github.com/moorebus/moorebus/internal/feature/storage"
	"github.com/moorebus/moorebus/internal/httpapi/requests"
	"github.com/moorebus/moorebus/internal/lkj"
	"github.com/moorebus/moorebus/internal/print"
	"github.com/moorebus/moorebus/internal/providers"
	"github.com/moorebus/moorebus/internal/refusal"
	"github.com/moorebus/moorebus/internal/schema"
	"github.com/moorebus/moorebus/internal/script"
	"github.com/moorebus/moorebus/pkg/events"
)

func agentsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "agents",
		Short: "Store and show agents",
		Long: `Agents are definitions that are stored under their names. Runs can then be started by
name. A run keeps the version that it started with.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(putAgentCommand(), getAgentCommand(), listAgentsCommand(), importLKJCommand())
	return cmd
}

func putAgentCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "put FILE…",
		Short: "Store the agents of files (YAML or JSON) under their names",
		Long: `Put stores the agents of files under their names and prints names and hashes. An
agent replaces the stored one of its name. All files are checked before any agent is
stored. FILE - is stdin. Tools in a file are ignored: they belong to an actor.`,
		Example: `  moorebus agents put examples/quickstart.yaml
  moorebus agents get quickstart | sed s/scripted/openai/ | moorebus agents put -`,
		Args: cobra.MinimumNArgs(1),
	}
	flags := addClientFlags(cmd, print.Table, print.JSON, print.YAML)
	cmd.RunE = func(cmd *cobra.Command, files []string) error {
		var definitions []definition
		for _, file := range files {
			all, err := readDefinitions(cmd.InOrStdin(), file)
			if err != nil {
				return toolfile.BadConfig(err)
			}
			definitions = append(definitions, all...)
		}
		return flags.use(cmd, creates, func(ctx context.Context, c *client) error { return c.putAgents(ctx, definitions) })
	}
	return cmd
}

type definition struct {
	file, name string
	data       []byte
	format     agentfile.Format
	tools      bool
}

func readDefinitions(stdin io.Reader, file string) ([]definition, error) {
	data, err := readAll(stdin, file)
	if err != nil {
		return nil, err
	}
	options := agentfile.Options{CheckScript: script.Check, CheckSchema: schema.Check}
	docs, err := agentfile.ParseFile(data, options)
	if err == nil && docs.Agent == nil {
		err = errors.New("contains no agent; an agent has at least a name and llm")
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	if docs.Tools == nil && len(docs.Others) == 0 {
		return []definition{{file: file, name: docs.Agent.Name, data: data}}, nil
	}
	nodes, err := strict.ParseYAML(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	var all []definition
	for _, node := range nodes {
		// The document that is not a definition has the tools.
		if a, err := agentfile.DecodeDefinition(node, "", options); err == nil {
			all = append(all, definition{file: file, name: a.Name, data: agentfile.Marshal(a), format: agentfile.JSON})
		}
	}
	all[len(all)-1].tools = docs.Tools != nil
	return all, nil
}

// readAll reads a file or stdin, up to one byte more than a definition may have.
func readAll(stdin io.Reader, file string) ([]byte, error) {
	return cli.ReadUpTo(stdin, file, agentfile.MaxSize+1)
}

// PutAgent stores a definition.
func (c *client) PutAgent(ctx context.Context, ns, name string, data []byte, f agentfile.Format) (control.AgentInfo, error) {
	return requests.PutAgent.Call(ctx, c.API, requests.NewAgent{
		Named: requests.Named{Scope: requests.Scope{Namespace: ns}, Name: name}, File: requests.AgentFile{Data: data, Format: f},
	})
}

func (c *client) putAgents(ctx context.Context, definitions []definition) error {
	stored := make([]control.AgentInfo, 0, len(definitions))
	for _, d := range definitions {
		info, err := c.PutAgent(ctx, c.Namespace, d.name, d.data, d.format)
		if err != nil {
			return fmt.Errorf("%s: %w", d.file, err)
		}
		if stored = append(stored, info); d.tools {
			c.Notef("%s: its tools are not stored; give them to an actor: actor --tools %s", d.file, d.file)
		}
	}
	return print.Agents(c.Out, c.Format, stored)
}

func getAgentCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "get NAME",
		Short:   "Print a stored agent in a form for agents put",
		Example: `  moorebus agents get researcher > researcher.yaml`,
		Args:    cobra.ExactArgs(1),
	}
	flags := addClientFlags(cmd, print.YAML, print.JSON)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return flags.use(cmd, reads, func(ctx context.Context, c *client) error {
			data, err := requests.GetAgent.Call(ctx, c.API, requests.Name(args[0]))
			if known := (*refusal.Error)(nil); errors.As(err, &known) && known.Code == refusal.CodeAgentNotFound {
				return fmt.Errorf("there is no agent %q in namespace %s; store it with `moorebus agents put FILE`", args[0], c.Namespace)
			}
			if err != nil {
				return err
			}
			return print.Agent(c.Out, c.Format, data)
		})
	}
	return cmd
}

func listAgentsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the stored agents",
		Args:  cobra.NoArgs,
	}
	flags := addClientFlags(cmd, print.Table, print.JSON, print.YAML)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return flags.use(cmd, reads, func(ctx context.Context, c *client) error {
			agents, err := requests.ListAgents.Call(ctx, c.API, requests.Scope{})
			if err != nil {
				return err
			}
			return print.Agents(c.Out, c.Format, agents)
		})
	}
	return cmd
}

func importLKJCommand() *cobra.Command {
	var o lkj.Options
	var memory string
	cmd := &cobra.Command{
		Use:   "import-lkj CONFIG.json",
		Short: "Convert LKJAgent's data/config.json into an agent",
		Long: `Import-lkj reads LKJAgent's data/config.json and prints an agent that speaks the
text protocol, with its prompts, its limits and the five memory tools. The agent is
not stored. stderr lists unused keys. CONFIG.json - is stdin.

--memory also imports the texts of LKJAgent's data/memory.json into the agent's
storage. Texts of its working memory get the additional tag working_memory, and
those of its thinking log thinking_log. Texts with the same tags are replaced.`,
		Example: `  moorebus agents import-lkj data/config.json --name librarian > librarian.yaml
  moorebus agents import-lkj data/config.json --provider local | moorebus agents put -`,
		Args: cobra.ExactArgs(1),
	}
	flags := addClientFlags(cmd, print.YAML)
	cmd.Flags().StringVar(&memory, "memory", "", "import the texts of this `file` into the agent's storage")
	cmd.Flags().StringVar(&o.Name, "name", "lkjagent", "the agent's `name`")
	cmd.Flags().StringVar(&o.Provider, "provider", providers.OpenAI, "the planner's name of the model `provider`")
	cmd.Flags().StringVar(&o.Model, "model", "", "the `model` (default: the one in the file)")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		data, err := readAll(cmd.InOrStdin(), args[0])
		if err != nil {
			return toolfile.BadConfig(err)
		}
		a, unused, err := lkj.Import(data, o)
		if err != nil {
			return toolfile.BadConfig(fmt.Errorf("%s: %w", args[0], err))
		}
		entries, unusedMemory, err := readMemory(cmd.InOrStdin(), memory)
		if err != nil {
			return toolfile.BadConfig(err)
		}
		for _, what := range append(unused, unusedMemory...) {
			if _, err := fmt.Fprintln(cmd.ErrOrStderr(), "not used:", what); err != nil {
				return err
			}
		}
		if len(entries) > 0 {
			err := flags.use(cmd, creates, func(ctx context.Context, c *client) error { return c.storeAll(ctx, a.Name, entries) })
			if err != nil {
				return err
			}
		}
		return print.Agent(cmd.OutOrStdout(), print.YAML, agentfile.Marshal(a))
	}
	return cmd
}

// maxMemory bounds LKJAgent's data/memory.json, in bytes.
const maxMemory = 64 << 20

// readMemory reads LKJAgent's data/memory.json; none if no file is named.
func readMemory(stdin io.Reader, file string) ([]events.Entry, []string, error) {
	if file == "" {
		return nil, nil, nil
	}
	data, err := cli.ReadUpTo(stdin, file, maxMemory+1)
	if err == nil && len(data) > maxMemory {
		err = fmt.Errorf("is larger than %d MiB", maxMemory>>20)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", file, err)
	}
	entries, unused, err := lkj.Memory(data)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", file, err)
	}
	return entries, unused, nil
}

func (c *client) storeAll(ctx context.Context, agent string, entries []events.Entry) error {
	for i, e := range entries {
		if _, err := storage.Put(ctx, c.API, agent, e); err != nil {
			return fmt.Errorf("after %d of %d entries were stored: %w", i, len(entries), err)
		}
	}
	c.Notef("%d entries are in the storage of %s", len(entries), agent)
	return nil
}
