package quotas

import (
	"context"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/moorebus/moorebus/internal/cli"
	"github.com/moorebus/moorebus/internal/feature"
	"github.com/moorebus/moorebus/internal/feature/quotas/row"
	"github.com/moorebus/moorebus/internal/httpapi/requests"
	"github.com/moorebus/moorebus/internal/print"
	"github.com/moorebus/moorebus/internal/refusal"
)

func command(open feature.Open) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "quotas",
		Short: "Limit and share the resources of namespaces and agents",
		Long: `Quotas limit how many runs work at once, share these places among namespaces and among
the agents of a namespace, and limit what a namespace may use in a day. SCOPE is _ for
the bus, NAMESPACE, or NAMESPACE.AGENT.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(putCommand(open), listCommand(open), showCommand(open), removeCommand(open))
	return cmd
}

func putCommand(open feature.Open) *cobra.Command {
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
	use := open(cmd, print.Table, print.JSON, print.YAML)
	var q Quota
	var daily Daily
	cmd.Flags().IntVar(&q.Active, "active", 0, "how many runs may work at once")
	cmd.Flags().IntVar(&q.Weight, "weight", 0, "share of the namespace, or of the agent within its namespace (default 1)")
	cmd.Flags().IntVar(&q.Queued, "queued", 0, "how many runs of the namespace may wait (default 100000)")
	cmd.Flags().Int64Var(&daily.Tokens, "daily-tokens", 0, "tokens that the namespace may use in a day")
	cmd.Flags().Float64Var(&daily.CostUSD, "daily-cost", 0, "US dollars that the namespace may use in a day")
	cmd.Flags().StringVar(&daily.TimeZone, "time-zone", "", "time `zone` of the day, such as Europe/Berlin (default UTC)")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if daily != (Daily{}) {
			q.Daily = &daily
		}
		return use(cmd, feature.Creates, func(ctx context.Context, c *feature.Client) error {
			info, err := PutQuota.Call(ctx, c.API, NewQuota{QuotaScope: QuotaScope{Scope: args[0]}, Quota: q})
			if refusal.Is(err, row.CodeBadQuota) {
				return cli.Usage("%w", err)
			}
			if err != nil {
				return err
			}
			return show(c, []Info{info})
		})
	}
	return cmd
}

func listCommand(open feature.Open) *cobra.Command {
	cmd := &cobra.Command{Use: "list", Short: "List all quotas, and through a gateway their current use", Args: cobra.NoArgs}
	use := open(cmd, print.Table, print.JSON, print.YAML)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return use(cmd, feature.Reads, func(ctx context.Context, c *feature.Client) error {
			all, err := ListQuotas.Call(ctx, c.API, requests.None{})
			if err != nil {
				return err
			}
			return show(c, all.Quotas)
		})
	}
	return cmd
}

func showCommand(open feature.Open) *cobra.Command {
	cmd := &cobra.Command{Use: "show SCOPE", Short: "Show the quota of a scope", Args: cobra.ExactArgs(1)}
	use := open(cmd, print.Table, print.JSON, print.YAML)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return use(cmd, feature.Reads, func(ctx context.Context, c *feature.Client) error {
			info, err := GetQuota.Call(ctx, c.API, QuotaScope{Scope: args[0]})
			if err != nil {
				return err
			}
			return show(c, []Info{info})
		})
	}
	return cmd
}

func removeCommand(open feature.Open) *cobra.Command {
	cmd := &cobra.Command{
		Use: "rm SCOPE", Short: "Remove the quota of a scope", Long: "Rm removes the quota of a scope. Runs that waited only for this quota are admitted.", Args: cobra.ExactArgs(1),
	}
	use := open(cmd, print.Text)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return use(cmd, feature.Writes, func(ctx context.Context, c *feature.Client) error {
			_, err := DeleteQuota.Call(ctx, c.API, QuotaScope{Scope: args[0]})
			return err
		})
	}
	return cmd
}

// show prints quotas. What no quota bounds is a dash, and so is what the process does not know.
func show(c *feature.Client, all []Info) error {
	if c.Format != print.Table {
		return print.Write(c.Out, c.Format, all)
	}
	rows := make([][]string, len(all))
	for i, q := range all {
		now, daily := Now{}, Daily{}
		if q.Now != nil {
			now = *q.Now
		}
		if q.Daily != nil {
			daily = *q.Daily
		}
		rows[i] = []string{q.Scope}
		for _, n := range []float64{float64(q.Weight), float64(q.Active), float64(q.Queued), float64(daily.Tokens), daily.CostUSD, float64(now.Active), float64(now.Queued)} {
			text := "-"
			if n != 0 {
				text = strconv.FormatFloat(n, 'f', -1, 64)
			}
			rows[i] = append(rows[i], text)
		}
	}
	return print.WriteTable(c.Out, []string{"SCOPE", "WEIGHT", "ACTIVE", "QUEUED", "TOKENS/DAY", "USD/DAY", "AT WORK", "WAITING"}, rows)
}
