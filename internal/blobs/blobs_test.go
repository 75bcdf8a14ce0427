package blobs_test

import (
	"context"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/moorebus/moorebus/internal/blobs"
	"github.com/moorebus/moorebus/internal/blobs/blobstest"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv("BLOBS_TEST_KILLED"); dir != "" {
		writeUntilKilled(dir)
	}
	goleak.VerifyTestMain(m)
}

func open(t *testing.T, url string) blobs.Store {
	s, err := blobs.Open(url)
	require.NoError(t, err)
	require.Equal(t, url, s.String())
	return s
}

func TestFolder(t *testing.T) {
	blobstest.Run(t, func(t *testing.T) blobs.Store { return open(t, "file:"+filepath.Join(t.TempDir(), "made", "by", "it")) })
}

func TestBucket(t *testing.T) {
	for _, prefix := range []string{"", "some/prefix"} {
		blobstest.Run(t, func(t *testing.T) blobs.Store { return open(t, blobstest.Server(t, prefix, nil)) })
	}
}

// Stores with neighbouring prefixes do not see each other's objects.
func TestPrefixes(t *testing.T) {
	one := open(t, blobstest.Server(t, "a", nil))
	other := open(t, strings.Replace(one.String(), "/a?", "/ab?", 1))
	require.NoError(t, one.Put(t.Context(), "k", strings.NewReader("")))
	for info, err := range other.List(t.Context(), "") {
		require.Fail(t, "sees it", "%v %v", info, err)
	}
}

func TestFilesAreTheOwners(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "dir")
	require.NoError(t, open(t, "file:"+dir).Put(t.Context(), "a/b", strings.NewReader("x")))
	for path, mode := range map[string]os.FileMode{"": 0o700, "a": 0o700, "a/b": 0o600} {
		info, err := os.Stat(filepath.Join(dir, path))
		require.NoError(t, err)
		require.Equal(t, mode, info.Mode().Perm(), path)
	}
}

func TestURLs(t *testing.T) {
	t.Setenv("AWS_ACCESS_KEY_ID", "key")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "secret")
	for url, says := range map[string]string{
		"":                                     "is not a place",
		"dir":                                  "write file:PATH or s3://",
		"file:":                                "is not a place",
		"file://host/x":                        "has no host",
		"gs://b":                               "is not a place",
		"s3://":                                "names no bucket",
		"s3://B_?endpoint=http://x":            "no name of a bucket",
		"s3://key:secret@bucket/p":             "keys do not belong",
		"s3://bucket?endpoint=example.com":     "is not a URL",
		"s3://bucket?endpoint=http://x/path":   "is not a URL",
		"s3://bucket?path_style=yes":           "there are endpoint=URL",
		"s3://bucket?what=1":                   "there are endpoint=URL",
		"s3://bucket/../p?endpoint=http://a:1": "is no prefix",
	} {
		_, err := blobs.Open(url)
		require.ErrorContains(t, err, says, url)
		require.NotContains(t, err.Error(), "secret@")
	}
	t.Setenv("AWS_SECRET_ACCESS_KEY", "")
	_, err := blobs.Open("s3://bucket")
	require.ErrorContains(t, err, "set the keys of the server, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY")
}

// Errors say what to do.
func TestErrors(t *testing.T) {
	fail := atomic.Pointer[string]{}
	url := blobstest.Server(t, "p", func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if code := fail.Load(); code != nil {
				w.WriteHeader(http.StatusForbidden)
				_, _ = w.Write([]byte("<Error><Code>" + *code + "</Code></Error>"))
				return
			}
			next.ServeHTTP(w, r)
		})
	})
	calls := func(url string) map[string]error {
		s := open(t, url)
		_, get := s.Get(t.Context(), "k")
		var list error
		for _, list = range s.List(t.Context(), "") {
			break
		}
		return map[string]error{"get": get, "list": list, "put": s.Put(t.Context(), "k", strings.NewReader("x"))}
	}
	for call, err := range calls(strings.Replace(url, blobstest.Bucket, "absent", 1)) {
		require.ErrorContains(t, err, `there is no bucket "absent"`, call)
		require.ErrorContains(t, err, "make it, or name another one", call)
	}
	for _, code := range []string{"AccessDenied", "SignatureDoesNotMatch", "InvalidAccessKeyId"} {
		fail.Store(&code)
		for call, err := range calls(url) {
			require.ErrorContains(t, err, "check AWS_ACCESS_KEY_ID", call)
		}
	}
}

// A server that is not there is an error within seconds, and so is one that does not answer once the
// context ends.
func TestNoNetwork(t *testing.T) {
	t.Setenv("AWS_ACCESS_KEY_ID", "key")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "secret")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s := open(t, "s3://bucket?endpoint=http://"+l.Addr().String()+"&path_style=true&region=x")
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	require.ErrorIs(t, s.Put(ctx, "k", strings.NewReader("x")), context.DeadlineExceeded)
	require.NoError(t, l.Close())
	require.ErrorContains(t, s.Put(t.Context(), "k", strings.NewReader("x")), "check the endpoint and the network")
}

const killedSize = 1 << 20

// writeUntilKilled replaces an object again and again.
func writeUntilKilled(dir string) {
	s := blobs.NewFolder(dir)
	for i := byte('a'); ; i = 'a' + (i-'a'+1)%26 {
		if err := s.Put(context.Background(), "k", strings.NewReader(strings.Repeat(string(i), killedSize))); err != nil {
			panic(err)
		}
		_, _ = os.Stdout.Write([]byte{i})
	}
}

// A process that is killed at any moment leaves an entire object.
func TestKilled(t *testing.T) {
	for i := range 10 {
		dir := t.TempDir()
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), "BLOBS_TEST_KILLED="+dir)
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		out, err := cmd.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		_, err = out.Read(make([]byte, 1)) // it has written once
		require.NoError(t, err)
		<-time.After(time.Duration(i) * time.Millisecond)
		require.NoError(t, cmd.Process.Kill())
		_ = cmd.Wait() // it was killed
		data, err := blobs.ReadAll(t.Context(), blobs.NewFolder(dir), "k")
		require.NoError(t, err)
		require.Len(t, data, killedSize)
		require.Equal(t, killedSize, strings.Count(string(data), string(data[:1])))
		for info, err := range blobs.NewFolder(dir).List(t.Context(), "") {
			require.NoError(t, err)
			require.Equal(t, "k", info.Key)
		}
	}
}
