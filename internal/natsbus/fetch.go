package natsbus

import (
	"context"
	"fmt"
	"strconv"

	"github.com/moorebus/moorebus/internal/natsbus/api"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/nats-io/nats.go"
)

var _ journal.Fetcher = (*Bus)(nil)

// Fetch returns the record with that sequence number in the run's shard.
func (b *Bus) Fetch(ctx context.Context, run events.Run, seq uint64) (journal.Record, error) {
	if err := journal.CheckRun(b.shards, run); err != nil {
		return journal.Record{}, err
	}
	msg, err := b.Direct(ctx, events.StreamName(run.Shard), append(strconv.AppendUint([]byte(`{"seq":`), seq, 10), '}'))
	if err != nil {
		return journal.Record{}, fmt.Errorf("fetch record %d: %w", seq, err)
	}
	rec, err := api.RecordOf(msg)
	if err == nil && rec.Seq != seq {
		err = fmt.Errorf("fetch record %d: the bus answers with %d", seq, rec.Seq)
	}
	noteCondition(&rec, msg.Header)
	return rec, err
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
