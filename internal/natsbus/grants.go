package natsbus

import (
	"maps"
	"slices"
	"strconv"

	"github.com/moorebus/moorebus/internal/natsbus/api"
	"github.com/moorebus/moorebus/internal/natsconn"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

// Grants collects the subjects that a user of the bus needs. Each method adds
// what one way to use a [Bus] takes; nothing else is allowed to the user. It is
// meant for a user whose account imports [Services] and [Feeds] from the account
// of the log: in that account itself replies to the user go where permissions
// do not reach.
type Grants struct {
	shards             int
	publish, subscribe map[string]bool
}

// NewGrants begins with nothing, for a log of that many shards.
func NewGrants(shards int) *Grants {
	return &Grants{shards: max(1, shards), publish: map[string]bool{}, subscribe: map[string]bool{}}
}

// Services are the subjects that the account of the log has to offer to the
// account of the users; streamed are those that answer with several messages.
func Services() (single, streamed []string) {
	return []string{"moore.>", api.AckPrefix + ">", kvSubjectPrefix + ">", "$O.>", timerSubjects, flushSubject + ">"}, []string{api.Prefix + ">"}
}

// Feeds are the subjects that the account of the log sends to the other one.
func Feeds() []string { return []string{events.FeedPrefix + ">"} }

// Chunks are the subjects of model text, which never come to the log.
func Chunks() []string { return []string{"chunk.>"} }

// Publish returns the subjects that may be published on, sorted.
func (g *Grants) Publish() []string { return slices.Sorted(maps.Keys(g.publish)) }

// Subscribe returns the subjects that may be subscribed to, sorted.
func (g *Grants) Subscribe() []string { return slices.Sorted(maps.Keys(g.subscribe)) }

func (g *Grants) api(endpoints ...string) {
	for _, endpoint := range endpoints {
		g.publish[api.Prefix+endpoint] = true
	}
}

func (g *Grants) eachShard(add func(stream string)) {
	for shard := range g.shards {
		add(events.StreamName(shard))
	}
}

// read allows to read a stream without a consumer.
func (g *Grants) read(stream string) { g.api("STREAM.INFO."+stream, "DIRECT.GET."+stream) }

// Inbox allows to receive answers on subjects with this prefix.
func (g *Grants) Inbox(prefix string) { g.subscribe[prefix+".>"] = true }

// ReadLog allows to open the bus and to read all of the log: reading cannot be
// limited to some runs. What is read may have to be flushed first.
func (g *Grants) ReadLog() {
	g.eachShard(func(stream string) {
		g.read(stream)
		g.api("STREAM.MSG.GET." + stream)
	})
	for shard := range g.shards {
		g.publish[flushSubject+strconv.Itoa(shard)] = true
	}
}

// WhoIs allows to ask the server who one is.
func (g *Grants) WhoIs() { g.publish[natsconn.UserInfoSubject] = true }

// Append allows to append events on an edge, in every shard and namespace. The
// pool may be [events.Wildcard].
func (g *Grants) Append(from, to events.State, pool string) {
	g.publish["moore.*.*."+string(from)+"."+string(to)+"."+pool+".*"] = true
}

// Consume allows to take and finish the deliveries of an inbox.
func (g *Grants) Consume(inbox journal.Inbox) {
	for _, d := range durablesOf(inbox) {
		g.eachShard(func(stream string) { g.consume(stream, d.name) })
	}
}

// Inspect allows to see how far the deliveries of an inbox are.
func (g *Grants) Inspect(inbox journal.Inbox) {
	for _, d := range durablesOf(inbox) {
		g.eachShard(func(stream string) { g.api("CONSUMER.INFO." + stream + "." + d.name) })
	}
}

func (g *Grants) consume(stream, durable string) {
	name := stream + "." + durable
	g.api("CONSUMER.INFO."+name, "CONSUMER.MSG.NEXT."+name)
	g.publish[api.AckPrefix+name+".>"] = true
}

// Ready allows to ask whether the bus is set up.
func (g *Grants) Ready() {
	for _, state := range ownStates {
		g.eachShard(func(stream string) { g.api("CONSUMER.INFO." + stream + "." + string(state)) })
	}
}

// Watch allows to hear of events as they are stored.
func (g *Grants) Watch(filter journal.Filter) {
	g.subscribe[events.FeedPrefix+filter.Subject(-1)] = true
}

// WatchAll allows to hear of all events and chunks, by whatever filter.
func (g *Grants) WatchAll() {
	for _, subject := range append(Feeds(), Chunks()...) {
		g.subscribe[subject] = true
	}
}

// PublishChunks allows to send model text.
func (g *Grants) PublishChunks() { g.publish["chunk.*.*"] = true }

// WatchChunks allows to receive model text.
func (g *Grants) WatchChunks() { g.subscribe["chunk.*.*"] = true }

// Ask allows to ask for model text that was missed.
func (g *Grants) Ask() { g.publish[asks] = true }

// WatchAsks allows to hear such questions, to answer them.
func (g *Grants) WatchAsks() { g.subscribe[asks] = true }

// CallServices allows to ask for NATS services, with replies for a user with that inbox
// prefix.
func (g *Grants) CallServices(prefix string) {
	g.publish[api.ServiceInfo] = true
	g.subscribe[api.ServiceReplies+prefix+".>"] = true
}

// CallService allows to ask for a NATS service by name, and to send it requests.
func (g *Grants) CallService(name string, subjects []string) {
	g.publish[api.ServiceInfo+"."+name] = true
	for _, subject := range subjects {
		g.publish[subject] = true
	}
}

// Serve allows to be the NATS service of that name. Its answers are not allowed on whatever
// subject a request names, which might be one of the log, but on those of [Grants.CallServices].
func (g *Grants) Serve(name string, subjects []string) {
	for _, verb := range []string{"PING", "INFO", "STATS"} {
		verb = "$SRV." + verb
		g.subscribe[verb], g.subscribe[verb+"."+name], g.subscribe[verb+"."+name+".*"] = true, true, true
	}
	for _, subject := range subjects {
		g.subscribe[subject] = true
	}
	g.publish[api.ServiceReplies+">"] = true
}

// Lend allows to pass work on to other workers of a pool, and to take theirs.
func (g *Grants) Lend(pool string) {
	g.publish[loanPrefix+pool+".>"] = true
	g.subscribe[loanPrefix+pool+".>"] = true
}

// Question allows to ask the processes of another role.
func (g *Grants) Question() {
	g.publish[questionAsks+"*"] = true
	g.subscribe[questionAnswers+"*"] = true
}

// Answer allows to answer such questions.
func (g *Grants) Answer() {
	g.subscribe[questionAsks+"*"] = true
	g.publish[questionAnswers+"*"] = true
}

// ListBuckets allows to list which buckets there are.
func (g *Grants) ListBuckets() { g.api("STREAM.NAMES") }

// StoreResults allows to keep a pool's large results.
func (g *Grants) StoreResults(pool string) {
	g.storeObjects(resultsPrefix + pool)
	g.ReadResults(pool)
}

// ReadResults allows to read a pool's large results.
func (g *Grants) ReadResults(pool string) { g.read(objectStreamPrefix + resultsPrefix + pool) }

// StoreSnapshots allows to keep snapshots of runs, and to remove them: a new one
// takes the place of another, whose chunks go with a purge. That is no more than
// to write them, since who may write into a bucket can empty it with a rollup.
func (g *Grants) StoreSnapshots() {
	g.storeObjects(snapshotBucket)
	g.api("STREAM.PURGE." + objectStreamPrefix + snapshotBucket)
	g.ReadSnapshots()
}

// ReadSnapshots allows to read snapshots of runs.
func (g *Grants) ReadSnapshots() { g.read(objectStreamPrefix + snapshotBucket) }

func (g *Grants) storeObjects(bucket string) {
	g.publish["$O."+bucket+".C.*"] = true
	g.publish["$O."+bucket+".M.*"] = true
}

// SetTimers allows to set timers of runs, but not to cancel or to take them.
func (g *Grants) SetTimers() {
	g.publish[timerSet+">"] = true
	g.api("STREAM.INFO." + timerStream)
}

// SetTimer allows to set timers of one kind.
func (g *Grants) SetTimer(kind string) {
	g.publish[timerSet+"*.*."+kind] = true
	g.api("STREAM.INFO." + timerStream)
}

// Timers allows to set and cancel timers and to take those that are due.
func (g *Grants) Timers() {
	g.publish[timerSet+">"], g.publish[timerCancelled+">"] = true, true
	g.api("STREAM.INFO." + timerStream)
	g.consume(timerStream, timerDurable)
}
