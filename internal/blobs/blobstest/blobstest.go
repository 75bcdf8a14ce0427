// Package blobstest has the conformance suite that every store of objects passes, and an S3-compatible
// server for tests.
package blobstest

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"
	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/blobs"
)

// Bucket is the bucket that [Server] has.
const Bucket = "bucket"

// Server starts an S3-compatible server with one bucket in memory, sets the environment's keys for it, and
// returns a URL with the prefix. Requests go through wrap, if it is not nil.
func Server(t testing.TB, prefix string, wrap func(http.Handler) http.Handler) string {
	t.Helper()
	t.Setenv("AWS_ACCESS_KEY_ID", "key")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "secret")
	backend := s3mem.New()
	require.NoError(t, backend.CreateBucket(Bucket))
	handler := unchunk(gofakes3.New(backend).Server())
	if wrap != nil {
		handler = wrap(handler)
	}
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	return fmt.Sprintf("s3://%s/%s?endpoint=%s&path_style=true&region=us-east-1", Bucket, prefix, server.URL)
}

// unchunk decodes bodies with signed chunks, as clients send them without TLS: gofakes3 does not where the
// body is a part of an object, or empty.
func unchunk(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var body bytes.Buffer
		in := bufio.NewReader(r.Body)
		if strings.HasPrefix(r.Header.Get("X-Amz-Content-Sha256"), "STREAMING-") {
			for size, end := int64(0), "\r\n"; ; {
				if _, err := fmt.Fscanf(in, "%x;", &size); err != nil || size == 0 {
					break
				}
				_, err := in.ReadString('\n') // the chunk's signature
				_, copied := io.CopyN(&body, in, size)
				if _, ended := in.Discard(len(end)); errors.Join(err, copied, ended) != nil {
					panic(http.ErrAbortHandler)
				}
			}
			r.Header.Set("X-Amz-Content-Sha256", "UNSIGNED-PAYLOAD")
		} else if _, err := body.ReadFrom(in); err != nil {
			panic(http.ErrAbortHandler)
		}
		r.ContentLength, r.Body = int64(body.Len()), io.NopCloser(&body)
		r.Header.Set("Content-Length", strconv.Itoa(body.Len()))
		next.ServeHTTP(w, r)
	})
}

// Run checks what [blobs.Store] promises. open returns an empty store each time.
func Run(t *testing.T, open func(t *testing.T) blobs.Store) {
	for name, check := range map[string]func(*testing.T, blobs.Store){
		"PutGetDelete": putGetDelete, "Ranges": ranges, "Conditions": conditions, "Race": race, "List": list,
		"Large": large, "Failed": failed, "Keys": keys,
	} {
		t.Run(name, func(t *testing.T) { check(t, open(t)) })
	}
}

func putGetDelete(t *testing.T, s blobs.Store) {
	ctx := t.Context()
	_, err := s.Get(ctx, "a/b")
	require.ErrorIs(t, err, blobs.ErrNotExist)
	_, err = s.Stat(ctx, "a/b")
	require.ErrorIs(t, err, blobs.ErrNotExist)
	require.NoError(t, s.Delete(ctx, "a/b"))
	for _, text := range []string{"one", "another", ""} {
		require.NoError(t, s.Put(ctx, "a/b", strings.NewReader(text)))
		data, err := blobs.ReadAll(ctx, s, "a/b")
		require.NoError(t, err)
		require.Equal(t, text, string(data))
		info, err := s.Stat(ctx, "a/b")
		require.NoError(t, err)
		require.EqualValues(t, len(text), info.Size)
		require.WithinDuration(t, time.Now(), info.Modified, time.Minute)
	}
	require.NoError(t, s.Delete(ctx, "a/b"))
	_, err = s.Get(ctx, "a/b")
	require.ErrorIs(t, err, blobs.ErrNotExist)
}

func ranges(t *testing.T, s blobs.Store) {
	ctx := t.Context()
	require.NoError(t, s.Put(ctx, "k", strings.NewReader("0123456789")))
	for _, r := range []struct {
		offset, length int64
		want           string
	}{{0, 10, "0123456789"}, {3, 4, "3456"}, {9, 1, "9"}, {4, 0, ""}} {
		data, err := s.Range(ctx, "k", r.offset, r.length)
		require.NoError(t, err)
		require.Equal(t, r.want, string(data))
	}
	for _, offset := range []int64{9, 10, 99} {
		_, err := s.Range(ctx, "k", offset, 2)
		require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	}
	_, err := s.Range(ctx, "none", 0, 1)
	require.ErrorIs(t, err, blobs.ErrNotExist)
}

func conditions(t *testing.T, s blobs.Store) {
	ctx := t.Context()
	require.ErrorIs(t, s.PutIf(ctx, "m", []byte("x"), "none"), blobs.ErrChanged)
	require.NoError(t, s.PutIf(ctx, "m", []byte("1"), ""))
	require.ErrorIs(t, s.PutIf(ctx, "m", []byte("x"), ""), blobs.ErrChanged)
	first, err := s.Stat(ctx, "m")
	require.NoError(t, err)
	require.NoError(t, s.PutIf(ctx, "m", []byte("2"), first.Version))
	require.ErrorIs(t, s.PutIf(ctx, "m", []byte("x"), first.Version), blobs.ErrChanged)
	data, err := blobs.ReadAll(ctx, s, "m")
	require.NoError(t, err)
	require.Equal(t, "2", string(data))
}

// Of several that store under the same condition, one does.
func race(t *testing.T, s blobs.Store) {
	var stored atomic.Int32
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			switch err := s.PutIf(t.Context(), "m", fmt.Append(nil, i), ""); {
			case err == nil:
				stored.Add(1)
			case !errors.Is(err, blobs.ErrChanged):
				t.Error(err)
			}
		})
	}
	all.Wait()
	require.EqualValues(t, 1, stored.Load())
}

func list(t *testing.T, s blobs.Store) {
	ctx := t.Context()
	got := func(prefix string) (keys []string) {
		for info, err := range s.List(ctx, prefix) {
			require.NoError(t, err)
			require.EqualValues(t, len(info.Key), info.Size)
			keys = append(keys, info.Key)
		}
		return keys
	}
	require.Empty(t, got(""))
	for _, key := range []string{"a/b/c", "b", "a-", "a/1", "a0"} {
		require.NoError(t, s.Put(ctx, key, strings.NewReader(key)))
	}
	require.Equal(t, []string{"a-", "a/1", "a/b/c", "a0", "b"}, got(""))
	require.Equal(t, []string{"a/1", "a/b/c"}, got("a/"))
	require.Equal(t, []string{"a/b/c"}, got("a/b"))
	require.Empty(t, got("c"))
	for range s.List(ctx, "") {
		break // it can be left at any time
	}
}

// An object of several parts whose size nobody says.
func large(t *testing.T, s blobs.Store) {
	data := make([]byte, 40<<20+1)
	_, err := rand.Read(data)
	require.NoError(t, err)
	require.NoError(t, s.Put(t.Context(), "large", io.MultiReader(bytes.NewReader(data))))
	got, err := blobs.ReadAll(t.Context(), s, "large")
	require.NoError(t, err)
	require.True(t, bytes.Equal(data, got))
	got, err = s.Range(t.Context(), "large", 16<<20-1, 2)
	require.NoError(t, err)
	require.Equal(t, data[16<<20-1:16<<20+1], got)
}

// What fails half way stores nothing, and leaves what was there.
func failed(t *testing.T, s blobs.Store) {
	ctx, broken := t.Context(), errors.New("broken")
	require.NoError(t, s.Put(ctx, "k", strings.NewReader("before")))
	for _, size := range []int{0, 1, 20 << 20} {
		for _, key := range []string{"k", "new"} {
			err := blobs.Write(ctx, s, key, func(w io.Writer) error {
				_, err := w.Write(make([]byte, size))
				return errors.Join(err, broken)
			})
			require.ErrorIs(t, err, broken)
		}
	}
	data, err := blobs.ReadAll(ctx, s, "k")
	require.NoError(t, err)
	require.Equal(t, "before", string(data))
	for info, err := range s.List(ctx, "") {
		require.NoError(t, err)
		require.Equal(t, "k", info.Key)
	}
}

func keys(t *testing.T, s blobs.Store) {
	for _, key := range []string{"", ".", "..", "/a", "a/", "a//b", "../a", "a/../b", "a\\b", "a\x00"} {
		require.ErrorContains(t, s.Put(t.Context(), key, strings.NewReader("")), "no key", key)
		_, err := s.Get(t.Context(), key)
		require.Error(t, err, key)
		require.Error(t, s.Delete(t.Context(), key), key)
	}
	for _, key := range []string{"a b", "ü", "%2F", "a+b", "a?b=c&d"} {
		require.NoError(t, s.Put(t.Context(), key, strings.NewReader(key)))
		data, err := blobs.ReadAll(t.Context(), s, key)
		require.NoError(t, err)
		require.Equal(t, key, string(data))
	}
}
