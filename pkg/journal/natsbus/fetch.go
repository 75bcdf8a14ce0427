package natsbus

import (
	"context"
	"fmt"
	"strconv"

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
	msg, err := b.direct(ctx, events.StreamName(run.Shard), append(strconv.AppendUint([]byte(`{"seq":`), seq, 10), '}'))
	if err != nil {
		return journal.Record{}, fmt.Errorf("fetch record %d: %w", seq, err)
	}
	rec, err := recordOf(msg)
	if err == nil && rec.Seq != seq {
		err = fmt.Errorf("fetch record %d: the bus answers with %d", seq, rec.Seq)
	}
	rec.After = conditionOf(msg)
	return rec, err
}

// conditionOf returns the sequence number under whose condition a message was
// appended, 0 if there is none. The server goes by the first one.
func conditionOf(msg *nats.Msg) uint64 {
	values := msg.Header[headerExpectSeq]
	if len(values) == 0 {
		return 0
	}
	seq, err := strconv.ParseUint(values[0], 10, 64)
	if err != nil {
		return 0
	}
	return seq
}
