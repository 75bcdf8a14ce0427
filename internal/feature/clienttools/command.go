package clienttools

import (
	"context"
	"io"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/moorebus/moorebus/internal/cli"
	"github.com/moorebus/moorebus/internal/control"
	"github.com/moorebus/moorebus/internal/feature"
	"github.com/moorebus/moorebus/internal/print"
)

// maxResult bounds a result that is read from stdin, in bytes.
const maxResult = 16 << 20

func command(open feature.Open) *cobra.Command {
	var failed bool
	cmd := &cobra.Command{
		Use:   "return RUN CALL TEXT",
		Short: "Return the result of a client tool's call",
		Long: `Return posts the result of a call of one of the agent's client_tools, which no actor
executes. TEXT is the result, or with --error the reason of a failure. TEXT - is read
from stdin. It prints the run's state. The same result again changes nothing; another
one is refused.`,
		Example: `  moorebus return 0198c5a0-5a6b-7c00-8000-000000000001 call_1_1 "blue"
  moorebus return 0198c5a0-5a6b-7c00-8000-000000000001 call_1_1 --error "the user closed the dialog"`,
		Args: cobra.ExactArgs(3),
	}
	use := open(cmd, print.Text, print.JSON)
	cmd.ValidArgsFunction = feature.OfferRuns(use, 1)
	cmd.Flags().BoolVar(&failed, "error", false, "the call failed, and TEXT says why")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		text := args[2]
		if text == "-" {
			data, err := io.ReadAll(io.LimitReader(cmd.InOrStdin(), maxResult+1))
			if err != nil {
				return err
			}
			text = strings.TrimSuffix(string(data), "\n")
		}
		switch {
		case !utf8.ValidString(text):
			return cli.Usage("TEXT is not valid UTF-8")
		case len(text) > maxResult:
			return cli.Usage("TEXT is larger than %d MiB", maxResult>>20)
		}
		return use(cmd, feature.Writes, func(ctx context.Context, c *feature.Client) error {
			return c.Post(ctx, args[0], []control.Input{control.ToolCallResult{CallID: args[1], Success: !failed, Text: text}})
		})
	}
	return cmd
}
