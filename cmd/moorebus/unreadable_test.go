package main

import (
	"bufio"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/natsbus"
	"github.com/moorebus/moorebus/internal/reducertest"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/pkg/embedded"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// dev says which runs builds of another release wrote, and upgrade --check asks the process that
// serves the directory.
func TestDevNamesUnreadableRuns(t *testing.T) {
	if testing.Short() {
		t.Skip("-short") // reason: it starts processes
	}
	home := t.TempDir()
	data := filepath.Join(home, "data")
	id := strangeRun(t, data)
	dev := aside(t, home, "dev", "--data", data, "--listen", "127.0.0.1:0")
	stderr, err := dev.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, dev.Start())
	lines := bufio.NewScanner(stderr)
	said := until(lines, "which this build does not know")
	require.Contains(t, said, "1 runs that have not ended, such as "+id)
	require.Contains(t, until(lines, "keep roles of that build running"), "keep roles of that build running")
	out, err := aside(t, home, "upgrade", "--check", "--data", data).CombinedOutput()
	require.Error(t, err)
	require.Contains(t, string(out), id)
	out, err = aside(t, home, "init", "--check", "--data", data).CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.NoError(t, dev.Process.Signal(os.Interrupt))
	until(lines, "")
	require.NoError(t, dev.Wait())
}

// strangeRun makes a data directory with a run of a table that no build knows.
func strangeRun(t *testing.T, data string) (id string) {
	t.Helper()
	server, err := embedded.Start(context.Background(), embedded.Options{Dir: data, Logger: quiet})
	require.NoError(t, err)
	defer server.Shutdown()
	conn, err := server.Connect()
	require.NoError(t, err)
	defer conn.Close()
	require.NoError(t, natsbus.Init(t.Context(), conn, natsbus.InitOptions{}))
	bus, err := natsbus.Open(t.Context(), conn, natsbus.Options{Logger: quiet})
	require.NoError(t, err)
	store := runlog.New(runlog.Options{Log: bus})
	p := reducertest.StartOf("do it", events.ModeTask)
	p.TableHash = reducer.DefaultTable().Pins(p)
	run := store.Place("default", store.NewID())
	subject, e, err := store.Machine().Draft(store.Machine().Initial(run.ID), run, events.Idle, p, reducer.Stamp{ID: store.NewID(), Source: "moorebus/gateway/later", Time: store.Now()})
	require.NoError(t, err)
	body, err := store.Machine().Codec().Encode(e)
	require.NoError(t, err)
	_, err = conn.Request(subject.String(), []byte(strings.Replace(string(body), p.TableHash, strings.Repeat("ab", 32), 1)), time.Minute)
	require.NoError(t, err)
	return run.ID
}
