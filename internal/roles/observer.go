package roles

import (
	"context"

	"github.com/moorebus/moorebus/internal/compose"
	"github.com/moorebus/moorebus/internal/observer"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Observer returns the command of the role observer.
func Observer() *cobra.Command {
	var every int
	return compose.RoleCommand("observer", "Commit results: the states Observing and Paging",
		`Observer consumes the events that enter Observing and Paging, commits the results
of tools to the run's history, and decides on reflection and paging. It keeps
snapshots of long runs, so that other roles need not read a run from its beginning.`,
		func(flags *pflag.FlagSet) { compose.AddSnapshotFlag(flags, &every) }, nil,
		func(ctx context.Context, r compose.Role) error {
			o, err := r.Observer(observer.Config{Snapshots: r.Bus, SnapshotEvery: every})
			if err != nil {
				return err
			}
			r.Ready(o.Ready)
			return o.Run(ctx)
		})
}
