package natsbus

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/moorebus/moorebus/internal/natsbus/api"
	"github.com/moorebus/moorebus/internal/natsconn"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Level says how bad a finding is.
type Level string

// The levels of findings.
const (
	// Good: it is as it should be.
	Good Level = "ok"
	// Unseen: this user may not look, so others have to.
	Unseen Level = "unseen"
	// Warning: it works, but something may be lost or slow.
	Warning Level = "warning"
	// Bad: it does not work.
	Bad Level = "bad"
)

// Finding is the result of one check of [Check].
type Finding struct {
	Level Level  `json:"level"`
	What  string `json:"what"`
	// Mend says what to do; empty if there is nothing to do.
	Mend string `json:"mend,omitempty"`
}

const oldestServer = "2.12.0"

type examiner struct {
	bus      *Bus
	findings []Finding
}

func (e *examiner) add(level Level, mend, format string, args ...any) {
	e.findings = append(e.findings, Finding{Level: level, What: fmt.Sprintf(format, args...), Mend: mend})
}

// AskOthers is what to do about what is [Unseen].
const AskOthers = "nothing for this user: look as the operator"

// failed adds that something cannot be checked: because the user lacks permission, or
// because it is not as it should be.
func (e *examiner) failed(mend string, err error) {
	if denied(err) {
		e.add(Unseen, AskOthers, "%v", err)
		return
	}
	e.add(Bad, mend, "%v", err)
}

// Check checks the bus and reports what is wrong with it and how to fix it. What the user has
// no permission to read is reported, and is no fault.
func Check(ctx context.Context, conn *nats.Conn, o Options) []Finding {
	o = o.withDefaults()
	client, unhook, err := api.New(conn, o.RequestTimeout, o.Logger)
	if err != nil {
		return []Finding{{Bad, err.Error(), ""}}
	}
	defer unhook()
	e := &examiner{bus: &Bus{Client: client, opts: o}}
	if e.checkServer(ctx, conn) && e.checkJetStream(ctx) {
		e.checkStreams(ctx)
	}
	return e.findings
}

func (e *examiner) checkServer(ctx context.Context, conn *nats.Conn) bool {
	ctx, cancel := context.WithTimeout(ctx, e.bus.Timeout)
	defer cancel()
	if err := conn.FlushWithContext(ctx); err != nil || !conn.IsConnected() {
		e.add(Bad, "start the server or set NATS_URL", "the bus does not answer: connection is %s", conn.Status())
		return false
	}
	version := conn.ConnectedServerVersion()
	if olderThan(version, oldestServer) {
		e.add(Bad, "upgrade nats-server to "+oldestServer+" or later", "nats-server is %s, atomic batches need %s", version, oldestServer)
	} else {
		e.add(Good, "", "nats-server %s at %s", version, conn.ConnectedUrlRedacted())
	}
	if err := checkPayload(conn); err != nil {
		e.add(Bad, mendPayload, "%v", err)
	} else if small := smallPayload(conn); small != "" {
		e.add(Warning, mendPayload, "%s", small)
	}
	return true
}

func (e *examiner) checkJetStream(ctx context.Context) bool {
	err := e.bus.Ask(ctx, 0, "INFO", nil, nil)
	if denied(err) {
		return true // a role's user, who may read the streams all the same
	}
	if err != nil {
		e.add(Bad, "start nats-server with JetStream (-js), or enable it for the account", "JetStream does not answer: %v", err)
		return false
	}
	e.add(Good, "", "JetStream is on")
	return true
}

func (e *examiner) checkStreams(ctx context.Context) {
	first, err := e.bus.shardInfo(ctx, 0)
	if denied(err) {
		e.add(Bad, "connect as a user with the permissions of a role or a tap, and with its NATS_INBOX_PREFIX", "%v", err)
		return
	}
	if err != nil {
		e.add(Bad, api.InitCommand, "%v", err)
		return
	}
	shards, err := shardsOf(first)
	if err != nil {
		e.add(Bad, api.InitCommand, "%v", err)
		return
	}
	pools := e.pools(ctx)
	for shard := range shards {
		info, err := e.bus.shardInfo(ctx, shard)
		if err != nil {
			e.failed(api.InitCommand, err)
			continue
		}
		e.checkStream(info, shard, shards)
		e.checkLimit(info)
		e.checkConsumers(ctx, shard, pools)
	}
	e.checkTimers(ctx)
	e.checkReplicas(first)
	e.checkDurability(ctx, first)
}

func (e *examiner) pools(ctx context.Context) []string {
	pools, err := e.bus.pools(ctx)
	if err != nil && !denied(err) {
		e.add(Warning, "look again", "the pools cannot be listed: %v", err)
	} else if err != nil {
		e.add(Unseen, AskOthers, "which pools there are: %v", err)
	}
	if !slices.Contains(pools, events.DefaultPool) {
		pools = append(slices.Clone(pools), events.DefaultPool)
	}
	return pools
}

func (e *examiner) checkStream(info *jetstream.StreamInfo, shard, shards int) {
	got := info.Config
	want := streamConfig(shard, shards, got.Replicas, got.Storage)
	wrong := differences(&got, &want)
	if got.RePublish == nil || got.RePublish.Destination != want.RePublish.Destination {
		wrong = append(wrong, "it does not republish to "+want.RePublish.Destination)
	}
	if len(wrong) > 0 {
		e.add(Bad, api.InitCommand, "stream %s: %s", got.Name, strings.Join(wrong, "; "))
		return
	}
	e.add(Good, "", "stream %s: %d events", got.Name, info.State.Msgs)
	if got.DenyPurge {
		e.add(Warning, "nothing, unless it grows too large: then `moorebus export` and `moorebus import` into a bus that is set up anew",
			"stream %s was made with deny_purge: `moorebus purge` cannot remove its runs", got.Name)
	}
}

// differences names the settings of a stream that are not as they are declared.
func differences(got, want *jetstream.StreamConfig) (wrong []string) {
	for _, setting := range []struct {
		name       string
		is, should any
	}{
		{"subjects", got.Subjects, want.Subjects},
		{"metadata " + metaShards, got.Metadata[metaShards], want.Metadata[metaShards]},
		{"retention", got.Retention, want.Retention},
		{"discard", got.Discard, want.Discard},
		{"max age", got.MaxAge, want.MaxAge},
		{"max messages", got.MaxMsgs, want.MaxMsgs},
		{"max messages per subject", got.MaxMsgsPerSubject, want.MaxMsgsPerSubject},
		{"deny delete", got.DenyDelete, want.DenyDelete},
		{"allow rollup", got.AllowRollup, want.AllowRollup},
		{"allow direct", got.AllowDirect, want.AllowDirect},
		{"allow atomic", got.AllowAtomicPublish, want.AllowAtomicPublish},
		{"allow message TTL", got.AllowMsgTTL, want.AllowMsgTTL},
		{"allow schedules", got.AllowMsgSchedules, want.AllowMsgSchedules},
	} {
		if !reflect.DeepEqual(setting.is, setting.should) {
			wrong = append(wrong, fmt.Sprintf("%s is %v, not %v", setting.name, setting.is, setting.should))
		}
	}
	return wrong
}

func (e *examiner) checkConsumers(ctx context.Context, shard int, pools []string) {
	wanted := (&InitOptions{Pools: pools}).durables()
	missing, unseen := 0, []string{}
	for _, d := range wanted {
		info, err := e.bus.Consumer(ctx, events.StreamName(shard), d.name)
		if denied(err) {
			unseen = append(unseen, d.name)
			continue
		}
		if err != nil {
			missing++
			e.add(Bad, createCommand(d), "%v", err)
			continue
		}
		e.checkConsumer(info.CachedInfo().Config, d, shard)
	}
	if len(unseen) > 0 {
		e.add(Unseen, AskOthers, "consumers of stream %s that this user may not see: %s", events.StreamName(shard), strings.Join(unseen, ", "))
	}
	if seen := len(wanted) - len(unseen); missing == 0 && seen > 0 {
		e.add(Good, "", "stream %s: %d consumers", events.StreamName(shard), seen)
	}
}

func (e *examiner) checkConsumer(got jetstream.ConsumerConfig, d durable, shard int) {
	filters := got.FilterSubjects
	if len(filters) == 0 {
		filters = []string{got.FilterSubject}
	}
	where := fmt.Sprintf("consumer %s of %s", d.name, events.StreamName(shard))
	want := d.filters(shard)
	slices.Sort(filters)
	slices.Sort(want)
	if !slices.Equal(filters, want) {
		e.add(Bad, createCommand(d), "%s: it filters %v, not %v", where, filters, want)
	}
	if got.AckPolicy != jetstream.AckExplicitPolicy {
		e.add(Bad, "delete the consumer and run "+createCommand(d), "%s: acknowledgements are not explicit", where)
	}
	if len(got.BackOff) > 0 || got.MaxDeliver != -1 {
		e.add(Bad, createCommand(d), "%s: it has a backoff or a limit of deliveries, runs would get stuck", where)
	}
}

// checkSync warns if the log does not say of its server what the server says of itself:
// group commit goes by the log.
func (e *examiner) checkSync(first *jetstream.StreamInfo, flushes bool) {
	said, is := Sync(first.Config.Metadata[metaSync]), SyncOf(flushes)
	if said == is {
		return
	}
	e.add(Warning, "`"+api.InitCommand+" --monitor URL`, then restart the roles",
		"the log says %q of how its server flushes, and the server says %q: --group-commit auto chooses wrongly", cmp.Or(said, "unknown"), is)
}

// checkDurability warns where an acknowledged event can be lost. Whether the
// server flushes every message its monitoring says, where that can be asked.
func (e *examiner) checkDurability(ctx context.Context, first *jetstream.StreamInfo) {
	if Sync(first.Config.Metadata[metaSync]) == SyncGroup && first.Config.Replicas <= 1 {
		e.checkFlushes(ctx, first)
		return
	}
	var said natsconn.Monitored
	silent := natsconn.ErrNoMonitoring
	if first.Config.Replicas <= 1 && first.Config.Storage != jetstream.MemoryStorage {
		if said, silent = natsconn.Monitor(ctx, e.bus.NC, e.bus.opts.Monitor); !said.Own {
			silent = natsconn.ErrNoMonitoring // another server's flushing says nothing of this one's
		}
		if silent == nil {
			e.checkSync(first, said.SyncAlways)
		}
	}
	switch {
	case first.Config.Storage == jetstream.MemoryStorage:
		e.add(Warning, "make the streams anew on files", "the log is in memory: it ends with the server")
	case first.Config.Replicas <= 1 && silent == nil && said.SyncAlways:
		e.add(Good, "", "the log lies on one server, which flushes every message before it acknowledges it")
	case first.Config.Replicas <= 1 && silent == nil:
		e.add(Warning, "set jetstream { sync_interval: always } in the server's configuration, or run three servers and `"+api.InitCommand+" --replicas 3`",
			"the log lies on one server, which does not flush every message: acknowledged events can be lost with the power")
	case first.Config.Replicas <= 1:
		e.add(Warning, "set jetstream { sync_interval: always } in the server's configuration, or run three servers and `"+api.InitCommand+" --replicas 3`",
			"the log lies on one server: unless that flushes every message (its default is once in two minutes), acknowledged events can be lost with the power; name its monitoring with --monitor to find out")
	default:
		e.add(Good, "", "the log lies on %d servers", first.Config.Replicas)
	}
}

// checkFlushes has the log flushed, and says up to where it is.
func (e *examiner) checkFlushes(ctx context.Context, first *jetstream.StreamInfo) {
	shards, err := shardsOf(first)
	if err != nil {
		return // that is reported
	}
	for shard := range shards {
		end, err := e.bus.end(ctx, shard)
		if err == nil {
			end, err = e.bus.flushShard(shard, end)
		}
		if err != nil {
			e.add(Bad, "start `moorebus server` or `moorebus dev` on the data directory", "shard %d cannot be flushed, so nothing is acknowledged or delivered: %v", shard, err)
			continue
		}
		e.add(Good, "", "the log lies on one server and is flushed in groups (--fsync=group): shard %d is on the disk up to record %d", shard, end)
	}
}

func olderThan(version, than string) bool {
	return slices.Compare(numbers(version), numbers(than)) < 0
}

func numbers(version string) []int {
	got := make([]int, 3)
	// What cannot be read stays zero and counts as old.
	_, _ = fmt.Sscanf(strings.TrimPrefix(version, "v"), "%d.%d.%d", &got[0], &got[1], &got[2])
	return got
}

// String returns the finding as text, and on a second line what to do.
func (f Finding) String() string {
	text := fmt.Sprintf("%-7s %s", f.Level, f.What)
	if f.Mend == "" {
		return text
	}
	return text + "\n        " + f.Mend
}

// globalAccount is the account of a server's users where its configuration has
// none.
const globalAccount = "$G"

// operators are subjects that nobody but an operator needs: by one of them the
// log can be changed, or an answer of the server's be directed into it.
var operators = []string{
	api.Prefix + "STREAM.UPDATE.MOORE_0", api.Prefix + "STREAM.DELETE.MOORE_0", api.Prefix + "STREAM.PURGE.MOORE_0",
	api.Prefix + "STREAM.CREATE.moorebus", api.Prefix + "CONSUMER.CREATE.MOORE_0.moorebus", api.Prefix + "CONSUMER.DELETE.MOORE_0.planning",
	timerDue + "x.x.x",
}

// CheckUser returns a finding about the permissions of a user other than the edges that it may
// publish on.
func CheckUser(id natsconn.Identity) Finding {
	may := slices.DeleteFunc(slices.Clone(operators), func(s string) bool { return !id.MayPublish(s) })
	switch {
	case !id.Limited() && id.Account == globalAccount:
		return Finding{Warning, "every user of the server may do everything with the log, since its configuration has no accounts and permissions",
			"nothing, if all who reach the server may do that; else `moorebus init --print-permissions`, see deploy/nats"}
	case !id.Limited():
		return Finding{Good, fmt.Sprintf("this user of account %s may do everything: it is an operator's, and no role should have it", id.Account), ""}
	case len(may) > 0:
		return Finding{Warning, "this user may publish on " + strings.Join(may, ", ") + ", which only an operator needs",
			"take its permissions from `moorebus init --print-permissions`"}
	case id.Account == globalAccount:
		return Finding{Warning, "this user has permissions, but its account is the server's only one: a reply subject of the log gets past them",
			"put the streams and the users into separate accounts, as `moorebus init --print-permissions` does"}
	}
	return Finding{Good, fmt.Sprintf("this user of account %s has limited permissions", id.Account), ""}
}

// denied reports whether an error says that this user may not look.
func denied(err error) bool { return errors.Is(err, journal.ErrDenied) }
