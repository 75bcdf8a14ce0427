package natsbus

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/moorebus/moorebus/internal/buckets"
	"github.com/moorebus/moorebus/internal/feature/rows"
	"github.com/moorebus/moorebus/internal/kv"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	// metaShards is the key in a stream's metadata under which every stream of
	// the log says how many there are.
	metaShards = "moorebus_shards"
	// metaTools is the key in the first stream's metadata under which the operator says
	// which pool each tool belongs to.
	metaTools = "moorebus_pool_tools"
	// metaSync is the key in the first stream's metadata under which init says whether
	// the server flushes, see [Sync].
	metaSync = "moorebus_sync"
	// metaRevision is the key in the first stream's metadata that says which
	// reducer.Revision all builds on the bus know, see [Bus.Agree].
	metaRevision = "moorebus_revision"

	// maxMessage is the largest message of the log with its headers, in bytes:
	// what a server takes by default.
	maxMessage = 1 << 20

	defaultAckWait       = 15 * time.Second
	defaultMaxAckPending = 20000
	// maxWaiting is how many pull requests a consumer keeps: a few of every
	// process that shares it.
	maxWaiting = 8192

	resultsPrefix  = "results_"
	snapshotBucket = "snapshots"

	kvStreamPrefix     = "KV_"
	kvSubjectPrefix    = "$KV."
	objectStreamPrefix = "OBJ_"
)

// ownStates are the states that have their own consumer, whatever pool
// their events carry.
var ownStates = []events.State{
	events.Planning, events.Reflecting, events.Observing, events.Paging, events.WaitingForHuman,
}

// actingStates are the states whose events are consumed pool by pool.
var actingStates = []events.State{events.Acting, events.ParallelActing}

// endStates are those in which a run ends that answers another one's call: the pool of
// agents has a consumer for each.
var endStates = []events.State{events.Done, events.Errored, events.Cancelled}

// streamSubjects are the subjects that the stream of a shard stores.
func streamSubjects(shard int) string { return "moore." + strconv.Itoa(shard) + ".>" }

func streamConfig(shard, shards, replicas int, storage jetstream.StorageType) jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name:        events.StreamName(shard),
		Description: "Moorebus: the log of runs",
		Subjects:    []string{streamSubjects(shard)},
		Retention:   jetstream.LimitsPolicy,
		Storage:     storage,
		Replicas:    replicas,
		// Full means that appends fail, not that the oldest events go.
		Discard:           jetstream.DiscardNew,
		MaxConsumers:      -1,
		MaxMsgs:           -1,
		MaxBytes:          -1,
		MaxMsgsPerSubject: -1,
		MaxMsgSize:        maxMessage,
		// An operator purges runs, see Purger of package ports; single events stay.
		DenyDelete:         true,
		AllowDirect:        true,
		AllowAtomicPublish: true,
		Compression:        jetstream.S2Compression,
		RePublish: &jetstream.RePublish{
			Source:      streamSubjects(shard),
			Destination: events.FeedPrefix + streamSubjects(shard),
		},
		Metadata: map[string]string{metaShards: strconv.Itoa(shards)},
	}
}

// durable is a consumer that a stream of every shard has.
type durable struct {
	name   string
	states []events.State
	// pool narrows it to one pool; empty: every pool.
	pool string
}

func (d durable) filters(shard int) []string {
	filters := make([]string, len(d.states))
	for i, state := range d.states {
		filters[i] = journal.Filter{To: state, Pool: d.pool}.Subject(shard)
	}
	return filters
}

// consumerConfig declares the consumer on one shard. There is no BackOff, since
// it would replace the ack wait, and no limit of deliveries, since giving up
// counts failures in the log.
func (d durable) consumerConfig(shard int, ackWait time.Duration, maxAckPending int) jetstream.ConsumerConfig {
	cfg := jetstream.ConsumerConfig{
		Durable:       d.name,
		Description:   "Moorebus: what wakes " + strings.TrimSuffix(joinStates(d.states)+" in pool "+d.pool, " in pool "),
		DeliverPolicy: jetstream.DeliverAllPolicy,
		AckPolicy:     jetstream.AckExplicitPolicy,
		AckWait:       ackWait,
		MaxDeliver:    -1,
		MaxAckPending: maxAckPending,
		MaxWaiting:    maxWaiting,
	}
	if filters := d.filters(shard); len(filters) == 1 {
		cfg.FilterSubject = filters[0]
	} else {
		cfg.FilterSubjects = filters
	}
	return cfg
}

func joinStates(states []events.State) string {
	names := make([]string, len(states))
	for i, s := range states {
		names[i] = string(s)
	}
	return strings.Join(names, ", ")
}

// actingDurable is the one consumer of a pool of tools.
func actingDurable(pool string) durable {
	return durable{name: string(events.Acting) + "_" + pool, states: actingStates, pool: pool}
}

// durablesOf returns the consumers that an inbox draws from: one for acting and
// parallel_acting of its pool, one for each other state.
func durablesOf(inbox journal.Inbox) []durable {
	pool := inbox.Pool
	if pool == "" {
		pool = events.DefaultPool
	}
	var found []durable
	for _, state := range inbox.States {
		d := durable{name: string(state), states: []events.State{state}}
		switch {
		case slices.Contains(actingStates, state):
			d = actingDurable(pool)
		case pool != events.DefaultPool:
			d.name, d.pool = string(state)+"_"+pool, pool
		}
		if !slices.ContainsFunc(found, func(f durable) bool { return f.name == d.name }) {
			found = append(found, d)
		}
	}
	return found
}

// The stream of timers. What is set lies on one subject for each timer until its
// time has come; then the server moves it to the subject of those that are due,
// where it stays until it is acknowledged.
const (
	timerStream    = "MOORE_TIMERS"
	timerSubjects  = "timers.>"
	timerSet       = "timers.set."
	timerDue       = "timers.due."
	timerCancelled = "timers.cancel."
	timerDurable   = "timers"
)

// timerStreamConfig declares the stream of timers. Schedules need a stream that
// allows rollups and purges and does not refuse what is new when it is full, so
// they have a separate one. Gateways write it; planners and the actor of the pool agents may
// set timers there.
func timerStreamConfig(replicas int, storage jetstream.StorageType) jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name:        timerStream,
		Description: "Moorebus: timers of runs",
		Subjects:    []string{timerSubjects},
		// What is due goes when it is acknowledged, and what is set has no
		// consumer, so that it stays.
		Retention:         jetstream.WorkQueuePolicy,
		Storage:           storage,
		Replicas:          replicas,
		Discard:           jetstream.DiscardOld,
		MaxConsumers:      -1,
		MaxMsgs:           -1,
		MaxBytes:          -1,
		MaxMsgsPerSubject: -1,
		MaxMsgSize:        64 << 10,
		AllowRollup:       true,
		AllowMsgTTL:       true,
		AllowMsgSchedules: true,
	}
}

func timerConsumerConfig(ackWait time.Duration, maxAckPending int) jetstream.ConsumerConfig {
	return jetstream.ConsumerConfig{
		Durable:       timerDurable,
		Description:   "Moorebus: timers that are due",
		DeliverPolicy: jetstream.DeliverAllPolicy,
		AckPolicy:     jetstream.AckExplicitPolicy,
		AckWait:       ackWait,
		MaxDeliver:    -1,
		MaxAckPending: maxAckPending,
		MaxWaiting:    maxWaiting,
		FilterSubject: timerDue + ">",
	}
}

// allBuckets returns every bucket and every object store.
func allBuckets(pools []string, replicas int) ([]kv.Bucket, []jetstream.ObjectStoreConfig) {
	all, stores := rows.Buckets(pools), []jetstream.ObjectStoreConfig{snapshotsConfig(replicas)}
	for _, role := range buckets.KeepingRoles {
		all = append(all, leases(role))
	}
	for _, pool := range pools {
		stores = append(stores, resultsConfig(pool, replicas))
	}
	return all, stores
}

// bucketStream returns the stream that the client library makes for a bucket.
func bucketStream(of kv.Bucket, replicas int) jetstream.StreamConfig {
	cfg := jetstream.StreamConfig{
		Name: kvStreamPrefix + of.Name, Description: ownDescription + of.About, Subjects: []string{kvSubject(of.Name, ">")},
		MaxMsgsPerSubject: int64(max(1, of.History)), MaxAge: of.Lifetime, Storage: jetstream.FileStorage, Replicas: max(1, replicas),
		MaxBytes: -1, MaxMsgSize: -1, MaxMsgs: -1, MaxConsumers: -1, Duplicates: 2 * time.Minute,
		AllowRollup: true, DenyDelete: true, AllowDirect: true, Discard: jetstream.DiscardNew, AllowMsgTTL: of.Marks,
	}
	if of.Marks {
		cfg.SubjectDeleteMarkerTTL = kv.MarkLifetime
	}
	if of.Lifetime > 0 {
		cfg.Duplicates = min(cfg.Duplicates, of.Lifetime)
	}
	return cfg
}

// objectStream returns the stream that the client library makes for an object store of these
// settings.
func objectStream(cfg jetstream.ObjectStoreConfig) jetstream.StreamConfig {
	compression := jetstream.NoCompression
	if cfg.Compression {
		compression = jetstream.S2Compression
	}
	return jetstream.StreamConfig{
		Name: objectStreamPrefix + cfg.Bucket, Description: cfg.Description, Subjects: []string{"$O." + cfg.Bucket + ".C.>", "$O." + cfg.Bucket + ".M.>"},
		MaxAge: cfg.TTL, MaxBytes: -1, Storage: cfg.Storage, Replicas: max(1, cfg.Replicas), Metadata: cfg.Metadata,
		Discard: jetstream.DiscardNew, AllowRollup: true, AllowDirect: true, Compression: compression,
	}
}

// resultsConfig declares the store in which one pool's actors keep results that
// are too large for the log.
func resultsConfig(pool string, replicas int) jetstream.ObjectStoreConfig {
	return jetstream.ObjectStoreConfig{
		Bucket: resultsPrefix + pool, Description: "Moorebus: large results of pool " + pool, Replicas: replicas,
		Storage: jetstream.FileStorage, Compression: true,
	}
}

// snapshotsConfig declares the store in which the observers keep snapshots. They
// come packed.
func snapshotsConfig(replicas int) jetstream.ObjectStoreConfig {
	return jetstream.ObjectStoreConfig{
		Bucket: snapshotBucket, Description: "Moorebus: snapshots of long runs", Replicas: replicas, Storage: jetstream.FileStorage,
	}
}

// checkStates refuses states that cannot have a consumer: those that are not a token, and the
// name of the consumer of a pool of tools.
func checkStates(states []events.State) error {
	for _, state := range states {
		if !events.ValidToken(string(state)) {
			return fmt.Errorf("state %q is not a token of [a-z0-9][a-z0-9_-]{0,62}", state)
		}
		if !slices.Contains(actingStates, state) && strings.HasPrefix(string(state), string(events.Acting)+"_") {
			return fmt.Errorf("state %q: names that begin with %s_ are those of pools' consumers", state, events.Acting)
		}
	}
	return nil
}
