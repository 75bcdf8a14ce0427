package store_test

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/moorebus/moorebus/internal/history"
	"github.com/moorebus/moorebus/internal/history/follow"
	"github.com/moorebus/moorebus/internal/history/store"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var _ follow.Store = (*store.Store)(nil)

// open opens a store until the test ends, and returns what it logs.
func open(t *testing.T, file string) (*store.Store, *bytes.Buffer) {
	t.Helper()
	var log bytes.Buffer
	s, err := store.Open(t.Context(), file, slog.New(slog.NewTextHandler(&log, nil)))
	require.NoError(t, err)
	t.Cleanup(func() { _ = s.Close() }) // a test may have closed it
	return s, &log
}

// hostile are texts that mean something to SQL, to FTS5, to JSON or to C.
var hostile = []string{
	`"`, `'`, `' OR 1=1 --`, `a" OR "b`, "NEAR(a b)", "words : a", "-a", "a*", "^a", "{a b}", "(", "a AND NOT b", "%", "_", "\x00", "a\x00b", "\\", "?", "$1", ";DROP TABLE runs;",
	"\u202e", "é", "e\u0301", "\ue000", strings.Repeat("x", 1<<20), "",
}

func full(id, text string) history.Run {
	at := time.Date(2026, 11, 27, 10, 0, 0, 1, time.UTC)
	return history.Run{
		Namespace: "default", ID: id, Shard: 3, State: events.Done, N: 1 << 40, Head: text, Mode: events.Mode(text), Agent: text, Task: text,
		Started: at, Updated: at.Add(time.Hour), Ended: at.Add(time.Minute), Parent: text, Call: text, ForkOf: text, ForkAt: 7, Experiment: text, By: text,
		Model: text, Models: []string{"a", text}, Tools: []string{text}, Steps: 3, CostUSD: 0.1, Input: 1, Output: 2, Cached: 3, Tokens: 6, Priced: true,
		Waiting: text, Entered: at, Deadline: at, Outside: true, Pools: []string{text}, Paused: true, Restored: true, PauseReason: text, Queued: true,
		Priority: events.Priority(text), Error: text, CallErrors: []string{text}, HandOffs: []history.HandOff{{N: 1, To: text}}, Labels: map[string]string{"k": text}, Open: []byte{0, 1},
	}
}

// A store has what was stored, whatever the texts are, and after it was opened again.
func TestKeeps(t *testing.T) {
	file := filepath.Join(t.TempDir(), "a ?#%.db")
	s, log := open(t, file)
	var b history.Batch
	var runs []events.Run
	for i, text := range hostile {
		r := full(string(rune('a'+i)), text)
		b.Runs = append(b.Runs, history.Change{Run: r, Texts: []history.Text{{N: 1, Kind: history.Task, Code: text, Text: text, At: r.Started}}})
		runs = append(runs, events.Run{Namespace: r.Namespace, ID: r.ID})
	}
	b.Stream, b.To = "s", 5
	require.NoError(t, s.Apply(t.Context(), b))
	require.ErrorIs(t, s.Apply(t.Context(), b), follow.ErrMoved)
	check := func(s *store.Store) {
		got, err := s.Runs(t.Context(), append(runs, events.Run{Namespace: "other", ID: "a"}))
		require.NoError(t, err)
		require.Len(t, got, len(hostile))
		for i, r := range got {
			require.Equal(t, b.Runs[i].Run, r, "%.20q", hostile[i])
		}
		at, err := s.Positions(t.Context())
		require.NoError(t, err)
		require.Equal(t, map[string]uint64{"s": 5}, at)
	}
	check(s)
	require.NoError(t, s.Close())
	s, more := open(t, file)
	check(s)
	require.Empty(t, log.String()+more.String())
	require.NoError(t, s.Reset(t.Context()))
	at, err := s.Positions(t.Context())
	require.NoError(t, err)
	require.Empty(t, at)
	require.NoError(t, s.Apply(t.Context(), b))
	check(s)
}

// Whatever the file is, the store works: with the file if it can be made anew, else with another one.
func TestFiles(t *testing.T) {
	made := func(t *testing.T) string {
		file := filepath.Join(t.TempDir(), "views.db")
		s, _ := open(t, file)
		var runs []history.Change
		for _, text := range hostile {
			runs = append(runs, history.Change{Run: full("r"+text, "x"), Texts: []history.Text{{Kind: history.Call, Text: text}}})
		}
		require.NoError(t, s.Apply(t.Context(), history.Batch{Stream: "s", To: 5, Runs: runs}))
		require.NoError(t, s.Close())
		return file
	}
	sql := func(t *testing.T, file, statement string) {
		db, err := store.SQL(file)
		require.NoError(t, err)
		_, err = db.ExecContext(t.Context(), statement)
		require.NoError(t, err)
		require.NoError(t, db.Close())
	}
	for name, c := range map[string]struct {
		spoil                 func(t *testing.T, file string)
		keeps, temporary, old bool
	}{
		"intact":       {spoil: func(*testing.T, string) {}, keeps: true},
		"none":         {spoil: func(t *testing.T, file string) { require.NoError(t, os.Remove(file)) }},
		"empty":        {spoil: func(t *testing.T, file string) { require.NoError(t, os.Truncate(file, 0)) }},
		"short header": {spoil: func(t *testing.T, file string) { require.NoError(t, os.Truncate(file, 50)) }, old: true},
		"truncated":    {spoil: func(t *testing.T, file string) { require.NoError(t, os.Truncate(file, 3*4096+100)) }},
		"newer":        {spoil: func(t *testing.T, file string) { sql(t, file, "UPDATE meta SET version = '999'") }},
		"foreign": {spoil: func(t *testing.T, file string) {
			require.NoError(t, os.WriteFile(file, bytes.Repeat([]byte("mine"), 5000), 0o600))
		}, old: true},
		"foreign SQLite": {spoil: func(t *testing.T, file string) {
			require.NoError(t, os.Remove(file))
			sql(t, file, "CREATE TABLE mine (a)")
		}, old: true},
		"directory": {spoil: func(t *testing.T, file string) {
			require.NoError(t, os.Remove(file))
			require.NoError(t, os.Mkdir(file, 0o700))
		}, temporary: true},
		"no directory": {spoil: func(t *testing.T, file string) {
			require.NoError(t, os.RemoveAll(filepath.Dir(file)))
		}, temporary: true},
		"in use": {spoil: func(t *testing.T, file string) { open(t, file) }, temporary: true},
	} {
		t.Run(name, func(t *testing.T) {
			file := made(t)
			c.spoil(t, file)
			s, log := open(t, file)
			at, err := s.Positions(t.Context())
			require.NoError(t, err)
			require.Equal(t, c.keeps, at["s"] == 5)
			require.Equal(t, c.temporary, strings.Count(log.String(), "\n") == 1, log.String())
			_, err = os.Stat(file + ".old")
			require.Equal(t, c.old, err == nil)
			works(t, s, at["s"])
		})
	}
}

// works stores something and finds it.
func works(t *testing.T, s *store.Store, from uint64) {
	t.Helper()
	require.NoError(t, s.Apply(t.Context(), history.Batch{Stream: "s", From: from, To: from + 1, Runs: []history.Change{{Run: full("w", "works")}}}))
	got, err := s.Runs(t.Context(), []events.Run{{Namespace: "default", ID: "w"}})
	require.NoError(t, err)
	require.Equal(t, []history.Run{full("w", "works")}, got)
}

// Without a place for files, the store is in memory.
func TestInMemory(t *testing.T) {
	t.Setenv("TMPDIR", filepath.Join(t.TempDir(), "none"))
	s, log := open(t, filepath.Join(t.TempDir(), "none", "views.db"))
	require.Equal(t, 1, strings.Count(log.String(), "\n"))
	works(t, s, 0)
}

// A file that is damaged while it is open is built anew by the next change.
func TestDamagedWhileOpen(t *testing.T) {
	file := filepath.Join(t.TempDir(), "views.db")
	s, _ := open(t, file)
	works(t, s, 0)
	require.NoError(t, s.Close())
	s, _ = open(t, file)
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	for i := 4096; i < len(text); i++ {
		text[i] = 0xee
	}
	require.NoError(t, os.WriteFile(file, text, 0o600))
	_, err = s.Positions(t.Context())
	require.ErrorContains(t, err, "malformed")
	require.ErrorIs(t, s.Apply(t.Context(), history.Batch{Stream: "s", From: 1, To: 2}), follow.ErrMoved)
	works(t, s, 0)
}

// Readers see entire batches, while others are stored and while everything is removed.
func TestReadersSeeEntireBatches(t *testing.T) {
	s, _ := open(t, filepath.Join(t.TempDir(), "views.db"))
	done := make(chan struct{})
	var readers sync.WaitGroup
	for range 3 {
		readers.Go(func() {
			for {
				f, err := s.Facets(t.Context(), store.Select{Namespace: "default"}, "state", 10)
				assert.NoError(t, err)
				assert.Zero(t, f.Total.Runs%3)
				select {
				case <-done:
					return
				default:
				}
			}
		})
	}
	for i := range uint64(30) {
		b := history.Batch{Stream: "s", From: i % 10, To: i%10 + 1}
		if b.From == 0 {
			require.NoError(t, s.Reset(t.Context()))
		}
		for j := range 3 {
			r := full(string(rune('a'+3*int(i)+j)), "x")
			r.Experiment = ""
			b.Runs = append(b.Runs, history.Change{Run: r})
		}
		require.NoError(t, s.Apply(t.Context(), b))
	}
	close(done)
	readers.Wait()
	f, err := s.Facets(t.Context(), store.Select{Namespace: "default"}, "state", 10)
	require.NoError(t, err)
	require.EqualValues(t, 30, f.Total.Runs)
}

// The rows for a fold have the labels of the first event, whatever was noted since, also after a restart.
func TestRunsHaveTheirFirstLabels(t *testing.T) {
	file := filepath.Join(t.TempDir(), "views.db")
	s, _ := open(t, file)
	r := full("a", "x")
	r.Ended = time.Time{}
	run := []events.Run{{Namespace: "default", ID: "a"}}
	check := func(s *store.Store, noted string) {
		got, err := s.Runs(t.Context(), run)
		require.NoError(t, err)
		require.Equal(t, []history.Run{r}, got)
		row, _, err := s.Run(t.Context(), "default", "a")
		require.NoError(t, err)
		require.Equal(t, noted, row.Labels["k"])
	}
	require.NoError(t, s.Apply(t.Context(), history.Batch{Stream: "s", To: 1, Runs: []history.Change{{Run: r}}}))
	check(s, "x")
	note := history.Note{Namespace: "default", ID: "a", Labels: map[string]string{"k": "noted"}}
	require.NoError(t, s.Apply(t.Context(), history.Batch{Stream: "notes", To: 1, Notes: []history.Note{note}}))
	check(s, "noted")
	r.N++
	require.NoError(t, s.Apply(t.Context(), history.Batch{Stream: "s", From: 1, To: 2, Runs: []history.Change{{Run: r}}}))
	check(s, "noted")
	require.ErrorIs(t, s.Apply(t.Context(), history.Batch{Stream: "s", From: 1, To: 2, Runs: []history.Change{{Run: full("a", "y")}}}), follow.ErrMoved)
	check(s, "noted")
	require.NoError(t, s.Close())
	s, _ = open(t, file)
	check(s, "noted")
}
