package follow

import (
	"context"
	"errors"
	"time"

	"github.com/moorebus/moorebus/internal/history"
	"github.com/moorebus/moorebus/internal/history/fold"
	"github.com/moorebus/moorebus/internal/retry"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// apply applies records of a shard that follow its position.
func (f *Follower) apply(ctx context.Context, shard int, records []journal.Record) error {
	if len(records) == 0 {
		return nil
	}
	f.applying[shard].Lock()
	defer f.applying[shard].Unlock()
	p := projection{f: f, shard: shard, from: f.position(shard), to: records[len(records)-1].Seq, runs: map[events.Run]*projected{}}
	if err := p.project(ctx, records); err != nil {
		return wrap(shard, err)
	}
	if err := f.o.Store.Apply(ctx, p.batch()); err != nil {
		return wrap(shard, err)
	}
	for i, rec := range records {
		if s := p.subjects[i]; s != nil {
			f.rates.took(rec, s.Run, s.From == f.o.Machine.Table().Initial())
		}
	}
	f.reached(shard, p.to)
	return nil
}

// projection makes a batch of records.
type projection struct {
	f        *Follower
	shard    int
	from, to uint64
	// subjects are those of the records, nil for one that belongs to no run.
	subjects []*events.Subject
	runs     map[events.Run]*projected
	order    []*projected
	changes  []history.Change
	uses     map[useKey]*history.Sum
	periods  map[periodKey]*history.Period
}

type useKey struct {
	periodKey
	kind history.UseKind
	name string
}

type periodKey struct {
	namespace string
	hour      time.Time
}

// projected is a run that the batch has records of. The fold is nil before its first event. The store has n
// events of the run, if it is there.
type projected struct {
	run     events.Run
	there   bool
	n       uint64
	fold    *fold.Fold
	added   []fold.Change
	suspect bool
}

func (p *projection) project(ctx context.Context, records []journal.Record) error {
	p.subjects = make([]*events.Subject, len(records))
	var runs []events.Run
	for i, rec := range records {
		s, err := events.ParseSubject(rec.Subject)
		if err != nil || s.CheckShard(len(p.f.applying)) != nil || s.Run.Shard != p.shard {
			continue // it belongs to no run
		}
		p.subjects[i] = &s
		if p.runs[s.Run] == nil {
			p.runs[s.Run] = &projected{run: s.Run}
			runs, p.order = append(runs, s.Run), append(p.order, p.runs[s.Run])
		}
	}
	if err := p.resume(ctx, runs); err != nil {
		return err
	}
	for i, rec := range records {
		if s := p.subjects[i]; s != nil && !p.runs[s.Run].suspect {
			if err := p.add(ctx, p.runs[s.Run], *s, rec); err != nil {
				return err
			}
		}
	}
	for _, r := range p.order {
		if err := p.finish(ctx, r); err != nil {
			return err
		}
	}
	return nil
}

// resume reads the rows of the runs.
func (p *projection) resume(ctx context.Context, runs []events.Run) error {
	rows, err := p.f.o.Store.Runs(ctx, runs)
	for _, row := range rows {
		r := p.runs[events.Run{Shard: p.shard, Namespace: row.Namespace, ID: row.ID}]
		r.there, r.n = true, row.N
		if r.fold, err = fold.Resume(p.f.o.Machine.Table(), row); err != nil {
			return err
		}
	}
	return err
}

// add folds the next record of a run.
func (p *projection) add(ctx context.Context, r *projected, s events.Subject, rec journal.Record) error {
	m := p.f.o.Machine
	if r.fold == nil {
		if s.From != m.Table().Initial() {
			return nil // what is there of a run without a beginning
		}
		r.fold = fold.New(m.Table(), r.run)
	}
	e := decode(m, s, rec)
	if e != nil && e.N == 1 && events.TypeOf(e.Data) == events.TypeForked {
		begun := runlog.NewFold(p.f.o.Log, m, r.run)
		switch _, err := begun.Apply(ctx, rec); {
		case err == nil:
			r.fold.Inherit(begun.Memory())
		case runlog.Refused(err):
			e = nil
		case !unreadable(err):
			return err
		}
	}
	c, follows := r.fold.Add(s, e, events.Hash(rec.Body), rec.Stored)
	if r.suspect = !follows; follows {
		r.added = append(r.added, c)
	}
	return nil
}

// decode returns a record's event, or nil if it cannot be decoded or no run allows it on its subject.
func decode(m *reducer.Machine, s events.Subject, rec journal.Record) *events.Event {
	e, err := m.Codec().Decode(rec.Body)
	if err != nil || reducer.CheckEdge(m.Table(), s, e) != nil {
		return nil
	}
	return e
}

// unreadable reports whether an error says that this build, or this log, cannot fold the run.
func unreadable(err error) bool {
	var table *reducer.TableError
	var parent *runlog.ParentGoneError
	return errors.As(err, &table) || errors.As(err, &parent)
}

// finish adds what the batch changes of a run.
func (p *projection) finish(ctx context.Context, r *projected) (err error) {
	c := history.Change{}
	if r.suspect {
		if c.Anew, err = p.refold(ctx, r); err != nil {
			return err
		}
	}
	switch {
	case r.fold != nil:
		if c.Run, err = r.fold.Row(); err != nil {
			return err
		}
	case r.there:
		c.Gone, c.Run = true, history.Run{Namespace: r.run.Namespace, ID: r.run.ID, Shard: r.run.Shard}
	default:
		return nil
	}
	for _, added := range r.added {
		p.sum(added)
		for _, t := range added.Texts {
			if t, err = p.f.read(ctx, t); err != nil {
				return err
			}
			c.Texts = append(c.Texts, t)
		}
	}
	p.changes = append(p.changes, c)
	return nil
}

// refold folds a run anew by the reducer, up to the batch's end: some of its records are not events. It leaves
// in r what the records of the batch add. anew says that all records of the run are in this batch, although
// the store may know it: the run was purged and then imported. A run that the log has lost has no fold.
func (p *projection) refold(ctx context.Context, r *projected) (anew bool, err error) {
	m := p.f.o.Machine
	whole, unread := runlog.NewFold(p.f.o.Log, m, r.run), false
	r.fold, r.added = nil, nil
	for rec, err := range p.f.o.Log.Read(ctx, r.run, 0) {
		if err != nil {
			return false, err
		}
		s, err := events.ParseSubject(rec.Subject)
		if err != nil {
			continue // it belongs to no run
		}
		if rec.Seq > p.to || r.fold == nil && s.From != m.Table().Initial() {
			break
		}
		if r.fold == nil {
			if anew, r.fold = rec.Seq > p.from, fold.New(m.Table(), r.run); anew {
				r.fold.Counted(r.n)
			}
		}
		e, err := (*events.Event)(nil), error(nil)
		if !unread {
			e, err = whole.Apply(ctx, rec)
		}
		switch {
		case err == nil:
		case unreadable(err):
			unread = true
		case !runlog.Refused(err):
			return false, err
		}
		if c, is := p.again(r.fold, s, rec, whole.Memory(), e, err, unread); is && rec.Seq > p.from {
			r.added = append(r.added, c)
		}
	}
	return anew, nil
}

// again folds a record of which the reducer says whether it is the event e; unread: it cannot say.
func (p *projection) again(f *fold.Fold, s events.Subject, rec journal.Record, mem *reducer.Memory, e *events.Event, refused error, unread bool) (fold.Change, bool) {
	hash := events.Hash(rec.Body)
	switch {
	case unread:
		if c, follows := f.Add(s, decode(p.f.o.Machine, s, rec), hash, rec.Stored); follows {
			return c, true
		}
		return f.Unread(rec.Body, hash, rec.Stored), true
	case refused != nil:
		f.Poison(hash, rec.Stored)
		return fold.Change{}, false
	case e.N == 1:
		f.Inherit(mem)
	}
	return f.Add(s, e, hash, rec.Stored)
}

// sum adds what an event used and what happened to the sums of the batch.
func (p *projection) sum(c fold.Change) {
	if p.uses == nil {
		p.uses, p.periods = map[useKey]*history.Sum{}, map[periodKey]*history.Period{}
	}
	at := periodKey{c.Period.Namespace, c.Period.Hour}
	if p.periods[at] == nil {
		p.periods[at] = &history.Period{Namespace: at.namespace, Hour: at.hour}
	}
	p.periods[at].Add(c.Period)
	for _, u := range c.Uses {
		key := useKey{at, u.Kind, u.Name}
		if p.uses[key] == nil {
			p.uses[key] = &history.Sum{}
		}
		p.uses[key].Add(u.Sum)
	}
}

func (p *projection) batch() history.Batch {
	b := history.Batch{Stream: p.f.o.Streams[p.shard], From: p.from, To: p.to, Runs: p.changes}
	for key, sum := range p.uses {
		b.Uses = append(b.Uses, history.Use{Namespace: key.namespace, Hour: key.hour, Kind: key.kind, Name: key.name, Sum: *sum})
	}
	for _, period := range p.periods {
		b.Periods = append(b.Periods, *period)
	}
	return b
}

// blobs is how long a follower tries to read an offloaded text before it goes on without it.
var blobs = retry.Policy{Attempts: 5, First: 100 * time.Millisecond, Factor: 3}

// read returns a text with what was too large for the log.
func (f *Follower) read(ctx context.Context, t history.Text) (history.Text, error) {
	if t.Ref == nil || f.o.Blob == nil {
		t.Ref = nil
		return t, nil
	}
	var data []byte
	err := blobs.Do(ctx, func(ctx context.Context) (err error) {
		if data, err = f.o.Blob(ctx, *t.Ref); errors.Is(err, journal.ErrNotFound) {
			err = retry.Stop(err)
		}
		return err
	}, nil)
	switch {
	case err == nil:
		return fold.Offloaded(t, data), nil
	case ctx.Err() != nil:
		return t, err
	}
	f.o.Logger.Warn("a text is searched only as far as its event has it", "key", t.Ref.Key, "reason", err)
	t.Ref = nil
	return t, nil
}
