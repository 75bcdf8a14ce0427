package main

import (
	"fmt"

	"github.com/moorebus/moorebus/internal/agentfile"
	"github.com/moorebus/moorebus/internal/console"
	"github.com/moorebus/moorebus/internal/lkj"
	"github.com/moorebus/moorebus/internal/providers"
	"github.com/moorebus/moorebus/internal/wire"
	"github.com/spf13/cobra"
)

func importLKJCommand() *cobra.Command {
	var o lkj.Options
	cmd := &cobra.Command{
		Use:   "import-lkj CONFIG.json",
		Short: "Make an agent of LKJAgent's data/config.json",
		Long: `Import-lkj reads LKJAgent's data/config.json and prints an agent that speaks the
text protocol, with its prompts, its limits and the five memory tools. Nothing is
stored. stderr lists unused keys. CONFIG.json - is stdin.`,
		Example: `  moorebus agents import-lkj data/config.json --name librarian > librarian.yaml
  moorebus agents import-lkj data/config.json --provider local | moorebus agents put -`,
		Args: cobra.ExactArgs(1),
	}
	cmd.Flags().StringVar(&o.Name, "name", "lkjagent", "the agent's `name`")
	cmd.Flags().StringVar(&o.Provider, "provider", providers.OpenAI, "the model `provider`, by the planner's name for it")
	cmd.Flags().StringVar(&o.Model, "model", "", "the `model` to ask (default: the one in the file)")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		data, err := readAll(cmd.InOrStdin(), args[0])
		if err != nil {
			return wire.BadConfig(err)
		}
		a, unused, err := lkj.Import(data, o)
		if err != nil {
			return wire.BadConfig(fmt.Errorf("%s: %w", args[0], err))
		}
		for _, what := range unused {
			if _, err := fmt.Fprintln(cmd.ErrOrStderr(), "not used:", what); err != nil {
				return err
			}
		}
		return console.Agent(cmd.OutOrStdout(), console.YAML, agentfile.Marshal(a))
	}
	return cmd
}
