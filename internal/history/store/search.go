package store

import (
	"context"
	"time"

	"github.com/moorebus/moorebus/internal/history"
	"github.com/moorebus/moorebus/internal/history/query"
)

// Hit is a text that was found: of the event N of a run. What it says is in the log.
type Hit struct {
	Run  string
	N    uint64
	Kind history.Kind
	At   time.Time
	// ID is the text's place in the order of hits of the same time.
	ID int64
}

// Search returns at most limit texts that match all text terms that are not negated, the newest first, those
// after the hit after if there is one. The other terms choose runs. Without a text term there are no hits.
func (s *Store) Search(ctx context.Context, which Select, after *Hit, limit int) ([]Hit, error) {
	var terms []query.Term
	var out []int
	for i, t := range which.Query.Terms {
		if isText(t) && !t.Not {
			terms, out = append(terms, t), append(out, i)
		}
	}
	if len(terms) == 0 {
		return nil, nil
	}
	w := which.where(out...)
	w.add("d.words MATCH ?", expression(terms...))
	for _, t := range terms {
		condition, args := ofKind("d.rowid", t.Field)
		w.add("TRUE"+condition, args...)
	}
	low, err := s.low(ctx, which.Query)
	if err != nil {
		return nil, err
	}
	w.add("d.rowid >= ?", low<<textBits)
	if after != nil {
		w.add("(t.at, t.id) < (?, ?)", nano(after.At), after.ID)
	}
	hits := []Hit{}
	err = s.query(ctx, "SELECT r.id, t.n, t.at, t.id FROM words d CROSS JOIN texts t ON t.id = d.rowid CROSS JOIN runs r ON r.rid = d.rowid >> "+bits+w.String()+" ORDER BY t.at DESC, t.id DESC LIMIT ?",
		append(w.args, limit), func(scan scan) error {
			var h Hit
			var n, at int64
			err := scan(&h.Run, &n, &at, &h.ID)
			h.N, h.At, h.Kind = uint64(n), moment(at), kinds[h.ID&(1<<kindBits-1)]
			hits = append(hits, h)
			return err
		})
	return hits, err
}
