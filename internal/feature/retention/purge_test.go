package retention_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/moorebus/moorebus/internal/control"
	"github.com/moorebus/moorebus/internal/feature/retention"
	"github.com/moorebus/moorebus/internal/filelog"
	"github.com/moorebus/moorebus/internal/host"
	"github.com/moorebus/moorebus/internal/ports"
	"github.com/moorebus/moorebus/internal/reducertest"
	"github.com/moorebus/moorebus/internal/refusal"
	"github.com/moorebus/moorebus/internal/tombstones"
	"github.com/moorebus/moorebus/internal/toolset"
	"github.com/moorebus/moorebus/internal/transfer"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/moorebus/moorebus/pkg/llm/scripted"
	"github.com/stretchr/testify/require"
)

// archive stores an export in a file.
func archive(path string) func(func(transfer.Sink) error) error {
	return func(write func(transfer.Sink) error) error {
		return filelog.WriteFile(path, func(w *filelog.Writer) error { return write(w) })
	}
}

// The full cycle: archived, purged, refused, imported, as it was.
func TestPurgeAndImportAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2).work()
	gone := w.ended(definition("", calls(5, "large"))) // long enough for a snapshot
	kept := w.ended(definition("", calls(1, "other")))
	waiting := w.start(definition("always", calls(1, "x")))
	w.await(waiting, events.WaitingForHuman)
	before, n := w.state(gone), w.length(gone)
	ref := refOf(t, w, gone)
	require.NoError(t, w.bus.PutSnapshot(t.Context(), gone, ports.Snapshot{Seq: 1, Memory: []byte(`{}`)}), "one that was left")

	path := filepath.Join(t.TempDir(), "gone.jsonl")
	done, err := w.purge(retention.PurgeOptions{Runs: []events.Run{gone}, Archive: archive(path)})
	require.NoError(t, err)
	require.Len(t, done.Runs, 1)
	require.EqualValues(t, n, done.Events)
	require.Equal(t, events.Done, done.Runs[0].State)
	require.Positive(t, done.Bytes)
	require.Equal(t, 1, done.Snapshots)
	require.Equal(t, 1, done.BlobsLeft, "a young one is left")
	_, err = w.bus.Blob(t.Context(), ref)
	require.NoError(t, err)
	require.Zero(t, w.length(gone))
	_, err = w.bus.Snapshot(t.Context(), gone)
	require.ErrorIs(t, err, journal.ErrNotFound)
	stone, err := tombstones.Get(t.Context(), w.bus, gone)
	require.NoError(t, err)
	require.EqualValues(t, n, stone.Events)
	require.Equal(t, events.Done, w.state(kept).State)
	w.verified()

	a := definition("", calls(0, ""))
	_, err = w.host.Gateway().Start(t.Context(), "", control.StartRequest{Agent: a, Task: "again", RunID: gone.ID})
	requireCode(t, err, refusal.Conflict, refusal.CodeRunPurged)
	_, err = w.host.Gateway().State(t.Context(), "", gone.ID, 0)
	requireCode(t, err, refusal.NotFound, refusal.CodeRunPurged)
	_, err = w.host.Gateway().Events(t.Context(), "", gone.ID, 1)
	requireCode(t, err, refusal.NotFound, refusal.CodeRunPurged)
	_, err = w.purge(retention.PurgeOptions{Runs: []events.Run{gone}})
	require.ErrorIs(t, err, retention.ErrNotPurged)
	require.ErrorContains(t, err, "was purged before")

	file := openFile(t, path)
	results := w.imports(file, transfer.ImportOptions{})
	require.Equal(t, transfer.FateImported, results[0].Fate)
	require.Equal(t, before, w.state(gone))
	_, err = tombstones.Get(t.Context(), w.bus, gone)
	require.ErrorIs(t, err, journal.ErrNotFound)
	_, err = w.host.Gateway().Start(t.Context(), "", control.StartRequest{Agent: a, Task: "again", RunID: gone.ID})
	requireCode(t, err, refusal.Conflict, refusal.CodeRunExists)
	w.verified()

	_, err = w.purge(retention.PurgeOptions{Runs: []events.Run{kept, waiting}})
	require.ErrorIs(t, err, retention.ErrNotPurged)
	require.ErrorContains(t, err, waiting.ID+" has not ended")
	require.Equal(t, events.Done, w.state(kept).State, "none of them is")
	_, err = w.purge(retention.PurgeOptions{Runs: []events.Run{w.store.Place("default", w.store.NewID())}})
	require.ErrorIs(t, err, journal.ErrNotFound)
}

func requireCode(t *testing.T, err error, kind refusal.Kind, code string) {
	t.Helper()
	var refused *refusal.Error
	require.ErrorAs(t, err, &refused)
	require.Equal(t, code, refused.Code)
	require.Equal(t, kind, refused.Kind)
}

// Only the run that was purged comes back in its place.
func TestAnotherRunInThePlaceOfAPurgedOne(t *testing.T) {
	t.Parallel()
	one, two := newWorld(t, 1), newWorld(t, 1)
	run := one.quick()
	_, err := one.purge(retention.PurgeOptions{Runs: []events.Run{run}})
	require.NoError(t, err)
	two.append(run, events.Idle, reducertest.StartOf("another", events.ModeTask))
	two.append(run, events.Control, &events.CancelledRun{})
	results, err := transfer.Import(t.Context(), two.export(transfer.ExportOptions{All: true}), one.bus, transfer.ImportOptions{})
	require.ErrorIs(t, err, transfer.ErrRefused)
	require.Contains(t, results[0].Reason, "another end")
}

// aged is a bus on which every large result looks older than it is.
type aged struct{ retention.Bus }

func (a aged) DeleteBlob(ctx context.Context, ref events.Ref, before time.Time) (bool, error) {
	return a.Bus.DeleteBlob(ctx, ref, before.Add(2*ports.BlobSafe))
}

// A large result is stored by its digest, so a run that stays may refer to the same
// one.
func TestSharedResultsStay(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1).work()
	same, shares := w.ended(definition("", calls(1, "same"))), w.ended(definition("", calls(1, "same")))
	own := w.ended(definition("", calls(2, "own")))
	shared, alone := refOf(t, w, same), refOf(t, w, own)
	require.Equal(t, shared, refOf(t, w, shares))

	o := retention.PurgeOptions{Runs: []events.Run{same, own}, Grace: noGrace, DryRun: true}
	done, err := retention.Purge(t.Context(), aged{w.bus}, o)
	require.NoError(t, err)
	require.Equal(t, 1, done.Blobs)
	require.EqualValues(t, 24_000, done.BlobBytes)
	require.Equal(t, events.Done, w.state(same).State, "nothing was removed")

	o.DryRun = false
	done, err = retention.Purge(t.Context(), aged{w.bus}, o)
	require.NoError(t, err)
	require.Equal(t, 1, done.Blobs)
	require.Zero(t, done.BlobsLeft)
	_, err = w.bus.Blob(t.Context(), alone)
	require.ErrorIs(t, err, journal.ErrNotFound)
	_, err = w.bus.Blob(t.Context(), shared)
	require.NoError(t, err)

	o.Runs = []events.Run{shares}
	_, err = retention.Purge(t.Context(), aged{w.bus}, o)
	require.NoError(t, err)
	_, err = w.bus.Blob(t.Context(), shared)
	require.ErrorIs(t, err, journal.ErrNotFound, "the last one has gone")
}

// Reasoning that is too large for its event is exported, imported and purged with its run.
func TestLargeReasoningFollowsItsRun(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	ref, err := w.bus.PutBlob(t.Context(), events.DefaultPool, []byte(`[{"kind":"text","text":"So."}]`))
	require.NoError(t, err)
	run := w.store.Place(events.DefaultNamespace, w.store.NewID())
	w.append(run, events.Idle, reducertest.StartOf("x", events.ModeTask))
	w.append(run, events.Planning, &events.LLMFinalAnswer{Reply: events.Reply{Content: "42", Facts: events.Facts{ReasoningRef: &ref}}})
	exported, other := w.export(transfer.ExportOptions{All: true}), newWorld(t, 1)
	_, err = transfer.Import(t.Context(), exported, other.bus, transfer.ImportOptions{})
	require.NoError(t, err)
	_, err = other.bus.Blob(t.Context(), ref)
	require.NoError(t, err)

	done, err := retention.Purge(t.Context(), aged{w.bus}, retention.PurgeOptions{Runs: []events.Run{run}, Grace: noGrace})
	require.NoError(t, err)
	require.Equal(t, 1, done.Blobs)
	_, err = w.bus.Blob(t.Context(), ref)
	require.ErrorIs(t, err, journal.ErrNotFound)
}

func TestLimits(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	live := w.store.Place("default", w.store.NewID())
	w.append(live, events.Idle, reducertest.StartOf("x", events.ModeTask))
	first, second := w.quick(), w.quick()
	middle := time.Now()
	third := w.quick()
	ids := func(done retention.Purged) []string {
		var all []string
		for _, r := range done.Runs {
			all = append(all, r.Run)
		}
		return all
	}
	dry := func(o retention.PurgeOptions) retention.Purged {
		o.DryRun = true
		done, err := w.purge(o)
		require.NoError(t, err)
		return done
	}
	require.Empty(t, ids(dry(retention.PurgeOptions{})))
	require.Equal(t, []string{first.ID, second.ID}, ids(dry(retention.PurgeOptions{EndedBefore: middle})))
	require.Empty(t, ids(dry(retention.PurgeOptions{EndedBefore: middle, Namespace: "elsewhere"})))
	all := dry(retention.PurgeOptions{KeepBytes: 1})
	require.Equal(t, []string{first.ID, second.ID, third.ID}, ids(all), "the live one stays")
	size := all.Runs[0].Bytes
	require.Equal(t, []string{first.ID}, ids(dry(retention.PurgeOptions{KeepBytes: 3*size + size/2})))
	require.Empty(t, ids(dry(retention.PurgeOptions{KeepBytes: 5 * size})))

	done, err := w.purge(retention.PurgeOptions{EndedBefore: middle})
	require.NoError(t, err)
	require.Equal(t, []string{first.ID, second.ID}, ids(done))
	require.Zero(t, w.length(first))
	require.Equal(t, 2, w.length(third))
	require.Equal(t, 1, w.length(live))
}

// A subject that says that a run ended does not make it so.
func TestAForgedEndIsNoEnd(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	live := w.store.Place("default", w.store.NewID())
	w.append(live, events.Idle, reducertest.StartOf("x", events.ModeTask))
	head, err := w.bus.Head(t.Context(), live)
	require.NoError(t, err)
	ended := w.quick()
	var body []byte
	for rec, err := range w.bus.Read(t.Context(), ended, 0) {
		require.NoError(t, err)
		body = rec.Body
	}
	subject := events.Subject{Run: live, From: events.Control, To: events.Cancelled, Pool: events.DefaultPool}
	_, err = w.bus.Append(t.Context(), live, head.Seq, journal.Entry{Subject: subject, Body: body})
	require.NoError(t, err)
	done, err := w.purge(retention.PurgeOptions{EndedBefore: time.Now().Add(time.Hour), DryRun: true})
	require.NoError(t, err)
	require.Len(t, done.Runs, 1)
	require.Len(t, done.Kept, 1)
	require.Equal(t, live.ID, done.Kept[0].Run)
}

// What runs that stay were forked from stays with them.
func TestParentsOfKeptRuns(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	grandparent := w.quick()
	loner := w.quick()
	fork := w.fork(grandparent)
	done, err := w.purge(retention.PurgeOptions{EndedBefore: time.Now().Add(time.Hour), DryRun: true})
	require.NoError(t, err)
	require.Len(t, done.Runs, 1)
	require.Equal(t, loner.ID, done.Runs[0].Run)
	require.Equal(t, []retention.KeptRun{{Run: grandparent.ID, Space: "default", Reason: "run " + fork.ID + " was forked from it and stays"}}, done.Kept)
	_, err = w.purge(retention.PurgeOptions{Runs: []events.Run{grandparent}})
	require.ErrorIs(t, err, retention.ErrNotPurged)
	require.ErrorContains(t, err, fork.ID)
	_, err = w.purge(retention.PurgeOptions{Runs: []events.Run{grandparent}, ParentsOfKept: true})
	require.NoError(t, err)
	require.Zero(t, w.length(grandparent))
	require.Equal(t, 1, w.length(fork))

	exported, err := transfer.Export(t.Context(), w.bus, filelog.NewWriter(io.Discard), transfer.ExportOptions{All: true, Blobs: w.bus})
	require.NoError(t, err)
	require.Len(t, exported.Missing, 1)
	require.Equal(t, grandparent, exported.Missing[0].Run)
}

// Nothing goes that the archive does not have, and nothing before its tombstone.
func TestNothingGoesBeforeArchiveAndTombstone(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	run := w.quick()
	full := errors.New("the disk is full")
	_, err := w.purge(retention.PurgeOptions{Runs: []events.Run{run}, Archive: func(func(transfer.Sink) error) error { return full }})
	require.ErrorIs(t, err, full)
	_, err = tombstones.Get(t.Context(), w.bus, run)
	require.ErrorIs(t, err, journal.ErrNotFound)

	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := retention.Purge(ctx, w.bus, retention.PurgeOptions{Runs: []events.Run{run}, Grace: time.Hour})
		ended <- err
	}()
	require.Eventually(t, func() bool {
		_, err := tombstones.Get(t.Context(), w.bus, run)
		return err == nil
	}, patience, tick)
	require.Equal(t, 2, w.length(run), "the grace lasts")
	cancel()
	require.ErrorIs(t, <-ended, context.Canceled)
	_, err = w.purge(retention.PurgeOptions{Runs: []events.Run{run}})
	require.NoError(t, err, "what was cut off is done again")
	require.Zero(t, w.length(run))
}

func TestKeep(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	run := w.quick()
	dir := filepath.Join(t.TempDir(), "archive")
	o := retention.Limits{
		Bytes: 1, Every: time.Millisecond, Grace: noGrace, Archive: dir, Logger: slog.New(slog.DiscardHandler),
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		retention.Enforce(ctx, w.bus, o)
	}()
	require.Eventually(t, func() bool { return w.length(run) == 0 }, patience, tick)
	later := w.quick()
	require.Eventually(t, func() bool { return w.length(later) == 0 }, patience, tick, "at another turn")
	cancel()
	<-ended
	files, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, files, 2, "none where nothing was purged")
	for _, f := range files {
		for _, r := range openFile(t, filepath.Join(dir, f.Name())).Runs() {
			require.Contains(t, []events.Run{run, later}, r)
		}
	}
}

// A gateway that knew the run before it ended elsewhere does not show it once it is
// purged, and does show what is imported again.
func TestPurgedRunsAreForgotten(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	registry, err := toolset.New()
	require.NoError(t, err)
	other, err := host.New(host.Options{
		Bus: w.bus, Tools: registry, Providers: map[string]llm.Caller{"scripted": scripted.New()}, Snapshots: w.bus, Tombstones: w.bus,
	})
	require.NoError(t, err)
	run := w.store.Place(events.DefaultNamespace, w.store.NewID())
	w.append(run, events.Idle, reducertest.StartOf("x", events.ModeTask))
	state, err := other.Gateway().State(t.Context(), run.Namespace, run.ID, 0)
	require.NoError(t, err)
	require.EqualValues(t, 1, state.N)
	w.append(run, events.Control, &events.CancelledRun{})
	path := filepath.Join(t.TempDir(), "gone.jsonl")
	_, err = w.purge(retention.PurgeOptions{Runs: []events.Run{run}, Archive: archive(path)})
	require.NoError(t, err)
	_, err = other.Gateway().State(t.Context(), run.Namespace, run.ID, 0)
	requireCode(t, err, refusal.NotFound, refusal.CodeRunPurged)
	w.imports(openFile(t, path), transfer.ImportOptions{})
	state, err = other.Gateway().State(t.Context(), run.Namespace, run.ID, 0)
	require.NoError(t, err)
	require.Equal(t, events.Cancelled, state.State)
}

// removals is a bus that notes how runs are removed.
type removals struct {
	retention.Bus
	purged []events.Run
	trims  int
	// later are those that were purged after a trim.
	later []events.Run
	// broken is what a trim comes to, if not nil.
	broken error
}

func (r *removals) Purge(ctx context.Context, run events.Run, upTo uint64) (uint64, error) {
	if r.trims > 0 {
		r.later = append(r.later, run)
		return r.Bus.Purge(ctx, run, upTo)
	}
	r.purged = append(r.purged, run)
	return r.Bus.Purge(ctx, run, upTo)
}

func (r *removals) Trim(ctx context.Context, shard int, before uint64) (uint64, error) {
	r.trims++
	if r.broken != nil {
		return 0, r.broken
	}
	return r.Bus.Trim(ctx, shard, before)
}

// What stands before the first record that stays goes at once; whatever would then
// be there in part, and forks with their parents, go before that and one by one.
func TestTheFrontOfTheLogGoesAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	var front, single []events.Run
	for range 5 {
		front = append(front, w.quick())
	}
	parent := w.quick()
	fork := w.fork(parent)
	w.append(fork, events.Control, &events.CancelledRun{})
	across := w.store.Place(events.DefaultNamespace, w.store.NewID())
	w.append(across, events.Idle, reducertest.StartOf("x", events.ModeTask))
	stays := w.store.Place(events.DefaultNamespace, w.store.NewID())
	w.append(stays, events.Idle, reducertest.StartOf("x", events.ModeTask))
	w.append(across, events.Control, &events.CancelledRun{})
	single = append(single, fork, parent, across)
	behind := []events.Run{w.quick(), w.quick(), w.quick()}

	o := retention.PurgeOptions{EndedBefore: time.Now().Add(time.Hour), Grace: noGrace}
	bus := &removals{Bus: w.bus, broken: errors.New("the server is away")}
	_, err := retention.Purge(t.Context(), bus, o)
	require.ErrorIs(t, err, bus.broken)
	require.Equal(t, single, bus.purged)
	for _, run := range front {
		require.Equal(t, 2, w.length(run), "none of them is there in part")
	}

	bus = &removals{Bus: w.bus}
	done, err := retention.Purge(t.Context(), bus, o)
	require.NoError(t, err, "what was cut off is done again")
	require.Len(t, done.Runs, len(front)+len(behind))
	require.Equal(t, 1, bus.trims)
	require.Empty(t, bus.purged)
	require.Equal(t, behind, bus.later)
	for _, run := range slices.Concat(front, single, behind) {
		require.Zero(t, w.length(run))
	}
	require.Equal(t, 1, w.length(stays))
	next := w.quick()
	require.Equal(t, 2, w.length(next))
	w.verified()
}

// Where a record lies that no survey sees, nothing is known to be a front.
func TestNoFrontWhereSomethingIsHidden(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	before := w.quick()
	_, err := w.conn.Request("moore.0.of.no.run", []byte("x"), patience)
	require.NoError(t, err)
	behind := w.quick()
	bus := &removals{Bus: w.bus}
	_, err = retention.Purge(t.Context(), bus, retention.PurgeOptions{EndedBefore: time.Now().Add(time.Hour), Grace: noGrace})
	require.NoError(t, err)
	require.Zero(t, bus.trims)
	require.Equal(t, []events.Run{before, behind}, bus.purged)
	n, _, err := w.bus.Records(t.Context(), 0)
	require.NoError(t, err)
	require.EqualValues(t, 1, n, "it stays")
}

// A record that belongs to no run stays, and everything behind it goes one by one.
func TestTheFrontEndsAtAStray(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	before := w.quick()
	_, err := w.conn.Request("moore.0.default.X.none.default."+w.store.NewID(), []byte("x"), patience)
	require.NoError(t, err)
	behind := w.quick()
	bus := &removals{Bus: w.bus}
	_, err = retention.Purge(t.Context(), bus, retention.PurgeOptions{EndedBefore: time.Now().Add(time.Hour), Grace: noGrace})
	require.NoError(t, err)
	require.Empty(t, bus.purged)
	require.Equal(t, []events.Run{behind}, bus.later)
	require.Equal(t, 1, bus.trims)
	require.Zero(t, w.length(before))
	left := 0
	for _, err := range w.bus.Runless(t.Context(), 0) {
		require.NoError(t, err)
		left++
	}
	require.Equal(t, 1, left)
}

// All that there is goes with one request for each shard.
func TestAWholeLogGoesAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 3)
	var all []events.Run
	shards := map[int]bool{}
	for range 20 {
		all = append(all, w.quick())
		shards[all[len(all)-1].Shard] = true
	}
	bus := &removals{Bus: w.bus}
	done, err := retention.Purge(t.Context(), bus, retention.PurgeOptions{Runs: all, Grace: noGrace})
	require.NoError(t, err)
	require.Len(t, done.Runs, 20)
	require.Empty(t, bus.purged)
	require.Equal(t, len(shards), bus.trims)
	for _, run := range all {
		require.Zero(t, w.length(run))
	}
	require.Equal(t, 2, w.length(w.quick()))
	w.verified()
}

// Images of messages belong to their run as large results do.
func TestImagesGoWithTheirRun(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1).work()
	image := strings.Repeat("image", 2000)
	parts := []events.Part{{Type: events.PartText, Text: "What is this?"}, {Type: events.PartImage, MediaType: "image/png", Data: []byte(image)}}
	started, err := w.host.Gateway().Start(t.Context(), "", control.StartRequest{Agent: definition("", calls(0, "")), Parts: parts})
	require.NoError(t, err)
	run := w.store.Place(events.DefaultNamespace, started.RunID)
	w.await(run, events.Done)
	before, hash := w.state(run), events.Hash([]byte(image))
	ref := events.Ref{Bucket: "results_default", Key: hash, Size: len(image), SHA256: hash}
	_, err = w.bus.Blob(t.Context(), ref)
	require.NoError(t, err)

	path := filepath.Join(t.TempDir(), "gone.jsonl")
	done, err := retention.Purge(t.Context(), aged{w.bus}, retention.PurgeOptions{Runs: []events.Run{run}, Archive: archive(path), Grace: noGrace})
	require.NoError(t, err)
	require.Equal(t, 1, done.Blobs)
	_, err = w.bus.Blob(t.Context(), ref)
	require.ErrorIs(t, err, journal.ErrNotFound)

	w.imports(openFile(t, path), transfer.ImportOptions{})
	require.Equal(t, before, w.state(run))
	data, err := w.bus.Blob(t.Context(), ref)
	require.NoError(t, err)
	require.Equal(t, image, string(data))
}
