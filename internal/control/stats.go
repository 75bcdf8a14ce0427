package control

import (
	"context"
	"slices"

	"github.com/moorebus/moorebus/internal/announce"
	"github.com/moorebus/moorebus/internal/control/list"
	"github.com/moorebus/moorebus/internal/ports"
	"github.com/moorebus/moorebus/pkg/events"
)

// Stats are the counts of a namespace, and what the workers of all namespaces do.
type Stats struct {
	list.Counts
	// Backlog is how much work waits by state and pool. Where that is not known,
	// BacklogReason says why.
	Backlog       []ports.Backlog `json:"backlog,omitempty" jsonschema:"Of all namespaces. acting stands for parallel_acting as well."`
	BacklogReason string          `json:"backlog_reason,omitempty" jsonschema:"Why there is no backlog."`
	// Workers are the live instances. Where they are not known, WorkersReason says why.
	Workers       []announce.Worker `json:"workers" jsonschema:"Live planners and actors of all namespaces. Other roles announce nothing."`
	WorkersReason string            `json:"workers_reason,omitempty" jsonschema:"Why there are no workers."`
}

// Stats returns the counts of a namespace. Its errors are those of Runs.
func (c *Controller) Stats(ctx context.Context, ns string) (Stats, error) {
	counts, err := c.Counts(ctx, ns)
	if err != nil {
		return Stats{}, err
	}
	stats := Stats{Counts: counts, Workers: []announce.Worker{}}
	if c.cfg.Fleet == nil {
		stats.BacklogReason, stats.WorkersReason = "this bus does not report it", "this bus does not report them"
		return stats, nil
	}
	if stats.Backlog, err = c.cfg.Fleet.Backlogs(ctx, c.working()); err != nil {
		stats.BacklogReason = err.Error()
	}
	if workers, err := c.Launcher.Directory().Workers(ctx); err != nil {
		stats.WorkersReason = err.Error()
	} else {
		stats.Workers = append(stats.Workers, workers...)
	}
	return stats, ctx.Err()
}

// working returns the states that workers take deliveries of.
func (c *Controller) working() []events.State {
	return slices.DeleteFunc(c.Table.States(), func(s events.State) bool {
		return c.Table.Terminal(s) || slices.Contains([]events.State{c.Table.Initial(), events.WaitingForUser, events.Control}, s)
	})
}
