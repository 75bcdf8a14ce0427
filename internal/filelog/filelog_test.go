package filelog

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/moorebus/moorebus/internal/journaltest"
	"github.com/moorebus/moorebus/internal/journaltest/simtest"
	"github.com/moorebus/moorebus/internal/recordline"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// growing is a file that is read while a journal is written to it.
type growing struct {
	*File
	written *simtest.Journal
	mu      sync.Mutex
	out     *os.File
}

func grow(t *testing.T, shards int) *growing {
	t.Helper()
	p := path(t)
	out, err := os.Create(p)
	require.NoError(t, err)
	t.Cleanup(func() { _ = out.Close() })
	f, err := Open(p)
	require.NoError(t, err)
	t.Cleanup(func() { _ = f.Close() })
	f.shards = shards // which an empty file does not tell
	return &growing{File: f, written: simtest.New(simtest.Options{Shards: shards}), out: out}
}

// Append appends to the journal, and what it has stored to the file.
func (g *growing) Append(ctx context.Context, run events.Run, last uint64, entries ...journal.Entry) (uint64, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	seq, err := g.written.Append(ctx, run, last, entries...)
	if err != nil {
		return 0, err
	}
	if err := Write(g.out, g.written.Scan(context.Background(), run.Shard, journal.Filter{}, seq-uint64(len(entries)))); err != nil {
		return 0, err
	}
	return seq, g.refresh()
}

func path(t *testing.T) string { return filepath.Join(t.TempDir(), "events.jsonl") }

func TestConformance(t *testing.T) {
	for _, shards := range []int{1, 3} {
		t.Run(fmt.Sprint(shards), func(t *testing.T) {
			if testing.Short() && shards > 1 {
				t.Skip("-short") // reason: one shard is enough for a first look
			}
			f := grow(t, shards)
			journaltest.Log(t, func(*testing.T) journal.Log { return f })
			journaltest.Follow(t, func(*testing.T) journal.Log { return f })
		})
	}
}

func collect(t *testing.T, seq iter.Seq2[journal.Record, error]) []journal.Record {
	t.Helper()
	recs, err := journaltest.Collect(seq)
	require.NoError(t, err)
	return recs
}

// Bodies of all kinds are read as they were written.
func TestBodies(t *testing.T) {
	f := grow(t, 3)
	bodies := []string{`{"a":  1.0}`, "", "text", "a\nb", " 1", "\xff", `"\u2028"`, "null", "[]"}
	runs := map[events.Run]bool{}
	for range 5 {
		run := journaltest.NewRun(t, f)
		journaltest.AppendAll(t, f, run, bodies...)
		runs[run] = true
	}
	r, err := Open(f.path)
	require.NoError(t, err)
	defer func() { require.NoError(t, r.Close()) }()
	require.Nil(t, r.Torn())
	require.Len(t, r.Runs(), 5)
	for _, run := range r.Runs() {
		require.True(t, runs[run])
		recs := collect(t, r.Read(t.Context(), run, 0))
		require.Len(t, recs, len(bodies))
		for i, rec := range recs {
			require.Equal(t, bodies[i], string(rec.Body))
		}
	}
	_, err = r.Append(t.Context(), r.Runs()[0], 1, journaltest.Entry(r.Runs()[0], events.Acting, "web", "x"))
	require.ErrorIs(t, err, journal.ErrDenied)
}

func TestLines(t *testing.T) {
	run := events.NewRun("default", "019325a0-0000-7000-8000-000000000001", 1)
	subject := journaltest.Entry(run, events.Acting, "web", "").Subject.String()
	records := func(yield func(journal.Record, error) bool) {
		_ = yield(journal.Record{Subject: subject, Seq: 4, Body: []byte(`{"b":1,"a":[ ]}`)}, nil) &&
			yield(journal.Record{Subject: subject, Seq: 9, Body: []byte("no json")}, nil)
	}
	var out bytes.Buffer
	require.NoError(t, Write(&out, records))
	want := `{"subject":"` + subject + `","seq":4,"body":{"b":1,"a":[ ]}}` + "\n" +
		`{"subject":"` + subject + `","seq":9,"body_base64":"` + base64.StdEncoding.EncodeToString([]byte("no json")) + `"}` + "\n"
	require.Equal(t, want, out.String())

	p := path(t)
	require.NoError(t, os.WriteFile(p, out.Bytes(), 0o600))
	f, err := Open(p)
	require.NoError(t, err)
	defer func() { require.NoError(t, f.Close()) }()
	var again bytes.Buffer
	require.NoError(t, Write(&again, f.Scan(t.Context(), 0, journal.Filter{}, 0)))
	require.Equal(t, want, again.String())

	broken := errors.New("broken")
	require.ErrorIs(t, Write(&out, func(yield func(journal.Record, error) bool) { yield(journal.Record{}, broken) }), broken)
}

func lineOf(t *testing.T, seq uint64, run events.Run) string {
	t.Helper()
	text, err := recordline.Append(nil, journal.Record{Subject: journaltest.Entry(run, events.Acting, "web", "").Subject.String(), Seq: seq, Body: []byte("{}")})
	require.NoError(t, err)
	return string(text)
}

func TestBadLines(t *testing.T) {
	run := events.NewRun("default", "019325a0-0000-7000-8000-000000000001", 1)
	good := lineOf(t, 1, run)
	for name, c := range map[string]struct{ text, want string }{
		"not JSON":       {good + "what\n" + good, ":2: not a record"},
		"empty line":     {good + "\n" + lineOf(t, 2, run), ":2: not a record"},
		"no subject":     {`{"seq":1,"body":{}}` + "\n", ":1: not a record: no subject"},
		"no seq":         {`{"subject":"a","body":{}}` + "\n", ":1: not a record: no sequence number"},
		"no body":        {`{"subject":"a","seq":1}` + "\n", ":1: not a record: no body"},
		"two bodies":     {`{"subject":"a","seq":1,"body":1,"body_base64":""}` + "\n", "both body"},
		"unknown key":    {`{"subject":"a","seq":1,"body":1,"x":1}` + "\n", `unknown field "x"`},
		"trailing":       {strings.TrimSpace(good) + "{}\n", "something follows"},
		"the same twice": {good + good, ":2: sequence number 1 occurs twice"},
		"too long":       {strings.Repeat("x", recordline.Max+2), ":1: longer than"},
	} {
		t.Run(name, func(t *testing.T) {
			p := path(t)
			require.NoError(t, os.WriteFile(p, []byte(c.text), 0o600))
			_, err := Open(p)
			require.ErrorContains(t, err, c.want)
		})
	}
	_, err := Open(path(t))
	require.ErrorIs(t, err, os.ErrNotExist)
}

func TestTornLine(t *testing.T) {
	run := events.NewRun("default", "019325a0-0000-7000-8000-000000000001", 1)
	good, next := lineOf(t, 1, run), lineOf(t, 2, run)
	for cut := 1; cut < len(next); cut++ {
		p := path(t)
		require.NoError(t, os.WriteFile(p, []byte(good+next[:cut]), 0o600))
		f, err := Open(p)
		require.NoError(t, err)
		recs := collect(t, f.Read(t.Context(), run, 0))
		if cut == len(next)-1 { // all but the newline
			require.Len(t, recs, 2)
			require.Nil(t, f.Torn())
		} else {
			require.Len(t, recs, 1)
			require.Equal(t, &TornError{Path: p, Line: 2, Offset: int64(len(good)), Bytes: int64(cut)}, f.Torn())
			require.ErrorContains(t, f.Torn(), ":2: the last line is torn")
		}
		require.NoError(t, f.Close())
	}
}

// TestRunsOneAfterTheOther reads an export that is not in the order of the shard.
func TestRunsOneAfterTheOther(t *testing.T) {
	one := events.NewRun("default", "019325a0-0000-7000-8000-000000000001", 1)
	two := events.NewRun("default", "019325a0-0000-7000-8000-000000000002", 1)
	p := path(t)
	text := lineOf(t, 1, one) + lineOf(t, 4, one) + lineOf(t, 2, two) + lineOf(t, 3, two)
	require.NoError(t, os.WriteFile(p, []byte(text), 0o600))
	f, err := Open(p)
	require.NoError(t, err)
	defer func() { require.NoError(t, f.Close()) }()
	require.Equal(t, []events.Run{one, two}, f.Runs())
	var seqs []uint64
	for _, rec := range collect(t, f.Scan(t.Context(), 0, journal.Filter{}, 0)) {
		seqs = append(seqs, rec.Seq)
	}
	require.Equal(t, []uint64{1, 2, 3, 4}, seqs)
}

// TestFollowAnotherProcess follows a file that somebody else writes.
func TestFollowAnotherProcess(t *testing.T) {
	w := grow(t, 1)
	run := journaltest.NewRun(t, w)
	last := journaltest.AppendAll(t, w, run, "1")
	r, err := Open(w.path)
	require.NoError(t, err)
	defer func() { require.NoError(t, r.Close()) }()
	n := 0
	for rec, err := range r.Follow(t.Context(), 0, journal.Filter{}, 0) {
		require.NoError(t, err)
		n++
		require.Equal(t, fmt.Sprint(n), string(rec.Body))
		if n == 3 {
			break
		}
		last, err = w.Append(t.Context(), run, last, journaltest.Entry(run, events.Acting, "web", fmt.Sprint(n+1)))
		require.NoError(t, err)
	}
}

func FuzzLine(f *testing.F) {
	f.Add([]byte(`{"a":1}`))
	f.Add([]byte("\n\xff"))
	f.Fuzz(func(t *testing.T, body []byte) {
		want := journal.Record{Subject: "s", Seq: 1, Body: body}
		text, err := recordline.Append(nil, want)
		require.NoError(t, err)
		require.Equal(t, 1, bytes.Count(text, []byte("\n")))
		require.True(t, json.Valid(text))
		got, err := recordline.Parse(text)
		require.NoError(t, err)
		require.True(t, bytes.Equal(body, got.Body))
	})
}

func TestRunless(t *testing.T) {
	p := path(t)
	run := events.NewRun("default", journaltest.NewID(t), 1)
	var text []byte
	for i, subject := range []string{
		journaltest.Entry(run, events.Acting, "web", "").Subject.String(), "moore.0.nonsense", "moore.0.default.acting.planning.default.nobody",
	} {
		var err error
		text, err = recordline.Append(text, journal.Record{Subject: subject, Seq: uint64(i + 1), Body: []byte("{}")})
		require.NoError(t, err)
	}
	require.NoError(t, os.WriteFile(p, text, 0o600))
	f, err := Open(p)
	require.NoError(t, err)
	t.Cleanup(func() { _ = f.Close() })
	recs := collect(t, f.Runless(t.Context(), 0))
	require.Len(t, recs, 2)
	require.Equal(t, "moore.0.nonsense", recs[0].Subject)
	require.EqualValues(t, 3, recs[1].Seq)
	_, err = journaltest.Collect(f.Runless(t.Context(), 1))
	require.Error(t, err)
}

// Large results stand between records, and are no part of the log.
func TestObjectsBesideRecords(t *testing.T) {
	data := []byte(strings.Repeat("\x00large\n", 1<<20)) // longer than a record's line may be
	ref := events.Ref{Bucket: "results_web", Key: "k", Size: len(data), SHA256: events.Hash(data)}
	run := events.NewRun("default", journaltest.NewID(t), 1)
	rec := journal.Record{Subject: journaltest.Entry(run, events.Observing, "default", "").Subject.String(), Seq: 1, Body: []byte(`{}`)}
	p := path(t)
	require.NoError(t, WriteFile(p, func(w *Writer) error {
		last := rec
		last.Seq = 2
		return errors.Join(w.Record(rec), w.Blob(ref, data), w.Record(last))
	}))
	f, err := Open(p)
	require.NoError(t, err)
	require.Len(t, collect(t, f.Read(t.Context(), run, 0)), 2)
	require.Equal(t, 3, f.Line(run, 2))
	require.Zero(t, f.Line(run, 3))
	got, err := f.Blob(t.Context(), ref)
	require.NoError(t, err)
	require.True(t, bytes.Equal(data, got))
	_, err = f.Blob(t.Context(), events.Ref{SHA256: events.Hash(nil)})
	require.ErrorIs(t, err, journal.ErrNotFound)
	require.NoError(t, f.Close())
}

// A file that could not be written whole is not there, and what was there stays.
func TestWriteFileIsAllOrNothing(t *testing.T) {
	p := path(t)
	require.NoError(t, os.WriteFile(p, []byte("before"), 0o600))
	failed := errors.New("no more")
	require.ErrorIs(t, WriteFile(p, func(w *Writer) error {
		return errors.Join(w.Record(journal.Record{Subject: "s", Seq: 1, Body: []byte(`{}`)}), failed)
	}), failed)
	text, err := os.ReadFile(p)
	require.NoError(t, err)
	require.Equal(t, "before", string(text))
	left, err := os.ReadDir(filepath.Dir(p))
	require.NoError(t, err)
	require.Len(t, left, 1)
	require.Error(t, WriteFile(filepath.Join(p, "x"), func(*Writer) error { return nil }))
}

// A new file replaces nothing, whether it was there before or came meanwhile.
func TestNewFileReplacesNothing(t *testing.T) {
	p := path(t)
	one := func(w *Writer) error { return w.Record(journal.Record{Subject: "s", Seq: 1, Body: []byte(`{}`)}) }
	require.ErrorIs(t, NewFile(p, func(w *Writer) error {
		return errors.Join(one(w), os.WriteFile(p, []byte("meanwhile"), 0o600))
	}), fs.ErrExist)
	require.ErrorIs(t, NewFile(p, func(*Writer) error { panic("is not called") }), fs.ErrExist)
	text, err := os.ReadFile(p)
	require.NoError(t, err)
	require.Equal(t, "meanwhile", string(text))

	p += ".new"
	require.NoError(t, NewFile(p, one))
	text, err = os.ReadFile(p)
	require.NoError(t, err)
	require.Contains(t, string(text), `"subject":"s"`)
	left, err := os.ReadDir(filepath.Dir(p))
	require.NoError(t, err)
	require.Len(t, left, 2)
}

// What is no file is written to, and is not replaced by one.
func TestWriteFileWritesIntoWhatIsNoFile(t *testing.T) {
	r, w, err := os.Pipe()
	require.NoError(t, err)
	p := filepath.Join("/dev/fd", strconv.Itoa(int(w.Fd())))
	if _, err := os.Stat(p); err != nil {
		t.Skip("this system has no names for what is open") // reason: nothing else is a pipe by name everywhere
	}
	require.NoError(t, WriteFile(p, func(w *Writer) error {
		return w.Record(journal.Record{Subject: "s", Seq: 1, Body: []byte(`{}`)})
	}))
	require.NoError(t, w.Close())
	text, err := io.ReadAll(r)
	require.NoError(t, err)
	require.Contains(t, string(text), `"subject":"s"`)
	require.NoError(t, r.Close())
}
