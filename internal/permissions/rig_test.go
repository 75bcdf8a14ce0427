package permissions

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/moorebus/moorebus/internal/commandtest"
	"github.com/moorebus/moorebus/internal/feature/storage/entrystore"
	"github.com/moorebus/moorebus/internal/freeport"
	"github.com/moorebus/moorebus/internal/kv"
	"github.com/moorebus/moorebus/internal/natsbus"
	"github.com/moorebus/moorebus/internal/natsconn"
	"github.com/moorebus/moorebus/pkg/events"
)

func TestMain(m *testing.M) {
	commandtest.FilesInMemory()
	// Most of these tests wait for a server or a clock and need no processor.
	if err := flag.Set("test.parallel", "8"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

const patience = time.Minute

var (
	quiet  = slog.New(slog.DiscardHandler)
	layout = Layout{
		Pools:    []string{"web", "gpu", events.AgentsPool},
		Storage:  []entrystore.Owner{{Namespace: "default", Agent: "keeper"}},
		Services: []Service{{"text", []string{"text.>"}}, {"echo", []string{"echo", "say.*"}}},
	}
)

// rig is a server with the generated configuration, set up by its operator.
type rig struct {
	url, keys string
	operator  *nats.Conn
	log       *natsbus.Bus
}

// newRig runs a server on the generated configuration with nkeys.
func newRig(t *testing.T) *rig {
	t.Helper()
	return newRigOf(t, layout, 1)
}

// newRigOf runs one server, or a cluster on which everything is replicated.
func newRigOf(t *testing.T, layout Layout, servers int) *rig {
	t.Helper()
	dir := t.TempDir()
	r := &rig{keys: filepath.Join(dir, "keys")}
	keys, err := Keys(r.keys, layout)
	require.NoError(t, err)
	c, err := New(layout, keys)
	require.NoError(t, err)
	if servers == 1 {
		r.url = serve(t, dir, c)
	} else {
		r.url = serveCluster(t, dir, c, servers)
	}
	r.operator = r.connect(t, Operator, nil)
	o := natsbus.InitOptions{Pools: layout.Pools, Buckets: storageOf(layout), Memory: true, Replicas: servers}
	wait := time.Second // who asks before there is a leader is not answered
	require.Eventually(t, func() bool {
		wait *= 2
		ctx, cancel := context.WithTimeout(t.Context(), wait)
		defer cancel()
		return natsbus.Init(ctx, r.operator, o) == nil
	}, 3*patience, 10*time.Millisecond)
	r.log, err = natsbus.Open(t.Context(), r.operator, natsbus.Options{Logger: quiet})
	require.NoError(t, err)
	return r
}

// serve runs a server that includes the configuration, and returns its URL.
func serve(t *testing.T, dir string, c *Config) string {
	t.Helper()
	srv := start(t, dir, c, "")
	require.True(t, srv.ReadyForConnections(patience))
	return srv.ClientURL()
}

// serveCluster is serve for several servers that replicate.
func serveCluster(t *testing.T, dir string, c *Config, n int) string {
	t.Helper()
	routes, err := freeport.Addresses(n)
	require.NoError(t, err)
	var urls []string
	var servers []*server.Server
	for i, at := range routes {
		cluster := fmt.Sprintf("server_name: n%d\ncluster { name: c, listen: %q, routes: [nats://%s] }\n", i, at, strings.Join(routes, ", nats://"))
		home := filepath.Join(dir, fmt.Sprint("n", i))
		require.NoError(t, os.Mkdir(home, 0o700))
		servers = append(servers, start(t, home, c, cluster))
	}
	for _, srv := range servers {
		require.True(t, srv.ReadyForConnections(patience))
		urls = append(urls, srv.ClientURL())
	}
	return strings.Join(urls, ",")
}

// start starts a server with its home in a directory.
func start(t *testing.T, dir string, c *Config, more string) *server.Server {
	t.Helper()
	srv, err := server.NewServer(options(t, dir, c, more))
	require.NoError(t, err)
	srv.Start()
	t.Cleanup(func() { srv.Shutdown(); srv.WaitForShutdown() })
	return srv
}

// options reads the configuration as a server does.
func options(t *testing.T, dir string, c *Config, more string) *server.Options {
	t.Helper()
	var text strings.Builder
	require.NoError(t, c.WriteConf(&text))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "permissions.conf"), []byte(text.String()), 0o600))
	main := "listen: 127.0.0.1:-1\njetstream { store_dir: " + dir + " }\ninclude ./permissions.conf\n" + more
	file := filepath.Join(dir, "server.conf")
	require.NoError(t, os.WriteFile(file, []byte(main), 0o600))
	opts, err := server.ProcessConfigFile(file)
	require.NoError(t, err)
	opts.NoSigs, opts.NoLog = true, true
	return opts
}

// connect connects as a user. refused gets what the server refuses; nil: the bus gets it.
func (r *rig) connect(t *testing.T, user string, refused *refusals) *nats.Conn {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	conn, err := natsconn.Connect(ctx, natsconn.ConnectOptions{
		URL: r.url, NKey: KeyFile(r.keys, user), InboxPrefix: "_INBOX_" + user, Name: user, Logger: quiet,
	})
	require.NoError(t, err)
	t.Cleanup(conn.Close)
	if refused != nil {
		conn.SetErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { refused.add(err) })
	}
	return conn
}

func (r *rig) open(t *testing.T, user string) *natsbus.Bus {
	t.Helper()
	bus, err := natsbus.Open(t.Context(), r.connect(t, user, nil), natsbus.Options{Logger: quiet, RequestTimeout: patience})
	require.NoError(t, err)
	return bus
}

// roles are the names of the users without those of services, which may not use the log.
func roles(users []User) []string {
	return slices.DeleteFunc(names(users), func(name string) bool { return strings.HasPrefix(name, ServicePrefix) })
}

// refusals are the subjects that the server refused, in the words of its errors.
type refusals struct {
	mu       sync.Mutex
	subjects map[string]bool
	other    []error
}

func (r *refusals) add(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.subjects == nil {
		r.subjects = map[string]bool{}
	}
	_, rest, quoted := strings.Cut(err.Error(), `"`)
	if subject, _, ok := strings.Cut(rest, `"`); quoted && ok {
		r.subjects[subject] = true
		return
	}
	r.other = append(r.other, err)
}

func (r *refusals) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.subjects)
}

func (r *refusals) has(subject string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.subjects[subject]
}

// storageOf returns the buckets of the agents of a layout.
func storageOf(l Layout) (all []kv.Bucket) {
	for _, of := range l.Storage {
		all = append(all, entrystore.Buckets(of)...)
	}
	return all
}
