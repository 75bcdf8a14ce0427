package natsbus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/moorebus/moorebus/internal/groupflush"
	"github.com/moorebus/moorebus/internal/meter"
	"github.com/moorebus/moorebus/internal/natsbus/api"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/nats-io/nats.go"
)

// On a log whose server does not flush each record (SyncGroup), nothing leaves the bus that
// is not on the disk: no acknowledgement of an append, no delivery, no record that was read, no
// record of the feed. The process that has the server flushes. Others ask it, by a request on
// flushSubject and the shard, which is answered up to where the shard is on the disk.
const (
	flushSubject = "moore_flush."
	// flushRetry is the pause after a request that was not answered.
	flushRetry = 50 * time.Millisecond
)

// flushAnswer is the answer to a request for a flush; the request is a sequence number.
type flushAnswer struct {
	Flushed uint64 `json:"flushed"`
	Error   string `json:"error,omitempty"`
}

// flushing is how a bus learns that records are on the disk. It belongs to one connection
// of the bus: after another one, the server may be another, too.
type flushing struct {
	breaks uint64
	// groups has one for each shard; nil: what is stored counts as flushed.
	groups []*groupflush.Group
}

// proof shows that records of a shard are on the disk, if the server that they came from is still
// the one that is asked: take it before the request that brings them.
type proof struct {
	bus    *Bus
	shard  int
	breaks uint64
	// was is how records were flushed then.
	was *flushing
}

func (b *Bus) prove(shard int) proof { return proof{b, shard, b.Breaks(), b.flushing.Load()} }

// wait returns nil when the shard is on the disk up to the record. Each flush takes RequestTimeout at
// most, so it needs no timer. It costs a few atomic loads if it is known to be. 0: up to its end.
func (p proof) wait(ctx context.Context, seq uint64) error {
	b := p.bus
	if f := b.flushing.Load(); f.breaks == p.breaks && (f.groups == nil || seq > 0 && seq <= f.groups[p.shard].Flushed() && b.Breaks() == p.breaks) {
		return nil
	}
	if err := b.flush(ctx, p.shard, seq); err != nil {
		return fmt.Errorf("record %d of shard %d is not known to be on the disk: %w", seq, p.shard, err)
	}
	if f := b.flushing.Load(); (f.groups != nil || p.was.groups != nil) && b.Breaks() != p.breaks {
		return fmt.Errorf("record %d of shard %d is not known to be on the disk: %w", seq, p.shard, nats.ErrDisconnected)
	}
	return nil
}

// each yields records when they are on the disk.
func (p proof) each(ctx context.Context, recs iter.Seq2[journal.Record, error]) iter.Seq2[journal.Record, error] {
	return func(yield func(journal.Record, error) bool) {
		for rec, err := range recs {
			if err == nil {
				if err := p.wait(ctx, rec.Seq); err != nil {
					yield(journal.Record{}, err)
					return
				}
			}
			if !yield(rec, err) {
				return
			}
		}
	}
}

// one returns a record when it is on the disk.
func (p proof) one(ctx context.Context, rec journal.Record, err error) (journal.Record, error) {
	if err == nil {
		err = p.wait(ctx, rec.Seq)
	}
	return rec, err
}

// shardIn returns the shard in whose stream a message on the subject is stored.
func (b *Bus) shardIn(subject string) (shard int, ok bool) {
	rest, ok := strings.CutPrefix(subject, "moore.")
	token, _, dotted := strings.Cut(rest, ".")
	shard, err := strconv.Atoi(token)
	return shard, ok && dotted && err == nil && shard >= 0 && shard < b.shards
}

// end returns the number of the shard's last record, which may not be on the disk.
func (b *Bus) end(ctx context.Context, shard int) (uint64, error) {
	info, err := b.shardInfo(ctx, shard)
	if err != nil {
		return 0, err
	}
	return info.State.LastSeq, nil
}

// flush returns nil when the server has flushed the shard.
func (b *Bus) flush(ctx context.Context, shard int, seq uint64) error {
	for deadline := time.Now().Add(b.Timeout); ; {
		f, err := b.flushingNow(ctx)
		if err == nil && f.groups == nil {
			return nil
		}
		if err == nil {
			err = f.groups[shard].Wait(ctx, seq)
		}
		if err == nil || b.opts.Flush != nil || errors.Is(err, groupflush.ErrMissing) || errors.Is(err, journal.ErrDenied) || !pauseUntil(ctx, deadline, flushRetry) {
			return err
		}
	}
}

// flushingNow returns how records are flushed on the connection that there is. After a
// reconnect it reads from the log whether they are.
func (b *Bus) flushingNow(ctx context.Context) (*flushing, error) {
	f, breaks := b.flushing.Load(), b.Breaks()
	if f.breaks == breaks {
		return f, nil
	}
	sync := b.sync
	if b.opts.Flush == nil && b.Replicas <= 1 {
		info, err := b.shardInfo(ctx, 0)
		if err != nil {
			return nil, err
		}
		sync = Sync(info.Config.Metadata[metaSync])
	}
	return b.setFlushing(sync, breaks), nil
}

// setFlushing notes what the log says of its server since the connection broke so often.
func (b *Bus) setFlushing(sync Sync, breaks uint64) *flushing {
	f := &flushing{breaks: breaks}
	for shard := range b.shards {
		if sync == SyncGroup {
			f.groups = append(f.groups, groupflush.New(func(wanted uint64) (uint64, error) { return b.flushShard(shard, wanted) }))
		}
	}
	b.flushing.Store(f)
	return f
}

// flushShard has a shard flushed, and returns up to which record it is.
func (b *Bus) flushShard(shard int, wanted uint64) (uint64, error) {
	if b.opts.Flush != nil {
		// 0: its own flush, whatever was flushed. A purge changes records that were.
		ctx, cancel := context.WithTimeoutCause(context.Background(), b.Timeout, nats.ErrTimeout)
		defer cancel()
		return wanted, b.flushServer(ctx, shard, wanted)
	}
	msg := &nats.Msg{Subject: flushSubject + strconv.Itoa(shard), Data: strconv.AppendUint(nil, wanted, 10)}
	answer, err := b.Request(context.Background(), 0, msg)
	if errors.Is(err, nats.ErrNoResponders) {
		return 0, fmt.Errorf("no process flushes the log: start `moorebus server` or `moorebus dev` on its data directory: %w", err)
	}
	if err != nil {
		return 0, err
	}
	var a flushAnswer
	if err := json.Unmarshal(answer.Data, &a); err != nil {
		return 0, fmt.Errorf("answer to %s: %w", msg.Subject, err)
	}
	if a.Error != "" {
		return 0, errors.New(a.Error)
	}
	return a.Flushed, nil
}

// serveFlushes answers other processes, while the connection lasts.
func (b *Bus) serveFlushes() error {
	var groups []*groupflush.Group
	for shard := range b.shards {
		groups = append(groups, groupflush.New(func(wanted uint64) (uint64, error) { return b.flushAll(shard, wanted) }))
	}
	_, err := b.NC.Subscribe(flushSubject+"*", func(msg *nats.Msg) {
		shard, err := strconv.Atoi(strings.TrimPrefix(msg.Subject, flushSubject))
		seq, bad := strconv.ParseUint(string(msg.Data), 10, 64)
		if err != nil || bad != nil || shard < 0 || shard >= b.shards || !answerable(msg.Reply) {
			b.Log.Warn("a request for a flush cannot be read", "subject", msg.Subject)
			return
		}
		go b.answerFlush(groups[shard], seq, msg)
	})
	if err != nil {
		return fmt.Errorf("answer requests for flushes: %w", api.Classify(err))
	}
	return nil
}

func (b *Bus) answerFlush(group *groupflush.Group, seq uint64, msg *nats.Msg) {
	ctx, cancel := context.WithTimeoutCause(context.Background(), b.Timeout, nats.ErrTimeout)
	defer cancel()
	var a flushAnswer
	// Where the log ends before the record, the answer says so.
	if err := group.Wait(ctx, seq); err != nil && !errors.Is(err, groupflush.ErrMissing) {
		a.Error = err.Error()
	}
	a.Flushed = group.Flushed()
	body, err := json.Marshal(a)
	if err == nil {
		err = msg.Respond(body)
	}
	if err != nil {
		b.Log.Debug("a request for a flush is not answered", "reason", err)
	}
}

// flushAll flushes what a shard has now, and returns its end. That may be less than is wanted, by a
// process that has a number of another log.
func (b *Bus) flushAll(shard int, wanted uint64) (uint64, error) {
	ctx, cancel := context.WithTimeoutCause(context.Background(), b.Timeout, nats.ErrTimeout)
	defer cancel()
	stream := events.StreamName(shard)
	last, err := b.LastOn(ctx, stream, ">")
	end := last.Seq
	if errors.Is(err, journal.ErrNotFound) || err == nil && end < wanted {
		end, err = b.end(ctx, shard) // what came after it is purged
	}
	if err != nil {
		return 0, err
	}
	return end, b.flushServer(ctx, shard, end)
}

// flushServer flushes the server in this process. upTo is a record that it covers.
func (b *Bus) flushServer(ctx context.Context, shard int, upTo uint64) error {
	began := time.Now()
	err := b.opts.Flush(ctx, events.StreamName(shard), 0)
	if err != nil || b.opts.Meter == nil {
		return err
	}
	meter.Since(b.opts.Meter, meter.FlushTime, began)
	if before := b.lastFlushed[shard].Swap(upTo); before > 0 && upTo > before {
		meter.Add(b.opts.Meter, meter.Flushes, float64(upTo-before))
	}
	return nil
}

// answerable reports whether this process may publish on a subject that another one names: not
// where something is stored.
func answerable(reply string) bool {
	first, _, dotted := strings.Cut(reply, ".")
	return dotted && !strings.HasPrefix(first, "$") && first != "moore" && first != "timers" && first != "feed"
}

// flushes are the fields of a bus for all of this.
type flushes struct {
	flushing atomic.Pointer[flushing]
	// sync is what the log said when the bus was opened.
	sync Sync
	// lastFlushed is, for each shard, the record that the last flush of this process covered.
	lastFlushed []atomic.Uint64
}
