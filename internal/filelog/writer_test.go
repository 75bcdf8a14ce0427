package filelog

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/moorebus/moorebus/internal/journaltest"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
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
