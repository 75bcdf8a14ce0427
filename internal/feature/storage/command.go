package storage

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/moorebus/moorebus/internal/cli"
	"github.com/moorebus/moorebus/internal/feature"
	"github.com/moorebus/moorebus/internal/feature/storage/entrystore"
	"github.com/moorebus/moorebus/internal/httpapi/requests"
	"github.com/moorebus/moorebus/internal/print"
	"github.com/moorebus/moorebus/pkg/events"
)

func command(open feature.Open) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "storage",
		Short: "Show and change the storage of agents",
		Long: `Storage is an agent's memory across runs: texts under sets of tags. TAGS are separated
by commas. Their order does not matter, and spaces become underscores. Storage also has
the entries that the observer paged out of an agent's working memory.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(listCommand(open), getCommand(open), putCommand(open), searchCommand(open), deleteCommand(open))
	return cmd
}

func listCommand(open feature.Open) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "list [AGENT]",
		Short: "List the agents that have storage, or an agent's entries",
		Args:  cobra.MaximumNArgs(1),
	}
	use := open(cmd, print.Table, print.JSON, print.YAML)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return use(cmd, feature.Reads, func(ctx context.Context, c *feature.Client) error {
			if len(args) == 1 {
				return show(ctx, c, EntryQuery{Named: requests.Name(args[0])})
			}
			agents, err := ListStorages.Call(ctx, c.API, requests.Scope{})
			if err != nil {
				return err
			}
			if c.Format != print.Table {
				return print.Write(c.Out, c.Format, agents.Agents)
			}
			var rows [][]string
			for _, name := range agents.Agents {
				rows = append(rows, []string{name})
			}
			return print.WriteTable(c.Out, []string{"AGENT"}, rows)
		})
	}
	return cmd
}

func searchCommand(open feature.Open) *cobra.Command {
	var q EntryQuery
	var tags []string
	cmd := &cobra.Command{
		Use:   "search AGENT [TEXT]",
		Short: "List the entries that have all of some tags and contain a text",
		Example: `  moorebus storage search librarian alice
  moorebus storage search librarian --tags character,alice -o json`,
		Args: cobra.RangeArgs(1, 2),
	}
	use := open(cmd, print.Table, print.JSON, print.YAML)
	cmd.Flags().StringSliceVar(&tags, "tags", nil, "only entries that have all of these `tags`")
	cmd.Flags().IntVar(&q.Limit, "limit", MaxEntries, fmt.Sprintf("number of entries to list, 1 to %d", MaxEntries))
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if q.Limit < 1 {
			return cli.Usage("--limit: must be 1 to %d, is %d", MaxEntries, q.Limit)
		}
		q.Named, q.Tags = requests.Name(args[0]), strings.Join(tags, ",")
		if len(args) == 2 {
			q.Text = args[1]
		}
		return use(cmd, feature.Reads, func(ctx context.Context, c *feature.Client) error { return show(ctx, c, q) })
	}
	return cmd
}

func show(ctx context.Context, c *feature.Client, q EntryQuery) error {
	found, err := FindStored.Call(ctx, c.API, q)
	if err != nil {
		return err
	}
	if err := writeEntries(c, found.Entries); err != nil {
		return err
	}
	if more := found.Total - len(found.Entries); more > 0 {
		c.Notef("%d more entries match; give more tags, or a text to search for", more)
	}
	return nil
}

func getCommand(open feature.Open) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "get AGENT TAGS",
		Short:   "Print the value of the entry with exactly these tags",
		Example: `  moorebus storage get librarian character,alice`,
		Args:    cobra.ExactArgs(2),
	}
	use := open(cmd, print.Table, print.JSON, print.YAML)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return use(cmd, feature.Reads, func(ctx context.Context, c *feature.Client) error {
			found, err := FindStored.Call(ctx, c.API, EntryQuery{Named: requests.Name(args[0]), Tags: args[1], Exact: true})
			if err != nil {
				return err
			}
			if len(found.Entries) == 0 {
				return c.API.NotAGateway("no entry")
			}
			e := found.Entries[0]
			if c.Format != print.Table {
				return print.Write(c.Out, c.Format, e)
			}
			_, err = fmt.Fprintln(c.Out, e.Value)
			return err
		})
	}
	return cmd
}

func putCommand(open feature.Open) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "put AGENT TAGS VALUE",
		Short: "Store or replace the value under a set of tags",
		Long:  `Put stores a value under a set of tags. It replaces one with the same tags. VALUE - is stdin.`,
		Example: `  moorebus storage put librarian character,alice 'Adventurous, 25 years old'
  moorebus storage put librarian report - < report.txt`,
		Args: cobra.ExactArgs(3),
	}
	use := open(cmd, print.Table, print.JSON, print.YAML)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		value := args[2]
		if value == "-" {
			data, err := io.ReadAll(io.LimitReader(cmd.InOrStdin(), entrystore.MaxValueBytes+1))
			if err != nil {
				return err
			}
			value = string(data)
		}
		return use(cmd, feature.Creates, func(ctx context.Context, c *feature.Client) error {
			e, err := Put(ctx, c.API, args[0], events.Entry{Tags: splitTags(args[1]), Value: value})
			if err != nil {
				return err
			}
			return writeEntries(c, []events.Entry{e})
		})
	}
	return cmd
}

func deleteCommand(open feature.Open) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "delete AGENT TAGS",
		Short:   "Remove the entry with exactly these tags",
		Example: `  moorebus storage delete librarian character,alice`,
		Args:    cobra.ExactArgs(2),
	}
	use := open(cmd, print.Table)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return use(cmd, feature.Writes, func(ctx context.Context, c *feature.Client) error {
			_, err := DeleteStored.Call(ctx, c.API, EntryName{Named: requests.Name(args[0]), Tags: args[1]})
			return err
		})
	}
	return cmd
}

func writeEntries(c *feature.Client, entries []events.Entry) error {
	if c.Format != print.Table {
		return print.Write(c.Out, c.Format, entries)
	}
	rows := make([][]string, len(entries))
	for i, e := range entries {
		rows[i] = []string{strings.Join(e.Tags, ","), strconv.Itoa(len(e.Value)), print.Cut(e.Value, print.TaskWidth)}
	}
	return print.WriteTable(c.Out, []string{"TAGS", "BYTES", "VALUE"}, rows)
}
