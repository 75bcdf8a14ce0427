package natsbus

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/moorebus/moorebus/internal/buckets"
	"github.com/moorebus/moorebus/internal/kv"
	"github.com/moorebus/moorebus/internal/natsbus/api"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// InitOptions says how the bus is to be set up; the zero value is one shard on
// one server, with the pool `default`.
type InitOptions struct {
	// Shards is the number of streams; 0: as many as there are, or 1. It cannot
	// be changed once the streams exist.
	Shards int
	// Replicas is number of servers that hold each stream; 0: as it is, or 1.
	Replicas int
	// Pools are the pools of tools that get a consumer and buckets, in addition to
	// `default`.
	Pools []string
	// States are the states of an application's own graph that get a consumer,
	// in addition to the built-in ones. With the pool of agents each gets another one there,
	// for the ends of runs that answer calls: so runs that end in their own state
	// need it named here.
	States []events.State
	// AckWait is how long a delivery may go without a sign of life; 0: as each
	// consumer has it, or 15 s.
	AckWait time.Duration
	// MaxAckPending is how many deliveries of one consumer may be at work at
	// once, over all processes; those that wait to be tried again count too. 0:
	// as each consumer has it, or 20000.
	MaxAckPending int
	// PoolMaxAckPending is how many calls of a pool of tools run at once, over all
	// processes and shards, by pool; MaxAckPending changes nothing about such a pool. Each
	// shard has its part of it, so it is at least the number of shards. A pool that is named
	// here is one of Pools. 20000 or more takes the bound away.
	PoolMaxAckPending map[string]int
	// PoolTools assigns tools to pools, by pool: what other pools announce of a tool that
	// is assigned is ignored. A pool that is named here is one of Pools, and its list
	// takes the place of the one that it has; an empty one takes that away. Pools that
	// are not named keep theirs.
	PoolTools map[string][]string
	// Buckets are made beside those that every installation has.
	Buckets []kv.Bucket
	// Alone says that no other process has had the bus since its server started, and
	// none has it now: what was delivered before and not finished comes again at once,
	// and what was announced before is forgotten.
	Alone bool
	// MaxBytes is how large each stream of the log may become; it answers that it is
	// full before the disk is. 0: as somebody set it, else what follows from Storable.
	MaxBytes int64
	// Storable is how many bytes the server may store altogether, as its monitoring says: the
	// streams of the log get two thirds of it. 0: it is not known, and streams without
	// a limit stay so. The limits of other streams than the log's take up space that is
	// Reserved on that server.
	Storable, Reserved int64
	// Say gets, one line at a time, what could not be done as requested, such as a limit that the
	// server will not reserve; nil: it is not reported.
	Say func(line string)
	// Sync says whether the server flushes each message to its disk before it
	// acknowledges it, as its monitoring or its operator says. The log stores it
	// for [GroupCommitAuto]; unknown: what it kept before.
	Sync Sync
	// Resynced is called when the log that was there has another Sync now. Who opened it
	// before knows the old one until it connects again. nil: nobody has to know. An error
	// ends the init.
	Resynced func() error
	// Memory keeps the log in memory: for tests and benchmarks.
	Memory bool

	// plan gets what would be done instead; nil: it is done.
	plan func(Change)
	// existing has the streams that existed at the start.
	existing map[string]bool
}

// Sync says whether a server flushes each message to its disk before it acknowledges it.
type Sync string

// The values of [Sync].
const (
	SyncUnknown Sync = ""
	SyncAlways  Sync = "always"
	SyncRelaxed Sync = "relaxed"
	// SyncGroup: the process that has the server flushes, for all who wait. See
	// [Options].Flush.
	SyncGroup Sync = "group"
)

// SyncOf returns the value for a server of which it is known whether it flushes.
func SyncOf(always bool) Sync {
	if always {
		return SyncAlways
	}
	return SyncRelaxed
}

// Init creates or updates streams, consumers and buckets. It is safe to repeat.
// It refuses to change the number of shards of streams that exist, since that
// would separate runs from their logs. A user who may not do all of it gets an error at
// once.
func Init(ctx context.Context, conn *nats.Conn, o InitOptions) error {
	return o.guarded(ctx, conn, func(ctx context.Context) error {
		if err := checkPayload(conn); err != nil {
			return err
		}
		js, err := jetstream.New(conn, jetstream.WithDefaultTimeout(initTimeout))
		if err != nil {
			return err
		}
		if small := smallPayload(conn); small != "" {
			o.say("%s; larger results of tools go to a bucket. To raise it, %s", small, mendPayload)
		}
		return o.run(ctx, js)
	})
}

// guarded calls run, ends it when the user may not do all of it, and says what an error means.
func (InitOptions) guarded(ctx context.Context, conn *nats.Conn, run func(context.Context) error) error {
	defaults := Options{}.withDefaults()
	b, unhook, err := api.New(conn, defaults.RequestTimeout, defaults.Logger)
	if err != nil {
		return err
	}
	defer unhook()
	ctx, refuse := context.WithCancelCause(ctx)
	defer refuse(nil)
	defer b.OnRefused(api.AnySubject, refuse)()
	err = run(ctx)
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	switch code, _ := api.Code(err); {
	case err == nil:
		return nil
	case code == api.CodeNoStorage || code == api.CodeNoResources:
		// Nothing is full: a limit is space that the server reserves.
		return fmt.Errorf("init: %w: the limits of streams (max_bytes) are reserved, and the server or the account may not store as much as they add up to; "+
			"choose a smaller --max-bytes, raise max_file_store or the account's limit, or lower the limits of other streams", err)
	}
	return fmt.Errorf("init: %w", api.Classify(err))
}

// initTimeout bounds the wait for one answer. Making a stream takes some twenty flushes to the
// disk, which on a busy disk can take seconds.
const initTimeout = 30 * time.Second

func (o *InitOptions) run(ctx context.Context, js jetstream.JetStream) error {
	if err := o.resolve(ctx, js); err != nil {
		return err
	}
	if o.Alone {
		if err := reclaim(ctx, js); err != nil {
			return err
		}
	}
	// The first stream of the log comes after the others: it is the one that says that all are there.
	for shard := o.Shards - 1; shard >= 0; shard-- {
		if err := o.initShard(ctx, js, shard); err != nil {
			return err
		}
	}
	if err := o.initTimers(ctx, js); err != nil {
		return err
	}
	return o.initBuckets(ctx, js)
}

// resolve checks the options against what exists and fills in the rest.
func (o *InitOptions) resolve(ctx context.Context, js jetstream.JetStream) error {
	if o.Shards < 0 || o.Replicas < 0 || o.MaxAckPending < 0 || o.AckWait < 0 || o.MaxBytes < 0 {
		return errors.New("shards, replicas, ack wait, max ack pending and max bytes cannot be negative")
	}
	o.Pools = append([]string{events.DefaultPool}, o.Pools...)
	for pool, n := range o.PoolMaxAckPending {
		if n < 1 {
			return fmt.Errorf("max ack pending of pool %s has to be 1 or more, is %d", pool, n)
		}
		o.Pools = append(o.Pools, pool)
	}
	o.Pools = slices.AppendSeq(o.Pools, maps.Keys(o.PoolTools))
	slices.Sort(o.Pools)
	o.Pools = slices.Compact(o.Pools)
	for _, pool := range o.Pools {
		if !events.ValidToken(pool) {
			return fmt.Errorf("pool %q is not a token of [a-z0-9][a-z0-9_-]{0,62}", pool)
		}
		if pool == events.ClientPool {
			return fmt.Errorf("pool %q is reserved for the tools of runs' clients, and is always there", pool)
		}
	}
	if err := checkStates(o.States); err != nil {
		return err
	}
	existing, replicas, err := o.existingShards(ctx, js)
	if err != nil {
		return err
	}
	// What is said of consumers holds for those of every pool that there is.
	if err := o.addExisting(ctx, js); err != nil {
		return err
	}
	if o.Shards == 0 {
		o.Shards = max(1, existing)
	}
	if existing != 0 && existing != o.Shards {
		return fmt.Errorf("the log has %d shards, %d were asked for: the number cannot be changed, since every run lies in the shard that its id and the number give", existing, o.Shards)
	}
	if o.Replicas == 0 {
		o.Replicas = max(1, replicas)
	}
	for pool, n := range o.PoolMaxAckPending {
		if n < o.Shards {
			return fmt.Errorf("max ack pending of pool %s: %d cannot be shared among the %d shards of the log: each needs 1 or more", pool, n, o.Shards)
		}
	}
	return nil
}

// addExisting notes which streams exist, and adds the pools that they are for.
func (o *InitOptions) addExisting(ctx context.Context, js jetstream.JetStream) error {
	o.existing = map[string]bool{}
	names := js.StreamNames(ctx)
	for name := range names.Name() {
		o.existing[name] = true
		if pool, ok := strings.CutPrefix(name, kvStreamPrefix+buckets.ToolsPrefix); ok && events.ValidToken(pool) {
			o.Pools = append(o.Pools, pool)
		}
	}
	slices.Sort(o.Pools)
	o.Pools = slices.Compact(o.Pools)
	return names.Err()
}

// existingShards returns how many shards the streams say there are, 0 if there
// is none, and on how many servers they lie, and checks what is asked of them. What others
// have reserved it takes from Storable. After an init that was interrupted only the last streams
// exist, so all names are checked.
func (o *InitOptions) existingShards(ctx context.Context, js jetstream.JetStream) (shards, replicas int, err error) {
	reserved := int64(0)
	names := js.StreamNames(ctx, jetstream.WithStreamListSubject("moore.>"))
	for name := range names.Name() {
		stream, err := js.Stream(ctx, name)
		if err != nil {
			return 0, 0, err
		}
		cfg := stream.CachedInfo().Config
		n, err := strconv.Atoi(cfg.Metadata[metaShards])
		if err != nil || n < 1 {
			return 0, 0, fmt.Errorf("stream %s takes subjects of the log but is not Moorebus's own (no %s in its metadata): remove it or use another account", name, metaShards)
		}
		if err := o.checkLimit(stream.CachedInfo()); err != nil {
			return 0, 0, err
		}
		if shards != 0 && n != shards {
			return 0, 0, fmt.Errorf("the streams disagree on the number of shards: %d and %d", shards, n)
		}
		shards, replicas = n, cfg.Replicas
		reserved += max(0, cfg.MaxBytes)
	}
	o.Storable -= max(0, o.Reserved-reserved)
	return shards, replicas, names.Err()
}

func (o *InitOptions) durables() []durable {
	var all []durable
	for _, state := range ownStates {
		all = append(all, durablesOf(journal.Inbox{States: []events.State{state}})...)
	}
	for _, state := range o.States {
		all = append(all, durablesOf(journal.Inbox{States: []events.State{state}})...)
	}
	// No actor serves the pool of clients' tools, so it has no buckets.
	all = append(all, actingDurable(events.ClientPool))
	for _, pool := range o.Pools {
		if pool != events.ClientPool {
			all = append(all, actingDurable(pool))
		}
		if pool == events.AgentsPool {
			// Which of the application's own states are ends is not known here.
			all = append(all, durablesOf(journal.Inbox{States: slices.Concat(endStates, o.States), Pool: pool})...)
		}
	}
	return all
}

func (o *InitOptions) initShard(ctx context.Context, js jetstream.JetStream, shard int) error {
	cfg := streamConfig(shard, o.Shards, o.Replicas, o.storage())
	var old *jetstream.StreamInfo
	var was map[string]string
	if stream, err := o.stream(ctx, js, cfg.Name); err == nil {
		old = stream.CachedInfo()
		// What a stream denies it denies forever: an update that lifts it fails.
		cfg.DenyPurge = old.Config.DenyPurge
		was = old.Config.Metadata
	} else if !errors.Is(err, jetstream.ErrStreamNotFound) {
		return fmt.Errorf("stream %s: %w", cfg.Name, err)
	}
	if shard == 0 {
		if sync := cmp.Or(o.Sync, Sync(was[metaSync])); sync != SyncUnknown {
			cfg.Metadata[metaSync] = string(sync)
		}
		if err := withPoolTools(cfg.Metadata, was, o.PoolTools); err != nil {
			return err
		}
	}
	stream, err := o.putLog(ctx, js, cfg, old)
	if err != nil {
		return err
	}
	if old != nil && o.Resynced != nil && cfg.Metadata[metaSync] != was[metaSync] {
		if err := o.Resynced(); err != nil {
			return err
		}
	}
	return each(ctx, o.together(), o.durables(), func(ctx context.Context, d durable) error {
		ackWait, maxAckPending, limited, err := o.terms(ctx, stream, d, shard)
		if err != nil {
			return fmt.Errorf("consumer %s of %s: %w", d.name, cfg.Name, err)
		}
		wanted := d.consumerConfig(shard, ackWait, maxAckPending)
		if limited {
			wanted.Metadata = map[string]string{metaLimited: "true"}
		}
		if err := o.putConsumer(ctx, stream, cfg.Name, wanted); err != nil {
			return fmt.Errorf("consumer %s of %s: %w", d.name, cfg.Name, err)
		}
		return nil
	})
}

// atOnce is how many streams or consumers are made at the same time: most of the time the server
// waits for the disk.
const atOnce = 4

// together returns how many streams or consumers are made at the same time. A plan has an order.
func (o *InitOptions) together() int {
	if o.plan != nil {
		return 1
	}
	return atOnce
}

// each calls do for all items, up to n at a time. The first error ends the context of the others.
func each[T any](ctx context.Context, n int, items []T, do func(context.Context, T) error) error {
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	var all sync.WaitGroup
	slots := make(chan struct{}, n)
	for _, item := range items {
		slots <- struct{}{}
		all.Go(func() {
			if err := do(ctx, item); err != nil {
				fail(err)
			}
			<-slots
		})
	}
	all.Wait()
	return context.Cause(ctx)
}

func (o *InitOptions) storage() jetstream.StorageType {
	if o.Memory {
		return jetstream.MemoryStorage
	}
	return jetstream.FileStorage
}

func (o *InitOptions) initTimers(ctx context.Context, js jetstream.JetStream) error {
	stream, err := o.putStream(ctx, js, timerStreamConfig(o.Replicas, o.storage()))
	if err != nil {
		return fmt.Errorf("stream %s: %w", timerStream, err)
	}
	for _, config := range []func(time.Duration, int) jetstream.ConsumerConfig{timerConsumerConfig, alarmConsumerConfig} {
		name := config(0, 0).Durable
		ackWait, maxAckPending, _, err := o.terms(ctx, stream, durable{name: name}, 0)
		if err == nil {
			err = o.putConsumer(ctx, stream, timerStream, config(ackWait, maxAckPending))
		}
		if err != nil {
			return fmt.Errorf("consumer %s of %s: %w", name, timerStream, err)
		}
	}
	return nil
}

// terms returns what was asked for a consumer, else what it has, else the default. limited says
// that it bounds the calls of its pool.
func (o *InitOptions) terms(ctx context.Context, stream jetstream.Stream, d durable, shard int) (ackWait time.Duration, maxAckPending int, limited bool, err error) {
	ackWait, maxAckPending = o.AckWait, o.MaxAckPending
	calls, named := o.PoolMaxAckPending[d.pool]
	if named = named && slices.Equal(d.states, actingStates); named {
		maxAckPending, limited = (calls+shard)/o.Shards, calls < defaultMaxAckPending
	}
	has, err := consumerOf(ctx, stream, d.name)
	switch {
	case err == nil:
		cfg := has.CachedInfo().Config
		setDefault(&ackWait, ackWaitOf(cfg))
		if stays := !named && isLimited(cfg); stays || maxAckPending == 0 {
			maxAckPending, limited = cfg.MaxAckPending, stays
		}
	case !errors.Is(err, jetstream.ErrConsumerNotFound):
		return 0, 0, false, err
	}
	setDefault(&ackWait, defaultAckWait)
	if maxAckPending == 0 {
		maxAckPending = defaultMaxAckPending
	}
	return ackWait, maxAckPending, limited, nil
}

// metaLimited marks a consumer that bounds the calls of its pool, and not only the deliveries.
const metaLimited = "moorebus_limited"

func isLimited(cfg jetstream.ConsumerConfig) bool { return cfg.Metadata[metaLimited] != "" }

func (o *InitOptions) initBuckets(ctx context.Context, js jetstream.JetStream) error {
	all, stores := allBuckets(o.Pools, o.Replicas)
	err := each(ctx, o.together(), stores, func(ctx context.Context, cfg jetstream.ObjectStoreConfig) error {
		if _, err := o.putStream(ctx, js, objectStream(cfg)); err != nil {
			return fmt.Errorf("object store %s: %w", cfg.Bucket, err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return each(ctx, o.together(), append(all, o.Buckets...), func(ctx context.Context, of kv.Bucket) error {
		if _, err := o.putStream(ctx, js, bucketStream(of, o.Replicas)); err != nil {
			return fmt.Errorf("bucket %s: %w", of.Name, err)
		}
		return nil
	})
}

// A server that starts keeps the deliveries that were outstanding, and waits for each
// of them as if the process that held it could still finish it. Where that process
// is known to be gone, the ack wait is over: it is set so short for a moment that the
// server queues them again. They keep their count of deliveries, by which a lost
// worker is noticed. A delivery that is to come again after a delay comes up to one
// ack wait too early.
const (
	// reclaimWait is the ack wait of that moment.
	reclaimWait = time.Millisecond
	// reclaimTime is how long it lasts. The server looks over what is outstanding
	// 100 ms after the ack wait was changed.
	reclaimTime = 300 * time.Millisecond
	// metaAckWait has the ack wait that a consumer is to have again, so that a process
	// which dies at that moment leaves no consumer with the short one.
	metaAckWait = "moorebus_ack_wait"
	// ownStreamPrefix begins the names of the log's streams and of that of timers.
	ownStreamPrefix = "MOORE_"
)

// ackWaitOf is the ack wait of a consumer, or the one that it is to have again.
func ackWaitOf(cfg jetstream.ConsumerConfig) time.Duration {
	if wait, err := time.ParseDuration(cfg.Metadata[metaAckWait]); err == nil && wait > 0 {
		return wait
	}
	return cfg.AckWait
}

// reclaim has all outstanding deliveries of the bus come again at once, and empties
// the buckets of announcements and of what gateways remember of them.
func reclaim(ctx context.Context, js jetstream.JetStream) error {
	names := js.StreamNames(ctx)
	var held []heldConsumer
	for name := range names.Name() {
		switch {
		case name == kvStreamPrefix+buckets.Providers.Name, name == kvStreamPrefix+buckets.Offers.Name, strings.HasPrefix(name, kvStreamPrefix+buckets.ToolsPrefix):
			stream, err := js.Stream(ctx, name)
			if err == nil && stream.CachedInfo().State.Msgs > 0 {
				err = stream.Purge(ctx)
			}
			if err != nil {
				return fmt.Errorf("bucket %s: %w", strings.TrimPrefix(name, kvStreamPrefix), err)
			}
		case strings.HasPrefix(name, ownStreamPrefix):
			found, err := heldConsumers(ctx, js, name)
			if err != nil {
				return fmt.Errorf("consumers of %s: %w", name, err)
			}
			held = append(held, found...)
		}
	}
	if err := names.Err(); err != nil || len(held) == 0 {
		return err
	}
	for _, c := range held {
		if err := c.setAckWait(ctx, js, reclaimWait); err != nil {
			return err
		}
	}
	select {
	case <-time.After(reclaimTime):
	case <-ctx.Done():
		return ctx.Err()
	}
	for _, c := range held {
		if err := c.setAckWait(ctx, js, c.ackWait); err != nil {
			return err
		}
	}
	return nil
}

// heldConsumer is a consumer with deliveries that were not finished, or one that was
// left with a short ack wait.
type heldConsumer struct {
	stream  string
	cfg     jetstream.ConsumerConfig
	ackWait time.Duration
}

func heldConsumers(ctx context.Context, js jetstream.JetStream, name string) ([]heldConsumer, error) {
	stream, err := js.Stream(ctx, name)
	if err != nil {
		return nil, err
	}
	var held []heldConsumer
	all := stream.ListConsumers(ctx)
	for info := range all.Info() {
		wait := ackWaitOf(info.Config)
		if info.Config.Durable != "" && (info.NumAckPending > 0 || wait != info.Config.AckWait) {
			held = append(held, heldConsumer{name, info.Config, wait})
		}
	}
	return held, all.Err()
}

// setAckWait changes the ack wait. One that is not the consumer's is noted in its metadata.
func (c *heldConsumer) setAckWait(ctx context.Context, js jetstream.JetStream, wait time.Duration) error {
	cfg := c.cfg
	cfg.AckWait, cfg.Metadata = wait, map[string]string{}
	for key, value := range c.cfg.Metadata {
		if key != metaAckWait && !strings.HasPrefix(key, "_nats.") {
			cfg.Metadata[key] = value
		}
	}
	if wait != c.ackWait {
		cfg.Metadata[metaAckWait] = c.ackWait.String()
	}
	if _, err := js.UpdateConsumer(ctx, c.stream, cfg); err != nil {
		return fmt.Errorf("consumer %s of %s: %w", cfg.Durable, c.stream, err)
	}
	return nil
}
