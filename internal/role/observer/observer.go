// Package observer is the command of the role observer. It links no tool, no model's adapter and no
// HTTP API, since it needs none of them.
package observer

import (
	"context"

	"github.com/moorebus/moorebus/internal/cli"
	"github.com/moorebus/moorebus/internal/observer"
	"github.com/moorebus/moorebus/internal/role"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Command returns the command of the role observer.
func Command() *cobra.Command {
	var every int
	return role.Command("observer", "Commit results: the states Observing and Paging",
		`Observer consumes the events that enter Observing and Paging, commits the results
of tools to the run's history, and decides whether a run reflects or pages next. It
stores snapshots of long runs, so that other roles need not read a run from its
beginning.`,
		func(flags *pflag.FlagSet) { AddSnapshotFlag(flags, &every) }, nil,
		func(ctx context.Context, p role.Process) error {
			o, err := observer.New(observer.Config{Base: p.Base, Estimators: p.Estimators, Snapshots: p.Bus, SnapshotEvery: every}.On(p.Bus))
			if err != nil {
				return err
			}
			p.Ready(o.Ready)
			return o.Run(ctx)
		})
}

// AddSnapshotFlag adds --snapshot-every, for processes with an observer.
func AddSnapshotFlag(flags *pflag.FlagSet, every *int) {
	flags.IntVar(every, "snapshot-every", observer.DefaultSnapshotEvery, "events between two snapshots of a run, more for a long run; 0: no snapshots")
	cli.NotNegative(flags, "snapshot-every")
}
