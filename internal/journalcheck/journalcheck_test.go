package journalcheck_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/journalcheck"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

const id = "019325a0-0000-7000-8000-000000000001"

func TestAppend(t *testing.T) {
	run := events.NewRun("ns", id, 3)
	entry := journal.Entry{Subject: events.Subject{Run: run, From: events.Planning, To: events.Acting, Pool: "web"}}
	require.NoError(t, journalcheck.Append(3, run, []journal.Entry{entry}))
	require.ErrorContains(t, journalcheck.Append(3, run, nil), "no entries")
	for shards := range 3 {
		if shards > 0 && events.ShardOf(id, shards) != run.Shard {
			require.ErrorContains(t, journalcheck.Append(shards, run, []journal.Entry{entry}), "belongs to shard")
		}
	}
	entry.Body = make([]byte, journal.MaxBody+1)
	require.ErrorIs(t, journalcheck.Append(3, run, []journal.Entry{entry}), journal.ErrTooLarge)
}

func TestShard(t *testing.T) {
	require.NoError(t, journalcheck.Shard(3, 2))
	require.Error(t, journalcheck.Shard(3, 3))
	require.Error(t, journalcheck.Shard(3, -1))
}
