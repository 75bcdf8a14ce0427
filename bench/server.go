package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/moorebus/moorebus/internal/compose/providerfile"
	"github.com/moorebus/moorebus/internal/compose/toolfile"
	"github.com/moorebus/moorebus/internal/host"
	"github.com/moorebus/moorebus/internal/natsbus"
	"github.com/moorebus/moorebus/pkg/embedded"
	"github.com/nats-io/nats.go"
)

// terms are the conditions under which both Moorebus and its floor are measured.
type terms struct {
	// syncAlways is a flush to the disk before each acknowledgement.
	syncAlways bool
	// tcp leads the connection through the loopback, not through the process.
	tcp bool
	// shards is the number of streams; 0: 1.
	shards int
	// slots is how many deliveries of one consumer are in work at once; 0: as the
	// roles have it by default.
	slots int
	// group is group commit.
	group bool
}

// String names what differs from case to case.
func (t terms) String() string {
	way := "in process"
	if t.tcp {
		way = "TCP"
	}
	return way + ", " + t.syncing()
}

func (t terms) syncing() string {
	if t.syncAlways {
		return "fsync always"
	}
	return "relaxed"
}

// defaultSlots is what roles have.
const defaultSlots = 64

func (t terms) withDefaults() terms {
	if t.shards == 0 {
		t.shards = 1
	}
	if t.slots == 0 {
		t.slots = defaultSlots
	}
	return t
}

// node is a server of its own on a fresh data directory, and a connection to it.
type node struct {
	dir    string
	server *embedded.Server
	conn   *nats.Conn
}

// startNode starts a server; close gives everything back. It always listens, so
// that the cases differ in nothing but the way that is taken.
func startNode(ctx context.Context, t terms) (n *node, err error) {
	dir, err := dataDir(t.syncAlways)
	if err != nil {
		return nil, err
	}
	n = &node{dir: dir}
	defer func() {
		if err != nil {
			n.close()
		}
	}()
	if n.server, err = embedded.Start(ctx, embedded.Options{Dir: dir, Listen: "127.0.0.1:0", SyncAlways: t.syncAlways}); err != nil {
		return n, err
	}
	n.conn, err = n.connect(t.tcp)
	return n, err
}

func (n *node) connect(tcp bool) (*nats.Conn, error) {
	if tcp {
		return nats.Connect(n.server.ClientURL(), nats.MaxReconnects(-1))
	}
	return n.server.Connect()
}

func (n *node) close() {
	if n.conn != nil {
		n.conn.Close()
	}
	if n.server != nil {
		n.server.Shutdown()
	}
	_ = os.RemoveAll(n.dir)
}

// installation is Moorebus on its own server: streams, bus, and all roles in
// this process.
type installation struct {
	*node
	bus  *natsbus.Bus
	host *host.Host
	end  func() error
}

// install sets an installation up whose roles do not run.
func install(ctx context.Context, t terms) (in *installation, err error) {
	t = t.withDefaults()
	n, err := startNode(ctx, t)
	if err != nil {
		return nil, err
	}
	in = &installation{node: n, end: func() error { return nil }}
	defer func() {
		if err != nil {
			n.close()
		}
	}()
	if in.bus, err = n.openBus(ctx, t, natsbus.InitOptions{}); err != nil {
		return nil, err
	}
	in.host, err = newHost(in.bus, t.slots)
	return in, err
}

// openBus makes the streams, and a bus on them.
func (n *node) openBus(ctx context.Context, t terms, o natsbus.InitOptions) (*natsbus.Bus, error) {
	o.Shards = t.withDefaults().shards
	if err := natsbus.Init(ctx, n.conn, o); err != nil {
		return nil, err
	}
	group := natsbus.GroupCommitOff
	if t.group {
		group = natsbus.GroupCommitOn
	}
	return natsbus.Open(ctx, n.conn, natsbus.Options{GroupCommit: group})
}

// startInstallation is install with the roles running.
func startInstallation(ctx context.Context, t terms) (*installation, error) {
	in, err := install(ctx, t)
	if err != nil {
		return nil, err
	}
	running, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- in.host.Run(running) }()
	in.end = func() error { stop(); return <-ended }
	if err := in.host.Announce(ctx); err != nil {
		return nil, errors.Join(err, in.close())
	}
	return in, nil
}

// close ends the roles and the server; it returns what the roles ended with.
func (in *installation) close() error {
	err := in.end()
	in.node.close()
	if err != nil {
		return fmt.Errorf("the roles: %w", err)
	}
	return nil
}

func newHost(bus *natsbus.Bus, slots int) (*host.Host, error) {
	registry, err := toolfile.Builtins()
	if err != nil {
		return nil, err
	}
	providers, err := providerfile.Providers("", func(string) string { return "" })
	if err != nil {
		return nil, err
	}
	return host.New(host.Options{Bus: bus, Providers: providers, Tools: registry, Concurrency: slots})
}
