package setup

import (
	"bytes"
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/moorebus/moorebus/internal/cli"
	"github.com/moorebus/moorebus/internal/natsbus"
	"github.com/moorebus/moorebus/pkg/embedded"
	natsserver "github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var quiet = slog.New(slog.DiscardHandler)

func setUp(t *testing.T, conn *nats.Conn, s Bus) string {
	t.Helper()
	var b bytes.Buffer
	require.NoError(t, s.Check())
	require.NoError(t, s.Run(context.Background(), conn, &b))
	return b.String()
}

func TestSetupIsChecked(t *testing.T) {
	for _, s := range []Bus{
		{Init: natsbus.InitOptions{Shards: -1}}, {Init: natsbus.InitOptions{Replicas: -1}}, {Init: natsbus.InitOptions{MaxAckPending: -1}},
		{Init: natsbus.InitOptions{AckWait: -1}}, {Init: natsbus.InitOptions{PoolMaxAckPending: map[string]int{"gpu": 0}}},
		{Init: natsbus.InitOptions{PoolMaxAckPending: map[string]int{"g p": 1}}}, {Init: natsbus.InitOptions{Pools: []string{"a b"}}},
	} {
		var exit *cli.ExitError
		require.ErrorAs(t, s.Check(), &exit)
		require.Equal(t, cli.ExitUsage, exit.Code)
	}
}

func TestSetupWithoutJetStream(t *testing.T) {
	previous := slog.Default()
	slog.SetDefault(quiet)
	t.Cleanup(func() { slog.SetDefault(previous) })
	s, err := natsserver.NewServer(&natsserver.Options{DontListen: true, NoSigs: true, NoLog: true})
	require.NoError(t, err)
	s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	conn, err := nats.Connect("", nats.InProcessServer(s))
	require.NoError(t, err)
	t.Cleanup(conn.Close)
	err = (&Bus{}).Run(context.Background(), conn, &bytes.Buffer{})
	require.ErrorContains(t, err, "-js")
	require.True(t, cli.BusAway(err), "to try again later may help: %v", err)

	ctx, stop := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer stop()
	err = (&Bus{Wait: true}).Run(ctx, conn, &bytes.Buffer{})
	require.ErrorIs(t, err, context.DeadlineExceeded, "it waits as long as it may")
}

func TestSetupOfStorage(t *testing.T) {
	server, err := embedded.Start(t.Context(), embedded.Options{Dir: t.TempDir(), Logger: quiet})
	require.NoError(t, err)
	t.Cleanup(server.Shutdown)
	conn, err := server.Connect()
	require.NoError(t, err)
	t.Cleanup(conn.Close)
	said := setUp(t, conn, Bus{Storage: []string{"default/keeper"}})
	require.Contains(t, said, "storage of default/keeper is there\n")
	require.Contains(t, said, "stream MOORE_0 has no limit and may fill the disk")
	js, err := conn.JetStream()
	require.NoError(t, err)
	for _, bucket := range []string{"storage_default_A_keeper", "paged_default_A_keeper"} {
		_, err := js.KeyValue(bucket)
		require.NoError(t, err)
	}
	for _, bad := range []string{"keeper", "default/", "a/b/c", "Default/a"} {
		require.ErrorContains(t, (&Bus{Storage: []string{bad}}).Check(), "--storage: ")
		p := &Permissions{Format: FormatConf, Storage: []string{bad}}
		require.ErrorContains(t, p.Write(&bytes.Buffer{}), "--storage: ")
	}
	var conf bytes.Buffer
	require.NoError(t, (&Permissions{Format: FormatConf, Storage: []string{"default/keeper"}}).Write(&conf))
	require.Contains(t, conf.String(), "moorebus init --print-permissions --storage default/keeper\n")
	require.Contains(t, conf.String(), `"$KV.paged_default_A_keeper.>"`)
}
