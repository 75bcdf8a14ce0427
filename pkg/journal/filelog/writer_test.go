package filelog

import (
	"bytes"
	"errors"
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
