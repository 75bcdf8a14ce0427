package natsbus

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

var (
	_ journal.Log       = (*Bus)(nil)
	_ journal.Feed      = (*Bus)(nil)
	_ journal.Queue     = (*Bus)(nil)
	_ journal.Timers    = (*Bus)(nil)
	_ journal.Directory = (*Bus)(nil)
	_ journal.Agents    = (*Bus)(nil)
	_ journal.Blobs     = (*Bus)(nil)
	_ journal.Peers     = (*Bus)(nil)

	_ journal.Snapshots  = (*Bus)(nil)
	_ journal.Tombstones = (*Bus)(nil)
	_ journal.Purger     = (*Bus)(nil)
	_ journal.Strays     = (*Bus)(nil)
	_ journal.Dropped    = (*Bus)(nil)
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
	// Heartbeat is the rhythm in which the server shows that a pull request
	// still stands; 0: 5 s. After two silent ones the request is made again.
	Heartbeat time.Duration
	// PullExpiry is how long a pull request stands; 0: 30 s.
	PullExpiry time.Duration
	// MaxStorages is how many agents' storage there may be before this process
	// makes no more by itself: whoever may start a run names its agent. What the
	// operator makes has no bound. 0: 1000.
	MaxStorages int
	// GroupCommit says whether appends of several runs are stored as one batch.
	GroupCommit GroupCommit
	// Monitor is where [Check] asks the server's monitoring, such as
	// http://127.0.0.1:8222; empty: where it is by default.
	Monitor string
	// Full returns why the server's disk takes no writes, else nil, where the server
	// is in this process; nothing is sent to be stored then. It is called for every
	// append. Nil: it is not known.
	Full func() error
}

func (o Options) withDefaults() Options {
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	setDefault(&o.RequestTimeout, 5*time.Second)
	setDefault(&o.FollowPoll, 2*time.Second)
	setDefault(&o.AckWait, defaultAckWait)
	setDefault(&o.Heartbeat, 5*time.Second)
	setDefault(&o.PullExpiry, 30*time.Second)
	if o.MaxAckPending <= 0 {
		o.MaxAckPending = defaultMaxAckPending
	}
	if o.MaxStorages <= 0 {
		o.MaxStorages = 1000
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
	conn     *nats.Conn
	js       jetstream.JetStream
	opts     Options
	log      *slog.Logger
	shards   int
	replicas int
	denied   denials
	// replies are inboxes for answers; nil: those of the client library are used.
	replies *replies
	full    storageSign
	probes  probes
	readers readers
	// asking holds a token for each page that was asked for and not answered yet.
	asking chan struct{}
	// appenders are those of the shards.
	appenders []*appender
	// breaks counts how often the connection broke.
	breaks atomic.Uint64
	// leaderless says that the streams' leaders may not be asked.
	leaderless atomic.Bool
	// unordered says that this user may not make consumers to read with.
	unordered atomic.Bool
	// orderedLeast is how much has to be ahead of a read for that, see orderedFrom.
	orderedLeast uint64

	mu       sync.Mutex
	ackWaits map[string]keptAckWait
	slow     map[*nats.Subscription]func()
	// announced has the sequence numbers of what this bus announced last, by subject.
	announced map[string]uint64
	// said is what was said once in the log.
	said map[string]bool
	// there are buckets of storage that were seen.
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
	js, err := jetstream.New(conn, jetstream.WithDefaultTimeout(o.RequestTimeout))
	if err != nil {
		return nil, fmt.Errorf("natsbus: %w", err)
	}
	b := &Bus{
		conn: conn, js: js, opts: o, log: o.Logger, asking: make(chan struct{}, pagesAtOnce), orderedLeast: orderedFrom,
		ackWaits: make(map[string]keptAckWait),
		slow:     make(map[*nats.Subscription]func()), said: map[string]bool{}, announced: map[string]uint64{},
	}
	unhook := b.hook()
	if err := b.discover(ctx); err != nil {
		unhook()
		return nil, err
	}
	if o.Full == nil {
		b.full.log = b.log // else the server says it
	}
	b.replies = newReplies(conn)
	b.denied.replies.Store(b.replies)
	appenders := newAppenders(b)
	b.mu.Lock()
	b.appenders = appenders
	b.mu.Unlock()
	return b, nil
}

// hook puts the bus in front of the connection's handlers.
func (b *Bus) hook() (unhook func()) {
	onError, onDisconnect := b.conn.ErrorHandler(), b.conn.DisconnectErrHandler()
	b.conn.SetErrorHandler(func(c *nats.Conn, sub *nats.Subscription, err error) {
		if !b.handled(sub, err) && onError != nil {
			onError(c, sub, err)
		}
	})
	b.conn.SetDisconnectErrHandler(func(c *nats.Conn, err error) {
		b.denied.disconnected()
		b.breaks.Add(1)
		b.mu.Lock()
		appenders := b.appenders // none yet while the bus is opened
		b.mu.Unlock()
		for _, a := range appenders {
			a.pace.reset()
		}
		if onDisconnect != nil {
			onDisconnect(c, err)
		}
	})
	return func() {
		b.conn.SetErrorHandler(onError)
		b.conn.SetDisconnectErrHandler(onDisconnect)
	}
}

// handled passes an error of the connection on to whom it concerns.
func (b *Bus) handled(sub *nats.Subscription, err error) bool {
	if sub != nil && errors.Is(err, nats.ErrSlowConsumer) {
		b.mu.Lock()
		lost := b.slow[sub]
		b.mu.Unlock()
		if lost != nil {
			lost()
			return true
		}
	}
	return b.denied.note(err, cmp.Or(b.conn.Opts.InboxPrefix, strings.TrimSuffix(nats.InboxPrefix, "."))+".")
}

// discover reads the number of shards from the first stream and checks that all
// the others are there and agree.
func (b *Bus) discover(ctx context.Context) error {
	first, err := b.streamInfo(ctx, 0)
	if err != nil {
		return fmt.Errorf("open the bus: %w", err)
	}
	shards, err := shardsOf(first)
	if err != nil {
		return fmt.Errorf("open the bus: %w", err)
	}
	for shard := 1; shard < shards; shard++ {
		info, err := b.streamInfo(ctx, shard)
		if err != nil {
			return fmt.Errorf("open the bus: shard %d of %d: %w", shard, shards, err)
		}
		if n, err := shardsOf(info); err != nil || n != shards {
			return fmt.Errorf("open the bus: %w: stream %s says %d shards and %s says %d: run `moorebus doctor`",
				journal.ErrNotReady, first.Config.Name, shards, info.Config.Name, n)
		}
	}
	b.shards, b.replicas = shards, max(1, first.Config.Replicas)
	return nil
}

func shardsOf(info *streamInfo) (int, error) {
	text := info.Config.Metadata[metaShards]
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		return 0, fmt.Errorf("%w: stream %s does not say in its metadata (%s=%q) how many shards there are: run `%s`",
			journal.ErrNotReady, info.Config.Name, metaShards, text, initCommand)
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
		if !pauseFor(ctx, pause) {
			return nil, ctx.Err()
		}
	}
}

// Shards returns the number of shards.
func (b *Bus) Shards() int { return b.shards }

// Conn returns the connection that the bus was opened with.
func (b *Bus) Conn() *nats.Conn { return b.conn }

// Ready reports an error unless the bus answers, every stream is there, and the
// consumers of timers and of the states that need no pool are. It is
// [journal.ErrFull] where nothing can be stored: a stream of the log is at its limit,
// or what this process last stored was refused for want of storage.
func (b *Bus) Ready(ctx context.Context) error {
	if !b.conn.IsConnected() {
		return fmt.Errorf("the bus is away: connection to %s is %s", b.conn.Opts.Url, b.conn.Status())
	}
	if err := b.noRoom(); err != nil {
		return err
	}
	for shard := range b.shards {
		info, err := b.streamInfo(ctx, shard)
		if err != nil {
			return err
		}
		if err := info.full(); err != nil {
			return err
		}
		for _, state := range ownStates {
			if _, err := b.consumerInfo(ctx, shard, string(state)); err != nil {
				return err
			}
		}
	}
	if _, err := b.consumerOf(ctx, timerStream, timerDurable); err != nil {
		return err
	}
	err := b.full.last(b.breaks.Load())
	if b.opts.Full != nil && errors.Is(err, journal.ErrDiskFull) {
		return nil // it is known to have passed
	}
	return err
}

// streamInfo is the part of a stream's description that the bus needs.
type streamInfo struct {
	Config jetstream.StreamConfig `json:"config"`
	State  struct {
		Messages uint64            `json:"messages"`
		Bytes    uint64            `json:"bytes"`
		LastSeq  uint64            `json:"last_seq"`
		Subjects map[string]uint64 `json:"subjects"`
	} `json:"state"`
	Cluster struct {
		Leader string `json:"leader"`
	} `json:"cluster"`
	Total  int       `json:"total"`
	Offset int       `json:"offset"`
	Error  *apiError `json:"error"`
}

type consumerInfo struct {
	Config    jetstream.ConsumerConfig `json:"config"`
	Delivered struct {
		StreamSeq uint64 `json:"stream_seq"`
	} `json:"delivered"`
	Error *apiError `json:"error"`
}

func (b *Bus) streamInfo(ctx context.Context, shard int) (*streamInfo, error) {
	return b.streamOf(ctx, events.StreamName(shard))
}

func (b *Bus) streamOf(ctx context.Context, name string) (*streamInfo, error) {
	var info streamInfo
	if err := b.ask(ctx, "STREAM.INFO."+name, nil, &info); err != nil {
		return nil, fmt.Errorf("stream %s: %w", name, err)
	}
	if info.Error != nil {
		return nil, fmt.Errorf("stream %s: %w", name, classify(info.Error))
	}
	return &info, nil
}

func (b *Bus) consumerInfo(ctx context.Context, shard int, name string) (*consumerInfo, error) {
	return b.consumerOf(ctx, events.StreamName(shard), name)
}

func (b *Bus) consumerOf(ctx context.Context, stream, name string) (*consumerInfo, error) {
	var info consumerInfo
	if err := b.ask(ctx, "CONSUMER.INFO."+stream+"."+name, nil, &info); err != nil {
		return nil, fmt.Errorf("consumer %s of %s: %w", name, stream, err)
	}
	if info.Error != nil {
		return nil, fmt.Errorf("consumer %s of %s: %w", name, stream, classify(info.Error))
	}
	return &info, nil
}

const apiPrefix = "$JS.API."

// ask sends a request to the JetStream API and decodes its answer.
func (b *Bus) ask(ctx context.Context, endpoint string, request []byte, answer any) error {
	return b.askWithin(ctx, b.opts.RequestTimeout, endpoint, request, answer)
}

// askWithin is ask with a limit of its own.
func (b *Bus) askWithin(ctx context.Context, limit time.Duration, endpoint string, request []byte, answer any) error {
	msg, err := b.requestWithin(ctx, limit, &nats.Msg{Subject: apiPrefix + endpoint, Data: request})
	if errors.Is(err, nats.ErrNoResponders) {
		return fmt.Errorf("%w: nobody answers for JetStream, it is off or still starting: %w", journal.ErrNotReady, err)
	}
	if err != nil {
		return classify(err)
	}
	if err := json.Unmarshal(msg.Data, answer); err != nil {
		return fmt.Errorf("answer of the bus: %w", err)
	}
	return nil
}

// request sends a message and waits for the one answer, for RequestTimeout at
// most. If the bus refuses the subject it fails at once.
func (b *Bus) request(ctx context.Context, msg *nats.Msg) (*nats.Msg, error) {
	return b.requestWithin(ctx, b.opts.RequestTimeout, msg)
}

// requestWithin is request with a limit of its own.
func (b *Bus) requestWithin(ctx context.Context, limit time.Duration, msg *nats.Msg) (*nats.Msg, error) {
	if err := ctx.Err(); err != nil {
		return nil, context.Cause(ctx)
	}
	a, err := b.reply(msg.Subject, nil)
	if err != nil {
		return b.requestApart(ctx, limit, msg)
	}
	answer, err := b.exchange(ctx, a, msg, limit)
	b.replies.give(a, err == nil)
	return answer, err
}

// requestApart is requestWithin by the client library's own inbox: before the bus is
// open, and where its connection is about to end.
func (b *Bus) requestApart(ctx context.Context, limit time.Duration, msg *nats.Msg) (*nats.Msg, error) {
	ctx, refuse := context.WithCancelCause(ctx)
	defer refuse(nil)
	defer b.denied.watchRequest(msg.Subject, refuse)()
	return b.await(ctx, limit, msg)
}

// errNoReplies says that there are no inboxes to take: the bus is not open yet, or
// the connection is about to end.
var errNoReplies = errors.New("no inboxes for answers")

// reply takes an inbox for the answer to one request, see [replies.take].
func (b *Bus) reply(subject string, entries []journal.Entry) (*reply, error) {
	if b.replies == nil {
		return nil, errNoReplies
	}
	return b.replies.take(subject, entries)
}

// exchange sends a message and waits in the inbox for the one answer.
func (b *Bus) exchange(ctx context.Context, a *reply, msg *nats.Msg, limit time.Duration) (*nats.Msg, error) {
	if a.sub == nil {
		return b.requestApart(ctx, limit, msg)
	}
	if deaf := b.denied.noAnswers.Load(); deaf != nil {
		return nil, deaf
	}
	msg.Reply = a.next()
	err := b.conn.PublishMsg(msg)
	msg.Reply = ""
	if err != nil {
		return nil, err
	}
	return a.await(ctx, limit)
}

// await is request by the client library's own inbox, for a caller who watches the
// denials itself.
func (b *Bus) await(ctx context.Context, limit time.Duration, msg *nats.Msg) (*nats.Msg, error) {
	bounded, cancel := context.WithTimeoutCause(ctx, limit, nats.ErrTimeout)
	defer cancel()
	answer, err := b.conn.RequestMsgWithContext(bounded, msg)
	if err != nil && bounded.Err() != nil {
		err = context.Cause(bounded)
	}
	return answer, err
}

// pauseFor waits and reports false if the context ended first.
func pauseFor(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
