package telemetry

import (
	"context"
	"errors"
	"fmt"

	"github.com/hashicorp/golang-lru/v2/simplelru"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"

	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/internal/tracecontext"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// The bounds of what is remembered: runs, and the bytes of their bodies. A run that was
// forgotten is read from its beginning when it continues.
const (
	maxRuns  = 10000
	maxKnown = 128 << 20
)

// runs are the runs that have not ended, as far as they are remembered.
type runs struct {
	cfg   Config
	known *simplelru.LRU[events.Run, *run]
	bytes int64
}

func newRuns(cfg Config) *runs {
	r := &runs{cfg: cfg}
	r.known, _ = simplelru.NewLRU(maxRuns, func(_ events.Run, gone *run) { r.bytes -= gone.bytes }) // the size is positive
	return r
}

func (rs *runs) forget() { rs.known.Purge() }

// next returns the spans that a record of a run ends. After an error the run is read anew. The
// error is journal.ErrNotFound for a run that is gone.
func (rs *runs) next(ctx context.Context, s events.Subject, rec journal.Record) ([]*tracepb.Span, error) {
	id := s.Run
	r, ok := rs.known.Get(id)
	if !ok {
		r = &run{
			id: id, fold: runlog.NewFold(rs.cfg.Log, rs.cfg.Machine, id), table: rs.cfg.Machine.Table(),
			shards: rs.cfg.Log.Shards(), content: rs.cfg.Content, traceOf: rs.traceOf, calls: map[string]*open{},
		}
		rs.known.Add(id, r)
	}
	was := r.bytes
	spans, err := rs.advance(ctx, r, s.From, rec)
	rs.bytes += r.bytes - was
	if err != nil || r.table.Terminal(r.fold.Memory().State) {
		rs.known.Remove(id)
	}
	for rs.bytes > maxKnown && rs.known.Len() > 1 {
		rs.known.RemoveOldest()
	}
	return spans, err
}

func (rs *runs) advance(ctx context.Context, r *run, from events.State, rec journal.Record) ([]*tracepb.Span, error) {
	if rec.Seq <= r.seq {
		return nil, nil
	}
	if r.seq == 0 && from != r.table.Initial() { // only a run's first event leaves that state
		return rs.read(ctx, r, rec)
	}
	return r.apply(ctx, rec)
}

// read reads a run from its beginning up to the record.
func (rs *runs) read(ctx context.Context, r *run, until journal.Record) (spans []*tracepb.Span, err error) {
	for rec, err := range rs.cfg.Log.Read(ctx, r.id, 0) {
		if err != nil {
			return nil, err
		}
		if spans, err = r.apply(ctx, rec); err != nil {
			return nil, err
		}
		if rec.Seq >= until.Seq {
			return spans, nil
		}
	}
	if r.seq == 0 {
		return nil, fmt.Errorf("run %s: %w", r.id.ID, journal.ErrNotFound)
	}
	return nil, fmt.Errorf("run %s: the log ends at %d, before record %d", r.id.ID, r.seq, until.Seq)
}

// traceOf reads in which trace a run is. A run that is gone is in its own.
func (rs *runs) traceOf(ctx context.Context, id events.Run) (tracecontext.TraceID, error) {
	for range reducer.MaxForks {
		filter := journal.Filter{Namespace: id.Namespace, From: rs.cfg.Machine.Table().Initial(), Run: id.ID}
		rec, err := rs.cfg.Log.Newest(ctx, id.Shard, filter)
		if errors.Is(err, journal.ErrNotFound) {
			break
		}
		if err != nil {
			return tracecontext.TraceID{}, err
		}
		e, err := rs.cfg.Machine.Codec().Decode(rec.Body)
		if err != nil {
			break
		}
		start, ok := e.Data.(*events.Start)
		if !ok || start.Parent == nil || tracecontext.Valid(e.TraceParent) {
			return tracecontext.TraceOf(id.ID, e.TraceParent), nil
		}
		id = events.NewRun(id.Namespace, start.Parent.Run, rs.cfg.Log.Shards())
	}
	return tracecontext.TraceOf(id.ID, ""), nil
}
