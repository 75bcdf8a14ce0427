// Package telemetry is the role that makes spans of the log and sends them to a receiver of
// OTLP. It reads the log and changes no run.
//
// A span is sent when the log has its end. Its ids and all other values are derived from the
// events of its run, so it is the same from any process, however often it is sent. The position in the log moves
// only when the receiver has acknowledged what came before. So after a crash some spans are sent
// again and none is missing.
package telemetry

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	resourcepb "go.opentelemetry.io/proto/otlp/resource/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"

	"github.com/moorebus/moorebus/internal/buckets"
	"github.com/moorebus/moorebus/internal/kv"
	"github.com/moorebus/moorebus/internal/logwalk"
	"github.com/moorebus/moorebus/internal/meter"
	"github.com/moorebus/moorebus/internal/ports"
	"github.com/moorebus/moorebus/internal/retry"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
	"google.golang.org/protobuf/proto"
)

// Kept is the lease of the process that exports, and its position.
var Kept = ports.RoleKey{Role: "telemetry", Name: "traces"}

// Sender sends spans. It returns when the receiver has acknowledged them, or with the reason
// why it has not.
type Sender interface {
	UploadTraces(ctx context.Context, spans []*tracepb.ResourceSpans) error
}

// Config configures an [Exporter].
type Config struct {
	// Log, Leases and KV are the bus. Required.
	Log     journal.Log
	Leases  ports.Leases
	KV      kv.Store
	Machine *reducer.Machine
	Sender  Sender
	// Resource describes the sender; equal in all processes.
	Resource *resourcepb.Resource
	// Content is what spans hold of what was said; nil: nothing.
	Content *Content
	// From is the time from which the log is exported. Zero: from the position that is kept,
	// or from the log's end where there is none. With From the position is left alone.
	From time.Time
	// Once ends when all is sent that the log had at the start.
	Once bool
	// Delay is how long a span may wait for others. Default 1 s.
	Delay  time.Duration
	Logger *slog.Logger
	// Meter counts what is sent. Nil: nothing does.
	Meter meter.Meter
}

// The most spans and bytes of one request, and the records that wait while one is sent.
const (
	maxSpans = 512
	maxBytes = 1 << 20
	waiting  = 64
)

// Exporter is the role. Make it with [New], use it once.
type Exporter struct {
	cfg  Config
	runs *runs
	// skipped are the reasons for which runs are omitted, each of which is logged once.
	skipped map[string]bool
	// taken says that the receiver has acknowledged spans.
	taken bool
	// oldest is when the oldest event was stored that is not acknowledged, in Unix nanoseconds; 0: there is none.
	oldest atomic.Int64
}

// New returns an exporter. It does nothing until [Exporter.Run].
func New(cfg Config) *Exporter {
	if cfg.Delay <= 0 {
		cfg.Delay = time.Second
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	x := &Exporter{cfg: cfg, runs: newRuns(cfg), skipped: map[string]bool{}}
	if cfg.Meter != nil {
		cfg.Meter.Read(x.measure)
	}
	return x
}

// measure returns to a scrape how far the exporter is behind.
func (x *Exporter) measure(_ context.Context, emit meter.Emit) {
	lag := 0.0
	if oldest := x.oldest.Load(); oldest != 0 {
		lag = max(0, time.Since(time.Unix(0, oldest)).Seconds())
	}
	emit(meter.SpanLag, lag, meter.Values{})
}

// Run exports until ctx ends, or with Once until the log's end. One process of several does so;
// the others stand by. It returns nil when ctx ends. Other errors are those of the bus that do
// not pass: [journal.ErrDenied] and [journal.ErrNotReady].
func (x *Exporter) Run(ctx context.Context) error {
	if !x.cfg.From.IsZero() {
		from, err := at(ctx, x.cfg.Log, x.cfg.From)
		if err == nil {
			x.cfg.Logger.Info("exporting", "from", x.cfg.From, "position", from.String())
			err = x.export(ctx, from, func(context.Context, logwalk.Position) error { return nil })
		}
		return unlessEnded(ctx, err)
	}
	for {
		err := x.cfg.Leases.Lead(ctx, Kept, x.lead)
		if !errors.Is(err, journal.ErrConflict) {
			return unlessEnded(ctx, err)
		}
		x.cfg.Logger.Warn("another process has moved the position; waiting for the lease again")
	}
}

func unlessEnded(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// lead exports from the position that is kept.
func (x *Exporter) lead(ctx context.Context) error {
	x.runs.forget()
	var from logwalk.Position
	revision, err := x.patient(ctx, "the position cannot be read", func(ctx context.Context) (revision uint64, err error) {
		from, revision, err = x.position(ctx)
		return revision, err
	})
	if err != nil {
		return err
	}
	x.cfg.Logger.Info("exporting", "position", from.String())
	return x.export(ctx, from, func(ctx context.Context, p logwalk.Position) error {
		value, err := json.Marshal(p)
		if err != nil {
			return err
		}
		next, err := x.patient(ctx, "the position cannot be kept", func(ctx context.Context) (uint64, error) {
			return buckets.PutPosition(ctx, x.cfg.KV, Kept, value, revision)
		})
		if errors.Is(err, journal.ErrConflict) {
			// An earlier try may have been stored although its answer was lost.
			if stored, at, readErr := buckets.Position(ctx, x.cfg.KV, Kept); readErr == nil && string(stored) == string(value) {
				next, err = at, nil
			}
		}
		if err == nil {
			revision = next
		}
		return err
	})
}

// position returns the position that is kept, and keeps the log's end if there is none.
func (x *Exporter) position(ctx context.Context) (logwalk.Position, uint64, error) {
	end, err := logwalk.End(ctx, x.cfg.Log)
	if err != nil {
		return nil, 0, err
	}
	value, revision, err := buckets.Position(ctx, x.cfg.KV, Kept)
	if errors.Is(err, journal.ErrNotFound) {
		if value, err = json.Marshal(end); err != nil {
			return nil, 0, err
		}
		x.cfg.Logger.Info("no position is kept: exporting from the log's end; --from exports what is older")
		revision, err = buckets.PutPosition(ctx, x.cfg.KV, Kept, value, 0)
		return end, revision, err
	}
	if err != nil {
		return nil, 0, err
	}
	kept := logwalk.Position{}
	if err := json.Unmarshal(value, &kept); err != nil || len(kept) != len(end) {
		return nil, 0, fmt.Errorf("the position that is kept, %.200q, is not one of this log, which has %d shards", value, len(end))
	}
	for shard := range kept {
		if kept[shard] > end[shard] {
			x.cfg.Logger.Warn("the log ends before the position that is kept: exporting from its end", "shard", shard, "position", kept[shard], "end", end[shard])
			kept[shard] = end[shard]
		}
	}
	return kept, revision, nil
}

// item is a record, or the end of a shard.
type item struct {
	shard int
	rec   journal.Record
	err   error
	done  bool
}

// batch is what the next request sends. to is the position behind it.
type batch struct {
	spans []*tracepb.Span
	size  int
	to    logwalk.Position
	moved bool
}

// export sends the spans that end after a position, and calls keep after each request with the
// position behind what the receiver has acknowledged.
func (x *Exporter) export(ctx context.Context, from logwalk.Position, keep func(context.Context, logwalk.Position) error) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	defer x.oldest.Store(0)
	items := make(chan item, waiting)
	for shard, after := range from {
		go x.read(ctx, shard, after, items)
	}
	b := batch{to: append(logwalk.Position{}, from...)}
	open := len(from)
	timer := time.NewTimer(x.cfg.Delay)
	timer.Stop()
	for open > 0 {
		full := false
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-timer.C:
			full = true
		case it := <-items:
			if it.done {
				open--
				if it.err != nil {
					return it.err
				}
				continue
			}
			if !b.moved {
				timer.Reset(x.cfg.Delay)
				x.oldest.Store(it.rec.Stored.UnixNano())
			}
			if err := x.add(ctx, &b, it); err != nil {
				return err
			}
			full = len(b.spans) >= maxSpans || b.size >= maxBytes
		}
		if full && b.moved {
			if err := x.flush(ctx, &b, keep); err != nil {
				return err
			}
		}
	}
	return x.flush(ctx, &b, keep)
}

// read passes the records of a shard on.
func (x *Exporter) read(ctx context.Context, shard int, after uint64, items chan<- item) {
	records := x.cfg.Log.Follow
	if x.cfg.Once {
		records = x.cfg.Log.Scan
	}
	send := func(it item) bool {
		select {
		case items <- it:
			return true
		case <-ctx.Done():
			return false
		}
	}
	last := item{shard: shard, done: true}
	for rec, err := range records(ctx, shard, journal.Filter{}, after) {
		if err != nil {
			last.err = err
			break
		}
		if !send(item{shard: shard, rec: rec}) {
			return
		}
	}
	send(last)
}

// add adds the spans that a record ends.
func (x *Exporter) add(ctx context.Context, b *batch, it item) error {
	b.moved, b.to[it.shard] = true, it.rec.Seq
	subject, err := events.ParseSubject(it.rec.Subject)
	if err != nil || subject.Run.Shard != it.shard || subject.CheckShard(x.cfg.Log.Shards()) != nil {
		return nil // it belongs to no run
	}
	spans, err := x.patientSpans(ctx, subject, it.rec)
	if err != nil {
		return err
	}
	for _, s := range spans {
		b.spans = append(b.spans, s)
		b.size += proto.Size(s)
	}
	return nil
}

// patientSpans waits until the log can be read, and leaves out runs that cannot be folded.
func (x *Exporter) patientSpans(ctx context.Context, s events.Subject, rec journal.Record) (spans []*tracepb.Span, err error) {
	_, err = x.patient(ctx, "a run cannot be read", func(ctx context.Context) (uint64, error) {
		spans, err = x.runs.next(ctx, s, rec)
		var table *reducer.TableError
		if errors.As(err, &table) || errors.Is(err, journal.ErrNotFound) {
			spans = nil
			x.skip(s.Run, err)
			return 0, nil
		}
		return 0, err
	})
	return spans, err
}

// skip says once for each reason that runs are omitted.
func (x *Exporter) skip(id events.Run, err error) {
	var table *reducer.TableError
	reason := "a run is gone, or what it was forked from"
	if errors.As(err, &table) {
		reason = "this build does not know a run's transition table: export it with the build that wrote it, by --from"
	}
	if !x.skipped[reason] {
		x.skipped[reason] = true
		x.cfg.Logger.Warn("events without spans: "+reason, "run", id.ID, "reason", err)
	}
}

// flush sends the batch and keeps the position behind it.
func (x *Exporter) flush(ctx context.Context, b *batch, keep func(context.Context, logwalk.Position) error) error {
	if !b.moved {
		return nil
	}
	for some := range slices.Chunk(b.spans, maxSpans) {
		if err := x.deliver(ctx, some); err != nil {
			return err
		}
	}
	if err := keep(ctx, b.to); err != nil {
		return err
	}
	b.spans, b.size, b.moved = nil, 0, false
	x.oldest.Store(0)
	return nil
}

// deliver sends spans until the receiver has acknowledged them. If it calls a request wrong or too
// large, the halves are sent. A single span that is still refused is omitted if the receiver
// has ever taken another one. If it has not, the fault is more likely in its address.
func (x *Exporter) deliver(ctx context.Context, spans []*tracepb.Span) error {
	request := []*tracepb.ResourceSpans{{Resource: x.cfg.Resource, ScopeSpans: []*tracepb.ScopeSpans{{
		Scope: &commonpb.InstrumentationScope{Name: "github.com/moorebus/moorebus"}, Spans: spans,
	}}}}
	split := false
	_, err := x.patient(ctx, "the receiver has not acknowledged spans; they are sent again", func(ctx context.Context) (uint64, error) {
		err := x.cfg.Sender.UploadTraces(ctx, request)
		outcome := "sent"
		switch {
		case refused(err):
			outcome = "refused"
			x.cfg.Logger.Warn("the receiver does not want some spans", "spans", len(spans), "reason", err)
		case wrong(err) && len(spans) > 1:
			split = true
			return 0, nil
		case wrong(err) && x.taken:
			s := spans[0]
			x.cfg.Logger.Warn("the receiver does not take a span; it is left out", "trace", hex.EncodeToString(s.TraceId), "span", hex.EncodeToString(s.SpanId), "name", s.Name, "reason", err)
			meter.Add(x.cfg.Meter, meter.Spans, 1, "refused")
			return 0, nil
		case err != nil:
			meter.Add(x.cfg.Meter, meter.SpanErrors, 1)
			return 0, err
		}
		x.taken = true
		meter.Add(x.cfg.Meter, meter.Spans, float64(len(spans)), outcome)
		return 0, nil
	})
	if err != nil || !split {
		return err
	}
	half := len(spans) / 2
	if err := x.deliver(ctx, spans[:half]); err != nil {
		return err
	}
	return x.deliver(ctx, spans[half:])
}

// pauses is how work waits that is tried until it succeeds.
var pauses = retry.Policy{First: 250 * time.Millisecond, Factor: 2, Max: 30 * time.Second}

// patient repeats work until it succeeds, ctx ends, or its error does not pass.
func (x *Exporter) patient(ctx context.Context, failed string, work func(context.Context) (uint64, error)) (uint64, error) {
	for tries := 1; ; tries++ {
		n, err := work(ctx)
		switch {
		case err == nil:
			return n, nil
		case ctx.Err() != nil:
			return 0, ctx.Err()
		case errors.Is(err, journal.ErrConflict), errors.Is(err, journal.ErrDenied):
			return 0, err
		}
		pause := pauses.Delay(tries)
		x.cfg.Logger.Warn(failed, "reason", err, "tries", tries, "retry_in", pause)
		if !retry.Wait(ctx, pause) {
			return 0, ctx.Err()
		}
	}
}

// at returns the position before the first record of each shard that was stored at a time or
// later.
func at(ctx context.Context, log journal.Log, when time.Time) (logwalk.Position, error) {
	p, err := logwalk.End(ctx, log)
	if err != nil {
		return nil, err
	}
	for shard := range p {
		low, high := uint64(0), p[shard] // what is at or before low is older, what is after high is not
		for low < high {
			middle := low + (high-low)/2
			seq, stored := high, when
			for rec, err := range log.Scan(ctx, shard, journal.Filter{}, middle) {
				if err != nil {
					return nil, err
				}
				seq, stored = rec.Seq, rec.Stored
				break
			}
			if stored.Before(when) {
				low = seq
			} else {
				high = middle
			}
		}
		p[shard] = low
	}
	return p, nil
}
