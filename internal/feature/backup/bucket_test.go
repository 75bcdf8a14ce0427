package backup_test

import (
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/blobs"
	"github.com/moorebus/moorebus/internal/blobs/blobstest"
	"github.com/moorebus/moorebus/internal/feature/backup"
	"github.com/moorebus/moorebus/pkg/events"
)

// A backup in a bucket is taken, added to, replaced and restored like one in a directory. What breaks off
// leaves the last complete one.
func TestBucket(t *testing.T) {
	var refuse atomic.Pointer[string]
	url := blobstest.Server(t, "backups/one", func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if part := refuse.Load(); part != nil && r.Method == http.MethodPut && strings.Contains(r.URL.Path, *part) {
				w.WriteHeader(http.StatusForbidden)
				_, _ = w.Write([]byte("<Error><Code>AccessDenied</Code></Error>"))
				return
			}
			next.ServeHTTP(w, r)
		})
	})
	one := newWorld(t, 2)
	var runs []events.Run
	write := func() {
		run := one.Open()
		one.Append(run, events.Control, &events.CancelledRun{})
		runs = append(runs, run)
		_, err := one.Bus.PutBlob(t.Context(), "default", []byte("large "+run.ID))
		require.NoError(t, err)
	}
	write()
	require.True(t, one.take(url, true).Full)
	for _, part := range []string{"/log/", "/buckets/", "/objects/", "/manifest.json"} {
		write()
		refuse.Store(&part)
		_, err := backup.Take(t.Context(), one.Bus, url, backup.Options{Incremental: true})
		require.ErrorContains(t, err, "check AWS_ACCESS_KEY_ID", part)
		require.ErrorContains(t, err, "the last complete one is as it was", part)
		refuse.Store(nil)
		require.Len(t, openArchive(t, url, time.Time{}).Runs(), len(runs)-1, part)
		require.Equal(t, 2, one.take(url, true).Records, part)
	}
	two := newWorld(t, 3)
	done := two.restore(url, time.Time{}, backup.RestoreOptions{})
	require.Equal(t, len(runs), done.Runs)
	require.Equal(t, len(runs), done.Objects)
	for _, run := range runs {
		require.Equal(t, one.Bodies(run), two.Bodies(run))
	}
	store, err := blobs.Open(url)
	require.NoError(t, err)
	count := func(folder string) (n int) {
		for _, err := range store.List(t.Context(), folder) {
			require.NoError(t, err)
			n++
		}
		return n
	}
	require.Greater(t, count("log/"), 2)
	one.take(url, false)
	require.Len(t, openArchive(t, url, time.Time{}).Runs(), len(runs))
	require.Equal(t, len(runs), count("objects/"))
}

// Of two backups that are taken to a bucket at the same time one says that it has to be repeated, and the
// other one is complete.
func TestTwoToOneBucket(t *testing.T) {
	var url string
	other := func() {}
	url = blobstest.Server(t, "p", func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodPut && strings.HasSuffix(r.URL.Path, "/manifest.json") {
				run := other
				other = func() {}
				run()
			}
			next.ServeHTTP(w, r)
		})
	})
	one := newWorld(t, 1)
	one.Open()
	one.take(url, true)
	for _, incremental := range []bool{true, false} {
		one.Open()
		other = func() { one.take(url, incremental) }
		_, err := backup.Take(t.Context(), one.Bus, url, backup.Options{Incremental: true})
		require.ErrorIs(t, err, blobs.ErrChanged)
		require.ErrorContains(t, err, "run it again")
		openArchive(t, url, time.Time{})
	}
	one.Open()
	one.take(url, true)
	require.Len(t, openArchive(t, url, time.Time{}).Runs(), 4)
}

// What is wrong with a URL is said before anything is done.
func TestBadURL(t *testing.T) {
	one := newWorld(t, 1)
	for _, url := range []string{"s3://bucket?what=1", "file:", "s3:"} {
		_, err := backup.Take(t.Context(), one.Bus, url, backup.Options{})
		require.Error(t, err, url)
		_, err = backup.Open(t.Context(), url, time.Time{})
		require.Error(t, err, url)
	}
}

// A server that stops in the middle of an answer has damaged nothing.
func TestBucketBreaksOff(t *testing.T) {
	var breaks atomic.Bool
	url := blobstest.Server(t, "p", func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if breaks.Load() && r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/log/") {
				w.Header().Set("Content-Length", "100")
				_, _ = w.Write([]byte("part"))
				panic(http.ErrAbortHandler)
			}
			next.ServeHTTP(w, r)
		})
	})
	one := newWorld(t, 1)
	one.Open()
	one.take(url, true)
	breaks.Store(true)
	_, err := backup.Open(t.Context(), url, time.Time{})
	require.ErrorIs(t, err, blobs.ErrNoAnswer)
	require.NotErrorIs(t, err, backup.ErrDamaged)
}

// A bucket's files are paid for by each read: one for the checksum before anything else, one for the lines.
func TestBucketIsReadTwice(t *testing.T) {
	var reads atomic.Int64
	url := blobstest.Server(t, "p", func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/log/") {
				reads.Add(1)
			}
			next.ServeHTTP(w, r)
		})
	})
	one := newWorld(t, 1)
	one.Open()
	one.take(url, true)
	openArchive(t, url, time.Time{})
	require.EqualValues(t, 2, reads.Load())
}
