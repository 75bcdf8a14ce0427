package backup_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/commandtest"
	"github.com/moorebus/moorebus/internal/natsbus"
	"github.com/moorebus/moorebus/internal/natstest"
	"github.com/moorebus/moorebus/internal/transfer/transfertest"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

// A restore outlasts the loss of one of three servers in the middle, and a backup also begins
// while that server is away.
func TestOneServerOfThreeIsLost(t *testing.T) {
	if testing.Short() {
		t.Skip("-short") // reason: servers take seconds to elect leaders
	}
	bin, err := commandtest.Build("cmd", "./cmd/moorebus")
	require.NoError(t, err)
	program := filepath.Join(bin, "moorebus")
	one := newWorld(t, 1)
	var runs []events.Run
	for range 60 {
		run := one.Open()
		one.Append(run, events.Control, &events.CancelledRun{})
		runs = append(runs, run)
	}
	dir := filepath.Join(t.TempDir(), "backup")
	one.take(dir, false)

	servers := natstest.Cluster(t, func(int) natstest.Options { return natstest.Options{} })
	urls := strings.Join([]string{servers[0].URL, servers[1].URL, servers[2].URL}, ",")
	code, said := process(t, program, 0, "init", "--nats", urls, "--replicas", "3", "--wait")
	require.Zero(t, code, said)
	conn, err := nats.Connect(servers[1].URL + "," + servers[2].URL)
	require.NoError(t, err)
	defer conn.Close()
	bus, err := natsbus.Open(t.Context(), conn, natsbus.Options{Logger: quiet, RequestTimeout: transfertest.Patience})
	require.NoError(t, err)
	two := &transfertest.World{T: t, Conn: conn, Bus: bus, Store: one.Store}

	lost := make(chan struct{})
	go func() {
		defer close(lost)
		for range bus.Follow(t.Context(), 0, journal.Filter{}, 0) {
			break // the restore is at work
		}
		servers[0].Kill()
	}()
	code, said = process(t, program, 0, "restore", dir, "--nats", urls)
	<-lost
	require.Zero(t, code, said)
	for _, run := range runs {
		require.Equal(t, one.Bodies(run), two.Bodies(run))
	}
	code, said = process(t, program, 0, "backup", filepath.Join(t.TempDir(), "again"), "--nats", urls)
	require.Zero(t, code, said)
}
