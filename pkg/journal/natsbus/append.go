package natsbus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nuid"
)

const (
	headerExpectSeq     = "Nats-Expected-Last-Subject-Sequence"
	headerExpectSubject = "Nats-Expected-Last-Subject-Sequence-Subject"
	headerBatchID       = "Nats-Batch-Id"
	headerBatchSeq      = "Nats-Batch-Sequence"
	headerBatchCommit   = "Nats-Batch-Commit"

	// appendRetry is the pause before an append that was surely not stored is
	// sent again.
	appendRetry = 50 * time.Millisecond
	// conflictRetry is the same for one that met another one under way.
	conflictRetry = 2 * time.Millisecond
)

// pubAck is the server's answer to a publish.
type pubAck struct {
	Stream string    `json:"stream"`
	Seq    uint64    `json:"seq"`
	Error  *apiError `json:"error"`
}

// Append stores the entries under the condition that the run's log ends at last.
// While the server says that it stored nothing for want of readiness, the append
// is sent again, for RequestTimeout altogether. With group commit it may wait before
// that for what is under way in its shard.
func (b *Bus) Append(ctx context.Context, run events.Run, last uint64, entries ...journal.Entry) (uint64, error) {
	if err := journal.CheckAppend(b.shards, run, entries); err != nil {
		return 0, err
	}
	if err := ctx.Err(); err != nil {
		return 0, fmt.Errorf("append to run %s: %w", run.ID, err)
	}
	a, p := b.appenders[run.Shard], journal.Pending{Run: run, Last: last, Entries: entries}
	if a.grouping() {
		return a.group.Append(ctx, p)
	}
	return a.One(ctx, p)
}

// One appends a run's entries by themselves.
func (a *appender) One(ctx context.Context, p journal.Pending) (uint64, error) {
	b, run, last := a.bus, p.Run, p.Last
	if err := ctx.Err(); err != nil {
		return 0, fmt.Errorf("append to run %s was not sent: %w", run.ID, err)
	}
	ctx, refuse := context.WithCancelCause(ctx)
	defer refuse(nil)
	ctx, cancel := context.WithTimeoutCause(ctx, b.opts.RequestTimeout, nats.ErrTimeout)
	defer cancel()
	for {
		a.pace.sent()
		ack, err := b.send(ctx, refuse, run, last, p.Entries)
		// A refusal is answered without a flush.
		a.pace.answered(err == nil && ack.Error == nil && len(p.Entries) == 1)
		if err == nil && ack.Error != nil {
			err = ack.Error
		}
		if err == nil {
			_ = b.full.note(nil)
			return ack.Seq, b.checkAck(run.Shard, ack)
		}
		if unsent(err) && pauseFor(ctx, appendRetry) || b.spurious(ctx, err, run, last) && pauseFor(ctx, conflictRetry) {
			continue
		}
		err = b.full.note(b.judge(err))
		if errors.Is(err, journal.ErrConflict) {
			b.log.Debug("an append lost its race", "run", run.ID, "after", last)
		}
		return 0, fmt.Errorf("append to run %s after %d: %w", run.ID, last, err)
	}
}

// checkAck guards against a stream of somebody else's that took the message.
func (b *Bus) checkAck(shard int, ack *pubAck) error {
	if want := events.StreamName(shard); ack.Stream != want {
		return fmt.Errorf("append: stream %q took it and not %s: run `moorebus doctor`", ack.Stream, want)
	}
	return nil
}

// unsent reports whether the append is surely not stored and may be sent again.
func unsent(err error) bool {
	var api *apiError
	if errors.As(err, &api) {
		return api.retryable()
	}
	return errors.Is(err, nats.ErrNoResponders)
}

// spurious reports whether a lost race was none. On several replicas the leader
// also refuses an append while it has another one for the same run under way,
// even one that it has just acknowledged or will refuse as well, and then does
// not say where the run ends. If the run still ends where the append expected it,
// the append is due.
func (b *Bus) spurious(ctx context.Context, err error, run events.Run, last uint64) bool {
	code, ok := errorCode(err)
	if !ok || code != codeWrongLastConstant || b.replicas <= 1 {
		return false
	}
	head, err := b.head(ctx, events.StreamName(run.Shard), run.Filter())
	if errors.Is(err, journal.ErrNotFound) {
		return last == 0
	}
	return err == nil && head.Seq == last
}

// judge says what a failed append means. Nobody answering is either a stream
// that is missing or a server that is starting; only the first is for good.
func (b *Bus) judge(err error) error {
	if errors.Is(err, nats.ErrNoResponders) {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		for shard := range b.shards {
			if _, missing := b.streamInfo(ctx, shard); errors.Is(missing, journal.ErrNotReady) {
				return missing
			}
		}
	}
	return inDoubt(err)
}

// send publishes one entry, or several as one atomic batch, and waits for the
// acknowledgement.
func (b *Bus) send(ctx context.Context, refuse context.CancelCauseFunc, run events.Run, last uint64, entries []journal.Entry) (*pubAck, error) {
	filter := run.Filter()
	expect := strconv.FormatUint(last, 10)
	var batch string
	if len(entries) > 1 {
		batch = nuid.Next()
	}
	for i, e := range entries {
		msg := &nats.Msg{Subject: e.Subject.String(), Data: e.Body, Header: nats.Header{
			headerExpectSeq: {expect}, headerExpectSubject: {filter},
		}}
		if batch != "" {
			msg.Header[headerBatchID] = []string{batch}
			msg.Header[headerBatchSeq] = []string{strconv.Itoa(i + 1)}
		}
		defer b.denied.watchRequest(msg.Subject, refuse)()
		if i == len(entries)-1 {
			if batch != "" {
				msg.Header[headerBatchCommit] = []string{"1"}
			}
			ack, err := b.commit(ctx, msg)
			return incomplete(ctx, ack, err)
		}
		if err := b.conn.PublishMsg(msg); err != nil {
			return nil, err
		}
	}
	return nil, errors.New("append: no entries")
}

// deniedSoon is how long the connection's handlers may take to say why a part of
// a batch did not arrive.
const deniedSoon = 200 * time.Millisecond

// incomplete waits for the reason of a batch that did not arrive whole: where a
// part of it was refused, that is told to the connection's handlers, about when
// the commit is answered.
func incomplete(ctx context.Context, ack *pubAck, err error) (*pubAck, error) {
	if err != nil || ack.Error == nil || ack.Error.ErrCode != codeBatchIncomplete {
		return ack, err
	}
	select {
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-time.After(deniedSoon):
		return ack, nil
	}
}

func (b *Bus) commit(ctx context.Context, msg *nats.Msg) (*pubAck, error) {
	answer, err := b.conn.RequestMsgWithContext(ctx, msg)
	if err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return nil, err
	}
	var ack pubAck
	if err := json.Unmarshal(answer.Data, &ack); err != nil {
		return nil, fmt.Errorf("acknowledgement %.100q: %w", answer.Data, err)
	}
	return &ack, nil
}
