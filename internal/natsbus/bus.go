// Package natsbus is the journal on NATS JetStream. Only it and its package api know
// JetStream's API.
//
// A [Bus] implements every port of package journal over one connection, which stays the
// caller's: connect with [Connect] or in process, open the bus with [Open] or [Wait], end
// the contexts of its consumers, then close the connection. Streams, consumers and buckets
// are declared once, in topology.go, and made by [Init]. [Check] says what is wrong with
// them.
//
// It promises more than the port:
//   - An append is one conditional publish, or one atomic batch if it has several entries.
//   - Reads are batched direct gets, so a reader needs no consumer.
//   - A worker never asks for more deliveries than it has free slots.
//   - Nothing gives up because the bus is away, except a single read and an append, whose
//     outcome is then unknown ([journal.ErrUnknownOutcome]).
//   - On several replicas, an append that an election left unanswered is looked for in the
//     log, and sent again if it is not there, until RequestTimeout is over.
package natsbus

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/moorebus/moorebus/internal/meter"
	"github.com/moorebus/moorebus/internal/natsbus/api"
	"github.com/moorebus/moorebus/internal/natsbus/recent"
	"github.com/moorebus/moorebus/internal/ports"
	"github.com/moorebus/moorebus/internal/retry"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

var (
	_ journal.Log     = (*Bus)(nil)
	_ journal.Feed    = (*Bus)(nil)
	_ journal.Queue   = (*Bus)(nil)
	_ journal.Timers  = (*Bus)(nil)
	_ journal.Blobs   = (*Bus)(nil)
	_ ports.Peers     = (*Bus)(nil)
	_ ports.Questions = (*Bus)(nil)
	_ ports.Fleet     = (*Bus)(nil)

	_ ports.Snapshots = (*Bus)(nil)
	_ ports.Leases    = (*Bus)(nil)
	_ ports.Purger    = (*Bus)(nil)
	_ ports.Runless   = (*Bus)(nil)
	_ ports.Revised   = (*Bus)(nil)
)

// Options says how a bus behaves; the zero value is useful.
type Options struct {
	// Logger gets what the bus waits for and what goes wrong in the background;
	// nil: slog's default.
	Logger *slog.Logger
	// RequestTimeout bounds the wait for one answer of the server, and an append
	// altogether; 0: 5 s.
	RequestTimeout time.Duration
	// FollowPoll is how often a follower looks by itself, in case that the feed
	// lost something; 0: 2 s.
	FollowPoll time.Duration
	// AckWait and MaxAckPending are given to consumers that this process makes
	// itself; 0: 15 s and 20000.
	AckWait       time.Duration
	MaxAckPending int
	// GroupCommit says whether appends of several runs are stored as one batch.
	GroupCommit GroupCommit
	// Monitor is where [Check] asks the server's monitoring, such as
	// http://127.0.0.1:8222; empty: where it is by default.
	Monitor string
	// Full returns why the server's disk takes no writes, else nil, where the server
	// is in this process; nothing is sent to be stored then. It is called for every
	// append. Nil: it is not known.
	Full func() error
	// Flush returns nil when a stream is on the disk up to a record, 0: up to its end. It comes
	// from the server, where that is in this process. Nil: if the log says that its server
	// flushes in groups ([SyncGroup]), the process that has the server is asked.
	Flush func(ctx context.Context, stream string, seq uint64) error
	// Meter counts batches and flushes; nil: nothing is counted.
	Meter meter.Meter
}

func (o Options) withDefaults() Options {
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	setDefault(&o.RequestTimeout, 5*time.Second)
	setDefault(&o.FollowPoll, 2*time.Second)
	setDefault(&o.AckWait, defaultAckWait)
	if o.MaxAckPending <= 0 {
		o.MaxAckPending = defaultMaxAckPending
	}
	return o
}

func setDefault(d *time.Duration, value time.Duration) {
	if *d <= 0 {
		*d = value
	}
}

// Bus is a journal on JetStream over one connection. It is safe for concurrent
// use and holds nothing that needs closing; the connection is the caller's.
type Bus struct {
	*api.Client
	opts   Options
	shards int
	// revision is what all builds on the bus know, see Agree.
	revision int
	full     storageSign
	quorum   quorum
	// probing is held while one waiter sends a probe, see exchangeStored.
	probing sync.Mutex
	// appenders has one for each shard. grouped says that they use group commit.
	appenders []*appender
	grouped   atomic.Bool
	// recent has records at hand that other processes stored.
	recent *recent.Reader
	flushes

	mu sync.Mutex
	// knownTerms has the terms of consumers by name, some seconds old at most.
	knownTerms map[string]knownTerms
	// there has the buckets that exist.
	there sync.Map
}

// Open reads from the streams how many shards there are and returns the bus. It
// fails with [journal.ErrNotReady] if streams are missing, and with another
// error if the bus does not answer; [Wait] waits for both.
func Open(ctx context.Context, conn *nats.Conn, o Options) (*Bus, error) {
	if conn == nil {
		return nil, errors.New("natsbus: no connection given")
	}
	o = o.withDefaults()
	client, unhook, err := api.New(conn, o.RequestTimeout, o.Logger)
	if err != nil {
		return nil, fmt.Errorf("natsbus: %w", err)
	}
	if err := checkPayload(conn); err != nil {
		unhook()
		return nil, fmt.Errorf("open the bus: %w", err)
	}
	b := &Bus{Client: client, opts: o, recent: recent.NewReader(client), knownTerms: map[string]knownTerms{}}
	if err := b.discover(ctx); err != nil {
		unhook()
		return nil, err
	}
	if o.Full == nil {
		b.full.log = b.Log // else the server says it
	}
	b.appenders = newAppenders(b)
	if o.Flush != nil {
		if err := b.serveFlushes(); err != nil {
			unhook()
			return nil, err
		}
	}
	return b, nil
}

// discover reads the number of shards from the first stream and checks that all
// the others are there and agree.
func (b *Bus) discover(ctx context.Context) error {
	breaks := b.Breaks()
	first, err := b.shardInfo(ctx, 0)
	if err != nil {
		return fmt.Errorf("open the bus: %w", err)
	}
	shards, err := shardsOf(first)
	if err != nil {
		return fmt.Errorf("open the bus: %w", err)
	}
	for shard := 1; shard < shards; shard++ {
		info, err := b.shardInfo(ctx, shard)
		if err != nil {
			return fmt.Errorf("open the bus: shard %d of %d: %w", shard, shards, err)
		}
		if n, err := shardsOf(info); err != nil || n != shards {
			return fmt.Errorf("open the bus: %w: stream %s says %d shards and %s says %d: run `moorebus doctor`",
				journal.ErrNotReady, first.Config.Name, shards, info.Config.Name, n)
		}
	}
	b.shards, b.Replicas = shards, max(1, first.Config.Replicas)
	b.sync = Sync(first.Config.Metadata[metaSync])
	b.revision, _ = strconv.Atoi(first.Config.Metadata[metaRevision]) // 0: nobody said it
	b.grouped.Store(b.grouping(b.sync))
	b.lastFlushed = make([]atomic.Uint64, shards)
	b.setFlushing(b.sync, breaks)
	return nil
}

func shardsOf(info *jetstream.StreamInfo) (int, error) {
	text := info.Config.Metadata[metaShards]
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		return 0, fmt.Errorf("%w: stream %s does not say in its metadata (%s=%q) how many shards there are: run `%s`",
			journal.ErrNotReady, info.Config.Name, metaShards, text, api.InitCommand)
	}
	return n, nil
}

// Wait opens the bus as soon as it answers and is set up, and says in the log
// what it waits for. The error is the context's, or ErrDenied.
func Wait(ctx context.Context, conn *nats.Conn, o Options) (*Bus, error) {
	const pause, remind = 250 * time.Millisecond, 30 * time.Second
	log := o.withDefaults().Logger
	var said string
	var at time.Time
	for {
		b, err := Open(ctx, conn, o)
		if err == nil || ctx.Err() != nil {
			return b, errors.Join(err, ctx.Err())
		}
		if errors.Is(err, journal.ErrDenied) || conn.IsClosed() {
			return nil, err
		}
		if err.Error() != said || time.Since(at) > remind {
			said, at = err.Error(), time.Now()
			log.Warn("waiting for the bus", "reason", said)
		}
		if !retry.Wait(ctx, pause) {
			return nil, ctx.Err()
		}
	}
}

// Shards returns the number of shards.
func (b *Bus) Shards() int { return b.shards }

// Conn returns the connection that the bus was opened with.
func (b *Bus) Conn() *nats.Conn { return b.NC }

// Ready reports an error unless every stream of the log is there and has a quorum, and the
// consumers of timers and of the states that need no pool are there. It is
// [journal.ErrFull] where nothing can be stored: a stream of the log is at its limit,
// or what this process last stored was refused for want of storage.
func (b *Bus) Ready(ctx context.Context) error {
	if err := b.noRoom(); err != nil {
		return err
	}
	if err := b.Quorum(ctx); err != nil {
		return err
	}
	for shard := range b.shards {
		info, err := b.shardInfo(ctx, shard)
		if err != nil {
			return err
		}
		if err := streamFull(info); err != nil {
			return err
		}
		for _, state := range ownStates {
			if _, err := b.Consumer(ctx, events.StreamName(shard), string(state)); err != nil {
				return err
			}
		}
	}
	if _, err := b.Consumer(ctx, timerStream, timerDurable); err != nil {
		return err
	}
	err := b.full.last(b.Breaks())
	if b.opts.Full != nil && errors.Is(err, journal.ErrDiskFull) {
		return nil // it is known to have passed
	}
	return err
}

func (b *Bus) shardInfo(ctx context.Context, shard int) (*jetstream.StreamInfo, error) {
	return b.Stream(ctx, events.StreamName(shard))
}
