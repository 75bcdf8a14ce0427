package embedded

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
)

// onExt4 returns a directory for a server that flushes in groups.
func onExt4(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := (&Options{}).keepSynced(filepath.Join(dir, "probe")); err != nil {
		t.Skip("reason: this machine's temporary directory cannot be flushed in groups: ", err)
	}
	return dir
}

// unsynced returns the files and directories of a store that are not synchronous.
func unsynced(t *testing.T, dir string) (found []string) {
	t.Helper()
	store := filepath.Join(dir, "jetstream")
	require.NoError(t, filepath.WalkDir(store, func(path string, _ fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // a temporary file
		}
		require.NoError(t, err)
		err = withFile(path, func(f *os.File) error {
			synced, err := isSynced(f)
			if err == nil && !synced && filepath.Base(path) != "batches" {
				found = append(found, strings.TrimPrefix(path, filepath.Join(store, "jetstream", "$G", "streams")+"/"))
			}
			return err
		})
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	}))
	return found
}

// fill stores messages in a stream of small blocks until it has a number of blocks.
func fill(t *testing.T, srv *Server, dir string, blocks int) (js jetstream.JetStream, last uint64) {
	t.Helper()
	js, err := jetstream.New(connect(t, srv))
	require.NoError(t, err)
	_, err = js.CreateOrUpdateStream(t.Context(), jetstream.StreamConfig{
		Name: "S", Subjects: []string{"s.*"}, MaxBytes: 100_000, Discard: jetstream.DiscardNew, Compression: jetstream.S2Compression,
	})
	require.NoError(t, err)
	for i := 0; ; i++ {
		ack, err := js.Publish(t.Context(), fmt.Sprintf("s.%d", i%2), make([]byte, 1000))
		require.NoError(t, err)
		require.NoError(t, srv.Flush(t.Context(), "S", ack.Sequence))
		has, err := blocksOf(filepath.Join(dir, "jetstream", "jetstream", "$G", "streams", "S", "msgs"))
		require.NoError(t, err)
		if len(has) == blocks {
			return js, ack.Sequence
		}
	}
}

// TestOnlyTheOpenBlockIsNotSynchronous: whatever the server writes goes to the disk at once,
// but for the last block of a stream that is flushed.
func TestOnlyTheOpenBlockIsNotSynchronous(t *testing.T) {
	dir := onExt4(t)
	srv := start(t, Options{Dir: dir, GroupFlush: true})
	require.True(t, srv.GroupFlush())
	require.Empty(t, unsynced(t, dir))
	js, last := fill(t, srv, dir, 3)
	require.Equal(t, []string{"S/msgs/3.blk"}, unsynced(t, dir), "blocks roll over")

	kv, err := js.CreateKeyValue(t.Context(), jetstream.KeyValueConfig{Bucket: "b"})
	require.NoError(t, err)
	for range 10 {
		_, err = kv.PutString(t.Context(), "k", strings.Repeat("v", 5000))
		require.NoError(t, err)
	}
	require.Equal(t, []string{"S/msgs/3.blk"}, unsynced(t, dir), "buckets are not flushed in groups")

	s, err := js.Stream(t.Context(), "S")
	require.NoError(t, err)
	require.NoError(t, s.Purge(t.Context(), jetstream.WithPurgeSubject("s.0")))
	require.NoError(t, s.Purge(t.Context(), jetstream.WithPurgeSequence(last-10)))
	require.NoError(t, srv.Flush(t.Context(), "S", 0))
	before := unsynced(t, dir)
	require.Len(t, before, 1, "what a purge writes anew is synchronous")

	require.NoError(t, s.Purge(t.Context()))
	require.NoError(t, srv.Flush(t.Context(), "S", 0))
	after := unsynced(t, dir)
	require.Len(t, after, 1, "a purge replaces the directory of blocks")
	require.NotEqual(t, before, after)

	srv.Shutdown()
	require.Empty(t, unsynced(t, dir), "a clean end leaves nothing open")
	srv = start(t, Options{Dir: dir, SyncAlways: true})
	require.False(t, srv.GroupFlush())
	require.NoError(t, srv.Flush(t.Context(), "S", 1))
	require.Contains(t, unsynced(t, dir), "KV_b/msgs/1.blk", "a server that syncs by itself has no flags")
}

func TestFlushAfterRestartInPlace(t *testing.T) {
	dir := onExt4(t)
	srv := start(t, Options{Dir: dir, GroupFlush: true})
	_, last := fill(t, srv, dir, 2)
	require.NoError(t, srv.restart(t.Context()))
	require.Empty(t, unsynced(t, dir))
	require.NoError(t, srv.Flush(t.Context(), "S", last))
	require.Equal(t, []string{"S/msgs/2.blk"}, unsynced(t, dir))
}

// TestUncleanEnd: of a block after the open one nothing was answered, so it does not come
// back. All that was answered does.
func TestUncleanEnd(t *testing.T) {
	dir := onExt4(t)
	srv := start(t, Options{Dir: dir, GroupFlush: true})
	_, last := fill(t, srv, dir, 3)
	srv.Shutdown()
	// As after a process that was killed when the server had begun block 3.
	msgs := filepath.Join(dir, "jetstream", "jetstream", "$G", "streams", "S", "msgs")
	require.NoError(t, withFile(blockPath(msgs, 2), func(f *os.File) error { return setSynced(f, false) }))
	srv = start(t, Options{Dir: dir, GroupFlush: true})
	js, err := jetstream.New(connect(t, srv))
	require.NoError(t, err)
	s, err := js.Stream(t.Context(), "S")
	require.NoError(t, err)
	require.Less(t, s.CachedInfo().State.LastSeq, last)
	require.NotZero(t, s.CachedInfo().State.LastSeq)
	require.FileExists(t, blockPath(msgs, 3)+".unanswered")
	require.Empty(t, unsynced(t, dir))
	_, err = js.Publish(t.Context(), "s.0", nil)
	require.NoError(t, err)
	srv.Shutdown()

	// Blocks that come from elsewhere are left alone.
	for _, n := range []int{1, 2} {
		require.NoError(t, withFile(blockPath(msgs, n), func(f *os.File) error { return setSynced(f, false) }))
	}
	start(t, Options{Dir: dir, GroupFlush: true})
	blocks, err := blocksOf(msgs)
	require.NoError(t, err)
	slices.Sort(blocks)
	require.Subset(t, blocks, []int{1, 2})
}

// TestConsumerAheadOfItsStream: after a power loss a consumer's state may be ahead of the
// log. The server takes it back, so that no later message is skipped.
func TestConsumerAheadOfItsStream(t *testing.T) {
	t.Parallel()
	dir := onExt4(t)
	srv := start(t, Options{Dir: dir, GroupFlush: true})
	js, _ := fill(t, srv, dir, 3)
	s, err := js.Stream(t.Context(), "S")
	require.NoError(t, err)
	c, err := s.CreateConsumer(t.Context(), jetstream.ConsumerConfig{Durable: "c", AckPolicy: jetstream.AckExplicitPolicy})
	require.NoError(t, err)
	all, err := c.Fetch(100, jetstream.FetchMaxWait(5*time.Second))
	require.NoError(t, err)
	for m := range all.Messages() {
		require.NoError(t, m.DoubleAck(t.Context()))
	}
	srv.Shutdown()
	msgs := filepath.Join(dir, "jetstream", "jetstream", "$G", "streams", "S", "msgs")
	require.NoError(t, withFile(blockPath(msgs, 2), func(f *os.File) error { return setSynced(f, false) }))

	srv = start(t, Options{Dir: dir, GroupFlush: true})
	js, err = jetstream.New(connect(t, srv))
	require.NoError(t, err)
	ack, err := js.Publish(t.Context(), "s.0", []byte("new"))
	require.NoError(t, err)
	c, err = js.Consumer(t.Context(), "S", "c")
	require.NoError(t, err)
	m, err := c.Next(jetstream.FetchMaxWait(time.Minute))
	require.NoError(t, err)
	meta, err := m.Metadata()
	require.NoError(t, err)
	require.Equal(t, ack.Sequence, meta.Sequence.Stream)
}

// TestFailedFlush: a flush that failed is not tried again, and nobody gets another answer.
func TestFailedFlush(t *testing.T) {
	dir := onExt4(t)
	failed := make(chan error, 10)
	srv := start(t, Options{Dir: dir, GroupFlush: true, Fatal: func(err error) { failed <- err }})
	_, last := fill(t, srv, dir, 1)
	f, _ := srv.flushers.Load("S")
	r, w, err := os.Pipe() // which cannot be flushed
	require.NoError(t, err)
	defer func() { require.NoError(t, errors.Join(r.Close(), w.Close())) }()
	good := f.(*flusher).block
	f.(*flusher).block = w
	err = srv.Flush(t.Context(), "S", last+1)
	require.ErrorContains(t, err, "cannot flush to the disk")
	require.ErrorContains(t, <-failed, "cannot flush to the disk")
	f.(*flusher).block = good
	require.ErrorContains(t, srv.Flush(t.Context(), "S", last+1), "cannot flush to the disk")
	require.Empty(t, failed, "it is told once")
	require.NoError(t, good.Close())
}

func TestNoGroupFlush(t *testing.T) {
	dir, err := os.MkdirTemp("/dev/shm", "moorebus-")
	if err != nil {
		t.Skip("reason: this machine has no /dev/shm: ", err)
	}
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	_, err = Start(t.Context(), Options{Dir: dir, GroupFlush: true})
	require.ErrorIs(t, err, ErrNoGroupFlush)
	srv := start(t, Options{Dir: dir, GroupFlush: true, SyncAlways: true})
	require.False(t, srv.GroupFlush())
	require.True(t, srv.settings.SyncAlways)
	relaxed := start(t, Options{Dir: t.TempDir()})
	require.Error(t, relaxed.Flush(t.Context(), "S", 1), "a relaxed server proves nothing")
}

// BenchmarkFlush compares messages that are stored by many at once: each flushed by
// the server, or in groups.
func BenchmarkFlush(b *testing.B) {
	for _, group := range []bool{false, true} {
		b.Run(fmt.Sprintf("group=%t", group), func(b *testing.B) {
			srv, err := Start(context.Background(), Options{Dir: b.TempDir(), GroupFlush: group, SyncAlways: !group})
			require.NoError(b, err)
			defer srv.Shutdown()
			conn, err := srv.Connect(nats.Name("bench"))
			require.NoError(b, err)
			defer conn.Close()
			js, err := jetstream.New(conn)
			require.NoError(b, err)
			_, err = js.CreateStream(context.Background(), jetstream.StreamConfig{Name: "S", Subjects: []string{"s"}})
			require.NoError(b, err)
			b.SetParallelism(100)
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					ack, err := js.Publish(context.Background(), "s", make([]byte, 700))
					if err == nil {
						err = srv.Flush(context.Background(), "S", ack.Sequence)
					}
					if err != nil {
						b.Error(err)
						return
					}
				}
			})
		})
	}
}
