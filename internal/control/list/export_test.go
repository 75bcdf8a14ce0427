package list

import "context"

// Backwards reads a page from the log itself.
func (l *Lister) Backwards(ctx context.Context, ns string, q Query) (Page, error) {
	if q.Limit == 0 {
		q.Limit = DefaultLimit
	}
	return l.backwardsPage(ctx, ns, q)
}

// Unindexed is how much of the log may be missing in the index of a plain page.
const Unindexed = unindexed
