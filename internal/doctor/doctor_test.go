package doctor

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/moorebus/moorebus/internal/announce"
	"github.com/moorebus/moorebus/internal/diskspace"
	"github.com/moorebus/moorebus/internal/feature/storage/entrystore"
	"github.com/moorebus/moorebus/internal/journaltest/simtest"
	"github.com/moorebus/moorebus/internal/natsbus"
	"github.com/moorebus/moorebus/internal/natsconn"
	"github.com/moorebus/moorebus/internal/print"
	"github.com/moorebus/moorebus/pkg/embedded"
	"github.com/moorebus/moorebus/pkg/events"
	natsserver "github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	quiet      = slog.New(slog.DiscardHandler)
	busOptions = natsbus.Options{Logger: quiet}
)

func server(t *testing.T, o embedded.Options) *embedded.Server {
	t.Helper()
	if o.Dir == "" {
		o.Dir = t.TempDir()
	}
	o.Logger = quiet
	s, err := embedded.Start(context.Background(), o)
	require.NoError(t, err)
	t.Cleanup(s.Shutdown)
	return s
}

func connect(t *testing.T, s *embedded.Server) *nats.Conn {
	t.Helper()
	conn, err := s.Connect()
	require.NoError(t, err)
	t.Cleanup(conn.Close)
	return conn
}

func checks(env map[string]string) *Checks {
	return &Checks{Getenv: func(name string) string { return env[name] }, Bus: busOptions}
}

func written(t *testing.T, r *Report) string {
	t.Helper()
	var b bytes.Buffer
	require.NoError(t, r.Write(&b, print.Text, false))
	return b.String()
}

func TestKeys(t *testing.T) {
	const key = "sk-very-secret"
	provider := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Method != http.MethodGet || r.URL.Path != "/v1/models":
			w.WriteHeader(http.StatusNotFound)
		case r.Header.Get("Authorization") != "Bearer "+key:
			w.WriteHeader(http.StatusUnauthorized)
			_, _ = w.Write([]byte(r.Header.Get("Authorization")))
		default:
			_, _ = w.Write([]byte(`{"data":[]}`))
		}
	}))
	defer provider.Close()
	lmStudio := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/models" {
			_, _ = w.Write([]byte(`{"data":[]}`))
			return
		}
		_, _ = w.Write([]byte(`{"error":"Unexpected endpoint or method. (GET /models)"}`))
	}))
	defer lmStudio.Close()
	away := httptest.NewServer(http.NotFoundHandler())
	away.Close()
	for _, c := range []struct {
		name, key, base string
		level           natsbus.Level
		what, mend      string
	}{
		{"nothing", "", "", natsbus.Warning, "none of OPENAI_API_KEY, OPENAI_BASE_URL", "OPENAI_BASE_URL=http://localhost:11434/v1"},
		{"good", key, provider.URL + "/v1/", natsbus.Good, "OPENAI_API_KEY is accepted", ""},
		{"refused", key + "x", provider.URL + "/v1", natsbus.Bad, "the key is refused", "to a valid key"},
		{"no key", "", provider.URL + "/v1", natsbus.Bad, "none is set", "set OPENAI_API_KEY"},
		{"no version", key, provider.URL, natsbus.Bad, "does not list models there, but below /v1", "set OPENAI_BASE_URL=" + provider.URL + "/v1"},
		{"wrong path", key, provider.URL + "/v2/v1", natsbus.Warning, "does not list models", "/v1"},
		{"the endpoint", key, provider.URL + "/v1/chat/completions", natsbus.Good, "OPENAI_API_KEY is accepted", ""},
		{"200 for any path", key, lmStudio.URL, natsbus.Bad, "does not list models there, but below /v1", "set OPENAI_BASE_URL=" + lmStudio.URL + "/v1"},
		{"a query", key, provider.URL + "/v1?key=" + key, natsbus.Bad, "not an http or https address", ""},
		{"away", key, away.URL + "/v1", natsbus.Bad, "connection refused", "start the server"},
		{"no address", key, "localhost:11434", natsbus.Bad, "not an http or https address", "http://localhost:11434/v1"},
		{"password in it", key, strings.Replace(away.URL, "http://", "http://ann:"+key+"@", 1), natsbus.Bad, "ann:xxxxx@", ""},
		{"a key that is none", key + "\n", provider.URL + "/v1", natsbus.Bad, "invalid header", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			var r Report
			checks(map[string]string{"OPENAI_API_KEY": c.key, "OPENAI_BASE_URL": c.base}).Keys(context.Background(), &r)
			require.Len(t, r.Findings, 1)
			got := r.Findings[0]
			require.Equal(t, c.level, got.Level, got.What)
			require.Contains(t, got.What, c.what)
			require.Contains(t, got.Mend, c.mend)
			require.NotContains(t, written(t, &r), key)
		})
	}
}

// Anthropic is asked in its own way, beside OpenAI where both are named.
func TestAnthropicKeys(t *testing.T) {
	const key = "sk-ant-0123456789"
	provider := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path != "/v1/models":
			w.WriteHeader(http.StatusNotFound)
		case r.Header.Get("X-Api-Key") != key || r.Header.Get("Anthropic-Version") == "" || r.Header.Get("Authorization") != "":
			w.WriteHeader(http.StatusUnauthorized)
		default:
			_, _ = w.Write([]byte(`{"data":[]}`))
		}
	}))
	defer provider.Close()
	for name, c := range map[string]struct {
		key, base, what string
		level           natsbus.Level
	}{
		"good":       {key, provider.URL, "ANTHROPIC_API_KEY is accepted", natsbus.Good},
		"refused":    {key + "x", provider.URL, "the key is refused", natsbus.Bad},
		"wrong path": {key, provider.URL + "/v2", "does not list models", natsbus.Warning},
		"no address": {key, "localhost", "ANTHROPIC_BASE_URL is not an http or https address", natsbus.Bad},
	} {
		t.Run(name, func(t *testing.T) {
			var r Report
			checks(map[string]string{"ANTHROPIC_API_KEY": c.key, "ANTHROPIC_BASE_URL": c.base}).Keys(context.Background(), &r)
			require.Len(t, r.Findings, 1)
			require.Equal(t, c.level, r.Findings[0].Level, r.Findings[0].What)
			require.Contains(t, r.Findings[0].What, c.what)
			require.NotContains(t, written(t, &r), key)
		})
	}
	var both Report
	checks(map[string]string{"ANTHROPIC_API_KEY": key, "ANTHROPIC_BASE_URL": provider.URL, "OPENAI_BASE_URL": provider.URL + "/v1"}).Keys(context.Background(), &both)
	require.Len(t, both.Findings, 2)
}

// A provider that sends elsewhere does not get the key shown there.
func TestKeysAreNotSentOn(t *testing.T) {
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("asked elsewhere") }))
	defer elsewhere.Close()
	provider := httptest.NewServer(http.RedirectHandler(elsewhere.URL, http.StatusFound))
	defer provider.Close()
	var r Report
	checks(map[string]string{"OPENAI_API_KEY": "k", "OPENAI_BASE_URL": provider.URL}).Keys(context.Background(), &r)
	require.Equal(t, natsbus.Warning, r.Findings[0].Level)
	require.Contains(t, r.Findings[0].What, "status 302")
}

func TestDoctorOnNoDirectory(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "none", "yet")
	var r Report
	checks(nil).Embedded(context.Background(), dir, &r)
	text := written(t, &r)
	require.Zero(t, r.Bad, text)
	require.Zero(t, r.Warnings, text)
	require.Contains(t, text, "does not exist yet")
	require.Contains(t, text, "JetStream is on")
	require.Contains(t, text, "the log is on this machine", "a single server is no warning where it flushes")
	require.Contains(t, text, "all is well")
	_, err := os.Stat(dir)
	require.ErrorIs(t, err, os.ErrNotExist, "nothing was made")
}

func TestDoctorOnDirectories(t *testing.T) {
	dir := t.TempDir()
	s := server(t, embedded.Options{Dir: dir, Listen: "127.0.0.1:0", Token: "sesame"})
	conn := connect(t, s)
	require.NoError(t, natsbus.Init(context.Background(), conn, natsbus.InitOptions{}))
	bus, err := natsbus.Open(context.Background(), conn, natsbus.Options{Logger: quiet})
	require.NoError(t, err)
	entry := events.Entry{Tags: []string{"a"}, Value: "v"}
	require.NoError(t, entrystore.New(bus).Save(context.Background(), entrystore.Owner{Namespace: "default", Agent: "clerk"}, entrystore.Actor, entry))
	const storage = "storage of default/clerk"
	var served Report
	checks(nil).Embedded(context.Background(), dir, &served)
	text := written(t, &served)
	require.Contains(t, text, "is served by process")
	require.Contains(t, text, storage)
	require.Contains(t, text, "no actor announces tools")
	require.Contains(t, text, "no planner announces a model provider")
	require.Zero(t, served.Bad, text)
	require.NotContains(t, text, "sesame")
	require.NotContains(t, text, "the log lies on one server")
	require.NotContains(t, text, "every user of the server", "nobody else has the token")

	hidden := t.TempDir()
	server(t, embedded.Options{Dir: hidden})
	var held Report
	checks(nil).Embedded(context.Background(), hidden, &held)
	require.Contains(t, written(t, &held), "which does not listen")

	s.Shutdown()
	var free Report
	checks(nil).Embedded(context.Background(), dir, &free)
	require.Contains(t, written(t, &free), "is free")
	require.Contains(t, written(t, &free), storage)
	require.Zero(t, free.Bad)

	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	var wrong Report
	checks(nil).Embedded(context.Background(), file, &wrong)
	require.Positive(t, wrong.Bad, written(t, &wrong))
}

// A directory that nobody has set up is for the next run to set up.
func TestDoctorOnEmptyDirectory(t *testing.T) {
	var r Report
	checks(nil).Embedded(context.Background(), t.TempDir(), &r)
	require.Zero(t, r.Bad, written(t, &r))
	require.Contains(t, written(t, &r), "the next `moorebus run` or `moorebus dev` sets it up")
}

func TestDoctorOnBus(t *testing.T) {
	s := server(t, embedded.Options{Listen: "127.0.0.1:0"})
	at := natsconn.ConnectOptions{URL: s.ClientURL(), Logger: quiet}
	var bare Report
	checks(nil).Remote(context.Background(), at, &bare)
	require.Positive(t, bare.Bad)
	require.Contains(t, written(t, &bare), "moorebus init")

	conn := connect(t, s)
	require.NoError(t, natsbus.Init(context.Background(), conn, natsbus.InitOptions{Pools: []string{"default", "other"}}))
	bus, err := natsbus.Open(context.Background(), conn, busOptions)
	require.NoError(t, err)
	require.NoError(t, announce.NewDirectory(bus, nil).Announce(context.Background(), "default", "a1", []events.ToolSpec{{Name: "t", Pool: "default"}}))
	require.NoError(t, announce.NewDirectory(bus, nil).AnnounceProviders(context.Background(), "p1", []string{"scripted"}))
	var ready Report
	checks(nil).Remote(context.Background(), at, &ready)
	text := written(t, &ready)
	require.Zero(t, ready.Bad, text)
	require.Contains(t, text, "tools by pool: default 1")
	require.Contains(t, text, "model providers: scripted")
	require.Contains(t, text, "every user of the server may do everything")

	require.NoError(t, announce.NewDirectory(bus, nil).Announce(context.Background(), "default", "a2", []events.ToolSpec{{Name: "t", Pool: "default", Risk: "high"}}))
	var replaced Report
	checks(nil).Remote(context.Background(), at, &replaced)
	require.Zero(t, replaced.Bad)
	require.Contains(t, written(t, &replaced), "actors of the pool default announce the tool t differently")
	require.NoError(t, announce.NewDirectory(bus, nil).Announce(context.Background(), "other", "a3", []events.ToolSpec{{Name: "t", Pool: "other"}}))
	var twice Report
	checks(nil).Remote(context.Background(), at, &twice)
	require.Positive(t, twice.Bad)
	require.Contains(t, written(t, &twice), "tool t is announced with different definitions (pools default and other)")

	var b bytes.Buffer
	require.NoError(t, ready.Write(&b, print.JSON, false))
	var doc struct {
		Findings []struct{ Area, Level, What string }
		Warnings int
	}
	require.NoError(t, json.Unmarshal(b.Bytes(), &doc))
	require.Len(t, doc.Findings, len(ready.Findings))
	require.Equal(t, AreaBus, doc.Findings[0].Area)
	require.Equal(t, "ok", doc.Findings[0].Level)
}

// One user for two roles, in the account of the log, is not what permissions are
// for; what it may not see is no fault.
func TestDoctorOnAUserOfTwoRoles(t *testing.T) {
	user := func(name string, edges ...string) *natsserver.User {
		return &natsserver.User{Username: name, Permissions: &natsserver.Permissions{
			Publish: &natsserver.SubjectPermission{Allow: append(edges, "$JS.API.STREAM.INFO.MOORE_0", "$SYS.REQ.USER.INFO")},
		}}
	}
	srv, err := natsserver.NewServer(&natsserver.Options{
		Host: "127.0.0.1", Port: natsserver.RANDOM_PORT, JetStream: true, StoreDir: t.TempDir(), NoSigs: true, NoLog: true,
		Users: []*natsserver.User{
			{Username: "operator"}, user("both", "moore.*.*.planning.>", "moore.*.*.acting.>"),
			user("observing", "moore.*.*.acting.>", "moore.*.*.observing.>"),
		},
	})
	require.NoError(t, err)
	srv.Start()
	t.Cleanup(func() { srv.Shutdown(); srv.WaitForShutdown() })
	at := natsconn.ConnectOptions{URL: srv.ClientURL(), User: "operator", Logger: quiet}
	operator, err := natsconn.Connect(t.Context(), at)
	require.NoError(t, err)
	defer operator.Close()
	require.NoError(t, natsbus.Init(t.Context(), operator, natsbus.InitOptions{Memory: true}))
	at.User = "both"
	var r Report
	checks(nil).Remote(t.Context(), at, &r)
	text := written(t, &r)
	require.Contains(t, text, "the events of several roles: actor, planner")
	require.Contains(t, text, "a reply subject of the log gets past them")
	require.Contains(t, text, "unseen   roles  which tools there are")
	require.Zero(t, r.Bad, text)
	require.Equal(t, 3, r.Warnings, text)

	at.User = "observing" // an actor with --observe
	var observing Report
	checks(nil).Remote(t.Context(), at, &observing)
	require.NotContains(t, written(t, &observing), "several roles")
	require.Equal(t, 2, observing.Warnings)
}

func TestDoctorOnNoBus(t *testing.T) {
	free, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, free.Close())
	var r Report
	checks(nil).Remote(context.Background(), natsconn.ConnectOptions{URL: "nats://ann:secret@" + free.Addr().String(), Logger: quiet}, &r)
	require.Equal(t, 1, r.Bad)
	require.NotContains(t, written(t, &r), "secret")
	require.Contains(t, written(t, &r), "1 bad, 0 to check")
}

func TestRolesThatDisagree(t *testing.T) {
	log := announce.NewDirectory(simtest.New(simtest.Options{}), nil)
	ctx := context.Background()
	require.NoError(t, log.Announce(ctx, "a", "1", []events.ToolSpec{{Name: "t", Pool: "a", Description: "one"}}))
	require.NoError(t, log.Announce(ctx, "b", "2", []events.ToolSpec{{Name: "t", Pool: "b", Description: "two"}}))
	found := Roles(ctx, log)
	require.Equal(t, natsbus.Bad, found[0].Level)
	require.Contains(t, found[0].What, "pools a and b")
}

func TestSpace(t *testing.T) {
	if _, _, known := diskspace.Free("."); known {
		require.Len(t, space(filepath.Join(t.TempDir(), "a", "b")), 1)
	}
}

// Listeners that other machines reach without credentials are said: the one that the
// environment names, and that of the process which serves the data directory.
func TestDoctorOnOpenListeners(t *testing.T) {
	dir := t.TempDir()
	for token, warned := range map[string]bool{"": true, "secret": false} {
		server, err := embedded.Start(t.Context(), embedded.Options{Dir: dir, Listen: "0.0.0.0:0", Token: token, Logger: busOptions.Logger})
		require.NoError(t, err)
		var r Report
		checks(nil).Embedded(t.Context(), dir, &r)
		server.Shutdown()
		require.Equal(t, warned, slices.ContainsFunc(r.Findings, func(f Found) bool {
			return f.Level == natsbus.Warning && strings.Contains(f.What, "other machines reach the NATS server")
		}), "token %q: %v", token, r.Findings)
	}
	for name, c := range map[string]struct {
		env map[string]string
		bad int
	}{
		"default":  {nil, 0},
		"loopback": {map[string]string{"MOOREBUS_LISTEN": "127.0.0.1:80"}, 0},
		"open":     {map[string]string{"MOOREBUS_LISTEN": ":80"}, 1},
		"token":    {map[string]string{"MOOREBUS_LISTEN": ":80", "MOOREBUS_TOKEN": "secret"}, 0},
		"none":     {map[string]string{"MOOREBUS_LISTEN": "here"}, 1},
	} {
		var r Report
		checks(c.env).Listener(&r)
		require.Equal(t, c.bad, r.Bad, name)
	}
}
