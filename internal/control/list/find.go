package list

import (
	"context"
	"strings"

	"github.com/moorebus/moorebus/pkg/journal"
)

// Find returns at most limit runs of the namespace whose ids begin with a prefix, newest first.
// An empty prefix is that of every run. It reads the first event of each run from the log where
// the index is far behind; then only id, agent, task and start of a run are known.
func (l *Lister) Find(ctx context.Context, ns, prefix string, limit int) ([]Run, error) {
	ns, err := l.a.CheckNamespace(ns)
	if err != nil {
		return nil, err
	}
	missing, _, err := l.index.missing(ctx)
	if err != nil {
		return nil, err
	}
	if missing <= unindexed {
		page, err := l.Runs(ctx, ns, Query{Filters: Filters{"id_prefix": prefix}, Limit: limit})
		return page.Runs, err
	}
	return l.findInLog(ctx, ns, prefix, limit)
}

func (l *Lister) findInLog(ctx context.Context, ns, prefix string, limit int) (found []Run, err error) {
	for e, err := range l.newestFirst(ctx, journal.Filter{Namespace: ns, From: l.a.Table.Initial()}, nil) {
		if err != nil {
			return nil, err
		}
		if strings.HasPrefix(e.run.ID, prefix) {
			if found = append(found, e.info); len(found) == limit {
				break
			}
		}
	}
	return found, nil
}
