package natsbus

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strconv"

	"github.com/moorebus/moorebus/internal/journalcheck"
	"github.com/moorebus/moorebus/internal/natsbus/api"
	"github.com/moorebus/moorebus/internal/ports"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/nats-io/nats.go"
)

// Read yields the run's records after the given sequence number.
func (b *Bus) Read(ctx context.Context, run events.Run, after uint64) iter.Seq2[journal.Record, error] {
	return func(yield func(journal.Record, error) bool) {
		if err := journalcheck.Run(b.shards, run); err != nil {
			yield(journal.Record{}, err)
			return
		}
		recs := b.ReadRun(ctx, api.Reading{Stream: events.StreamName(run.Shard), Subject: run.Filter(), After: after, Counted: true})
		for rec, err := range b.prove(run.Shard).each(ctx, recs) {
			if err != nil {
				err = fmt.Errorf("read run %s: %w", run.ID, err)
			}
			if !yield(rec, err) {
				return
			}
		}
	}
}

// Scan yields a shard's records that match, up to the one that was the last when
// the scan began.
func (b *Bus) Scan(ctx context.Context, shard int, filter journal.Filter, after uint64) iter.Seq2[journal.Record, error] {
	return func(yield func(journal.Record, error) bool) {
		proof := b.prove(shard)
		end, err := b.Last(ctx, shard)
		if err != nil {
			yield(journal.Record{}, fmt.Errorf("scan shard %d: %w", shard, err))
			return
		}
		if end <= after {
			return
		}
		upTo, err := b.LeaderEnd(ctx, events.StreamName(shard), filter.Subject(shard))
		if errors.Is(err, journal.ErrNotFound) {
			return
		}
		if err != nil {
			yield(journal.Record{}, fmt.Errorf("scan shard %d: %w", shard, err))
			return
		}
		q := api.Reading{Stream: events.StreamName(shard), Subject: filter.Subject(shard), Match: filter.Match, After: after, UpTo: upTo, End: end}
		q.All = api.WholeShard(q.Subject)
		if b.Replicas > 1 && !b.AsksLeader(q.Stream) {
			// Only a read of everything shows whether a replica answers that lags.
			q.All, q.UpTo = true, end
		}
		for rec, err := range proof.each(ctx, b.Query(ctx, q)) {
			if err != nil {
				err = fmt.Errorf("scan shard %d: %w", shard, err)
			}
			if err == nil && rec.Seq > end || !yield(rec, err) {
				return
			}
		}
	}
}

// Last returns the sequence number of the shard's last record.
func (b *Bus) Last(ctx context.Context, shard int) (uint64, error) {
	if err := journalcheck.Shard(b.shards, shard); err != nil {
		return 0, err
	}
	proof := b.prove(shard)
	end, err := b.end(ctx, shard)
	if err == nil && end > 0 {
		err = proof.wait(ctx, end)
	}
	return end, err
}

// Head returns the run's last record.
func (b *Bus) Head(ctx context.Context, run events.Run) (journal.Record, error) {
	if err := journalcheck.Run(b.shards, run); err != nil {
		return journal.Record{}, err
	}
	proof := b.prove(run.Shard)
	rec, err := b.HeadOn(ctx, events.StreamName(run.Shard), run.Filter())
	if rec, err = proof.one(ctx, rec, err); err != nil {
		return journal.Record{}, fmt.Errorf("head of run %s: %w", run.ID, err)
	}
	return rec, nil
}

// Newest returns the shard's last record that matches.
func (b *Bus) Newest(ctx context.Context, shard int, filter journal.Filter) (journal.Record, error) {
	if err := journalcheck.Shard(b.shards, shard); err != nil {
		return journal.Record{}, err
	}
	proof := b.prove(shard)
	rec, err := b.HeadOn(ctx, events.StreamName(shard), filter.Subject(shard))
	if rec, err = proof.one(ctx, rec, err); err != nil {
		return journal.Record{}, fmt.Errorf("newest of %s: %w", filter.Subject(shard), err)
	}
	return rec, nil
}

var _ ports.Fetcher = (*Bus)(nil)

// Fetch returns the record with that sequence number in the run's shard.
func (b *Bus) Fetch(ctx context.Context, run events.Run, seq uint64) (journal.Record, error) {
	if err := journalcheck.Run(b.shards, run); err != nil {
		return journal.Record{}, err
	}
	if err := ctx.Err(); err != nil {
		return journal.Record{}, fmt.Errorf("fetch record %d: %w", seq, err)
	}
	proof, stream := b.prove(run.Shard), events.StreamName(run.Shard)
	if msg, from, ok := b.recent.Take(stream, seq); ok {
		rec := journal.Record{Subject: msg.Subject, Seq: seq, Body: msg.Data, Stored: from.Stored}
		noteCondition(&rec, msg.Header)
		return proof.one(ctx, rec, nil)
	}
	msg, err := b.Direct(ctx, stream, append(strconv.AppendUint([]byte(`{"seq":`), seq, 10), '}'))
	if err != nil {
		return journal.Record{}, fmt.Errorf("fetch record %d: %w", seq, err)
	}
	rec, err := api.RecordOf(msg)
	if err == nil && rec.Seq != seq {
		err = fmt.Errorf("fetch record %d: the bus answers with %d", seq, rec.Seq)
	}
	noteCondition(&rec, msg.Header)
	if s, other := events.ParseSubject(rec.Subject); err == nil && other == nil {
		b.recent.Missed(stream, journal.Filter{From: s.From, To: s.To}.Subject(run.Shard))
	}
	return proof.one(ctx, rec, err)
}

// noteCondition notes in a record under which condition it was appended, which the
// message says: the sequence number of the run's last record.
func noteCondition(rec *journal.Record, headers nats.Header) {
	text, alone := firstValue(headers, api.HeaderExpectSeq)
	seq, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return // there is none
	}
	rec.After = seq
	if seq > 0 || !alone {
		return
	}
	// The condition may be another run's, and those of a batch are held against the log
	// before the batch.
	subject, err := events.ParseSubject(rec.Subject)
	filter, one := firstValue(headers, api.HeaderExpectSubject)
	place, none := firstValue(headers, headerBatchSeq)
	rec.First = err == nil && one && none && filter == subject.Run.Filter() && (place == "" || place == "1")
}

// firstValue returns the value of a header that the server goes by, and whether there
// is no other one.
func firstValue(headers nats.Header, key string) (value string, alone bool) {
	values := headers[key]
	if len(values) == 0 {
		return "", true
	}
	return values[0], len(values) == 1
}
