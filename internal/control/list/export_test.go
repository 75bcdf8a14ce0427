package list

import (
	"context"

	feature "github.com/moorebus/moorebus/internal/feature/row"
)

// Know adds a filter to those that the lister knows.
func (l *Lister) Know(f feature.Filter) { l.known = append(l.known, f) }

// Backwards reads a page from the log itself.
func (l *Lister) Backwards(ctx context.Context, ns string, q Query) (Page, error) {
	if q.Limit == 0 {
		q.Limit = DefaultLimit
	}
	k := new(look)
	if err := k.take(ctx, l, ns, q.Filters); err != nil {
		return Page{}, err
	}
	return l.backwardsPage(ctx, ns, q, k)
}

// Unindexed is how much of the log may be missing in the index of a plain page.
const Unindexed = unindexed

// FindInLog is Find without the index.
func (l *Lister) FindInLog(ctx context.Context, ns, prefix string, limit int) ([]Run, error) {
	return l.findInLog(ctx, ns, prefix, limit)
}
