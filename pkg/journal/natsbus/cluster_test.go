package natsbus

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"testing"
	"time"

	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/journal/journaltest"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
)

// startCluster makes three servers that replicate; the ports of their routes are
// free when it returns.
func startCluster(t *testing.T) []*server.Server {
	t.Helper()
	var all []*server.Server
	var routes []*url.URL
	var ports []int
	for range 3 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		defer func() { require.NoError(t, l.Close()) }()
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
		routes = append(routes, &url.URL{Scheme: "nats", Host: l.Addr().String()})
	}
	for i, port := range ports {
		srv, err := server.NewServer(&server.Options{
			ServerName: fmt.Sprint("n", i), Host: "127.0.0.1", Port: server.RANDOM_PORT, NoSigs: true, NoLog: true,
			JetStream: true, StoreDir: t.TempDir(), Routes: routes,
			Cluster: server.ClusterOpts{Name: "c", Host: "127.0.0.1", Port: port},
		})
		require.NoError(t, err)
		t.Cleanup(func() { srv.Shutdown(); srv.WaitForShutdown() })
		all = append(all, srv)
	}
	return all
}

// TestCluster runs the log's part of the suite on three replicas, where lost
// races have another code and reads can lag.
func TestCluster(t *testing.T) {
	t.Parallel()
	servers := startCluster(t)
	for _, srv := range servers {
		srv.Start()
	}
	for _, srv := range servers {
		require.True(t, srv.ReadyForConnections(patience))
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	conn, err := nats.Connect(servers[2].ClientURL())
	require.NoError(t, err)
	defer conn.Close()
	require.Eventually(t, func() bool {
		short, cancel := context.WithTimeout(ctx, 2*time.Second)
		defer cancel()
		return Init(short, conn, InitOptions{Replicas: 3}) == nil
	}, time.Minute, 50*time.Millisecond)
	bus, err := Wait(ctx, conn, Options{Logger: quiet})
	require.NoError(t, err)
	journaltest.Log(t, func(*testing.T) journal.Log { return bus })
	journaltest.Follow(t, func(*testing.T) journal.Log { return bus })
	require.Contains(t, texts(Check(ctx, conn, Options{Logger: quiet}), Good), "on 3 servers")
}
