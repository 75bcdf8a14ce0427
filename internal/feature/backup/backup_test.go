package backup_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/agentstore"
	"github.com/moorebus/moorebus/internal/buckets"
	"github.com/moorebus/moorebus/internal/codes"
	"github.com/moorebus/moorebus/internal/commandtest"
	"github.com/moorebus/moorebus/internal/control/forking"
	"github.com/moorebus/moorebus/internal/feature/backup"
	"github.com/moorebus/moorebus/internal/feature/retention"
	schedules "github.com/moorebus/moorebus/internal/feature/schedules/row"
	"github.com/moorebus/moorebus/internal/feature/storage/entrystore"
	webhooks "github.com/moorebus/moorebus/internal/feature/webhooks/row"
	"github.com/moorebus/moorebus/internal/kv"
	"github.com/moorebus/moorebus/internal/natsbus"
	"github.com/moorebus/moorebus/internal/ports"
	"github.com/moorebus/moorebus/internal/tombstones"
	"github.com/moorebus/moorebus/internal/transfer"
	"github.com/moorebus/moorebus/internal/transfer/transfertest"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

// Three backups of a bus that is written to, each added to the one before, restore to what each
// run was at some moment, byte for byte and into another number of shards.
func TestBackupOfABusAtWork(t *testing.T) {
	t.Parallel()
	one := newWorld(t, 2)
	dir := filepath.Join(t.TempDir(), "backup")
	var mu sync.Mutex
	var runs []events.Run
	ctx, cancel := context.WithCancel(t.Context())
	var writers sync.WaitGroup
	defer func() { cancel(); writers.Wait() }()
	var written atomic.Int32
	for range 4 {
		writers.Go(func() {
			for ctx.Err() == nil {
				run := one.Open()
				mu.Lock()
				runs = append(runs, run)
				mu.Unlock()
				for n := 0; n < 20 && ctx.Err() == nil; n++ {
					err := one.TryAppend(context.WithoutCancel(ctx), run, events.Control, &events.CustomMemorySet{Key: "k", Value: []byte(`"v"`)})
					if err != nil {
						t.Error(err)
						return
					}
					written.Add(1)
				}
			}
		})
	}
	for range 3 {
		was := written.Load()
		require.Eventually(t, func() bool { return written.Load() > was+200 }, transfertest.Patience, time.Millisecond)
		require.Positive(t, one.take(dir, true).Records)
	}
	cancel()
	writers.Wait()

	two := newWorld(t, 3)
	done := two.restore(dir, time.Time{}, backup.RestoreOptions{})
	require.Positive(t, done.Runs)
	two.Verified()
	restored := uint64(0)
	for _, run := range runs {
		// Runs at work get a Resumed behind what the backup has.
		before, after := one.Bodies(run), two.Bodies(run)
		if len(after) > 0 {
			last, err := new(events.Codec).Decode(after[len(after)-1])
			require.NoError(t, err)
			require.Equal(t, events.TypeResumed, last.Type())
			after = after[:len(after)-1]
		}
		require.LessOrEqual(t, len(after), len(before))
		for i := range after {
			require.True(t, bytes.Equal(before[i], after[i]), "run %s, event %d", run.ID, i+1)
		}
		restored += uint64(len(after))
	}
	require.Equal(t, done.Events, restored)
	require.Greater(t, restored, uint64(600))

	info, err := os.Stat(filepath.Join(dir, "manifest.json"))
	require.NoError(t, err)
	require.Zero(t, info.Mode().Perm()&0o077, "others can read it")
}

// A restore up to a time has what was there then, and values of the last backup before it.
func TestUntil(t *testing.T) {
	t.Parallel()
	one := newWorld(t, 1)
	dir := filepath.Join(t.TempDir(), "backup")
	early := one.Open()
	require.NoError(t, agentstore.Put(t.Context(), one.Bus, "default", "x", []byte(`"old"`)))
	one.take(dir, false)
	one.Append(early, events.Control, &events.CustomMemorySet{Key: "k", Value: []byte(`1`)})
	head, err := one.Bus.Head(t.Context(), early)
	require.NoError(t, err)
	one.Append(early, events.Control, &events.CustomMemorySet{Key: "k", Value: []byte(`2`)})
	late := one.Open()
	require.NoError(t, agentstore.Put(t.Context(), one.Bus, "default", "x", []byte(`"new"`)))
	taken := one.take(dir, true)
	require.Equal(t, 2, taken.Records-1)
	require.Zero(t, one.take(dir, true).Records, "nothing is read twice")

	two := newWorld(t, 1)
	done := two.restore(dir, head.Stored, backup.RestoreOptions{})
	require.EqualValues(t, 2, done.Events)
	require.Equal(t, one.Bodies(early)[:2], two.Bodies(early)[:2])
	require.Empty(t, two.Bodies(late))
	definition, _, err := agentstore.Get(t.Context(), two.Bus, "default", "x")
	require.NoError(t, err)
	require.Equal(t, `"old"`, string(definition))

	three := newWorld(t, 1)
	require.EqualValues(t, 4, three.restore(dir, time.Time{}, backup.RestoreOptions{}).Events)
	definition, _, err = agentstore.Get(t.Context(), three.Bus, "default", "x")
	require.NoError(t, err)
	require.Equal(t, `"new"`, string(definition))
}

// A full backup takes the place of the chain before it, files and all.
func TestFullReplaces(t *testing.T) {
	t.Parallel()
	one := newWorld(t, 1)
	dir := filepath.Join(t.TempDir(), "backup")
	one.Open()
	one.take(dir, false)
	one.Open()
	one.take(dir, true)
	before := files(t, dir, "*/*")
	taken := one.take(dir, false)
	require.True(t, taken.Full)
	require.Equal(t, 2, taken.Records)
	for _, path := range before {
		require.NoFileExists(t, path)
	}
	require.Len(t, openArchive(t, dir, time.Time{}).Runs(), 2)
}

// Values, large results and what was purged come along.
func TestAllThatIsBeside(t *testing.T) {
	t.Parallel()
	one := newWorld(t, 1).work()
	dir := filepath.Join(t.TempDir(), "backup")
	large := one.Start(agent("[" + callRepeat + "," + answer + "]"))
	one.Await(large, events.Done)
	purged := one.Start(agent("[" + answer + "]"))
	one.Await(purged, events.Done)
	of := entrystore.Owner{Namespace: "default", Agent: "a"}
	entry := events.Entry{Tags: []string{"b", "c"}, Value: "kept"}
	require.NoError(t, entrystore.New(one.Bus).Save(t.Context(), of, entrystore.Actor, entry))
	_, err := one.Bus.Put(t.Context(), buckets.Threads, kv.Item{Key: "default.a.thread", Value: []byte("1")})
	require.NoError(t, err)
	_, err = one.Bus.Put(t.Context(), buckets.Dropped, kv.Item{Key: "key"})
	require.NoError(t, err)
	reader := ports.RoleKey{Role: "telemetry", Name: "spans"}
	_, err = buckets.PutPosition(t.Context(), one.Bus, reader, []byte("7"), 0)
	require.NoError(t, err)
	_, err = one.Bus.Put(t.Context(), webhooks.Bucket, kv.Item{Key: "dead.default.pager.event", Value: []byte("1"), Lifetime: time.Hour})
	require.NoError(t, err)
	at := time.Now().Add(time.Hour).UTC()
	set := ports.Value{Subject: "timers.set.default.nightly.schedule", Data: []byte("1"), Header: map[string]string{
		"Nats-Schedule": "@at " + at.Format(time.RFC3339Nano), "Nats-Schedule-Target": "timers.due.default.nightly.schedule",
	}}
	require.NoError(t, one.Bus.PutValue(t.Context(), set))
	due := ports.Value{Subject: "timers.set.default.due.schedule", Header: map[string]string{
		"Nats-Schedule": "@at " + at.Add(-2*time.Hour).Format(time.RFC3339Nano), "Nats-Schedule-Target": "timers.due.default.due.schedule",
	}}
	require.NoError(t, one.Bus.PutValue(t.Context(), due))
	require.Positive(t, one.take(dir, true).Objects)
	_, err = retention.Purge(t.Context(), one.Bus, retention.PurgeOptions{Runs: []events.Run{purged}, Grace: time.Millisecond})
	require.NoError(t, err)
	require.Zero(t, one.take(dir, true).Objects)

	two := newWorld(t, 2)
	done := two.restore(dir, time.Time{}, backup.RestoreOptions{})
	require.Equal(t, 1, done.Removed)
	require.Equal(t, 1, done.Runs)
	_, err = tombstones.Get(t.Context(), two.Bus, two.Here(purged))
	require.NoError(t, err)
	require.Empty(t, two.Bodies(purged))
	found, err := entrystore.New(two.Bus).Get(t.Context(), of, entry.Tags)
	require.NoError(t, err)
	require.Equal(t, "kept", found.Value)
	thread, err := two.Bus.Get(t.Context(), buckets.Threads, "default.a.thread")
	require.NoError(t, err)
	require.Equal(t, "1", string(thread.Value))
	dropped, err := two.Bus.Keys(t.Context(), buckets.Dropped, "*")
	require.NoError(t, err)
	require.Equal(t, []string{"key"}, dropped)
	_, _, err = buckets.Position(t.Context(), two.Bus, reader)
	require.ErrorIs(t, err, journal.ErrNotFound, "it counts the records of another log")
	again := t.TempDir()
	two.take(again, false)
	require.NotEmpty(t, files(t, again, "buckets/*-KV_threads.*"))
	require.Empty(t, files(t, again, "buckets/*-KV_restored.*"), "it says what this bus was restored from")
	for v, err := range two.Bus.Values(t.Context(), "KV_webhooks") {
		require.NoError(t, err)
		require.Equal(t, "1h0m0s", v.Header["Nats-TTL"], "what lives for a time does not live for ever")
	}
	var timers []string
	for v, err := range two.Bus.Values(t.Context(), "MOORE_TIMERS") {
		require.NoError(t, err)
		timers = append(timers, v.Subject)
		if v.Subject == set.Subject {
			require.Equal(t, set, v)
		}
	}
	require.Contains(t, timers, set.Subject)
	require.Subset(t, []string{due.Subject, set.Subject}, timers, "what was due may have fired before it was read")
	refs := 0
	for _, body := range two.Bodies(large) {
		e, err := new(events.Codec).Decode(body)
		require.NoError(t, err)
		for _, ref := range events.RefsOf(e.Data) {
			data, err := two.Bus.Blob(t.Context(), ref)
			require.NoError(t, err)
			require.Contains(t, string(data), "large large")
			refs++
		}
	}
	require.Positive(t, refs)
}

// A run that was removed and imported again is in the backup once.
func TestImportedAgain(t *testing.T) {
	t.Parallel()
	one := newWorld(t, 1)
	dir, other := filepath.Join(t.TempDir(), "backup"), filepath.Join(t.TempDir(), "other")
	run := one.Open()
	one.Append(run, events.Control, &events.CancelledRun{})
	one.take(dir, true)
	one.take(other, true)
	_, err := retention.Purge(t.Context(), one.Bus, retention.PurgeOptions{Runs: []events.Run{run}, Grace: time.Millisecond})
	require.NoError(t, err)
	_, err = transfer.Import(t.Context(), openArchive(t, other, time.Time{}), one.Bus, transfer.ImportOptions{Source: "moorebus/gateway/import"})
	require.NoError(t, err)
	require.Equal(t, 2, one.take(dir, true).Records)
	two := newWorld(t, 1)
	require.EqualValues(t, 2, two.restore(dir, time.Time{}, backup.RestoreOptions{}).Events)
	require.Equal(t, one.Bodies(run), two.Bodies(run))
}

// A byte that changed in any file is found, and the file named; nothing is restored.
func TestDamage(t *testing.T) {
	t.Parallel()
	one := newWorld(t, 1).work()
	dir := filepath.Join(t.TempDir(), "backup")
	one.Await(one.Start(agent("["+callRepeat+","+answer+"]")), events.Done)
	require.NoError(t, agentstore.Put(t.Context(), one.Bus, "default", "x", []byte(`{}`)))
	one.take(dir, true)
	one.Open()
	one.take(dir, true)
	two := newWorld(t, 1)
	kinds := []string{"manifest.json", "log/000001-0-1.jsonl.s2", "log/000002-0-1.jsonl.s2", "buckets/*KV_agents*", "buckets/*OBJ_results_default*", "objects/*/*"}
	for _, kind := range kinds {
		found := files(t, dir, kind)
		require.NotEmpty(t, found, kind)
		for _, at := range []int{0, 40, -1, -40} {
			whole, err := os.ReadFile(found[0])
			require.NoError(t, err)
			flip(t, found[0], at)
			_, err = backup.Open(t.Context(), dir, time.Time{})
			require.ErrorIs(t, err, backup.ErrDamaged, "%s at %d", kind, at)
			require.Contains(t, filepath.ToSlash(err.Error()), filepath.Base(found[0]))
			require.NoError(t, os.WriteFile(found[0], whole, 0o600))
		}
		require.NoError(t, os.Rename(found[0], found[0]+"x"))
		_, err := backup.Open(t.Context(), dir, time.Time{})
		require.Error(t, err)
		require.NoError(t, os.Rename(found[0]+"x", found[0]))
	}
	two.restore(dir, time.Time{}, backup.RestoreOptions{})
}

// What is no place for a backup, or for a restore, is refused and left as it is.
func TestRefused(t *testing.T) {
	t.Parallel()
	one, two := newWorld(t, 1), newWorld(t, 1)
	run := one.Open()
	dir := t.TempDir()
	path := filepath.Join(dir, "letter.txt")
	require.NoError(t, os.WriteFile(path, []byte("dear"), 0o600))
	_, err := backup.Take(t.Context(), one.Bus, dir, backup.Options{})
	require.ErrorContains(t, err, "letter.txt")
	_, err = backup.Open(t.Context(), dir, time.Time{})
	require.ErrorContains(t, err, "no backup")
	require.FileExists(t, path)

	dir = filepath.Join(t.TempDir(), "backup")
	one.take(dir, false)
	_, err = backup.Take(t.Context(), two.Bus, dir, backup.Options{})
	require.ErrorContains(t, err, "another log")

	a := openArchive(t, dir, time.Time{})
	_, err = backup.Restore(t.Context(), a, one.Bus, source(backup.RestoreOptions{}))
	require.ErrorIs(t, err, backup.ErrNotEmpty)
	require.Len(t, one.Bodies(run), 1)
	two.restore(dir, time.Time{}, backup.RestoreOptions{})
	n := len(two.Bodies(run))
	require.True(t, two.restore(dir, time.Time{}, backup.RestoreOptions{}).Already)
	one.Open() // a backup of an idle bus does not grow
	one.take(dir, true)
	_, err = backup.Restore(t.Context(), openArchive(t, dir, time.Time{}), two.Bus, source(backup.RestoreOptions{}))
	require.ErrorIs(t, err, backup.ErrNotEmpty, "it has grown")
	require.Len(t, two.Bodies(run), n)
	three := newWorld(t, 1)
	require.NoError(t, agentstore.Put(t.Context(), three.Bus, "default", "x", []byte(`1`)))
	_, err = backup.Restore(t.Context(), a, three.Bus, source(backup.RestoreOptions{}))
	require.ErrorIs(t, err, backup.ErrNotEmpty)
}

// A full disk says so, and leaves the last backup.
func TestFullDisk(t *testing.T) {
	if testing.Short() {
		t.Skip("-short") // reason: it builds and starts the command
	}
	bin, err := commandtest.Build("cmd", "./cmd/moorebus")
	require.NoError(t, err)
	one, url := natsWorld(t, 1)
	dir := filepath.Join(t.TempDir(), "backup")
	one.Open()
	one.take(dir, false)
	one.Append(one.Open(), events.Control, &events.CustomMemorySet{Key: "k", Value: []byte(`"` + rand.Text() + strings.Repeat(rand.Text(), 5000) + `"`)})
	// A limit for the size of files stands for the disk's end.
	code, said := process(t, "bash", 0, "-c", `ulimit -f 10; exec "$@"`, "-", filepath.Join(bin, "moorebus"), "backup", dir, "--incremental", "--nats", url)
	require.Equal(t, 1, code, said)
	require.Contains(t, said, "no room in "+dir)
	require.Contains(t, said, "the last complete one is as it was")
	require.Len(t, openArchive(t, dir, time.Time{}).Runs(), 1)
	require.Equal(t, 2, one.take(dir, true).Records)
	require.Len(t, openArchive(t, dir, time.Time{}).Runs(), 2)
	text, err := os.ReadFile(filepath.Join(dir, "manifest.json"))
	require.NoError(t, err)
	require.Equal(t, 2, one.take(dir, true).Number, "nothing is new")
	again, err := os.ReadFile(filepath.Join(dir, "manifest.json"))
	require.NoError(t, err)
	require.Equal(t, text, again, "a backup of an idle bus does not grow")
}

// callOnce starts a run and leaves it where its call of pay is about to begin.
func callOnce(w *world, a *events.Agent) events.Run {
	run := w.Start(a)
	w.Append(run, events.Planning, &events.LLMToolCall{ToolCallReply: events.ToolCallReply{
		Confidence: 1, Model: "m", Calls: []events.Call{{ID: "c1", Name: "pay", Arguments: "{}"}},
	}})
	return run
}

// A call of class once that ran behind the end of the backup does not run again: the model is
// told, or a human is asked. It runs if the operator says so, and if the human does.
func TestOnceIsNotRepeated(t *testing.T) {
	t.Parallel()
	one := newWorld(t, 1)
	dir := filepath.Join(t.TempDir(), "backup")
	tell := callOnce(one, agent("["+callPay+","+answer+"]"))
	asks := agent("[" + callPay + "," + answer + "]")
	asks.Approval = &events.Approval{Policy: events.ApproveNever, OutcomeUnknown: events.AskHuman}
	ask := callOnce(one, asks)
	paused := callOnce(one, agent("["+callPay+","+answer+"]"))
	one.Append(paused, events.Control, &events.Paused{})
	both := one.Start(agent("[" + callPay + "," + answer + "]"))
	one.Append(both, events.Planning, &events.LLMParallelToolCalls{ToolCallReply: events.ToolCallReply{
		Confidence: 1, Model: "m", Calls: []events.Call{{ID: "c1", Name: "pay", Arguments: "{}"}, {ID: "c2", Name: "repeat", Arguments: "{}"}},
	}})
	one.take(dir, false)
	one.work()
	for _, run := range []events.Run{tell, ask, both} {
		one.Await(run, events.Done)
	}
	require.EqualValues(t, 3, one.paid.Load())

	two := newWorld(t, 1).work()
	done := two.restore(dir, time.Time{}, backup.RestoreOptions{})
	require.Len(t, done.Unknown, 4)
	two.Await(both, events.Done)
	require.Equal(t, codes.OutcomeUnknown, two.outcome(tell))
	mem := two.Await(ask, events.WaitingForHuman)
	require.Contains(t, mem.PendingApproval.Requests[0].Reason, "outcome is unknown")
	_, err := two.Host.Gateway().Resume(t.Context(), "", paused.ID, events.By{})
	require.NoError(t, err)
	require.Equal(t, codes.OutcomeUnknown, two.outcome(paused))
	require.Zero(t, two.paid.Load())
	_, err = two.Host.Gateway().Decide(t.Context(), "", ask.ID, events.Decision{CallID: "c1", Decision: events.DecisionApproved, By: "ann"})
	require.NoError(t, err)
	two.Await(ask, events.Done)
	require.EqualValues(t, 1, two.paid.Load())
	two.Verified()

	three := newWorld(t, 1).work()
	require.Empty(t, three.restore(dir, time.Time{}, backup.RestoreOptions{CallsMayRunAgain: true}).Unknown)
	require.Equal(t, "ok", three.outcome(tell))
	require.Positive(t, three.paid.Load())
}

// hasty is a bus whose timers fire soon.
type hasty struct{ backup.Target }

func (h hasty) SetTimer(ctx context.Context, run events.Run, kind string, _ time.Time, data []byte) error {
	return h.Target.SetTimer(ctx, run, kind, time.Now().Add(time.Second), data)
}

// Runs that wait for a human still wait, and an approval that expired meanwhile expires once.
func TestWaitingRunsGoOn(t *testing.T) {
	t.Parallel()
	one := newWorld(t, 1).work()
	dir := filepath.Join(t.TempDir(), "backup")
	a := agent("[" + callPay + "," + answer + "]")
	a.Approval = &events.Approval{Policy: events.ApproveAlways}
	decided := one.Start(a)
	one.Await(decided, events.WaitingForHuman)
	b := agent("[" + callPay + "," + answer + "]")
	b.Approval = &events.Approval{Policy: events.ApproveAlways, Expires: events.Duration(2 * time.Second)}
	expired := one.Start(b)
	one.Await(expired, events.WaitingForHuman)
	one.take(dir, false)
	one.Await(expired, events.Done) // its time has come before the restore

	two := newWorld(t, 2).work()
	done, err := backup.Restore(t.Context(), openArchive(t, dir, time.Time{}), hasty{two.Bus}, source(backup.RestoreOptions{}))
	require.NoError(t, err)
	require.Equal(t, 2, done.Waiting)
	require.Zero(t, done.Resumed)
	mem := two.Await(decided, events.WaitingForHuman)
	_, err = two.Host.Gateway().Decide(t.Context(), "", decided.ID, events.Decision{CallID: mem.PendingApproval.Requests[0].CallID, Decision: events.DecisionApproved, By: "ann"})
	require.NoError(t, err)
	two.Await(decided, events.Done)
	require.EqualValues(t, 1, two.paid.Load())
	two.Await(expired, events.Done)
	times := 0
	for _, body := range two.Bodies(expired) {
		if strings.Contains(string(body), string(events.TypeApprovalExpired)) {
			times++
		}
	}
	require.Equal(t, 1, times)
	two.Verified()
}

// breaking is a bus that goes away after some runs.
type breaking struct {
	backup.Target
	left atomic.Int32
}

var errBroken = errors.New("the bus went away")

func (b *breaking) Append(ctx context.Context, run events.Run, last uint64, entries ...journal.Entry) (uint64, error) {
	if b.left.Add(-1) < 0 {
		return 0, errBroken
	}
	return b.Target.Append(ctx, run, last, entries...)
}

// A restore that was cut off goes on, while the roles work already, and stores nothing twice.
func TestRestoreGoesOn(t *testing.T) {
	t.Parallel()
	one := newWorld(t, 1)
	dir := filepath.Join(t.TempDir(), "backup")
	var runs []events.Run
	for range 30 {
		runs = append(runs, callOnce(one, agent("["+callPay+","+answer+"]")))
	}
	one.take(dir, false)
	two := newWorld(t, 2).work()
	a := openArchive(t, dir, time.Time{})
	for left := int32(3); ; left += 7 {
		b := &breaking{Target: two.Bus}
		b.left.Store(left)
		_, err := backup.Restore(t.Context(), a, b, source(backup.RestoreOptions{}))
		if err == nil {
			break
		}
		require.ErrorIs(t, err, errBroken)
		_, err = backup.Restore(t.Context(), a, b, source(backup.RestoreOptions{CallsMayRunAgain: true}))
		require.ErrorIs(t, err, backup.ErrNotEmpty, "another restore")
	}
	for _, run := range runs {
		require.Equal(t, codes.OutcomeUnknown, two.outcome(run))
	}
	require.Zero(t, two.paid.Load())
	two.Verified()
}

// A fork whose parent the backup does not have is restored, and nobody works on it.
func TestOrphans(t *testing.T) {
	t.Parallel()
	one := newWorld(t, 1)
	dir := filepath.Join(t.TempDir(), "backup")
	parent := one.Open()
	forked, err := one.Host.Gateway().Fork(t.Context(), "", parent.ID, forking.Request{At: 1})
	require.NoError(t, err)
	one.Append(parent, events.Control, &events.CancelledRun{})
	_, err = retention.Purge(t.Context(), one.Bus, retention.PurgeOptions{Runs: []events.Run{parent}, ParentsOfKept: true, Grace: time.Millisecond})
	require.NoError(t, err)
	one.take(dir, false)
	two := newWorld(t, 1)
	done := two.restore(dir, time.Time{}, backup.RestoreOptions{})
	require.Equal(t, []string{forked.RunID}, done.Orphans)
	require.Len(t, two.Bodies(two.Store.Place(events.DefaultNamespace, forked.RunID)), 1)
}

// noSchedules is a bus on which runs are only imported while it has no schedule.
type noSchedules struct {
	backup.Target
	bus *natsbus.Bus
}

func (n *noSchedules) Append(ctx context.Context, run events.Run, last uint64, entries ...journal.Entry) (uint64, error) {
	if _, err := n.bus.Get(ctx, schedules.Bucket, "default.nightly"); !errors.Is(buckets.OrNone(err), journal.ErrNotFound) {
		return 0, fmt.Errorf("a schedule may start this run: %w", err)
	}
	return n.Target.Append(ctx, run, last, entries...)
}

// Schedules come after the runs: gateways at work would start runs that are still to be restored.
func TestSchedulesComeLast(t *testing.T) {
	t.Parallel()
	one, two := newWorld(t, 1), newWorld(t, 1)
	dir := filepath.Join(t.TempDir(), "backup")
	one.Open()
	_, err := one.Bus.Put(t.Context(), schedules.Bucket, kv.Item{Key: "default.nightly", Value: []byte("{}")})
	require.NoError(t, err)
	one.take(dir, false)
	_, err = backup.Restore(t.Context(), openArchive(t, dir, time.Time{}), &noSchedules{two.Bus, two.Bus}, source(backup.RestoreOptions{}))
	require.NoError(t, err)
	it, err := two.Bus.Get(t.Context(), schedules.Bucket, "default.nightly")
	require.NoError(t, err)
	require.Equal(t, "{}", string(it.Value))
}
