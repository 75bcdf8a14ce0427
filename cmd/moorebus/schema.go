package main

import (
	"github.com/google/jsonschema-go/jsonschema"
	"github.com/spf13/cobra"

	"github.com/moorebus/moorebus/internal/cli"
	"github.com/moorebus/moorebus/internal/docschema"
	"github.com/moorebus/moorebus/pkg/events"
)

func schemaCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "schema",
		Short: "Print the JSON Schema of a file or an event",
		Long: `Schema prints a JSON Schema: of an agent definition, of a tool file, of a provider file,
or of the body of an event. What Moorebus reads matches it. Editors with the YAML
language server check a document that names its schema in a comment:

  # yaml-language-server: $schema=agent.json

It needs no bus.`,
		Example: `  moorebus schema agent > agent.json
  moorebus schema event LlmToolCall`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(
		fileSchemaCommand("agent", "Print the JSON Schema of an agent definition", docschema.Agent),
		fileSchemaCommand("tools", "Print the JSON Schema of a tool file", docschema.Tools),
		fileSchemaCommand("providers", "Print the JSON Schema of a provider file", docschema.Providers),
		eventSchemaCommand(),
	)
	return cmd
}

func fileSchemaCommand(name, short string, schema func() (*jsonschema.Schema, error)) *cobra.Command {
	return &cobra.Command{
		Use: name, Short: short, Args: cobra.NoArgs, Example: "  moorebus schema " + name + " > " + name + ".json",
		RunE: func(cmd *cobra.Command, _ []string) error { return printSchema(cmd, schema) },
	}
}

func eventSchemaCommand() *cobra.Command {
	return &cobra.Command{
		Use: "event [TYPE]", Short: "Print the JSON Schema of an event's body, or of the body of any event",
		Long: `Event prints the JSON Schema of the complete body of an event of a type, including data.
Without a type it prints that of the body of any event. ` + "`moorebus table`" + ` lists the types.`,
		Args: cobra.MaximumNArgs(1), Example: "  moorebus schema event Start",
		RunE: func(cmd *cobra.Command, args []string) error {
			return printSchema(cmd, func() (*jsonschema.Schema, error) {
				if len(args) == 0 {
					return docschema.Events()
				}
				if events.New(events.Type(args[0])) == nil {
					return nil, cli.Usage("%q is not a type of event; see `moorebus table`", args[0])
				}
				return docschema.Event(events.Type(args[0]))
			})
		},
	}
}

func printSchema(cmd *cobra.Command, schema func() (*jsonschema.Schema, error)) error {
	s, err := schema()
	if err != nil {
		return err
	}
	text, err := docschema.Text(s)
	if err != nil {
		return err
	}
	_, err = cmd.OutOrStdout().Write(text)
	return err
}
