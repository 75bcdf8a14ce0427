package natsbus

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/moorebus/moorebus/internal/groupcommit"
	"github.com/moorebus/moorebus/internal/journalcheck"
	"github.com/moorebus/moorebus/internal/meter"
	"github.com/moorebus/moorebus/internal/natsbus/api"
	"github.com/moorebus/moorebus/internal/ports"
	"github.com/moorebus/moorebus/internal/retry"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/nats-io/nats.go"
)

const (
	headerBatchID     = "Nats-Batch-Id"
	headerBatchSeq    = "Nats-Batch-Sequence"
	headerBatchCommit = "Nats-Batch-Commit"

	// appendRetry is the pause before an append that was not stored is sent again.
	appendRetry = 50 * time.Millisecond
	// conflictRetry is the first pause after a conflict with another write in flight.
	conflictRetry = 2 * time.Millisecond
)

type pubAck struct {
	Stream string     `json:"stream"`
	Seq    uint64     `json:"seq"`
	Error  *api.Error `json:"error"`
}

// Append stores the entries under the condition that the run's log ends at last.
// While the server says that it stored nothing for want of readiness, the append
// is sent again, for RequestTimeout altogether. On several replicas so is one that is
// not answered and that the log does not hold. With group commit it may wait before
// that for what is in flight in its shard.
func (b *Bus) Append(ctx context.Context, run events.Run, last uint64, entries ...journal.Entry) (uint64, error) {
	return b.AppendThen(ctx, run, last, func(uint64) {}, entries...)
}

var _ ports.Early = (*Bus)(nil)

// AppendThen is Append, and calls then before the flush if this process has the server and flushes
// it in groups. Another process may outlive a power loss, after which the number of a lost record is
// given again. What it then appends would follow a record that it has not seen.
func (b *Bus) AppendThen(ctx context.Context, run events.Run, last uint64, then func(seq uint64), entries ...journal.Entry) (uint64, error) {
	if err := journalcheck.Append(b.shards, run, entries); err != nil {
		return 0, err
	}
	if err := ctx.Err(); err != nil {
		return 0, fmt.Errorf("append to run %s: %w", run.ID, err)
	}
	if err := b.diskFull(); err != nil {
		return 0, fmt.Errorf("append to run %s: %w", run.ID, err)
	}
	a, p, proof := b.appenders[run.Shard], groupcommit.Pending{Run: run, Last: last, Entries: entries}, b.prove(run.Shard)
	store := a.One
	if b.grouped.Load() {
		store = a.group.Append
	}
	seq, err := store(ctx, p)
	if err != nil {
		return seq, err
	}
	if b.opts.Flush != nil && proof.was.groups != nil {
		then(seq)
	}
	if err := proof.wait(ctx, seq); err != nil {
		return 0, fmt.Errorf("append to run %s after %d: %w", run.ID, last, api.Join(journal.ErrUnknownOutcome, err))
	}
	return seq, nil
}

// One appends a run's entries by themselves.
func (a *appender) One(ctx context.Context, p groupcommit.Pending) (uint64, error) {
	b, run, last := a.bus, p.Run, p.Last
	if err := ctx.Err(); err != nil {
		return 0, fmt.Errorf("append to run %s was not sent: %w", run.ID, err)
	}
	deadline := time.Now().Add(b.Timeout)
	d := b.newOutcome(deadline)
	var busy conflictPause
	for {
		ack, err := b.send(ctx, d.until(), p)
		if err == nil && ack.Error != nil {
			err = ack.Error
		}
		if err == nil {
			_ = b.full.note(a.place, nil)
			meter.Add(b.opts.Meter, meter.Batches, 1)
			return ack.Seq, b.checkAck(run.Shard, ack)
		}
		if d.opens(err) {
			seq, err := d.resolve(ctx, err, p)
			if errors.Is(err, errAgain) {
				continue
			}
			if err != nil {
				err = fmt.Errorf("append to run %s after %d: %w", run.ID, last, err)
			}
			return seq, err
		}
		if unsent(err) && pauseUntil(ctx, deadline, appendRetry) || behind(err) && pauseUntil(ctx, deadline, busy.next()) {
			continue
		}
		if behind(err) {
			return 0, behindError(ctx, p.Entries[0].Subject.String())
		}
		err = b.full.note(a.place, b.appendError(err))
		if errors.Is(err, journal.ErrConflict) {
			b.Log.Debug("an append lost its race", "run", run.ID, "after", last)
		}
		return 0, fmt.Errorf("append to run %s after %d: %w", run.ID, last, err)
	}
}

// checkAck makes sure that the message is in the log's own stream.
func (b *Bus) checkAck(shard int, ack *pubAck) error {
	if want := events.StreamName(shard); ack.Stream != want {
		return fmt.Errorf("append: stream %q took it and not %s: run `moorebus doctor`", ack.Stream, want)
	}
	return nil
}

// unsent reports whether the append is certainly not stored and may be sent again.
func unsent(err error) bool {
	var api *api.Error
	if errors.As(err, &api) {
		return api.Retryable()
	}
	return errors.Is(err, nats.ErrNoResponders)
}

// behind reports whether a write was refused since another one for the same run or key is in
// flight. The leader of several replicas refuses it whatever it expects, and does not say where
// the run ends. The other write may be one that will be refused as well, so the next try says
// whether the race is lost. Without a quorum a write stays in flight for as long as the leader
// believes that it leads.
func behind(err error) bool {
	code, _ := api.Code(err)
	return code == api.CodeWrongLastConstant
}

// behindError is why nothing was stored when the time for the tries is over.
func behindError(ctx context.Context, subject string) error {
	return fmt.Errorf("another write of %s is in flight, and not stored yet: %w", subject, cmp.Or(context.Cause(ctx), nats.ErrTimeout))
}

// conflictPause is how long to wait for what is in flight. It grows, as what is not stored at
// once may wait for servers.
type conflictPause time.Duration

func (p *conflictPause) next() time.Duration {
	d := max(time.Duration(*p), conflictRetry)
	*p = conflictPause(min(2*d, appendRetry))
	return d
}

// appendError says what a failed append means. Nobody answering is either a stream
// that is missing or a server that is starting; only the first is for good.
func (b *Bus) appendError(err error) error {
	if errors.Is(err, nats.ErrNoResponders) {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		for shard := range b.shards {
			if _, missing := b.shardInfo(ctx, shard); errors.Is(missing, journal.ErrNotReady) {
				return missing
			}
		}
	}
	return api.UnknownOutcome(err)
}

// pauseUntil waits for d, and reports false if ctx or the deadline ends that.
func pauseUntil(ctx context.Context, deadline time.Time, d time.Duration) bool {
	left := time.Until(deadline)
	return retry.Wait(ctx, min(d, left)) && left > d
}

// send publishes one entry, or several as one atomic batch, and waits for the
// acknowledgement.
func (b *Bus) send(ctx context.Context, deadline time.Time, p groupcommit.Pending) (ack *pubAck, err error) {
	if len(p.Entries) > 1 {
		return b.sendBatch(ctx, deadline, newBatchSender(b, []groupcommit.Pending{p}, nil))
	}
	subject := p.Entries[0].Subject.String()
	in, err := b.Take(api.OneAnswer, subject)
	if err != nil {
		return nil, err
	}
	defer func() { b.Give(in, err == nil) }()
	in.Expect[0], in.Filter[0] = strconv.FormatUint(p.Last, 10), p.Run.Filter()
	in.Msg.Subject, in.Msg.Data = subject, p.Entries[0].Body
	return b.acknowledged(b.exchangeStored(ctx, in, &in.Msg, time.Until(deadline)))
}

func (b *Bus) acknowledged(answer *nats.Msg, err error) (*pubAck, error) {
	if err != nil {
		return nil, err
	}
	var ack pubAck
	if ack.parse(answer.Data) {
		return &ack, nil
	}
	if err := json.Unmarshal(answer.Data, &ack); err != nil {
		return nil, fmt.Errorf("acknowledgement %.100q: %w", answer.Data, err)
	}
	return &ack, nil
}

// parse reads an acknowledgement in the form that the server writes for a stored message. It
// reports false for any other form, which package json reads. Package json alone takes about
// 2 % of the time of a transition.
func (a *pubAck) parse(data []byte) bool {
	rest, ok := bytes.CutPrefix(data, []byte(`{"stream":"`))
	if !ok {
		return false
	}
	stream, rest, ok := bytes.Cut(rest, []byte(`","seq":`))
	if !ok || bytes.IndexByte(stream, '\\') >= 0 || bytes.IndexByte(stream, '"') >= 0 {
		return false
	}
	number, ok := bytes.CutSuffix(rest, []byte("}"))
	if !ok {
		return false
	}
	seq, err := strconv.ParseUint(string(number), 10, 64)
	if err != nil {
		return false
	}
	a.Stream, a.Seq = string(stream), seq
	return true
}

// unansweredAfter is how long an append to several replicas waits for its answer
// before it looks what became of it. After each try that came to nothing the next one
// waits twice as long, and so does the pause before it.
const unansweredAfter = time.Second

// outcome finds out what became of an append, or of a batch, that was not answered. If a
// stream has replicas, an election leaves unanswered what the old leader had in flight: it
// is dropped or stored. So after a while the log is read, and an append that it does not
// hold is sent again under the same condition, so that it cannot be stored twice (unless its
// run is purged meanwhile). On one server no answer means that the server is away: the
// append waits for it.
type outcome struct {
	bus      *Bus
	deadline time.Time
	// wait is how long the next try waits, pause how long there is none before it.
	wait, pause time.Duration
	// open says that a try was not answered, and may be stored whatever the later
	// ones come to.
	open bool
}

func (b *Bus) newOutcome(deadline time.Time) outcome {
	d := outcome{bus: b, deadline: deadline, wait: unansweredAfter, pause: appendRetry}
	if b.Replicas <= 1 {
		d.wait = time.Until(deadline)
	}
	return d
}

// until returns when a try that begins now, or a look, is given up.
func (d *outcome) until() time.Time {
	if at := time.Now().Add(d.wait); at.Before(d.deadline) {
		return at
	}
	return d.deadline
}

// opens notes how a try failed, and reports whether the append may be stored. A batch that
// was not sent completely is not.
func (d *outcome) opens(err error) bool {
	d.open = d.open || d.bus.Replicas > 1 && errors.Is(err, nats.ErrTimeout) && !errors.Is(err, errUncommitted)
	return d.open
}

// errAgain says that an append is to be sent again.
var errAgain = errors.New("the append is to be sent again")

// resolve looks for appends of unknown outcome in the log, given how the last try failed.
// It returns the last record's sequence number if they are stored, ErrConflict if they are
// not and never will be, errAgain, or ErrUnknownOutcome when the time is over.
func (d *outcome) resolve(ctx context.Context, failed error, all ...groupcommit.Pending) (uint64, error) {
	code, _ := api.Code(failed)
	lost := code == api.CodeWrongLastSequence || code == api.CodeWrongLastConstant
	if !lost && !unsent(failed) && !errors.Is(failed, nats.ErrTimeout) {
		return 0, api.Join(journal.ErrUnknownOutcome, failed)
	}
	d.bus.Log.Debug("an append was not answered", "run", all[0].Run.ID, "after", all[0].Last, "appends", len(all), "reason", failed)
	look, cancel := context.WithDeadline(ctx, d.until())
	defer cancel()
	last, err := d.bus.stored(look, all, lost)
	if err == nil || errors.Is(err, journal.ErrConflict) {
		return last, err
	}
	if !d.again(ctx) {
		return 0, api.Join(journal.ErrUnknownOutcome, failed)
	}
	return 0, errAgain
}

// again pauses before the next try, and reports false where the time is over.
func (d *outcome) again(ctx context.Context) bool {
	if !pauseUntil(ctx, d.deadline, d.pause) {
		return false
	}
	d.wait, d.pause = 2*d.wait, 2*d.pause
	return true
}

// stored returns the sequence number of the last record of appends that are stored. The
// error is ErrConflict if another record is in the place of one of them, so they never will
// be stored, and ErrNotFound if the replica that answers has none of them. A batch is stored
// completely or not at all, so its first and last append are enough. The others are looked
// for only if one of them is known to be refused.
func (b *Bus) stored(ctx context.Context, all []groupcommit.Pending, refused bool) (uint64, error) {
	last, err := b.storedOne(ctx, all[len(all)-1])
	if err == nil && len(all) > 1 {
		var first uint64
		if first, err = b.storedOne(ctx, all[0]); err == nil && last-first != between(all) {
			err = journal.ErrConflict // equal records of another batch
		}
	}
	if err == nil || !refused || !errors.Is(err, journal.ErrNotFound) {
		return last, err
	}
	for _, p := range all[:len(all)-1] {
		if _, other := b.storedOne(ctx, p); other != nil && !errors.Is(other, journal.ErrNotFound) {
			return 0, other
		}
	}
	return 0, err
}

// between counts the entries behind the first append.
func between(all []groupcommit.Pending) (entries uint64) {
	for _, p := range all[1:] {
		entries += uint64(len(p.Entries))
	}
	return entries
}

// storedOne is stored for one append. Records are compared by their subjects and
// bodies: an event has its own id in its body.
func (b *Bus) storedOne(ctx context.Context, p groupcommit.Pending) (uint64, error) {
	n := 0
	for rec, err := range b.Read(ctx, p.Run, p.Last) {
		if err != nil {
			return 0, err
		}
		if e := p.Entries[n]; rec.Subject != e.Subject.String() || !bytes.Equal(rec.Body, e.Body) {
			return 0, journal.ErrConflict
		}
		if n++; n == len(p.Entries) {
			return rec.Seq, nil
		}
	}
	return 0, journal.ErrNotFound
}
