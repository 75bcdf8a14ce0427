package history

import (
	"context"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/moorebus/moorebus/internal/cli"
	"github.com/moorebus/moorebus/internal/feature"
	"github.com/moorebus/moorebus/internal/feature/history/row"
	"github.com/moorebus/moorebus/internal/print"
	"github.com/moorebus/moorebus/internal/refusal"
)

func searchCommand(open feature.Open) *cobra.Command {
	in := Texts{}
	cmd := &cobra.Command{
		Use:   "search QUERY",
		Short: "Search the texts of runs",
		Long: `Search finds the tasks, messages, calls, results, answers, errors and reasoning of runs, the
newest first. QUERY has the words to look for, and terms that choose runs, such as
agent:billing or started>24h. A text must have the words of all terms. A * at the end of a
word finds what begins with it, and -TERM leaves out.

Without a gateway (--url) the command reads the log itself, into a database in the user's
state directory. The first search reads the entire log.`,
		Example: `  moorebus search refused
  moorebus search 'ETIMEDOUT tool:charge_card started>7d'
  moorebus search '"card refused" -agent:test' -o json`,
		Args: cobra.ExactArgs(1),
	}
	use := open(cmd, print.Table, print.JSON, print.YAML)
	cmd.Flags().IntVar(&in.Limit, "limit", defaultHits, "number of texts to list, 1 to "+strconv.Itoa(maxHits))
	cmd.Flags().StringVar(&in.Cursor, "cursor", "", "continue after this `place`")
	cli.Positive(cmd.Flags(), "limit")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if in.Query = args[0]; in.Query == "" {
			return cli.Usage("QUERY: is empty")
		}
		return use(cmd, feature.Reads, func(ctx context.Context, c *feature.Client) error { return search(ctx, c, in) })
	}
	return cmd
}

func search(ctx context.Context, c *feature.Client, in Texts) error {
	found, err := Search.Call(ctx, c.API, in)
	if refusal.Is(err, row.CodeBadQuery) {
		return cli.Usage("%w", err)
	}
	if err != nil {
		return err
	}
	if found.Behind.Behind != "" {
		c.Notef("the gateway has not read all events yet: %s are missing", found.Behind.Behind)
	}
	if c.Format != print.Table {
		return print.Write(c.Out, c.Format, found)
	}
	rows := make([][]string, len(found.Hits))
	for i, h := range found.Hits {
		rows[i] = []string{h.Run, strconv.FormatUint(h.N, 10), string(h.Kind), h.At.UTC().Format(time.RFC3339), print.Plain(h.Snippet)}
	}
	if err := print.WriteTable(c.Out, []string{"RUN", "N", "KIND", "AT", "TEXT"}, rows); err != nil {
		return err
	}
	if found.Next != "" {
		c.Notef("there are more texts; continue with --cursor %s", found.Next)
	}
	return nil
}
