package follow_test

import (
	"context"
	"log/slog"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/filelog"
	"github.com/moorebus/moorebus/internal/history"
	"github.com/moorebus/moorebus/internal/history/follow"
	"github.com/moorebus/moorebus/internal/history/follow/followtest"
	"github.com/moorebus/moorebus/internal/history/store"
	"github.com/moorebus/moorebus/pkg/events"
)

// fallible is a store of which some changes fail, before or after they are stored.
type fallible struct {
	follow.Store
	n int
}

func (f *fallible) Apply(ctx context.Context, b history.Batch) error {
	if f.n++; f.n%5 == 2 {
		return followtest.ErrKilled
	}
	err := f.Store.Apply(ctx, b)
	if err == nil && f.n%5 == 4 {
		return followtest.ErrKilled
	}
	return err
}

// A file of SQLite has the rows that the plain store has of recorded runs, although it is closed and opened
// again after every second change.
func TestSQLite(t *testing.T) {
	files, err := filepath.Glob("../../../testdata/runs/*.jsonl")
	require.NoError(t, err)
	for _, file := range files {
		log, err := filelog.Open(file)
		require.NoError(t, err)
		defer log.Close()
		views := &fallible{}
		db := filepath.Join(t.TempDir(), "views.db")
		for done := false; !done; {
			s, err := store.Open(t.Context(), db, slog.New(slog.DiscardHandler))
			require.NoError(t, err)
			views.Store = s
			err = follower(log, views, func(o *follow.Options) { o.Records = 4 }).CatchUp(t.Context())
			if done = err == nil; !done {
				require.ErrorIs(t, err, followtest.ErrKilled)
			} else {
				want := built(t, log)
				var runs []events.Run
				for _, row := range want.Runs {
					runs = append(runs, events.Run{Shard: row.Shard, Namespace: row.Namespace, ID: row.ID})
				}
				got := map[string]history.Run{}
				rows, err := s.Runs(t.Context(), runs)
				require.NoError(t, err)
				for _, row := range rows {
					if want.Runs[row.ID].Started.IsZero() {
						row = want.Runs[row.ID] // a file does not say when a Start was stored that is no event
					}
					got[row.ID] = row
				}
				require.Equal(t, want.Runs, got, file)
			}
			require.NoError(t, s.Close())
		}
	}
}
