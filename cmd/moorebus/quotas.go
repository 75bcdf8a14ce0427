package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/moorebus/moorebus/internal/cli"
	"github.com/moorebus/moorebus/internal/control/quotas"
	"github.com/moorebus/moorebus/internal/httpapi/requests"
	"github.com/moorebus/moorebus/internal/print"
	"github.com/moorebus/moorebus/internal/refusal"
)

func quotasCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "quotas",
		Short: "Limit and share the resources of namespaces and agents",
		Long: `Quotas limit how many runs work at once, share these places among namespaces and among
the agents of a namespace, and limit what a namespace may use in a day. SCOPE is _ for
the bus, NAMESPACE, or NAMESPACE.AGENT.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(putQuotaCommand(), listQuotasCommand(), showQuotaCommand(), removeQuotaCommand())
	return cmd
}

func putQuotaCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "put SCOPE",
		Short: "Store or replace the quota of a scope",
		Long: `Put stores or replaces the quota of a scope. Without its flag a limit is off. Every
gateway applies the quota within two seconds. Working runs continue.`,
		Example: `  moorebus quotas put _ --active 200
  moorebus quotas put team-a --weight 3 --daily-cost 20 --time-zone Europe/Berlin
  moorebus quotas put team-a.researcher --active 5`,
		Args: cobra.ExactArgs(1),
	}
	flags := addClientFlags(cmd, print.Table, print.JSON, print.YAML)
	var q quotas.Quota
	var daily quotas.Daily
	cmd.Flags().IntVar(&q.Active, "active", 0, "how many runs may work at once")
	cmd.Flags().IntVar(&q.Weight, "weight", 0, "share of the namespace, or of the agent within its namespace (default 1)")
	cmd.Flags().IntVar(&q.Queued, "queued", 0, "how many runs of the namespace may wait (default 100000)")
	cmd.Flags().Int64Var(&daily.Tokens, "daily-tokens", 0, "tokens that the namespace may use in a day")
	cmd.Flags().Float64Var(&daily.CostUSD, "daily-cost", 0, "US dollars that the namespace may use in a day")
	cmd.Flags().StringVar(&daily.TimeZone, "time-zone", "", "time `zone` of the day, such as Europe/Berlin (default UTC)")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if daily != (quotas.Daily{}) {
			q.Daily = &daily
		}
		return flags.use(cmd, creates, func(ctx context.Context, c *client) error {
			info, err := requests.PutQuota.Call(ctx, c.api, requests.NewQuota{QuotaScope: requests.QuotaScope{Scope: args[0]}, Quota: q})
			if refusal.Is(err, refusal.CodeBadQuota) {
				return cli.Usage("%w", err)
			}
			if err != nil {
				return err
			}
			return print.Quotas(c.out, c.format, []quotas.Info{info})
		})
	}
	return cmd
}

func listQuotasCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "list", Short: "List all quotas, and through a gateway their current use", Args: cobra.NoArgs}
	flags := addClientFlags(cmd, print.Table, print.JSON, print.YAML)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return flags.use(cmd, reads, func(ctx context.Context, c *client) error {
			all, err := requests.ListQuotas.Call(ctx, c.api, requests.None{})
			if err != nil {
				return err
			}
			return print.Quotas(c.out, c.format, all.Quotas)
		})
	}
	return cmd
}

func showQuotaCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "show SCOPE", Short: "Show the quota of a scope", Args: cobra.ExactArgs(1)}
	flags := addClientFlags(cmd, print.Table, print.JSON, print.YAML)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return flags.use(cmd, reads, func(ctx context.Context, c *client) error {
			info, err := requests.GetQuota.Call(ctx, c.api, requests.QuotaScope{Scope: args[0]})
			if err != nil {
				return err
			}
			return print.Quotas(c.out, c.format, []quotas.Info{info})
		})
	}
	return cmd
}

func removeQuotaCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "rm SCOPE", Short: "Remove the quota of a scope", Long: "Rm removes the quota of a scope. Runs that waited only for this quota are admitted.", Args: cobra.ExactArgs(1),
	}
	flags := addClientFlags(cmd, print.Text)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return flags.use(cmd, writes, func(ctx context.Context, c *client) error {
			_, err := requests.DeleteQuota.Call(ctx, c.api, requests.QuotaScope{Scope: args[0]})
			return err
		})
	}
	return cmd
}
