package control

import (
	"context"

	"github.com/moorebus/moorebus/internal/compare"
	"github.com/moorebus/moorebus/pkg/events"
)

// Compare returns how two runs of the namespace differ, up to their heads: a CodeRunNotFound or
// CodeRunPurged for one that is not there.
func (c *Controller) Compare(ctx context.Context, ns, a, b string) (*compare.Comparison, error) {
	var runs [2]events.Run
	for i, id := range []string{a, b} {
		if _, err := c.Events(ctx, ns, id, 1); err != nil {
			return nil, err
		}
		var err error
		if runs[i], err = c.Place(ns, id); err != nil {
			return nil, err
		}
	}
	return compare.Runs(ctx, c.Log, c.Store.Machine(), runs[0], runs[1])
}
