package store

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/moorebus/moorebus/internal/history"
	"github.com/moorebus/moorebus/internal/history/follow"
	"github.com/moorebus/moorebus/internal/history/words"
)

// Positions returns up to where each stream was read, by the stream's name.
func (s *Store) Positions(ctx context.Context) (map[string]uint64, error) {
	if err := s.repair(ctx); err != nil {
		return nil, err
	}
	all := map[string]uint64{}
	err := s.query(ctx, "SELECT stream, position FROM positions", nil, func(scan scan) error {
		var stream string
		var at int64
		err := scan(&stream, &at)
		all[stream] = uint64(at)
		return err
	})
	return all, err
}

// repair builds the store anew if it was found damaged.
func (s *Store) repair(ctx context.Context) error {
	if !s.damaged.Load() {
		return nil
	}
	s.applying.Lock()
	defer s.applying.Unlock()
	return s.rebuild(ctx)
}

// Reset removes everything, positions too.
func (s *Store) Reset(ctx context.Context) error {
	return s.change(ctx, func(t *transaction) error {
		for _, statement := range schema {
			if kind, name, _ := strings.Cut(strings.TrimPrefix(statement, "CREATE "), " "); kind == "TABLE" || kind == "VIRTUAL" {
				name, _, _ = strings.Cut(strings.TrimPrefix(name, "TABLE "), " ")
				if _, err := t.ExecContext(ctx, "DROP TABLE "+name); err != nil {
					return err
				}
			}
		}
		return create(ctx, t.Tx)
	})
}

// Apply stores all of a batch and the stream's new position, or nothing. The error is [follow.ErrMoved] if the
// stream's position is not the batch's From. After any other error the batch may be stored.
func (s *Store) Apply(ctx context.Context, b history.Batch) error {
	if err := s.repair(ctx); err != nil {
		return err
	}
	return s.change(ctx, func(t *transaction) error {
		var from int64
		err := t.get(ctx, "SELECT position FROM positions WHERE stream = ?", []any{b.Stream}, &from)
		if err != nil && !errors.Is(err, sql.ErrNoRows) {
			return err
		}
		if uint64(from) != b.From {
			return follow.ErrMoved
		}
		if err := t.exec(ctx, "INSERT INTO positions VALUES (?, ?) ON CONFLICT (stream) DO UPDATE SET position = excluded.position", b.Stream, int64(b.To)); err != nil {
			return err
		}
		return errors.Join(t.changes(ctx, b.Runs), t.notes(ctx, b.Notes), t.sums(ctx, b))
	})
}

// change makes a change in a transaction.
func (s *Store) change(ctx context.Context, make func(*transaction) error) error {
	s.applying.Lock()
	defer s.applying.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	ctx = context.WithoutCancel(ctx) // to watch it costs a goroutine for each statement
	s.mu.RLock()
	defer s.mu.RUnlock()
	t, err := s.begin(ctx)
	if err != nil {
		return s.seen(err)
	}
	if err = make(t); err != nil {
		err = errors.Join(err, t.Rollback())
	} else {
		err = t.end(ctx)
	}
	if err != nil {
		s.known.Purge()
	}
	return s.seen(err)
}

// Open runs are kept in memory: so many, if their tasks and folds are not larger.
const (
	knownRuns = 4096
	largest   = 8 << 10
)

type runKey struct{ namespace, id string }

// stored is what the store has of a run. rid is 0 if it has none. The number of its next text is 0 before it was
// looked for.
type stored struct {
	rid, started, high, next int64
	run                      history.Run
	note                     note
	is                       bool // the store has the run
	change                   *history.Change
}

// changes stores changes of runs, in the order of rids, since the table of words is written in that order.
func (t *transaction) changes(ctx context.Context, changes []history.Change) error {
	var last, high int64
	if err := t.get(ctx, "SELECT rid, high FROM runs ORDER BY rid DESC LIMIT 1", nil, &last, &high); err != nil && !errors.Is(err, sql.ErrNoRows) {
		return err
	}
	all := make([]*stored, 0, len(changes))
	seen := map[runKey]bool{}
	for i := range changes {
		key := runKey{changes[i].Run.Namespace, changes[i].Run.ID}
		if seen[key] { // a second change of a run follows the first
			return errors.Join(t.storeAll(ctx, all), t.changes(ctx, changes[i:]))
		}
		seen[key] = true
		r, err := t.stored(ctx, key)
		if err != nil {
			return err
		}
		r.change = &changes[i]
		if r.rid == 0 && !r.change.Gone {
			last++
			high = max(high, nano(r.change.Run.Started))
			r.rid, r.started, r.high = last, nano(r.change.Run.Started), high
		}
		all = append(all, r)
	}
	return t.storeAll(ctx, all)
}

func (t *transaction) storeAll(ctx context.Context, all []*stored) error {
	slices.SortFunc(all, func(a, b *stored) int { return cmp.Compare(a.rid, b.rid) })
	for _, r := range all {
		if err := t.store(ctx, r); err != nil {
			return err
		}
	}
	return nil
}

// stored returns what the store has of a run.
func (t *transaction) stored(ctx context.Context, key runKey) (*stored, error) {
	known, changed := t.changed[key]
	if !changed {
		known, _ = t.known.Get(key)
	}
	if known != nil {
		r := *known
		return &r, nil
	}
	ns, id := key.namespace, key.id
	r := &stored{run: history.Run{Namespace: ns, ID: id}}
	var row []byte
	err := t.get(ctx, "SELECT rid, started, row FROM runs WHERE ns = ? AND id = ?", []any{ns, id}, &r.rid, &r.started, &row)
	if err == nil {
		r.is = true
		err = unpack(row, &r.run)
	}
	if err == nil || errors.Is(err, sql.ErrNoRows) {
		var labels, scores []byte
		err = t.get(ctx, "SELECT labels, scores FROM notes WHERE ns = ? AND id = ?", []any{ns, id}, &labels, &scores)
		err = errors.Join(err, r.note.decode(labels, scores))
	}
	if errors.Is(err, sql.ErrNoRows) {
		err = nil
	}
	return r, err
}

// store makes one change.
func (t *transaction) store(ctx context.Context, r *stored) error {
	run, key := r.change.Run, runKey{r.change.Run.Namespace, r.change.Run.ID}
	t.changed[key] = nil
	if r.change.Gone || r.change.Anew {
		if err := t.forget(ctx, r.rid); err != nil {
			return err
		}
	}
	var old map[mark]*float64
	if r.is {
		old = r.marks(r.run)
	}
	if r.change.Gone {
		return errors.Join(t.mark(ctx, r, old, nil), t.exec(ctx, "DELETE FROM runs WHERE rid = ?", r.rid))
	}
	if started := nano(run.Started); started != r.started { // only a log that was replaced has another start
		if err := t.mark(ctx, r, old, nil); err != nil {
			return err
		}
		old, r.started = nil, started
		if err := t.exec(ctx, "UPDATE runs SET high = ? WHERE rid >= ? AND high < ?", started, r.rid, started); err != nil {
			return err
		}
	}
	if err := t.mark(ctx, r, old, r.marks(run)); err != nil {
		return err
	}
	row, err := values(r, run)
	if err != nil {
		return err
	}
	if err := errors.Join(t.exec(ctx, upsert, row...), t.texts(ctx, r)); err != nil {
		return err
	}
	t.changed[key] = &stored{rid: r.rid, started: r.started, next: r.next, run: run, note: r.note, is: true}
	return nil
}

var upsert = func() string {
	names, marks, sets := []string{}, []string{}, []string{}
	for _, c := range columns {
		names, marks = append(names, c[0]), append(marks, "?")
		if c[0] != "high" { // it depends on other runs
			sets = append(sets, c[0]+" = excluded."+c[0])
		}
	}
	return "INSERT INTO runs (" + strings.Join(names, ", ") + ") VALUES (" + strings.Join(marks, ", ") + ") ON CONFLICT (rid) DO UPDATE SET " + strings.Join(sets[3:], ", ")
}()

// forget removes a run's texts.
func (t *transaction) forget(ctx context.Context, rid int64) error {
	from, to := rid<<textBits, (rid+1)<<textBits
	return errors.Join(
		t.exec(ctx, "DELETE FROM words WHERE rowid IN (SELECT id FROM texts WHERE id >= ? AND id < ?)", from, to),
		t.exec(ctx, "DELETE FROM texts WHERE id >= ? AND id < ?", from, to))
}

// texts adds texts of a run.
func (t *transaction) texts(ctx context.Context, r *stored) error {
	if begin := r.rid << (textBits - kindBits); !r.is || r.change.Anew {
		r.next = begin
	} else if r.next == 0 && len(r.change.Texts) > 0 {
		var last sql.NullInt64
		if err := t.get(ctx, "SELECT max(id) FROM texts WHERE id >= ? AND id < ?", []any{r.rid << textBits, (r.rid + 1) << textBits}, &last); err != nil {
			return err
		}
		r.next = max(begin, last.Int64>>kindBits+1)
	}
	for _, text := range r.change.Texts {
		if r.next>>(textBits-kindBits) != r.rid {
			return nil
		}
		kind := slices.Index(kinds, text.Kind)
		if kind < 0 {
			return fmt.Errorf("%q is no kind of texts", text.Kind)
		}
		id := r.next<<kindBits | int64(kind)
		if err := t.exec(ctx, "INSERT INTO texts VALUES (?, ?, ?)", id, int64(text.N), nano(text.At)); err != nil {
			return err
		}
		if err := t.exec(ctx, "INSERT INTO words (rowid, word) VALUES (?, ?)", id, wordsOf(text)); err != nil {
			return err
		}
		r.next++
	}
	return nil
}

// wordsOf returns the words of a text, each once, and its code.
func wordsOf(text history.Text) string {
	var b strings.Builder
	b.Grow(len(text.Text))
	seen := map[string]bool{}
	for word := range words.Of(text.Text) {
		if !seen[word] {
			seen[word] = true
			b.WriteString(word)
			b.WriteByte(' ')
		}
	}
	if text.Code != "" {
		b.WriteString(codeWord(text.Code))
	}
	return b.String()
}

// codeWord is the word of a code. No text has it: words have letters, marks and digits alone.
func codeWord(code string) string { return "\ue000" + hex.EncodeToString([]byte(code)) }

// sums adds sums by hour.
func (t *transaction) sums(ctx context.Context, b history.Batch) error {
	for _, u := range b.Uses {
		if err := t.exec(ctx, `INSERT INTO uses VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (ns, hour, kind, name) DO UPDATE SET
			runs = uses.runs + excluded.runs, calls = uses.calls + excluded.calls, failed = uses.failed + excluded.failed,
			input = uses.input + excluded.input, output = uses.output + excluded.output, cached = uses.cached + excluded.cached,
			cost = uses.cost + excluded.cost, priced = max(uses.priced, excluded.priced), unpriced = uses.unpriced + excluded.unpriced`,
			u.Namespace, nano(u.Hour), string(u.Kind), u.Name, u.Runs, u.Calls, u.Failed, u.Input, u.Output, u.Cached, u.CostUSD, number(u.Priced), u.Unpriced); err != nil {
			return err
		}
	}
	for _, p := range b.Periods {
		if err := t.exec(ctx, `INSERT INTO periods VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (ns, hour) DO UPDATE SET
			started = periods.started + excluded.started, ended = periods.ended + excluded.ended,
			failed = periods.failed + excluded.failed, events = periods.events + excluded.events`,
			p.Namespace, nano(p.Hour), p.Started, p.Ended, p.Failed, p.Events); err != nil {
			return err
		}
	}
	return nil
}

// number is 1 for true.
func number(is bool) int64 {
	if is {
		return 1
	}
	return 0
}

// nano is a time in nanoseconds. Times beyond what they can say count as the first or the last.
func nano(at time.Time) int64 {
	switch {
	case at.Before(first):
		return first.UnixNano()
	case at.After(last):
		return last.UnixNano()
	}
	return at.UnixNano()
}

var first, last = time.Unix(0, -1<<63), time.Unix(0, 1<<63-1)
