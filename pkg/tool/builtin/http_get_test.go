package builtin

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/tooltest"
	"github.com/moorebus/moorebus/pkg/tool"
)

// site is a real server that counts what it is asked.
type site struct {
	*httptest.Server
	asked, open atomic.Int64
	started     chan struct{}
}

func newSite(t *testing.T) *site {
	t.Helper()
	s := &site{started: make(chan struct{}, 16)}
	mux := http.NewServeMux()
	mux.HandleFunc("/hello", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "hello") })
	mux.HandleFunc("/long", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, strings.Repeat("x", 5_000_000)) })
	mux.HandleFunc("/binary", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "\x89PNG\x00") })
	mux.HandleFunc("/busy", func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "later", http.StatusServiceUnavailable) })
	mux.HandleFunc("/to", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, r.URL.Query().Get("url"), http.StatusFound)
	})
	mux.HandleFunc("/hang", func(_ http.ResponseWriter, r *http.Request) {
		s.started <- struct{}{}
		<-r.Context().Done()
	})
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.asked.Add(1)
		s.open.Add(1)
		defer s.open.Add(-1)
		mux.ServeHTTP(w, r)
	}))
	t.Cleanup(s.Close)
	return s
}

func (s *site) host() string { return strings.TrimPrefix(s.URL, "http://") }

func getter(t *testing.T, hosts ...string) tool.Tool {
	t.Helper()
	made, err := New(httpGetName, Options{Hosts: hosts, MaxBytes: 1000})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, made.(*httpGet).Close()) })
	return made
}

func get(ctx context.Context, made tool.Tool, url string) (string, error) {
	return made.Run(ctx, tool.Call{Name: httpGetName, Arguments: fmt.Sprintf(`{"url":%q}`, url)})
}

func TestHTTPGetSuite(t *testing.T) {
	at := func(t *testing.T, path string) (tooltest.Case, *site) {
		s := newSite(t)
		return tooltest.Case{Tool: getter(t, s.host()), Arguments: fmt.Sprintf(`{"url":%q}`, s.URL+path)}, s
	}
	tooltest.Suite{
		Success: func(t *testing.T) tooltest.Case {
			c, _ := at(t, "/hello")
			c.Want = "hello"
			return c
		},
		Failure: func(t *testing.T) tooltest.Case {
			c, _ := at(t, "/busy")
			c.Code, c.Want = tool.CodeHTTPStatus, "503: later"
			return c
		},
		Hangs: func(t *testing.T) tooltest.Hang {
			c, s := at(t, "/hang")
			return tooltest.Hang{Case: c, Quiet: func() bool { return s.open.Load() == 0 }, Started: func(ctx context.Context) error {
				select {
				case <-s.started:
					return nil
				case <-ctx.Done():
					return ctx.Err()
				}
			}}
		},
	}.Run(t)
}

func TestHTTPGetCutsAndRefusesBinary(t *testing.T) {
	s := newSite(t)
	g := getter(t, s.host())
	got, err := get(t.Context(), g, s.URL+"/long")
	require.NoError(t, err)
	require.Equal(t, strings.Repeat("x", 1000)+"\n[moorebus: output cut at 1000 bytes of more]", got)
	_, err = get(t.Context(), g, s.URL+"/binary")
	require.ErrorContains(t, err, "not text")
}

func TestHTTPGetAsksOnlyAllowedHosts(t *testing.T) {
	allowed, other := newSite(t), newSite(t)
	g := getter(t, allowed.host(), "*.example.test")
	for address, want := range map[string]string{
		other.URL + "/hello": "is not allowed; allowed are: " + allowed.host() + ", *.example.test",
		allowed.URL + "/to?url=" + url.QueryEscape(other.URL+"/hello"): "is not allowed",
		allowed.URL + "/to?url=file:///etc/passwd":                     "must begin with http",
		allowed.URL + "/to?url=/to%3Furl=/hello%23":                    "",
		"file:///etc/passwd":                                           "must begin with http",
		"//" + allowed.host():                                          "must begin with http",
		"http://user:pw@" + allowed.host():                             "user name",
		"http:///hello":                                                "no host",
		"http://%zz":                                                   "cannot be parsed",
		"http://example.test/":                                         "is not allowed",
		strings.Replace(allowed.URL, "http:", "https:", 1) + "/hello":  "cannot be reached",
		"http://" + allowed.host() + "@" + other.host():                "user name",
	} {
		got, err := get(t.Context(), g, address)
		if want == "" {
			require.NoError(t, err)
			require.Equal(t, "hello", got)
			continue
		}
		require.ErrorContains(t, err, want, address)
	}
	require.Zero(t, other.asked.Load())
}

func TestHTTPGetRedirectLoop(t *testing.T) {
	s := newSite(t)
	_, err := get(t.Context(), getter(t, s.host()), s.URL+"/to?url="+url.QueryEscape("/to?url=/to%3Furl%3D/loop"))
	require.ErrorContains(t, err, "404")
	loop := httptest.NewServer(http.RedirectHandler("/", http.StatusFound))
	defer loop.Close()
	_, err = get(t.Context(), getter(t, strings.TrimPrefix(loop.URL, "http://")), loop.URL)
	require.ErrorContains(t, err, "more than 5 redirects")
}

func TestHTTPGetUnreachable(t *testing.T) {
	s := newSite(t)
	s.Close()
	_, err := get(t.Context(), getter(t, s.host()), s.URL)
	var f *tool.Failure
	require.ErrorAs(t, err, &f)
	require.Equal(t, tool.CodeUnreachable, f.Code)
	require.True(t, f.NotSent)
}

// A name that is trusted only by a wildcard must not lead to this machine.
func TestHTTPGetChecksTheAddress(t *testing.T) {
	s := newSite(t)
	port := s.host()[strings.LastIndex(s.host(), ":"):]
	g := getter(t, "*.localhost"+port, "localhost"+port)
	got, err := get(t.Context(), g, "http://localhost"+port+"/hello")
	require.NoError(t, err)
	require.Equal(t, "hello", got)
	wild := g.(*httpGet)
	wild.hosts = hostList{{host: "host", port: port[1:], trust: trustPublic}}
	wild.hosts[0].host = "localhost"
	_, err = wild.dial(t.Context(), "tcp", "localhost"+port)
	require.ErrorContains(t, err, "not public")
}

func TestMayDial(t *testing.T) {
	for address, least := range map[string]trust{
		"93.184.216.34": trustPublic, "2606:4700::1111": trustPublic,
		"127.0.0.1": trustName, "10.1.2.3": trustName, "192.168.0.1": trustName, "172.16.0.1": trustName,
		"::1": trustName, "fd00::1": trustName, "100.64.0.1": trustName, "::ffff:127.0.0.1": trustName, "64:ff9b::7f00:1": trustName,
		"169.254.169.254": trustAddress, "fe80::1%eth0": trustAddress, "0.0.0.0": trustAddress, "::": trustAddress, "224.0.0.1": trustAddress,
	} {
		for given := trustNone; given <= trustAddress; given++ {
			require.Equal(t, given >= least, mayDial(given, netip.MustParseAddr(address)), "%s with %d", address, given)
		}
	}
}

func TestHostList(t *testing.T) {
	list, err := newHostList([]string{"Example.ORG", "example.com:8080", "*.wild.test", "[::1]:99", "10.0.0.1"})
	require.NoError(t, err)
	for hostPort, want := range map[string]trust{
		"example.org 80": trustName, "EXAMPLE.org. 443": trustName, "example.org 8080": trustNone, "a.example.org 80": trustNone,
		"example.com 8080": trustName, "example.com 80": trustNone, "a.wild.test 443": trustPublic, "a.b.wild.test 80": trustPublic,
		"wild.test 80": trustNone, "notwild.test 80": trustNone, "::1 99": trustAddress, "0:0::1 99": trustAddress, "10.0.0.1 80": trustAddress,
	} {
		host, port, _ := strings.Cut(hostPort, " ")
		require.Equal(t, want, list.match(host, port), hostPort)
	}
	for _, bad := range []string{"", "*", "a/b", "http://example.org", "*.*.a", "a b", "*."} {
		_, err := newHostList([]string{bad})
		require.Error(t, err, bad)
	}
}

func TestHTTPGetTimeoutIsTheDefinitions(t *testing.T) {
	made, err := New(httpGetName, Options{Hosts: []string{"a"}, Timeout: 7 * time.Second})
	require.NoError(t, err)
	require.Equal(t, 7*time.Second, made.Definition().Timeout)
}

// sharedFolder has files inside, and one outside that must stay unread.
func sharedFolder(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	root := filepath.Join(dir, "root")
	require.NoError(t, os.MkdirAll(filepath.Join(root, "sub"), 0o700))
	for name, content := range map[string]string{
		"secret": "the secret", "root/a.txt": "hello, wörld\n", "root/sub/b.txt": "below",
		"root/empty": "", "root/binary": "\x7fELF\x00\x01", "root/long": strings.Repeat("ü", 1000),
	} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600))
	}
	require.NoError(t, os.Symlink("../secret", filepath.Join(root, "link")))
	require.NoError(t, os.Symlink(filepath.Join(dir, "secret"), filepath.Join(root, "absolute")))
	require.NoError(t, os.Symlink("..", filepath.Join(root, "up")))
	require.NoError(t, os.Symlink("a.txt", filepath.Join(root, "inside")))
	require.NoError(t, syscall.Mkfifo(filepath.Join(root, "pipe"), 0o600))
	return root
}

func readFileTool(t *testing.T, max int64) tool.Tool {
	t.Helper()
	made, err := New(readFileName, Options{Root: sharedFolder(t), MaxBytes: max})
	require.NoError(t, err)
	return made
}

func readArgs(t *testing.T, args map[string]any) tool.Call {
	t.Helper()
	raw, err := json.Marshal(args)
	require.NoError(t, err)
	return tool.Call{Name: readFileName, Arguments: string(raw)}
}

func TestReadFileSuite(t *testing.T) {
	tooltest.Suite{
		Success: func(t *testing.T) tooltest.Case {
			return tooltest.Case{Tool: readFileTool(t, 0), Arguments: `{"path":"a.txt"}`, Want: "hello, wörld\n"}
		},
		Failure: func(t *testing.T) tooltest.Case {
			return tooltest.Case{Tool: readFileTool(t, 0), Arguments: `{"path":"../secret"}`, Code: tool.CodeInvalidArguments, Want: "leads out"}
		},
	}.Run(t)
}

func TestReadFileReads(t *testing.T) {
	r := readFileTool(t, 0)
	for path, want := range map[string]string{
		"sub/b.txt": "below", "./sub/../a.txt": "hello, wörld\n", "inside": "hello, wörld\n", "empty": "",
	} {
		got, err := r.Run(t.Context(), readArgs(t, map[string]any{"path": path}))
		require.NoError(t, err, path)
		require.Equal(t, want, got)
	}
	got, err := r.Run(t.Context(), readArgs(t, map[string]any{"path": "a.txt", "offset": 7, "limit": 100}))
	require.NoError(t, err)
	require.Equal(t, "wörld\n", got)
}

func TestReadFileInParts(t *testing.T) {
	r := readFileTool(t, 301)
	got, err := r.Run(t.Context(), readArgs(t, map[string]any{"path": "long"}))
	require.NoError(t, err)
	require.Equal(t, strings.Repeat("ü", 150)+"\n[moorebus: output cut at 300 bytes of 2000; go on with offset 300]", got)
	got, err = r.Run(t.Context(), readArgs(t, map[string]any{"path": "long", "offset": 1900}))
	require.NoError(t, err)
	require.Equal(t, strings.Repeat("ü", 50), got)
	got, err = r.Run(t.Context(), readArgs(t, map[string]any{"path": "long", "offset": 2000}))
	require.NoError(t, err)
	require.Empty(t, got)
}

func TestReadFileRefuses(t *testing.T) {
	r := readFileTool(t, 0)
	for name, c := range map[string]struct {
		args map[string]any
		want string
	}{
		"parent":         {map[string]any{"path": "../secret"}, "leads out"},
		"hidden parent":  {map[string]any{"path": "sub/../../secret"}, "leads out"},
		"absolute":       {map[string]any{"path": "/etc/passwd"}, "absolute path"},
		"link":           {map[string]any{"path": "link"}, "escapes"},
		"absolute link":  {map[string]any{"path": "absolute"}, "escapes"},
		"linked folder":  {map[string]any{"path": "up/secret"}, "escapes"},
		"missing":        {map[string]any{"path": "none"}, `no file "none"`},
		"no path":        {map[string]any{}, "path is missing"},
		"folder":         {map[string]any{"path": "sub"}, "not a regular file"},
		"pipe":           {map[string]any{"path": "pipe"}, "not a regular file"},
		"binary":         {map[string]any{"path": "binary"}, "not a text file"},
		"offset":         {map[string]any{"path": "a.txt", "offset": 99}, "beyond the end"},
		"minus offset":   {map[string]any{"path": "a.txt", "offset": -1}, "negative"},
		"limit":          {map[string]any{"path": "a.txt", "limit": 0}, "at least 1"},
		"NUL in path":    {map[string]any{"path": "a\x00b"}, "cannot be read"},
		"unknown key":    {map[string]any{"path": "a.txt", "mode": "w"}, "mode"},
		"not an integer": {map[string]any{"path": "a.txt", "offset": 1.5}, "offset"},
	} {
		got, err := r.Run(t.Context(), readArgs(t, c.args))
		require.ErrorContains(t, err, c.want, name)
		require.NotContains(t, err.Error(), os.TempDir()+"/", name)
		require.Empty(t, got)
		var f *tool.Failure
		require.ErrorAs(t, err, &f, name)
	}
}
