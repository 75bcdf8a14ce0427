package store

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// Facet is what runs with a key have used. P50 and P95 are of how long ended runs took, by nearest rank within
// 5 %; nil: none has ended.
type Facet struct {
	Key      string
	Runs     int64
	Tokens   int64
	CostUSD  float64
	P50, P95 *time.Duration

	slots map[int64]int64 // ended runs by the slot of their duration
}

// Facets are runs by a field, those with the most runs first; hours and days the newest first. Other is of the
// keys beyond the limit, nil if there are none; Total has each run once.
type Facets struct {
	Rows  []Facet
	Other *Facet
	Total Facet
}

// facets are the fields by which runs are counted. Those with a layout are times.
var facets = map[string]struct {
	column, layout string
	length         time.Duration
}{
	"state": {column: "r.state"}, "agent": {column: "r.agent"}, "error": {column: "r.error"}, "experiment": {column: "r.experiment"},
	"hour": {"r.started", time.RFC3339, time.Hour}, "day": {"r.started", time.DateOnly, 24 * time.Hour},
}

// Facets counts runs by state, agent, model, tool, error, experiment, label.KEY, hour or day of their start. Runs
// that have no key are in the total alone.
func (s *Store) Facets(ctx context.Context, which Select, by string, limit int) (Facets, error) {
	field, known := facets[by]
	rows, total := map[string]*Facet{}, &Facet{}
	count := func(key func(value any) string, only bool) func(scan) error {
		var value any
		var slot sql.NullInt64
		var tokens int64
		var cost sql.NullFloat64
		return func(scan scan) error {
			if err := scan(&value, &slot, &tokens, &cost); err != nil {
				return err
			}
			if only {
				total.count(slot, tokens, cost)
			}
			k := key(value)
			f := rows[k]
			if f == nil {
				f = &Facet{Key: k}
				rows[k] = f
			}
			f.count(slot, tokens, cost)
			return nil
		}
	}
	text := func(value any) string {
		key, _ := value.(string)
		return key
	}
	w := which.where()
	w.add("r.started >= ?", int64(-1<<63)) // the index of starts has all columns
	var err error
	switch {
	case known && field.length > 0:
		column := fmt.Sprintf("r.started / %d", int64(field.length))
		err = s.query(ctx, counted(column, " FROM runs r", w), w.args, count(func(value any) string {
			return moment(value.(int64) * int64(field.length)).Format(field.layout)
		}, true))
	case known:
		err = s.query(ctx, counted(field.column, " FROM runs r", w), w.args, count(text, true))
	case by == markModel || by == markTool || strings.HasPrefix(by, markLabel):
		err = s.query(ctx, counted("NULL", " FROM runs r", w), w.args, count(text, true))
		clear(rows)
		if err == nil {
			w.add("d.ns = ? AND d.field = ?", which.Namespace, by)
			err = s.query(ctx, counted("d.value", " FROM marks d CROSS JOIN runs r ON r.rid = d.rid", w), w.args, count(text, false))
		}
	default:
		err = fmt.Errorf("%.100q is no field to count runs by", by)
	}
	if !strings.HasPrefix(by, markLabel) {
		delete(rows, "")
	}
	return result(rows, total, field.length > 0, limit), err
}

// counted returns the query of what is counted of runs. SQLite takes longer to sum them itself.
func counted(column, from string, w *where) string {
	return "SELECT " + column + ", r.slot, r.tokens, r.cost" + from + w.String()
}

func result(rows map[string]*Facet, total *Facet, times bool, limit int) Facets {
	all := slices.SortedFunc(maps.Values(rows), func(a, b *Facet) int {
		if times {
			return cmp.Compare(b.Key, a.Key)
		}
		return cmp.Or(cmp.Compare(b.Runs, a.Runs), cmp.Compare(a.Key, b.Key))
	})
	f := Facets{Rows: make([]Facet, 0, min(len(all), limit)), Total: total.done()}
	for i, row := range all {
		if i < limit {
			f.Rows = append(f.Rows, row.done())
			continue
		}
		if f.Other == nil {
			f.Other = &Facet{}
		}
		f.Other.add(row)
	}
	if f.Other != nil {
		*f.Other = f.Other.done()
	}
	return f
}

func (f *Facet) count(slot sql.NullInt64, tokens int64, cost sql.NullFloat64) {
	f.Runs, f.Tokens, f.CostUSD = f.Runs+1, f.Tokens+tokens, f.CostUSD+cost.Float64
	if slot.Valid {
		if f.slots == nil {
			f.slots = map[int64]int64{}
		}
		f.slots[slot.Int64]++
	}
}

// add adds the runs of another facet.
func (f *Facet) add(o *Facet) {
	f.Runs, f.Tokens, f.CostUSD = f.Runs+o.Runs, f.Tokens+o.Tokens, f.CostUSD+o.CostUSD
	for slot, n := range o.slots {
		if f.slots == nil {
			f.slots = map[int64]int64{}
		}
		f.slots[slot] += n
	}
}

// done returns the facet with its percentiles.
func (f *Facet) done() Facet {
	f.P50, f.P95 = f.percentile(50), f.percentile(95)
	f.slots = nil
	return *f
}

func (f *Facet) percentile(p int64) *time.Duration {
	var ended, passed int64
	for _, n := range f.slots {
		ended += n
	}
	for _, slot := range slices.Sorted(maps.Keys(f.slots)) {
		if passed += f.slots[slot]; passed*100 >= p*ended {
			d := slotTime(slot)
			return &d
		}
	}
	return nil
}
