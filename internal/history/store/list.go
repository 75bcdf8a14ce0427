package store

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/moorebus/moorebus/internal/history/query"
)

// Cursor is where a page of a list ends: the value that its last run is sorted by, which is nil if the run has
// none, and the run's id. Time is that of the first page.
type Cursor struct {
	Int   *int64    `json:"i,omitempty"`
	Float *float64  `json:"f,omitempty"`
	ID    string    `json:"id"`
	Time  time.Time `json:"t"`
}

func (c *Cursor) value() any {
	switch {
	case c.Int != nil:
		return *c.Int
	case c.Float != nil:
		return *c.Float
	}
	return nil
}

// cursor returns the cursor of a run in an order.
func (r Row) cursor(by query.Field, first time.Time) *Cursor {
	c := &Cursor{ID: r.ID, Time: first}
	whole := func(n int64) { c.Int = &n }
	switch {
	case by == query.Started:
		whole(nano(r.Started))
	case by == query.Tokens:
		whole(int64(r.Tokens))
	case by == query.Steps:
		whole(int64(r.Steps))
	case by == query.Cost && r.Priced:
		c.Float = &r.CostUSD
	case by == query.Ended && !r.Ended.IsZero():
		whole(nano(r.Ended))
	case by == query.Duration && !r.Ended.IsZero():
		whole(nano(r.Ended) - nano(r.Started))
	}
	return c
}

// List returns at most limit runs in an order, those after the cursor if there is one. next is nil if there
// are no more, else the cursor for the next page; first is the time of the first page, which it holds.
func (s *Store) List(ctx context.Context, which Select, sort query.Sort, after *Cursor, limit int, first time.Time) (rows []Row, next *Cursor, err error) {
	if at := slices.IndexFunc(which.Query.Terms, func(t query.Term) bool { return isText(t) && !t.Not }); at >= 0 && sort == (query.Sort{By: query.Started, Descending: true}) {
		rows, err = s.newest(ctx, which, at, after, limit+1)
	} else {
		rows, err = s.sorted(ctx, which, sort, after, limit+1)
	}
	if len(rows) > limit {
		rows = rows[:limit]
		next = rows[limit-1].cursor(sort.By, first)
	}
	return rows, next, err
}

// sorted lists by an index: first the runs with the value that they are sorted by, then those without.
func (s *Store) sorted(ctx context.Context, which Select, sort query.Sort, after *Cursor, limit int) (rows []Row, err error) {
	column, way, than := sized[sort.By], "", ">"
	if sort.Descending {
		way, than = " DESC", "<"
	}
	from, w := which.from(sort)
	for _, has := range []bool{true, false} {
		w, order := w.copy(), column
		switch {
		case sort.By == query.Started && !has, !has && len(rows) >= limit, has && after != nil && after.value() == nil:
			continue
		case !has:
			w.add(column + " IS NULL")
			if after != nil && after.value() == nil {
				w.add("r.id "+than+" ?", after.ID)
			}
			order = "r.ns" // the same for all
		case after != nil && strings.Contains(from, " d "):
			w.add("d.started "+than+"= ? AND ("+column+", r.id) "+than+" (?, ?)", after.value(), after.value(), after.ID)
		case after != nil:
			w.add("("+column+", r.id) "+than+" (?, ?)", after.value(), after.ID)
		default:
			w.add(column + " IS NOT NULL")
		}
		if strings.Contains(from, " d ") {
			order = "d.started"
		}
		err = s.query(ctx, "SELECT "+rowColumns+from+rowFrom+w.String()+" ORDER BY "+order+way+", r.id"+way+" LIMIT ?", append(w.args, limit-len(rows)), func(scan scan) error {
			r, err := scanRow(scan)
			rows = append(rows, r)
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return rows, nil
}

func (w *where) copy() *where { return &where{slices.Clone(w.all), slices.Clone(w.args)} }

// from returns what runs are read from for an order, and their condition. If a term names one mark, the index
// of marks has the runs in the order of their starts.
func (s Select) from(sort query.Sort) (string, *where) {
	for i, t := range s.Query.Terms {
		field, is := marked[t.Field]
		if is && sort.By == query.Started && !t.Not && t.Op == query.Is && len(t.Values) == 1 && !t.Values[0].Prefix {
			w := s.where(i)
			w.add("d.ns = ? AND d.field = ? AND d.value = ?", s.Namespace, field+t.Key, t.Values[0].Text)
			return " FROM marks d CROSS JOIN runs r ON r.rid = d.rid", w
		}
	}
	return " FROM runs r", s.where()
}

// newest lists the newest runs that match the text term at. The index of words has them in the order of their
// rids, which is nearly that of their starts: no run that follows can have started later than high.
func (s *Store) newest(ctx context.Context, which Select, at int, after *Cursor, limit int) (rows []Row, err error) {
	term := which.Query.Terms[at]
	w := which.where(at)
	kind, args := ofKind("d.rowid", term.Field)
	w.add("d.words MATCH ?"+kind, append([]any{expression(term)}, args...)...)
	low, err := s.low(ctx, which.Query)
	if err != nil {
		return nil, err
	}
	w.add("d.rowid >= ?", low<<textBits)
	if after != nil {
		w.add("(r.started, r.id) < (?, ?)", after.value(), after.ID)
	}
	var last int64
	err = s.query(ctx, "SELECT "+rowColumns+" FROM words d CROSS JOIN runs r ON r.rid = d.rowid >> "+bits+rowFrom+w.String()+" ORDER BY d.rowid DESC", w.args, func(scan scan) error {
		r, err := scanRow(scan)
		if err != nil || r.rid == last {
			return err
		}
		last = r.rid
		if len(rows) == limit && newer(rows[limit-1], r) < 0 {
			if nano(rows[limit-1].Started) > r.high {
				return errEnough
			}
			return nil
		}
		i, _ := slices.BinarySearchFunc(rows, r, newer)
		rows = slices.Insert(rows, i, r)
		rows = rows[:min(len(rows), limit)]
		return nil
	})
	return rows, err
}

// newer compares two runs: the one that started later comes first.
func newer(a, b Row) int {
	if c := b.Started.Compare(a.Started); c != 0 {
		return c
	}
	return strings.Compare(b.ID, a.ID)
}

// low returns a rid: all runs that started as late as the query asks for have it or a higher one.
func (s *Store) low(ctx context.Context, q query.Query) (int64, error) {
	since := int64(-1 << 63)
	for _, t := range q.Terms {
		if t.Field == query.Started && !t.Not && (t.Op == query.Above || t.Op == query.AtLeast || t.Op == query.Equal) {
			since = max(since, nano(t.Values[0].Time))
		}
	}
	if since == -1<<63 {
		return 0, nil
	}
	var from, to, rid, high int64
	if err := s.query(ctx, "SELECT COALESCE(max(rid), 0) + 1 FROM runs", nil, func(scan scan) error { return scan(&to) }); err != nil {
		return 0, err
	}
	for from < to {
		middle := from + (to-from)/2
		high = since // if there is none any more
		err := s.query(ctx, "SELECT rid, high FROM runs WHERE rid >= ? ORDER BY rid LIMIT 1", []any{middle}, func(scan scan) error { return scan(&rid, &high) })
		if err != nil {
			return 0, err
		}
		if high >= since {
			to = middle
		} else {
			from = rid + 1
		}
	}
	return from, nil
}
