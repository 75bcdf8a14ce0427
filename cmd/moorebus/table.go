package main

import (
	"io"

	"github.com/moorebus/moorebus/internal/console"
	"github.com/moorebus/moorebus/pkg/reducer"
	"github.com/spf13/cobra"
)

func tableCommand() *cobra.Command {
	const mermaid, dot console.Format = "mermaid", "dot"
	var output string
	cmd := &cobra.Command{
		Use:   "table",
		Short: "Print the transition table",
		Long: `Table prints the transition table: which event leads from which state to which. It
needs no bus.`,
		Example: `  moorebus table
  moorebus table -o dot | dot -Tsvg > table.svg`,
		Args: cobra.NoArgs,
	}
	addOutputFlag(cmd, &output, console.Text, mermaid, dot)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		format, err := console.ParseFormat(output, console.Text, mermaid, dot)
		if err != nil {
			return err
		}
		table := reducer.DefaultTable()
		text := map[console.Format]func() string{console.Text: table.Text, mermaid: table.Mermaid, dot: table.DOT}
		_, err = io.WriteString(cmd.OutOrStdout(), text[format]())
		return err
	}
	return cmd
}
