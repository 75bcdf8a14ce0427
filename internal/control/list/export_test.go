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

// FindInLog is Find without the index.
func (l *Lister) FindInLog(ctx context.Context, ns, prefix string, limit int) ([]Run, error) {
	return l.findInLog(ctx, ns, prefix, limit)
}
