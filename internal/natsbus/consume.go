package natsbus

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/moorebus/moorebus/internal/natsbus/api"
	"github.com/moorebus/moorebus/internal/retry"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/nats-io/nats.go/jetstream"
)

// sharedWait bounds how long a session that holds slots which other sources may need
// waits for its next message.
const sharedWait = 200 * time.Millisecond

// pullHeartbeat is how often the server shows that a pull request still stands. The library
// pulls again after two silent ones, for example where a server that was restarted was not
// ready when the library asked it.
const pullHeartbeat = time.Second

// puller is one call of Consume. Each source, which is a consumer of one shard, has a
// goroutine that takes free slots and opens a session for as many messages: an iterator
// of the client library that stops after that number. The library pulls, watches the
// heartbeats, and pulls again after a reconnect.
//
// A session never asks for more than the slots that it took, unlike the library's own
// Consume and Messages without StopAfter, which ask for more while messages wait in
// their buffer: with slots that are busy for longer than the ack wait, what waits
// there would be redelivered to another worker while this one still has it.
type puller struct {
	bus     *Bus
	sources []source
	// slots holds a token for each free slot.
	slots chan struct{}
	// reserve is how many slots a source may hold while nothing comes. One source may
	// hold all of them; several hold a quarter together, so that the others are free to
	// go where the work is. It is 0 if there are too few slots for that: then the sources
	// take turns.
	reserve int
	// misses counts the sessions in a row, of any source, that brought nothing.
	misses atomic.Int32

	handle   func(journal.Delivery)
	handlers sync.WaitGroup
}

// source is a consumer to pull from.
type source struct {
	stream, name string
	// open returns the consumer when it is there. Its error is final.
	open func(context.Context) (jetstream.Consumer, error)
}

// pullSubject is where its pull requests go.
func (s source) pullSubject() string {
	return api.Prefix + "CONSUMER.MSG.NEXT." + s.stream + "." + s.name
}

// pull hands what the sources bring to handle, on at most so many slots at once, until
// ctx ends. It returns when every handler has.
func (b *Bus) pull(ctx context.Context, sources []source, slots int, handle func(journal.Delivery)) error {
	p := &puller{bus: b, sources: sources, slots: make(chan struct{}, slots), reserve: slots, handle: handle}
	if n := len(sources); n > 1 {
		p.reserve = slots / (4 * n)
	}
	p.release(slots)
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	var pulling sync.WaitGroup
	for _, s := range sources {
		pulling.Go(func() {
			if err := p.run(ctx, s); err != nil {
				fail(&finalError{err})
			}
		})
	}
	pulling.Wait()
	p.handlers.Wait()
	var final *finalError
	if errors.As(context.Cause(ctx), &final) {
		return fmt.Errorf("consume: %w", final.error)
	}
	return nil
}

// finalError ends a Consume, unlike the end of its context.
type finalError struct{ error }

// run pulls from a source until ctx ends. Any other error is final.
func (p *puller) run(ctx context.Context, s source) error {
	ctx, refuse := context.WithCancelCause(ctx)
	defer refuse(nil)
	defer p.bus.OnRefused(s.pullSubject(), func(err error) { refuse(&finalError{err}) })()
	for {
		consumer, err := s.open(ctx)
		want := p.reserve
		for err == nil && ctx.Err() == nil {
			if n := p.take(ctx, max(1, want)); n > 0 {
				want, err = p.session(ctx, consumer, n)
			}
		}
		var final *finalError
		switch {
		case errors.As(context.Cause(ctx), &final):
			return final.error
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, errPull):
			p.bus.Log.Debug("a pull session ended", "stream", s.stream, "consumer", s.name, "reason", err)
			retry.Wait(ctx, reconnectWait)
		default:
			return err
		}
	}
}

// take waits for a free slot and takes at most so many, or 0 if ctx ended.
func (p *puller) take(ctx context.Context, most int) (n int) {
	select {
	case <-p.slots:
	case <-ctx.Done():
		return 0
	}
	for n = 1; n < most; n++ {
		select {
		case <-p.slots:
		default:
			return n
		}
	}
	return n
}

func (p *puller) release(slots int) {
	for range slots {
		p.slots <- struct{}{}
	}
}

// patience is how long a session for n messages waits for the next one; 0: for as long as
// there is none. A session within the reserve takes nothing from other sources. Where
// sources take turns, the turns get longer while there is nothing to do.
func (p *puller) patience(n int) time.Duration {
	switch {
	case n <= p.reserve:
		return 0
	case p.reserve > 0:
		return sharedWait
	}
	return min(time.Millisecond<<min(int(p.misses.Load())/len(p.sources), 10), sharedWait)
}

// errPull says that a session failed, and that another one may not.
var errPull = errors.New("pull")

// session brings at most n messages, for which it has slots, and returns how many slots the
// next one may take: all that are free as long as there is enough to do.
func (p *puller) session(ctx context.Context, consumer jetstream.Consumer, n int) (want int, err error) {
	left := n
	defer func() { p.release(left) }()
	next, stop, err := p.open(ctx, consumer, n)
	if err != nil {
		return 0, api.Join(errPull, err)
	}
	defer stop()
	for left > 0 {
		msg, err := next()
		if err != nil {
			return 0, api.Join(errPull, err)
		}
		if msg == nil {
			if left == n {
				p.misses.Add(1)
			}
			return p.reserve, nil
		}
		left--
		p.misses.Store(0)
		p.start(msg)
	}
	return cap(p.slots), nil
}

// open opens a session. next returns its next message, or nil if there is none any more.
func (p *puller) open(ctx context.Context, consumer jetstream.Consumer, n int) (next func() (jetstream.Msg, error), stop func(), err error) {
	if wait := p.patience(n); wait > 0 {
		// The server ends the request: what it sent before is not lost.
		batch, err := consumer.Fetch(n, jetstream.FetchMaxWait(wait))
		if err != nil {
			return nil, nil, err
		}
		return func() (jetstream.Msg, error) {
			if msg := <-batch.Messages(); msg != nil {
				return msg, nil
			}
			return nil, batch.Error()
		}, func() {}, nil
	}
	msgs, err := consumer.Messages(jetstream.PullMaxMessages(n), jetstream.StopAfter(n),
		jetstream.PullHeartbeat(pullHeartbeat), jetstream.WithMessagesErrOnMissingHeartbeat(false))
	if err != nil {
		return nil, nil, err
	}
	unhook := context.AfterFunc(ctx, func() {
		if p.bus.NC.IsConnected() {
			msgs.Drain() // what is on its way is still delivered
		} else {
			msgs.Stop()
		}
	})
	return func() (jetstream.Msg, error) {
		msg, err := msgs.Next()
		if errors.Is(err, jetstream.ErrMsgIteratorClosed) && !errors.Is(err, jetstream.ErrConnectionClosed) {
			return nil, nil
		}
		return msg, err
	}, func() { unhook(); msgs.Stop() }, nil
}

// start runs the handler in a slot that was taken for it.
func (p *puller) start(msg jetstream.Msg) {
	d, err := newDelivery(p.bus.NC, msg)
	if err != nil {
		p.bus.Log.Warn("a delivery cannot be read", "error", err)
		p.release(1)
		return
	}
	p.handlers.Go(func() {
		defer p.release(1)
		p.handle(d)
	})
}

// prepareRetry is how often a worker looks whether its consumer is there by now.
const prepareRetry = time.Second

// Consume hands the inbox's deliveries of all shards to handle until ctx ends.
// A consumer that is missing is made, if the connection may; else Consume waits
// for it and names the command in the log.
func (b *Bus) Consume(ctx context.Context, inbox journal.Inbox, slots int, handle func(journal.Delivery)) error {
	if slots < 1 {
		return fmt.Errorf("consume: %d slots: at least one is needed", slots)
	}
	durables, err := checkInbox(inbox)
	if err != nil {
		return fmt.Errorf("consume: %w", err)
	}
	return b.pull(ctx, b.sources(durables), slots, handle)
}

// sources returns the consumers of every shard.
func (b *Bus) sources(durables []durable) []source {
	var all []source
	for shard := range b.shards {
		for _, d := range durables {
			stream := events.StreamName(shard)
			all = append(all, source{stream, d.name, func(ctx context.Context) (jetstream.Consumer, error) {
				return b.awaitConsumer(ctx, stream, d.name, createCommand(d), func() error { return b.createConsumer(ctx, shard, d) })
			}})
		}
	}
	return all
}

func checkInbox(inbox journal.Inbox) ([]durable, error) {
	if inbox.Pool != "" && !events.ValidToken(inbox.Pool) {
		return nil, fmt.Errorf("pool %q is not a token of [a-z0-9][a-z0-9_-]{0,62}", inbox.Pool)
	}
	if err := checkStates(inbox.States); err != nil {
		return nil, err
	}
	durables := durablesOf(inbox)
	if len(durables) == 0 {
		return nil, errors.New("the inbox names no state")
	}
	return durables, nil
}

// AckWait returns how long a delivery of the inbox may go without Extend: the
// shortest of its consumers'.
func (b *Bus) AckWait(ctx context.Context, inbox journal.Inbox) (time.Duration, error) {
	durables, err := checkInbox(inbox)
	if err != nil {
		return 0, fmt.Errorf("ack wait: %w", err)
	}
	var shortest time.Duration
	for _, d := range durables {
		wait, err := b.ackWait(ctx, d)
		if err != nil {
			return 0, err
		}
		if shortest == 0 || wait < shortest {
			shortest = wait
		}
	}
	return shortest, nil
}

// Undelivered reports whether a record still waits to be delivered for the first
// time: a consumer delivers what it has not delivered yet in the order of the
// stream, also while it is kept back by what is not acknowledged.
func (b *Bus) Undelivered(ctx context.Context, inbox journal.Inbox, shard int, seq uint64) (bool, error) {
	durables, err := checkInbox(inbox)
	if err != nil {
		return false, fmt.Errorf("undelivered: %w", err)
	}
	if len(durables) != 1 || shard < 0 || shard >= b.shards {
		return false, fmt.Errorf("undelivered: record %d of shard %d in %d inboxes: want one of each", seq, shard, len(durables))
	}
	info, err := b.Consumer(ctx, events.StreamName(shard), durables[0].name)
	if code, ok := api.Code(err); ok && code == api.CodeConsumerNotFound {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	return info.CachedInfo().Delivered.Stream < seq, nil
}

// ackWait returns a consumer's ack wait. It asks again after some seconds, since an
// operator may change it while workers run; while the bus is away the last answer stands.
func (b *Bus) ackWait(ctx context.Context, d durable) (time.Duration, error) {
	kept, err := b.ackWaits.get(d.name, ackWaitFresh, func() (time.Duration, error) {
		info, err := b.Consumer(ctx, events.StreamName(0), d.name)
		if err != nil {
			return 0, err
		}
		return info.CachedInfo().Config.AckWait, nil
	})
	if kept > 0 {
		err = nil
	}
	return kept, err
}

const ackWaitFresh = 4 * time.Second

// awaitConsumer returns the consumer as soon as it is there. One that is missing is made
// by create; where that fails, the log names the command. The error is final: the
// context's, or that this connection may not even look.
func (b *Bus) awaitConsumer(ctx context.Context, stream, name, command string, create func() error) (jetstream.Consumer, error) {
	var said string
	for {
		consumer, err := b.Consumer(ctx, stream, name)
		if err == nil || errors.Is(err, journal.ErrDenied) {
			return consumer, err
		}
		if code, ok := api.Code(err); ok && code == api.CodeConsumerNotFound {
			if err = create(); err == nil {
				continue
			}
			err = fmt.Errorf("consumer %s of %s is missing: run `%s`: %w", name, stream, command, err)
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if err.Error() != said {
			said = err.Error()
			b.Log.Warn("waiting for a consumer", "reason", said)
		}
		if !retry.Wait(ctx, prepareRetry) {
			return nil, ctx.Err()
		}
	}
}

func createCommand(d durable) string {
	if d.pool == "" && !slices.Contains(ownStates, d.states[0]) {
		return api.InitCommand + " --states " + joinStates(d.states)
	}
	if d.pool == "" {
		return api.InitCommand
	}
	command := api.InitCommand + " --pools " + d.pool
	if !slices.Contains(slices.Concat(actingStates, endStates), d.states[0]) {
		command += " --states " + joinStates(d.states)
	}
	return command
}

// createConsumer makes a consumer that is missing, and the buckets of its pool.
func (b *Bus) createConsumer(ctx context.Context, shard int, d durable) error {
	if err := b.create(ctx, events.StreamName(shard), d.consumerConfig(shard, b.opts.AckWait, b.opts.MaxAckPending)); err != nil {
		return err
	}
	if d.pool == "" {
		return nil
	}
	if err := b.createPool(ctx, d.pool); err != nil {
		b.Log.Warn("made the consumer of a pool, but not its buckets", "pool", d.pool, "error", err)
	}
	return nil
}

// create makes a consumer that is missing. It never changes one that is there:
// the operator may have set it up otherwise.
func (b *Bus) create(ctx context.Context, stream string, cfg jetstream.ConsumerConfig) error {
	endpoint := "CONSUMER.CREATE." + stream + "." + cfg.Durable
	if cfg.FilterSubject != "" {
		endpoint += "." + cfg.FilterSubject
	}
	err := b.Do(ctx, endpoint, func(ctx context.Context) error {
		_, err := b.JS.CreateConsumer(ctx, stream, cfg)
		return err
	})
	if err == nil {
		b.Log.Info("made a consumer", "stream", stream, "consumer", cfg.Durable)
	}
	return err
}
