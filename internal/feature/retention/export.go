package retention

import (
	"cmp"
	"context"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/moorebus/moorebus/internal/cli"
	"github.com/moorebus/moorebus/internal/feature"
	"github.com/moorebus/moorebus/internal/httpapi/requests"
	"github.com/moorebus/moorebus/internal/httpapi/route"
	"github.com/moorebus/moorebus/internal/print"
	"github.com/moorebus/moorebus/internal/refusal"
	"github.com/moorebus/moorebus/internal/runprint"
	"github.com/moorebus/moorebus/internal/transfer"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

// blobs reads large results through the API.
type blobs struct{ api route.Client }

// Blob returns what a reference of an event points to. What is not there is journal.ErrNotFound.
func (b blobs) Blob(ctx context.Context, ref events.Ref) ([]byte, error) {
	data, err := requests.Blob.Call(ctx, b.api, requests.Ref{Bucket: ref.Bucket, SHA256: ref.SHA256, Size: strconv.Itoa(ref.Size)})
	if refusal.Is(err, refusal.CodeUnknownRef) {
		err = fmt.Errorf("%w: %w", journal.ErrNotFound, err)
	}
	return data, err
}

func exportCommand(open feature.Open) *cobra.Command {
	var x runprint.Exporter
	cmd := x.Command()
	cmd.Example = `  moorebus export --all --out runs.jsonl
  moorebus export 0198c5a0-5a6b-7c00-8000-000000000001 | gzip > run.jsonl.gz`
	use := open(cmd, print.Text)
	cmd.ValidArgsFunction = feature.OfferRuns(use, 0)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := cmp.Or(x.Check(args), cli.CheckRuns(args)); err != nil {
			return err
		}
		access := feature.Reads
		if x.All {
			access |= feature.OnBus
		}
		return use(cmd, access, func(ctx context.Context, c *feature.Client) error {
			runs, err := c.Runs(ctx, args)
			if err != nil {
				return err
			}
			o := transfer.ExportOptions{Runs: runs, Blobs: blobs{c.API}, Namespace: c.Only}
			return x.Export(ctx, c.Log, o, c.Out, cmd.ErrOrStderr())
		})
	}
	return cmd
}
