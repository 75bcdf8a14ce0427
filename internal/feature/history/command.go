package history

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/moorebus/moorebus/internal/cli"
	"github.com/moorebus/moorebus/internal/feature"
	"github.com/moorebus/moorebus/internal/httpapi/requests"
	"github.com/moorebus/moorebus/internal/print"
)

func labelCommand(open feature.Open) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "label RUN [KEY=VALUE|KEY-]...",
		Short: "Show or change the labels of a run",
		Long: `Label changes the labels that a run is shown and found with, also of one that has
ended, and prints all that it has then. KEY- removes a label. The run's log stays as it
is, and its sub-runs and forks have the labels that it began with.`,
		Example: `  moorebus label @last customer=acme stage-`,
		Args:    cobra.MinimumNArgs(1),
	}
	use := open(cmd, print.Text, print.JSON)
	cmd.ValidArgsFunction = feature.OfferRuns(use, 1)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		patch := LabelPatch{}
		for _, arg := range args[1:] {
			key, value, sets := strings.Cut(arg, "=")
			if gone, removes := strings.CutSuffix(key, "-"); sets {
				patch[key] = &value
			} else if removes {
				patch[gone] = nil
			} else {
				return cli.Usage("%s: want KEY=VALUE, or KEY- to remove a label", arg)
			}
		}
		return use(cmd, feature.Writes, func(ctx context.Context, c *feature.Client) error {
			run, err := c.FindRun(ctx, args[0])
			if err != nil {
				return err
			}
			now, err := SetLabels.Call(ctx, c.API, NewLabels{requests.ID(run), patch})
			if err != nil {
				return err
			}
			var lines []string
			for _, key := range slices.Sorted(maps.Keys(now.Labels)) {
				lines = append(lines, fmt.Sprintf("%s=%s", key, now.Labels[key]))
			}
			return c.Report(now, strings.Join(lines, "\n"))
		})
	}
	return cmd
}
