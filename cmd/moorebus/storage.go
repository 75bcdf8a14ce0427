package main

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/moorebus/moorebus/internal/cli"
	"github.com/moorebus/moorebus/internal/control"
	"github.com/moorebus/moorebus/internal/entrystore"
	"github.com/moorebus/moorebus/internal/httpapi/requests"
	"github.com/moorebus/moorebus/internal/print"
	"github.com/moorebus/moorebus/pkg/events"
)

func storageCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "storage",
		Short: "Show and change the storage of agents",
		Long: `Storage is an agent's memory across runs: texts under sets of tags. TAGS are separated
by commas. Their order does not matter, and spaces become underscores. Storage also has
the entries that the observer paged out of an agent's working memory.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(listStorageCommand(), getStorageCommand(), putStorageCommand(), searchStorageCommand(), deleteStorageCommand())
	return cmd
}

func listStorageCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "list [AGENT]",
		Short: "List the agents that have storage, or an agent's entries",
		Args:  cobra.MaximumNArgs(1),
	}
	flags := addClientFlags(cmd, print.Table, print.JSON, print.YAML)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return flags.use(cmd, reads, func(ctx context.Context, c *client) error {
			if len(args) == 1 {
				return c.showStored(ctx, requests.EntryQuery{Named: requests.Name(args[0])})
			}
			agents, err := requests.ListStorages.Call(ctx, c.api, requests.Scope{})
			if err != nil {
				return err
			}
			return print.Storages(c.out, c.format, agents.Agents)
		})
	}
	return cmd
}

func searchStorageCommand() *cobra.Command {
	var q requests.EntryQuery
	var tags []string
	cmd := &cobra.Command{
		Use:   "search AGENT [TEXT]",
		Short: "List the entries that have all of some tags and contain a text",
		Example: `  moorebus storage search librarian alice
  moorebus storage search librarian --tags character,alice -o json`,
		Args: cobra.RangeArgs(1, 2),
	}
	flags := addClientFlags(cmd, print.Table, print.JSON, print.YAML)
	cmd.Flags().StringSliceVar(&tags, "tags", nil, "only entries that have all of these `tags`")
	cmd.Flags().IntVar(&q.Limit, "limit", control.MaxEntries, fmt.Sprintf("number of entries to list, 1 to %d", control.MaxEntries))
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if q.Limit < 1 {
			return cli.Usage("--limit: must be 1 to %d, is %d", control.MaxEntries, q.Limit)
		}
		q.Named, q.Tags = requests.Name(args[0]), strings.Join(tags, ",")
		if len(args) == 2 {
			q.Text = args[1]
		}
		return flags.use(cmd, reads, func(ctx context.Context, c *client) error { return c.showStored(ctx, q) })
	}
	return cmd
}

func (c *client) showStored(ctx context.Context, q requests.EntryQuery) error {
	found, err := requests.FindStored.Call(ctx, c.api, q)
	if err != nil {
		return err
	}
	if err := print.Stored(c.out, c.format, found.Entries); err != nil {
		return err
	}
	if more := found.Total - len(found.Entries); more > 0 {
		c.notef("%d more entries match; give more tags, or a text to search for", more)
	}
	return nil
}

func getStorageCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "get AGENT TAGS",
		Short:   "Print the value of the entry with exactly these tags",
		Example: `  moorebus storage get librarian character,alice`,
		Args:    cobra.ExactArgs(2),
	}
	flags := addClientFlags(cmd, print.Table, print.JSON, print.YAML)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return flags.use(cmd, reads, func(ctx context.Context, c *client) error {
			found, err := requests.FindStored.Call(ctx, c.api, requests.EntryQuery{Named: requests.Name(args[0]), Tags: args[1], Exact: true})
			if err != nil {
				return err
			}
			if len(found.Entries) == 0 {
				return c.api.NotAGateway("no entry")
			}
			e := found.Entries[0]
			if c.format != print.Table {
				return print.Write(c.out, c.format, e)
			}
			_, err = fmt.Fprintln(c.out, e.Value)
			return err
		})
	}
	return cmd
}

func putStorageCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "put AGENT TAGS VALUE",
		Short: "Store or replace the value under a set of tags",
		Long:  `Put stores a value under a set of tags. It replaces one with the same tags. VALUE - is stdin.`,
		Example: `  moorebus storage put librarian character,alice 'Adventurous, 25 years old'
  moorebus storage put librarian report - < report.txt`,
		Args: cobra.ExactArgs(3),
	}
	flags := addClientFlags(cmd, print.Table, print.JSON, print.YAML)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		value := args[2]
		if value == "-" {
			data, err := io.ReadAll(io.LimitReader(cmd.InOrStdin(), entrystore.MaxValueBytes+1))
			if err != nil {
				return err
			}
			value = string(data)
		}
		return flags.use(cmd, creates, func(ctx context.Context, c *client) error {
			e, err := c.putStored(ctx, args[0], events.Entry{Tags: splitTags(args[1]), Value: value})
			if err != nil {
				return err
			}
			return print.Stored(c.out, c.format, []events.Entry{e})
		})
	}
	return cmd
}

func deleteStorageCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "delete AGENT TAGS",
		Short:   "Remove the entry with exactly these tags",
		Example: `  moorebus storage delete librarian character,alice`,
		Args:    cobra.ExactArgs(2),
	}
	flags := addClientFlags(cmd, print.Table)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return flags.use(cmd, writes, func(ctx context.Context, c *client) error {
			_, err := requests.DeleteStored.Call(ctx, c.api, requests.EntryName{Named: requests.Name(args[0]), Tags: args[1]})
			return err
		})
	}
	return cmd
}

func (c *client) putStored(ctx context.Context, agent string, e events.Entry) (events.Entry, error) {
	return requests.PutStored.Call(ctx, c.api, requests.NewEntry{Named: requests.Name(agent), Entry: requests.Entry(e)})
}

// splitTags reads tags with commas between them.
func splitTags(text string) []string {
	tags := strings.Split(text, ",")
	for i, tag := range tags {
		tags[i] = strings.TrimSpace(tag)
	}
	return tags
}
