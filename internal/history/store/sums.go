package store

import (
	"context"
	"time"

	"github.com/moorebus/moorebus/internal/history"
)

// Uses returns what a namespace used by a kind of name, in hours from a time on, in the order of hours and names.
func (s *Store) Uses(ctx context.Context, ns string, kind history.UseKind, since time.Time) (all []history.Use, err error) {
	err = s.query(ctx, `SELECT hour, name, runs, calls, failed, input, output, cached, cost, priced, unpriced FROM uses
		WHERE ns = ? AND hour >= ? AND kind = ? ORDER BY hour, name`, []any{ns, nano(since), string(kind)}, func(scan scan) error {
		u := history.Use{Namespace: ns, Kind: kind}
		var hour int64
		err := scan(&hour, &u.Name, &u.Runs, &u.Calls, &u.Failed, &u.Input, &u.Output, &u.Cached, &u.CostUSD, &u.Priced, &u.Unpriced)
		u.Hour = moment(hour)
		all = append(all, u)
		return err
	})
	return all, err
}

// Periods returns what happened in a namespace, in hours from a time on, in their order.
func (s *Store) Periods(ctx context.Context, ns string, since time.Time) (all []history.Period, err error) {
	err = s.query(ctx, "SELECT hour, started, ended, failed, events FROM periods WHERE ns = ? AND hour >= ? ORDER BY hour", []any{ns, nano(since)}, func(scan scan) error {
		p := history.Period{Namespace: ns}
		var hour int64
		err := scan(&hour, &p.Started, &p.Ended, &p.Failed, &p.Events)
		p.Hour = moment(hour)
		all = append(all, p)
		return err
	})
	return all, err
}

// Below returns the runs that answer calls of a run and its forks, the oldest first, at most limit.
func (s *Store) Below(ctx context.Context, ns, run string, limit int) ([]Row, error) {
	return s.rows(ctx, `r.rid IN (SELECT rid FROM runs WHERE ns = ? AND parent = ? AND parent <> '' UNION SELECT rid FROM runs WHERE ns = ? AND fork_of = ? AND fork_of <> '')
		ORDER BY r.started, r.id LIMIT ?`, ns, run, ns, run, limit)
}

// Open returns the runs of a namespace that have not ended, in the order in which the store came to know them.
func (s *Store) Open(ctx context.Context, ns string) ([]Row, error) {
	return s.rows(ctx, "r.ns = ? AND r.ended IS NULL ORDER BY r.rid", ns)
}

// Run returns a run, and false if the store has none of that id.
func (s *Store) Run(ctx context.Context, ns, run string) (Row, bool, error) {
	rows, err := s.rows(ctx, "r.ns = ? AND r.id = ?", ns, run)
	if len(rows) == 0 {
		return Row{}, false, err
	}
	return rows[0], true, err
}

func (s *Store) rows(ctx context.Context, where string, args ...any) (rows []Row, err error) {
	err = s.query(ctx, "SELECT "+rowColumns+" FROM runs r"+rowFrom+" WHERE "+where, args, func(scan scan) error {
		r, err := scanRow(scan)
		rows = append(rows, r)
		return err
	})
	return rows, err
}
