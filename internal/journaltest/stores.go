package journaltest

import (
	"bytes"
	"strconv"
	"testing"

	"github.com/moorebus/moorebus/internal/ports"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/stretchr/testify/require"
)

// Blobs tests [journal.Blobs].
func Blobs(t *testing.T, open func(t *testing.T) journal.Blobs) {
	blobs := open(t)
	ctx, pool := bounded(t), NewToken(t)
	for _, data := range [][]byte{[]byte("small"), {}, bytes.Repeat([]byte("0123456789"), 500_000)} {
		ref, err := blobs.PutBlob(ctx, pool, data)
		require.NoError(t, err)
		require.Equal(t, events.Ref{Bucket: "results_" + pool, Key: events.Hash(data), Size: len(data), SHA256: events.Hash(data)}, ref)
		again, err := blobs.PutBlob(ctx, pool, data)
		require.NoError(t, err)
		require.Equal(t, ref, again)
		got, err := blobs.Blob(ctx, ref)
		require.NoError(t, err)
		require.True(t, bytes.Equal(data, got))
		wrong := ref
		wrong.SHA256 = events.Hash([]byte("other"))
		_, err = blobs.Blob(ctx, wrong)
		require.Error(t, err, "the digest is checked")
		wrong = ref
		wrong.Size++
		_, err = blobs.Blob(ctx, wrong)
		require.ErrorIs(t, err, journal.ErrNotFound, "so is the size")
	}
	unknown := events.Hash([]byte("never stored"))
	for _, bucket := range []string{"results_" + pool, "results_" + NewToken(t), "agents", ""} {
		_, err := blobs.Blob(ctx, events.Ref{Bucket: bucket, Key: unknown, SHA256: unknown, Size: 3})
		require.ErrorIs(t, err, journal.ErrNotFound)
	}
	_, err := blobs.PutBlob(ctx, "*", nil)
	require.Error(t, err)
}

// LogRunless is a journal that can append and shows strays.
type LogRunless interface {
	journal.Log
	ports.Runless
}

// Runless tests [ports.Runless]. inject stores a record with any subject in a
// shard.
func Runless(t *testing.T, open func(t *testing.T) (log LogRunless, inject func(shard int, subject, body string))) {
	log, inject := open(t)
	ctx, run := bounded(t), NewRun(t, log)
	AppendAll(t, log, run, "of a run")
	collect := func(shard int) []journal.Record {
		t.Helper()
		recs, err := Collect(log.Runless(ctx, shard))
		require.NoError(t, err)
		return recs
	}
	before := len(collect(run.Shard))
	root := "moore." + strconv.Itoa(run.Shard)
	subjects := []string{root + ".nonsense", root + ".default.acting.planning.default.nobody", root + ".a.b.c.d.e.f.g", root + ".nonsense",
		// As filters these would match the run.
		root + ".*.*.*.*." + run.ID, root + ".default.*.*.*.*", root + ".>", root + ".*"}
	if log.Shards() > 1 {
		other := RunIn(t, log, (run.Shard+1)%log.Shards())
		subjects = append(subjects, root+".default.idle.planning.default."+other.ID)
	}
	for i, subject := range subjects {
		inject(run.Shard, subject, strconv.Itoa(i))
	}
	recs := collect(run.Shard)[before:]
	require.Len(t, recs, len(subjects))
	for i, rec := range recs {
		require.Equal(t, subjects[i], rec.Subject)
		require.Equal(t, strconv.Itoa(i), string(rec.Body))
		require.True(t, i == 0 || rec.Seq > recs[i-1].Seq)
	}
	_, err := Collect(log.Runless(ctx, log.Shards()))
	require.Error(t, err)
}

// LogFeed is a journal that can append and be watched.
type LogFeed interface {
	journal.Log
	journal.Feed
}

// Feed tests [journal.Feed], but for what it loses.
func Feed(t *testing.T, open func(t *testing.T) LogFeed) {
	feed := open(t)
	t.Run("records", func(t *testing.T) {
		space := NewToken(t)
		got := make(chan journal.Record, 100)
		stop, err := feed.Watch(journal.Filter{Namespace: space}, func(r journal.Record) { got <- r }, func() {})
		require.NoError(t, err)
		defer stop()
		for shard := range feed.Shards() {
			run := RunIn(t, feed, shard)
			AppendAll(t, feed, run, "of another namespace")
			run.Namespace = space
			seq := AppendAll(t, feed, run, "watched")
			rec := <-got
			require.Equal(t, seq, rec.Seq)
			require.Equal(t, "watched", string(rec.Body))
			require.Equal(t, plain(run, "").Subject.String(), rec.Subject)
		}
		stop()
		stop()
	})
	t.Run("chunks", func(t *testing.T) {
		run := NewRun(t, feed)
		got := make(chan string, 100)
		stop, err := feed.WatchChunks(run, func(data []byte) { got <- string(data) })
		require.NoError(t, err)
		defer stop()
		require.NoError(t, feed.PublishChunk(NewRun(t, feed), []byte("of another run")))
		for _, text := range []string{"Hel", "lo"} {
			require.NoError(t, feed.PublishChunk(run, []byte(text)))
			require.Equal(t, text, <-got)
		}
	})
	t.Run("asks", func(t *testing.T) {
		run, got := NewRun(t, feed), make(chan events.Run, 100)
		require.NoError(t, feed.AskCatchUp(run), "nobody hears it")
		stop, err := feed.WatchAsks(func(r events.Run) { got <- r })
		require.NoError(t, err)
		defer stop()
		other := RunIn(t, feed, 0)
		other.Namespace = NewToken(t)
		for _, asked := range []events.Run{run, run, other} {
			require.NoError(t, feed.AskCatchUp(asked))
			for r := range got { // others may ask meanwhile
				if r == asked {
					break
				}
			}
		}
		stop()
		stop()
	})
}
