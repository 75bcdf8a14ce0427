package main

import (
	"io"

	"github.com/spf13/cobra"

	"github.com/moorebus/moorebus/internal/print"
	"github.com/moorebus/moorebus/internal/runstream"
	"github.com/moorebus/moorebus/pkg/reducer"
)

func tableCommand() *cobra.Command {
	const mermaid, dot print.Format = "mermaid", "dot"
	var format string
	cmd := &cobra.Command{
		Use:   "table",
		Short: "Print the transition table",
		Long: `Table prints the transition table: which event leads from which state to which. It
needs no bus.`,
		Example: `  moorebus table
  moorebus table -o dot | dot -Tsvg > table.svg`,
		Args: cobra.NoArgs,
	}
	print.AddOutputFlag(cmd, &format, print.Text, mermaid, dot)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		parsed, err := print.ParseFormat(format, print.Text, mermaid, dot)
		if err != nil {
			return err
		}
		table := reducer.DefaultTable()
		text := map[print.Format]func(*reducer.Table) string{print.Text: runstream.TableText, mermaid: runstream.TableMermaid, dot: runstream.TableDOT}
		_, err = io.WriteString(cmd.OutOrStdout(), text[parsed](table))
		return err
	}
	return cmd
}
