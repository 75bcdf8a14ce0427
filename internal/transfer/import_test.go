package transfer_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/filelog"
	"github.com/moorebus/moorebus/internal/reducertest"
	"github.com/moorebus/moorebus/internal/transfer"
	"github.com/moorebus/moorebus/internal/transfer/transfertest"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

// All of a log comes back elsewhere: with another number of shards, the same
// memories, the large results, and a run that goes on where it was.
func TestExportAndImport(t *testing.T) {
	t.Parallel()
	one := newWorld(t, 1).Work()
	done := one.Ended(transfertest.Agent("", transfertest.Calls(2, "large"), "repeat"))
	waiting := one.Start(transfertest.Agent("always", transfertest.Calls(1, "later"), "repeat"))
	one.Await(waiting, events.WaitingForHuman)
	one.Verified()
	file := one.Export(transfer.ExportOptions{All: true})

	two := newWorld(t, 3)
	results := two.Import(file, transfer.ImportOptions{})
	require.Equal(t, map[string]transfer.Fate{done.ID: transfer.FateImported, waiting.ID: transfer.FateImported}, transfertest.Fates(results))
	require.Equal(t, 2, two.Verified().Runs)
	for _, run := range []events.Run{done, waiting} {
		require.Equal(t, one.State(run), two.State(run), "nothing was added to what has ended or waits for a human")
	}
	ref := two.Ref(done)
	data, err := two.Bus.Blob(t.Context(), ref)
	require.NoError(t, err)
	require.Equal(t, strings.Repeat("large", 8000), string(data))

	two.Work()
	_, err = two.Host.Gateway().Decide(t.Context(), "", waiting.ID, events.Decision{
		CallID: two.Memory(waiting).PendingApproval.Requests[0].CallID, Decision: events.DecisionApproved, By: "ann",
	})
	require.NoError(t, err)
	two.Await(waiting, events.Done)
	two.Verified()

	// Again: one run went on meanwhile, the other is the same.
	results = two.Import(file, transfer.ImportOptions{})
	require.Equal(t, map[string]transfer.Fate{done.ID: transfer.FateSkipped, waiting.ID: transfer.FateSkipped}, transfertest.Fates(results))
}

// A run in the middle of its work is driven on by whoever serves the log that it
// was brought to.
func TestUnfinishedRunsGoOn(t *testing.T) {
	t.Parallel()
	one := newWorld(t, 1)
	require.NoError(t, one.Host.Announce(t.Context()))
	run := one.Start(transfertest.Agent("", transfertest.Calls(1, "x"), "repeat")) // nobody works here
	file := one.Export(transfer.ExportOptions{Runs: []events.Run{run}})
	for _, noResume := range []bool{false, true} {
		two := newWorld(t, 2)
		results := two.Import(file, transfer.ImportOptions{NoResume: noResume})
		require.Equal(t, !noResume, results[0].Resumed)
		two.Work().Await(two.Here(run), events.Done)
		two.Verified()
	}
}

// long makes a run of n events that waits for its planner, or is paused.
func long(t *testing.T, w *transfertest.World, n int, last events.Payload) events.Run {
	t.Helper()
	run := w.Open()
	for n -= 2; n > 0; n -= min(n, 900) {
		var messages []events.Payload
		for range min(n, 900) {
			messages = append(messages, &events.UserMessage{MessageID: w.Store.NewID(), Content: "m"})
		}
		w.Append(run, events.Control, messages...)
	}
	w.Append(run, events.Control, last)
	return run
}

// A run that does not fit into one batch wakes nobody before all of it is there.
func TestLongRuns(t *testing.T) {
	if testing.Short() {
		t.Skip("-short") // reason: it stores thousands of records
	}
	t.Parallel()
	one := newWorld(t, 1)
	paused := long(t, one, 2500, &events.Paused{})
	due := long(t, one, 1001, &events.Paused{})
	one.Append(due, events.Control, &events.Resumed{})
	require.Equal(t, 1002, one.Length(due))
	file := one.Export(transfer.ExportOptions{Runs: []events.Run{paused, due}})

	two := newWorld(t, 2)
	results := two.Import(file, transfer.ImportOptions{})
	require.Equal(t, 2500, results[0].Events)
	require.False(t, results[0].Resumed, "it stays paused")
	require.True(t, results[1].Resumed)
	require.Equal(t, 2500, two.Length(two.Here(paused)))
	awake := 0
	for rec, err := range two.Bus.Read(t.Context(), two.Here(paused), 0) {
		require.NoError(t, err)
		if s, err := events.ParseSubject(rec.Subject); err == nil && s.To != events.Nobody {
			awake++
		}
	}
	require.LessOrEqual(t, awake, 1000)
	two.Verified()
	two.Work().Await(two.Here(due), events.Done)
	require.True(t, two.Memory(paused).Control.Paused)
}

// cutOff is a target whose appends fail after some.
type cutOff struct {
	transfer.Target
	left int
}

func (c *cutOff) Append(ctx context.Context, run events.Run, last uint64, entries ...journal.Entry) (uint64, error) {
	if c.left--; c.left < 0 {
		return 0, fmt.Errorf("the power went: %w", journal.ErrDenied)
	}
	return c.Target.Append(ctx, run, last, entries...)
}

func TestImportThatWasCutOff(t *testing.T) {
	t.Parallel()
	one := newWorld(t, 1)
	run := long(t, one, 2500, &events.CancelledRun{})
	file := one.Export(transfer.ExportOptions{Runs: []events.Run{run}})
	two := newWorld(t, 1)
	_, err := transfer.Import(t.Context(), file, &cutOff{two.Bus, 1}, transfer.ImportOptions{})
	require.ErrorContains(t, err, "the power went")
	require.Equal(t, 1000, two.Length(run))

	two.Work() // nobody starts on a part of it
	results := two.Import(file, transfer.ImportOptions{})
	require.Equal(t, transfer.FateCompleted, results[0].Fate)
	require.Equal(t, 1500, results[0].Events)
	two.Verified()
	require.Equal(t, events.Cancelled, two.State(run).State)
}

// unsure is a target whose first append is stored and says that it does not know.
type unsure struct {
	transfer.Target
	said bool
}

func (u *unsure) Append(ctx context.Context, run events.Run, last uint64, entries ...journal.Entry) (uint64, error) {
	seq, err := u.Target.Append(ctx, run, last, entries...)
	if !u.said && err == nil {
		u.said = true
		return 0, journal.ErrUnknownOutcome
	}
	return seq, err
}

func TestImportUnknownOutcome(t *testing.T) {
	t.Parallel()
	one := newWorld(t, 1)
	run := one.Quick()
	two := newWorld(t, 1)
	_, err := transfer.Import(t.Context(), one.Export(transfer.ExportOptions{All: true}), &unsure{Target: two.Bus}, transfer.ImportOptions{})
	require.NoError(t, err)
	require.Equal(t, 2, two.Length(run))
}

// If one run is refused, no run is imported.
func TestImportIsAllOrNothing(t *testing.T) {
	t.Parallel()
	one := newWorld(t, 1)
	good, other := one.Quick(), one.Quick()
	file := one.Export(transfer.ExportOptions{Runs: []events.Run{good, other}})
	two := newWorld(t, 1)
	two.Append(other, events.Idle, reducertest.StartOf("another task", events.ModeTask))
	results, err := transfer.Import(t.Context(), file, two.Bus, transfer.ImportOptions{})
	require.ErrorIs(t, err, transfer.ErrRefused)
	require.Equal(t, transfer.FateRefused, results[1].Fate)
	require.Equal(t, 3, file.Line(other, results[1].Seq))
	require.Zero(t, two.Length(good))
	require.Len(t, two.Import(file, transfer.ImportOptions{Runs: []events.Run{good}}), 1)

	// A run that is there in part and may go on by itself is refused too.
	three := newWorld(t, 1)
	for rec, err := range one.Bus.Read(t.Context(), good, 0) {
		require.NoError(t, err)
		s, err := events.ParseSubject(rec.Subject)
		require.NoError(t, err)
		_, err = three.Bus.Append(t.Context(), good, 0, journal.Entry{Subject: s, Body: rec.Body})
		require.NoError(t, err)
		break
	}
	results, err = transfer.Import(t.Context(), file, three.Bus, transfer.ImportOptions{})
	require.ErrorIs(t, err, transfer.ErrRefused)
	require.Contains(t, results[0].Reason, "may go on by itself")
}

func TestBrokenLines(t *testing.T) {
	t.Parallel()
	one := newWorld(t, 1)
	one.Quick()
	path := filepath.Join(t.TempDir(), "runs.jsonl")
	file := one.Export(transfer.ExportOptions{All: true})
	var lines []string
	for _, run := range file.Runs() {
		for rec, err := range file.Read(t.Context(), run, 0) {
			require.NoError(t, err)
			lines = append(lines, fmt.Sprintf(`{"subject":%q,"seq":%d,"body":%s}`, rec.Subject, rec.Seq, rec.Body))
		}
	}
	object := `{"blob":{"bucket":"results_x","key":"k","size":1,"sha256":"` + events.Hash([]byte("a")) + `"},"data":"%s"}`
	for name, c := range map[string][]string{
		"2: not a record":                       {lines[0], "{", lines[1]},
		"3: not a record: the data of object k": {lines[0], lines[1], fmt.Sprintf(object, "Yg=="), lines[0]},
	} {
		require.NoError(t, os.WriteFile(path, []byte(strings.Join(c, "\n")+"\n"), 0o600))
		_, err := filelog.Open(path)
		require.ErrorContains(t, err, path+":"+name)
	}
	require.NoError(t, os.WriteFile(path, []byte(lines[0]+"\n"+fmt.Sprintf(object, "YQ==")+"\n"+lines[1]+"\n"), 0o600))
	require.Equal(t, 3, transfertest.OpenFile(t, path).Line(file.Runs()[0], 2), "lines of objects count")
}

// Forks are exported with what they were forked from, in front of them.
func TestForksComeBehindTheirParents(t *testing.T) {
	t.Parallel()
	one := newWorld(t, 1)
	parent := one.Quick()
	child := one.Fork(parent)
	grandchild := one.Fork(child)
	file := one.Export(transfer.ExportOptions{Runs: []events.Run{grandchild}})
	require.Equal(t, []events.Run{parent, child, grandchild}, file.Runs())

	alone := &sink{}
	fork := one.Fork(events.NewRun("default", one.Store.NewID(), 1))
	done, err := transfer.Export(t.Context(), one.Bus, alone, transfer.ExportOptions{Runs: []events.Run{fork}})
	require.NoError(t, err)
	require.Len(t, done.Missing, 1)
	_, err = transfer.Export(t.Context(), one.Bus, alone, transfer.ExportOptions{Runs: []events.Run{events.NewRun("default", one.Store.NewID(), 1)}})
	require.ErrorIs(t, err, journal.ErrNotFound)

	// Whatever the order in the file, the parent goes in first.
	two := newWorld(t, 2)
	order := &ordered{Target: two.Bus}
	_, err = transfer.Import(t.Context(), backwards{file}, order, transfer.ImportOptions{NoResume: true})
	require.NoError(t, err)
	require.Equal(t, []string{parent.ID, child.ID, grandchild.ID}, order.runs)
}

type sink struct{}

func (*sink) Record(journal.Record) error   { return nil }
func (*sink) Blob(events.Ref, []byte) error { return nil }

// backwards is a file that lists its runs in the wrong order.
type backwards struct{ *filelog.File }

func (b backwards) Runs() []events.Run {
	runs := b.File.Runs()
	for i, j := 0, len(runs)-1; i < j; i, j = i+1, j-1 {
		runs[i], runs[j] = runs[j], runs[i]
	}
	return runs
}

// ordered notes which runs are appended to.
type ordered struct {
	transfer.Target
	runs []string
}

func (o *ordered) Append(ctx context.Context, run events.Run, last uint64, entries ...journal.Entry) (uint64, error) {
	o.runs = append(o.runs, run.ID)
	return o.Target.Append(ctx, run, last, entries...)
}
