package webhooks

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/moorebus/moorebus/internal/cli"
	"github.com/moorebus/moorebus/internal/feature"
	"github.com/moorebus/moorebus/internal/httpapi/requests"
	"github.com/moorebus/moorebus/internal/httpapi/route"
	"github.com/moorebus/moorebus/internal/print"
)

func command(open feature.Open) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "webhooks",
		Short: "Notify other programs about runs",
		Long: `Webhooks are URLs to which a gateway posts notices about runs: that they wait for a
person, ended, failed, were cancelled, used up their budget or could not be processed.
Every notice arrives at least once, or is given up after three days of failures.
docs/operations/webhooks.md explains the bodies, and how a receiver verifies signatures.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(putCommand(open), listCommand(open), showCommand(open), removeCommand(open), testCommand(open),
		deadCommand(open), retryCommand(open), dropCommand(open))
	return cmd
}

// maxSecretFile bounds a file with a secret, in bytes.
const maxSecretFile = 4096

func putCommand(open feature.Open) *cobra.Command {
	var change Change
	var on []string
	var form, secretFile string
	cmd := &cobra.Command{
		Use:   "put NAME URL",
		Short: "Create or change a webhook",
		Long: `Put creates a webhook, or replaces everything except its secret. A new webhook gets the
events from now on, and so does one that was disabled because its receiver answered 410.
Put prints the secret of a new webhook once. With --rotate it prints a new secret; the
old one signs for 24 more hours. The URL is https, or http to a loopback address. (--url
is the URL of a gateway.)`,
		Example: `  moorebus webhooks put pager https://hooks.example/moorebus --on waiting,failed
  moorebus webhooks put team https://hooks.slack.com/services/T0/B0/x --form slack
  moorebus webhooks put pager https://hooks.example/moorebus --rotate`,
		Args: cobra.ExactArgs(2),
	}
	use := open(cmd, print.Table, print.JSON, print.YAML)
	all := cmd.Flags()
	all.StringSliceVar(&on, "on", nil, "events to send: "+Names()+" (default: all)")
	all.StringSliceVar(&change.Agents, "agent", nil, "only runs that started with this `agent`, may be repeated")
	all.StringVar(&form, "form", string(Standard), "form of the bodies: standard, or slack, a text")
	all.StringVar(&secretFile, "secret-file", "", "`file` of the signing secret, whsec_ and base64; - is stdin (default: the current one, or a new one, which is printed)")
	all.BoolVar(&change.Rotate, "rotate", false, "create a new secret and print it")
	all.BoolVar(&change.SubRuns, "sub-runs", false, "also send events of sub-runs")
	all.BoolVar(&change.AllowHTTP, "allow-http", false, "allow http to addresses that are not loopback")
	cli.Complete(cmd, "form", string(Standard), string(Slack))
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		change.URL, change.Form = args[1], Form(form)
		for _, kind := range on {
			change.On = append(change.On, Kind(kind))
		}
		if secretFile != "" {
			data, err := cli.ReadUpTo(cmd.InOrStdin(), secretFile, maxSecretFile)
			if err != nil {
				return cli.BadConfig(err)
			}
			change.Secret = strings.TrimSpace(string(data))
		}
		return use(cmd, feature.Creates, func(ctx context.Context, c *feature.Client) error {
			info, err := PutWebhook.Call(ctx, c.API, NewWebhook{Named: requests.Name(args[0]), Change: change})
			if err != nil {
				return err
			}
			if info.Secret != "" && c.Format == print.Table {
				c.Notef("the secret of %s, which is not shown again:", info.Name)
				_, err = fmt.Fprintln(c.Out, info.Secret)
				return err
			}
			return showWebhooks(c, []Info{info}, info)
		})
	}
	return cmd
}

// showWebhooks prints webhooks as a table, or value.
func showWebhooks(c *feature.Client, all []Info, value any) error {
	if c.Format != print.Table {
		return print.Write(c.Out, c.Format, value)
	}
	rows := make([][]string, len(all))
	for i, w := range all {
		kinds := make([]string, len(w.On))
		for j, kind := range w.On {
			kinds[j] = string(kind)
		}
		note := w.Disabled
		if note == "" && w.Failing != "" {
			note = w.Failing + ", again " + w.Next.Local().Format(time.DateTime)
		}
		rows[i] = []string{w.Name, print.Plain(w.URL), strings.Join(kinds, ","), cmp.Or(strings.Join(w.Agents, ","), "all"), strconv.Itoa(w.Pending), strconv.Itoa(w.Dead), print.Plain(note)}
	}
	return print.WriteTable(c.Out, []string{"NAME", "URL", "ON", "AGENTS", "PENDING", "DEAD", ""}, rows)
}

func listCommand(open feature.Open) *cobra.Command {
	cmd := &cobra.Command{Use: "list", Short: "List the webhooks with the state of their delivery", Args: cobra.NoArgs}
	use := open(cmd, print.Table, print.JSON, print.YAML)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return use(cmd, feature.Reads, func(ctx context.Context, c *feature.Client) error {
			all, err := ListWebhooks.Call(ctx, c.API, requests.Scope{})
			if err != nil {
				return err
			}
			return showWebhooks(c, all.Webhooks, all.Webhooks)
		})
	}
	return cmd
}

func showCommand(open feature.Open) *cobra.Command {
	cmd := &cobra.Command{Use: "show NAME", Short: "Show a webhook and the state of its delivery", Args: cobra.ExactArgs(1)}
	use := open(cmd, print.YAML, print.JSON)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return use(cmd, feature.Reads, func(ctx context.Context, c *feature.Client) error {
			info, err := GetWebhook.Call(ctx, c.API, requests.Name(args[0]))
			if err != nil {
				return err
			}
			return print.Write(c.Out, c.Format, info)
		})
	}
	return cmd
}

func removeCommand(open feature.Open) *cobra.Command {
	cmd := &cobra.Command{Use: "rm NAME", Short: "Remove a webhook and its undelivered notices", Args: cobra.ExactArgs(1)}
	use := open(cmd, print.Text)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return use(cmd, feature.Writes, func(ctx context.Context, c *feature.Client) error {
			_, err := DeleteWebhook.Call(ctx, c.API, requests.Name(args[0]))
			return err
		})
	}
	return cmd
}

func testCommand(open feature.Open) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "test NAME",
		Short: "Send a test notice to a webhook once, and show the outcome",
		Long: `Test sends a notice of the type webhook.test. On a bus this process sends it; with
--url the gateway does, which also sends the real notices. It exits with 1 if the
receiver does not accept it.`,
		Args: cobra.ExactArgs(1),
	}
	use := open(cmd, print.Text, print.JSON, print.YAML)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return use(cmd, feature.Reads, func(ctx context.Context, c *feature.Client) error {
			tested, err := TestWebhook.Call(ctx, c.API, requests.Name(args[0]))
			switch {
			case err != nil:
				return err
			case c.Format != print.Text:
				err = print.Write(c.Out, c.Format, tested)
			case tested.Delivered:
				_, err = fmt.Fprintf(c.Out, "delivered: %d after %d ms\n", tested.Status, tested.Took)
			}
			if err == nil && !tested.Delivered {
				err = cli.Failed("not delivered after %d ms: %s", tested.Took, print.Plain(tested.Error))
			}
			return err
		})
	}
	return cmd
}

func deadCommand(open feature.Open) *cobra.Command {
	cmd := &cobra.Command{Use: "dead [NAME]", Short: "List the given-up notices of one webhook or of all, the oldest of each first", Args: cobra.MaximumNArgs(1)}
	use := open(cmd, print.Table, print.JSON, print.YAML)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return use(cmd, feature.Reads, func(ctx context.Context, c *feature.Client) error {
			all, err := deadLetters(ctx, c, args)
			if err != nil {
				return err
			}
			if c.Format != print.Table {
				return print.Write(c.Out, c.Format, all)
			}
			rows := make([][]string, len(all))
			for i, l := range all {
				rows[i] = []string{l.Webhook, l.ID, l.Run, l.Type, strconv.Itoa(l.Attempts), l.Time.Local().Format(time.DateTime), print.Plain(l.Reason)}
			}
			return print.WriteTable(c.Out, []string{"WEBHOOK", "ID", "RUN", "TYPE", "ATTEMPTS", "GIVEN UP", "REASON"}, rows)
		})
	}
	return cmd
}

// letter is a notice that was given up, with its webhook.
type letter struct {
	Webhook string `json:"webhook"`
	Undelivered
}

// deadLetters returns those of the named webhooks, or of all of the namespace.
func deadLetters(ctx context.Context, c *feature.Client, names []string) ([]letter, error) {
	if len(names) == 0 {
		hooks, err := ListWebhooks.Call(ctx, c.API, requests.Scope{})
		if err != nil {
			return nil, err
		}
		for _, hook := range hooks.Webhooks {
			names = append(names, hook.Name)
		}
	}
	all := []letter{}
	for _, name := range names {
		found, err := WebhookDead.Call(ctx, c.API, requests.Name(name))
		if err != nil {
			return nil, err
		}
		for _, l := range found.Dead {
			all = append(all, letter{name, l})
		}
	}
	return all, nil
}

func retryCommand(open feature.Open) *cobra.Command {
	return lettersCommand(open, "retry", "Deliver given-up notices again", "will be delivered again", RetryWebhook)
}

func dropCommand(open feature.Open) *cobra.Command {
	return lettersCommand(open, "drop", "Remove given-up notices", "are forgotten", DropWebhook)
}

// lettersCommand returns a command that does something with notices that were given up.
func lettersCommand(open feature.Open, verb, short, done string, do *route.Op[*Hooks, NamedLetters, WebhookCount]) *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use: verb + " NAME ID…", Short: short, Args: cobra.MinimumNArgs(1),
		Example: fmt.Sprintf("  moorebus webhooks %s pager 0198c5a0-5a6b-7c00-8000-000000000001\n  moorebus webhooks %s pager --all", verb, verb),
	}
	use := open(cmd, print.Text)
	cmd.Flags().BoolVar(&all, "all", false, "all given-up notices")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if all == (len(args) > 1) {
			return cli.Usage("name the notices as `moorebus webhooks dead` lists them, or use --all")
		}
		return use(cmd, feature.Writes, func(ctx context.Context, c *feature.Client) error {
			n, err := do.Call(ctx, c.API, NamedLetters{Named: requests.Name(args[0]), IDs: WebhookIDs{IDs: args[1:]}})
			if err == nil {
				_, err = fmt.Fprintf(c.Out, "%d notices %s\n", n.Count, done)
			}
			return err
		})
	}
	return cmd
}
