package filelog

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/journal/journaltest"
	"github.com/stretchr/testify/require"
)

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

	// Such a file can be appended to like any other.
	f = create(t, p, Options{})
	_, err = f.Append(t.Context(), run, 2, journaltest.Entry(run, events.Observing, "default", "{}"))
	require.NoError(t, err)
	require.Len(t, collect(t, f.Read(t.Context(), run, 0)), 3)
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

// A new file replaces none, also not one that comes while it is written.
func TestWriteNew(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "new.jsonl")
	nothing := func(*Writer) error { return nil }
	require.NoError(t, WriteNew(path, nothing))
	require.NoError(t, os.WriteFile(path, []byte("mine"), 0o600))
	called := false
	err := WriteNew(path, func(*Writer) error { called = true; return nil })
	require.ErrorIs(t, err, fs.ErrExist)
	require.False(t, called)

	late := filepath.Join(filepath.Dir(path), "late.jsonl")
	err = WriteNew(late, func(*Writer) error { return os.WriteFile(late, []byte("theirs"), 0o600) })
	require.ErrorIs(t, err, fs.ErrExist)
	for file, want := range map[string]string{path: "mine", late: "theirs"} {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		require.Equal(t, want, string(text))
	}
	all, err := os.ReadDir(filepath.Dir(path))
	require.NoError(t, err)
	require.Len(t, all, 2, "no part is left")
}
