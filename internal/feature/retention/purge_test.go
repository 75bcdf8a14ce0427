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
	"github.com/moorebus/moorebus/internal/feature"
	"github.com/moorebus/moorebus/internal/feature/retention"
	"github.com/moorebus/moorebus/internal/filelog"
	"github.com/moorebus/moorebus/internal/history/notes"
	"github.com/moorebus/moorebus/internal/host"
	"github.com/moorebus/moorebus/internal/ports"
	"github.com/moorebus/moorebus/internal/reducertest"
	"github.com/moorebus/moorebus/internal/refusal"
	"github.com/moorebus/moorebus/internal/tombstones"
	"github.com/moorebus/moorebus/internal/toolset"
	"github.com/moorebus/moorebus/internal/transfer"
	"github.com/moorebus/moorebus/internal/transfer/transfertest"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/moorebus/moorebus/pkg/llm/scripted"
	"github.com/spf13/pflag"
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
	w := newWorld(t, 2).Work()
	gone := w.Ended(transfertest.Agent("", transfertest.Calls(5, "large"), "repeat")) // long enough for a snapshot
	kept := w.Ended(transfertest.Agent("", transfertest.Calls(1, "other"), "repeat"))
	waiting := w.Start(transfertest.Agent("always", transfertest.Calls(1, "x"), "repeat"))
	w.Await(waiting, events.WaitingForHuman)
	before, n := w.State(gone), w.Length(gone)
	ref := w.Ref(gone)
	require.NoError(t, w.Bus.PutSnapshot(t.Context(), gone, ports.Snapshot{Seq: 1, Memory: []byte(`{}`)}), "one that was left")

	for _, run := range []events.Run{gone, kept} {
		require.NoError(t, notes.PutLabels(t.Context(), w.Bus, run, events.Labels{"env": "prod"}, 0))
	}

	path := filepath.Join(t.TempDir(), "gone.jsonl")
	done, err := purge(w, retention.PurgeOptions{Runs: []events.Run{gone}, Archive: archive(path)})
	require.NoError(t, err)
	require.Len(t, done.Runs, 1)
	require.EqualValues(t, n, done.Events)
	require.Equal(t, events.Done, done.Runs[0].State)
	require.Positive(t, done.Bytes)
	require.Equal(t, 1, done.Snapshots)
	require.Equal(t, 1, done.BlobsLeft, "a young one is left")
	_, err = w.Bus.Blob(t.Context(), ref)
	require.NoError(t, err)
	require.Zero(t, w.Length(gone))
	_, err = w.Bus.Snapshot(t.Context(), gone)
	require.ErrorIs(t, err, journal.ErrNotFound)
	_, _, err = notes.Labels(t.Context(), w.Bus, gone)
	require.ErrorIs(t, err, journal.ErrNotFound, "its notes go with it")
	require.Equal(t, events.Labels{"env": "prod"}, w.State(kept).Labels)
	stone, err := tombstones.Get(t.Context(), w.Bus, gone)
	require.NoError(t, err)
	require.EqualValues(t, n, stone.Events)
	require.Equal(t, events.Done, w.State(kept).State)
	w.Verified()

	a := transfertest.Agent("", transfertest.Calls(0, ""), "repeat")
	_, err = w.Host.Gateway().Start(t.Context(), "", control.StartRequest{Agent: a, Task: "again", RunID: gone.ID})
	requireCode(t, err, refusal.Conflict, refusal.CodeRunPurged)
	_, err = w.Host.Gateway().State(t.Context(), "", gone.ID, 0)
	requireCode(t, err, refusal.NotFound, refusal.CodeRunPurged)
	_, err = w.Host.Gateway().Events(t.Context(), "", gone.ID, 1)
	requireCode(t, err, refusal.NotFound, refusal.CodeRunPurged)
	_, err = purge(w, retention.PurgeOptions{Runs: []events.Run{gone}})
	require.ErrorIs(t, err, retention.ErrNotPurged)
	require.ErrorContains(t, err, "was purged before")

	file := transfertest.OpenFile(t, path)
	results := w.Import(file, transfer.ImportOptions{})
	require.Equal(t, transfer.FateImported, results[0].Fate)
	require.Equal(t, before, w.State(gone))
	_, err = tombstones.Get(t.Context(), w.Bus, gone)
	require.ErrorIs(t, err, journal.ErrNotFound)
	_, err = w.Host.Gateway().Start(t.Context(), "", control.StartRequest{Agent: a, Task: "again", RunID: gone.ID})
	requireCode(t, err, refusal.Conflict, refusal.CodeRunExists)
	w.Verified()

	_, err = purge(w, retention.PurgeOptions{Runs: []events.Run{kept, waiting}})
	require.ErrorIs(t, err, retention.ErrNotPurged)
	require.ErrorContains(t, err, waiting.ID+" has not ended")
	require.Equal(t, events.Done, w.State(kept).State, "none of them is")
	_, err = purge(w, retention.PurgeOptions{Runs: []events.Run{w.Store.Place("default", w.Store.NewID())}})
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
	run := one.Quick()
	_, err := purge(one, retention.PurgeOptions{Runs: []events.Run{run}})
	require.NoError(t, err)
	two.Append(run, events.Idle, reducertest.StartOf("another", events.ModeTask))
	two.Append(run, events.Control, &events.CancelledRun{})
	results, err := transfer.Import(t.Context(), two.Export(transfer.ExportOptions{All: true}), one.Bus, transfer.ImportOptions{})
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
	w := newWorld(t, 1).Work()
	same, shares := w.Ended(transfertest.Agent("", transfertest.Calls(1, "same"), "repeat")), w.Ended(transfertest.Agent("", transfertest.Calls(1, "same"), "repeat"))
	own := w.Ended(transfertest.Agent("", transfertest.Calls(2, "own"), "repeat"))
	shared, alone := w.Ref(same), w.Ref(own)
	require.Equal(t, shared, w.Ref(shares))

	o := retention.PurgeOptions{Runs: []events.Run{same, own}, Grace: noGrace, DryRun: true}
	done, err := retention.Purge(t.Context(), aged{w.Bus}, o)
	require.NoError(t, err)
	require.Equal(t, 1, done.Blobs)
	require.EqualValues(t, 24_000, done.BlobBytes)
	require.Equal(t, events.Done, w.State(same).State, "nothing was removed")

	o.DryRun = false
	done, err = retention.Purge(t.Context(), aged{w.Bus}, o)
	require.NoError(t, err)
	require.Equal(t, 1, done.Blobs)
	require.Zero(t, done.BlobsLeft)
	_, err = w.Bus.Blob(t.Context(), alone)
	require.ErrorIs(t, err, journal.ErrNotFound)
	_, err = w.Bus.Blob(t.Context(), shared)
	require.NoError(t, err)

	o.Runs = []events.Run{shares}
	_, err = retention.Purge(t.Context(), aged{w.Bus}, o)
	require.NoError(t, err)
	_, err = w.Bus.Blob(t.Context(), shared)
	require.ErrorIs(t, err, journal.ErrNotFound, "the last one has gone")
}

// Reasoning that is too large for its event is exported, imported and purged with its run.
func TestLargeReasoningFollowsItsRun(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	ref, err := w.Bus.PutBlob(t.Context(), events.DefaultPool, []byte(`[{"kind":"text","text":"So."}]`))
	require.NoError(t, err)
	run := w.Open()
	w.Append(run, events.Planning, &events.LLMFinalAnswer{Reply: events.Reply{Content: "42", Facts: events.Facts{ReasoningRef: &ref}}})
	exported, other := w.Export(transfer.ExportOptions{All: true}), newWorld(t, 1)
	_, err = transfer.Import(t.Context(), exported, other.Bus, transfer.ImportOptions{})
	require.NoError(t, err)
	_, err = other.Bus.Blob(t.Context(), ref)
	require.NoError(t, err)

	done, err := retention.Purge(t.Context(), aged{w.Bus}, retention.PurgeOptions{Runs: []events.Run{run}, Grace: noGrace})
	require.NoError(t, err)
	require.Equal(t, 1, done.Blobs)
	_, err = w.Bus.Blob(t.Context(), ref)
	require.ErrorIs(t, err, journal.ErrNotFound)
}

func TestLimits(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	live := w.Open()
	first, second := w.Quick(), w.Quick()
	middle := time.Now()
	third := w.Quick()
	dry := func(o retention.PurgeOptions) retention.Purged {
		o.DryRun = true
		done, err := purge(w, o)
		require.NoError(t, err)
		return done
	}
	require.Empty(t, purgedIDs(dry(retention.PurgeOptions{})))
	require.Equal(t, []string{first.ID, second.ID}, purgedIDs(dry(retention.PurgeOptions{EndedBefore: middle})))
	require.Empty(t, purgedIDs(dry(retention.PurgeOptions{EndedBefore: middle, Namespace: "elsewhere"})))
	all := dry(retention.PurgeOptions{KeepBytes: 1})
	require.Equal(t, []string{first.ID, second.ID, third.ID}, purgedIDs(all), "the live one stays")
	size := all.Runs[0].Bytes
	require.Equal(t, []string{first.ID}, purgedIDs(dry(retention.PurgeOptions{KeepBytes: 3*size + size/2})))
	require.Empty(t, purgedIDs(dry(retention.PurgeOptions{KeepBytes: 5 * size})))

	done, err := purge(w, retention.PurgeOptions{EndedBefore: middle})
	require.NoError(t, err)
	require.Equal(t, []string{first.ID, second.ID}, purgedIDs(done))
	require.Zero(t, w.Length(first))
	require.Equal(t, 2, w.Length(third))
	require.Equal(t, 1, w.Length(live))
}

// A subject that says that a run ended does not make it so.
func TestAForgedEndIsNoEnd(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	live := w.Open()
	head, err := w.Bus.Head(t.Context(), live)
	require.NoError(t, err)
	ended := w.Quick()
	var body []byte
	for rec, err := range w.Bus.Read(t.Context(), ended, 0) {
		require.NoError(t, err)
		body = rec.Body
	}
	subject := events.Subject{Run: live, From: events.Control, To: events.Cancelled, Pool: events.DefaultPool}
	_, err = w.Bus.Append(t.Context(), live, head.Seq, journal.Entry{Subject: subject, Body: body})
	require.NoError(t, err)
	done, err := purge(w, retention.PurgeOptions{EndedBefore: time.Now().Add(time.Hour), DryRun: true})
	require.NoError(t, err)
	require.Len(t, done.Runs, 1)
	require.Len(t, done.Kept, 1)
	require.Equal(t, live.ID, done.Kept[0].Run)
}

// What runs that stay were forked from stays with them.
func TestParentsOfKeptRuns(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	grandparent := w.Quick()
	loner := w.Quick()
	fork := w.Fork(grandparent)
	done, err := purge(w, retention.PurgeOptions{EndedBefore: time.Now().Add(time.Hour), DryRun: true})
	require.NoError(t, err)
	require.Len(t, done.Runs, 1)
	require.Equal(t, loner.ID, done.Runs[0].Run)
	require.Equal(t, []retention.KeptRun{{Run: grandparent.ID, Space: "default", Reason: "run " + fork.ID + " was forked from it and stays"}}, done.Kept)
	_, err = purge(w, retention.PurgeOptions{Runs: []events.Run{grandparent}})
	require.ErrorIs(t, err, retention.ErrNotPurged)
	require.ErrorContains(t, err, fork.ID)
	_, err = purge(w, retention.PurgeOptions{Runs: []events.Run{grandparent}, ParentsOfKept: true})
	require.NoError(t, err)
	require.Zero(t, w.Length(grandparent))
	require.Equal(t, 1, w.Length(fork))

	exported, err := transfer.Export(t.Context(), w.Bus, filelog.NewWriter(io.Discard), transfer.ExportOptions{All: true, Blobs: w.Bus})
	require.NoError(t, err)
	require.Len(t, exported.Missing, 1)
	require.Equal(t, grandparent, exported.Missing[0].Run)
}

// Nothing goes that the archive does not have, and nothing before its tombstone.
func TestNothingGoesBeforeArchiveAndTombstone(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	run := w.Quick()
	full := errors.New("the disk is full")
	_, err := purge(w, retention.PurgeOptions{Runs: []events.Run{run}, Archive: func(func(transfer.Sink) error) error { return full }})
	require.ErrorIs(t, err, full)
	_, err = tombstones.Get(t.Context(), w.Bus, run)
	require.ErrorIs(t, err, journal.ErrNotFound)

	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := retention.Purge(ctx, w.Bus, retention.PurgeOptions{Runs: []events.Run{run}, Grace: time.Hour})
		ended <- err
	}()
	require.Eventually(t, func() bool {
		_, err := tombstones.Get(t.Context(), w.Bus, run)
		return err == nil
	}, transfertest.Patience, tick)
	require.Equal(t, 2, w.Length(run), "the grace lasts")
	cancel()
	require.ErrorIs(t, <-ended, context.Canceled)
	_, err = purge(w, retention.PurgeOptions{Runs: []events.Run{run}})
	require.NoError(t, err, "what was cut off is done again")
	require.Zero(t, w.Length(run))
}

func TestKeep(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	run := w.Quick()
	dir := filepath.Join(t.TempDir(), "archive")
	o := retention.Limits{
		Bytes: 1, Every: time.Millisecond, Grace: noGrace, Archive: dir, Logger: slog.New(slog.DiscardHandler),
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		retention.Enforce(ctx, w.Bus, o)
	}()
	require.Eventually(t, func() bool { return w.Length(run) == 0 }, transfertest.Patience, tick)
	later := w.Quick()
	require.Eventually(t, func() bool { return w.Length(later) == 0 }, transfertest.Patience, tick, "at another turn")
	cancel()
	<-ended
	files, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, files, 2, "none where nothing was purged")
	for _, f := range files {
		for _, r := range transfertest.OpenFile(t, filepath.Join(dir, f.Name())).Runs() {
			require.Contains(t, []events.Run{run, later}, r)
		}
	}
}

// The bus and the data directory are there only after the flags were checked.
func TestKeepFlags(t *testing.T) {
	t.Parallel()
	made := func(at *feature.Place, args ...string) feature.New {
		flags := pflag.NewFlagSet("dev", pflag.ContinueOnError)
		check := retention.Feature().Flags(flags)
		require.NoError(t, flags.Parse(args))
		create, err := check(at)
		require.NoError(t, err)
		return create
	}
	require.Nil(t, made(&feature.Place{}), "nobody asked for it")
	w := newWorld(t, 1)
	run := w.Quick()
	at := &feature.Place{}
	create := made(at, "--keep-bytes", "1B")
	at.Bus, at.Dir = w.Bus, t.TempDir()
	part := create(w.Host.Gateway())
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- part.Run(ctx) }()
	var files []string
	require.Eventually(t, func() bool {
		files, _ = filepath.Glob(filepath.Join(at.Dir, "archive", "purged-*.jsonl"))
		return len(files) == 1
	}, transfertest.Patience, tick)
	cancel()
	require.NoError(t, <-ended)
	require.Equal(t, []events.Run{run}, transfertest.OpenFile(t, files[0]).Runs())
}

// A gateway that knew the run before it ended elsewhere does not show it once it is
// purged, and does show what is imported again.
func TestPurgedRunsAreForgotten(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	registry, err := toolset.New()
	require.NoError(t, err)
	other, err := host.New(host.Options{
		Bus: w.Bus, Tools: registry, Providers: map[string]llm.Caller{"scripted": scripted.New()}, Snapshots: w.Bus, Tombstones: w.Bus,
	})
	require.NoError(t, err)
	run := w.Open()
	state, err := other.Gateway().State(t.Context(), run.Namespace, run.ID, 0)
	require.NoError(t, err)
	require.EqualValues(t, 1, state.N)
	w.Append(run, events.Control, &events.CancelledRun{})
	path := filepath.Join(t.TempDir(), "gone.jsonl")
	_, err = purge(w, retention.PurgeOptions{Runs: []events.Run{run}, Archive: archive(path)})
	require.NoError(t, err)
	_, err = other.Gateway().State(t.Context(), run.Namespace, run.ID, 0)
	requireCode(t, err, refusal.NotFound, refusal.CodeRunPurged)
	w.Import(transfertest.OpenFile(t, path), transfer.ImportOptions{})
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
		front = append(front, w.Quick())
	}
	parent := w.Quick()
	fork := w.Fork(parent)
	w.Append(fork, events.Control, &events.CancelledRun{})
	across := w.Open()
	stays := w.Open()
	w.Append(across, events.Control, &events.CancelledRun{})
	single = append(single, fork, parent, across)
	behind := []events.Run{w.Quick(), w.Quick(), w.Quick()}

	o := retention.PurgeOptions{EndedBefore: time.Now().Add(time.Hour), Grace: noGrace}
	bus := &removals{Bus: w.Bus, broken: errors.New("the server is away")}
	_, err := retention.Purge(t.Context(), bus, o)
	require.ErrorIs(t, err, bus.broken)
	require.Equal(t, single, bus.purged)
	for _, run := range front {
		require.Equal(t, 2, w.Length(run), "none of them is there in part")
	}

	bus = &removals{Bus: w.Bus}
	done, err := retention.Purge(t.Context(), bus, o)
	require.NoError(t, err, "what was cut off is done again")
	require.Len(t, done.Runs, len(front)+len(behind))
	require.Equal(t, 1, bus.trims)
	require.Empty(t, bus.purged)
	require.Equal(t, behind, bus.later)
	for _, run := range slices.Concat(front, single, behind) {
		require.Zero(t, w.Length(run))
	}
	require.Equal(t, 1, w.Length(stays))
	next := w.Quick()
	require.Equal(t, 2, w.Length(next))
	w.Verified()
}

// Where a record lies that no survey sees, nothing is known to be a front.
func TestNoFrontWhereSomethingIsHidden(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	before := w.Quick()
	_, err := w.Conn.Request("moore.0.of.no.run", []byte("x"), transfertest.Patience)
	require.NoError(t, err)
	behind := w.Quick()
	bus := &removals{Bus: w.Bus}
	_, err = retention.Purge(t.Context(), bus, retention.PurgeOptions{EndedBefore: time.Now().Add(time.Hour), Grace: noGrace})
	require.NoError(t, err)
	require.Zero(t, bus.trims)
	require.Equal(t, []events.Run{before, behind}, bus.purged)
	n, _, err := w.Bus.Records(t.Context(), 0)
	require.NoError(t, err)
	require.EqualValues(t, 1, n, "it stays")
}

// A record that belongs to no run stays, and everything behind it goes one by one.
func TestTheFrontEndsAtAStray(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	before := w.Quick()
	_, err := w.Conn.Request("moore.0.default.X.none.default."+w.Store.NewID(), []byte("x"), transfertest.Patience)
	require.NoError(t, err)
	behind := w.Quick()
	bus := &removals{Bus: w.Bus}
	_, err = retention.Purge(t.Context(), bus, retention.PurgeOptions{EndedBefore: time.Now().Add(time.Hour), Grace: noGrace})
	require.NoError(t, err)
	require.Empty(t, bus.purged)
	require.Equal(t, []events.Run{behind}, bus.later)
	require.Equal(t, 1, bus.trims)
	require.Zero(t, w.Length(before))
	left := 0
	for _, err := range w.Bus.Runless(t.Context(), 0) {
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
		all = append(all, w.Quick())
		shards[all[len(all)-1].Shard] = true
	}
	bus := &removals{Bus: w.Bus}
	done, err := retention.Purge(t.Context(), bus, retention.PurgeOptions{Runs: all, Grace: noGrace})
	require.NoError(t, err)
	require.Len(t, done.Runs, 20)
	require.Empty(t, bus.purged)
	require.Equal(t, len(shards), bus.trims)
	for _, run := range all {
		require.Zero(t, w.Length(run))
	}
	require.Equal(t, 2, w.Length(w.Quick()))
	w.Verified()
}

// Images of messages belong to their run as large results do.
func TestImagesGoWithTheirRun(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1).Work()
	image := strings.Repeat("image", 2000)
	parts := []events.Part{{Type: events.PartText, Text: "What is this?"}, {Type: events.PartImage, MediaType: "image/png", Data: []byte(image)}}
	started, err := w.Host.Gateway().Start(t.Context(), "", control.StartRequest{Agent: transfertest.Agent("", transfertest.Calls(0, ""), "repeat"), Parts: parts})
	require.NoError(t, err)
	run := w.Store.Place(events.DefaultNamespace, started.RunID)
	w.Await(run, events.Done)
	before, hash := w.State(run), events.Hash([]byte(image))
	ref := events.Ref{Bucket: "results_default", Key: hash, Size: len(image), SHA256: hash}
	_, err = w.Bus.Blob(t.Context(), ref)
	require.NoError(t, err)

	path := filepath.Join(t.TempDir(), "gone.jsonl")
	done, err := retention.Purge(t.Context(), aged{w.Bus}, retention.PurgeOptions{Runs: []events.Run{run}, Archive: archive(path), Grace: noGrace})
	require.NoError(t, err)
	require.Equal(t, 1, done.Blobs)
	_, err = w.Bus.Blob(t.Context(), ref)
	require.ErrorIs(t, err, journal.ErrNotFound)

	w.Import(transfertest.OpenFile(t, path), transfer.ImportOptions{})
	require.Equal(t, before, w.State(run))
	data, err := w.Bus.Blob(t.Context(), ref)
	require.NoError(t, err)
	require.Equal(t, image, string(data))
}
