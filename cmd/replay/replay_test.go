package main

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/moorebus/moorebus/internal/cli"
	"github.com/moorebus/moorebus/internal/filelog"
	"github.com/moorebus/moorebus/internal/natsbus"
	"github.com/moorebus/moorebus/internal/replaycmd"
	"github.com/moorebus/moorebus/pkg/embedded"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

// checked is testing.M with a look for goroutines that were left behind.
type checked struct{ *testing.M }

func (c checked) Run() int {
	code := c.M.Run()
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

func TestMain(m *testing.M) {
	testscript.Main(checked{m}, map[string]func(){"replay": main})
}

var quiet = slog.New(slog.DiscardHandler)

// server is a server on a data directory, with the log set up.
func server(ctx context.Context, dir, listen string) (*embedded.Server, *natsbus.Bus, func(), error) {
	srv, err := embedded.Start(ctx, embedded.Options{Dir: dir, Listen: listen, Token: "secret", Logger: quiet})
	if err != nil {
		return nil, nil, nil, err
	}
	conn, err := srv.Connect()
	if err != nil {
		srv.Shutdown()
		return nil, nil, nil, err
	}
	stop := func() {
		conn.Close()
		srv.Shutdown()
	}
	if err = natsbus.Init(ctx, conn, natsbus.InitOptions{Shards: 2}); err == nil {
		var bus *natsbus.Bus
		if bus, err = natsbus.Open(ctx, conn, natsbus.Options{Logger: quiet}); err == nil {
			return srv, bus, stop, nil
		}
	}
	stop()
	return nil, nil, nil, err
}

// load appends the runs of a file to a bus, which may have other shards.
func load(ctx context.Context, bus *natsbus.Bus, path string) error {
	f, err := filelog.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	for _, run := range f.Runs() {
		var last uint64
		for rec, err := range f.Read(ctx, run, 0) {
			if err != nil {
				return err
			}
			s, err := events.ParseSubject(rec.Subject)
			if err != nil {
				return err
			}
			s.Run = events.NewRun(run.Namespace, run.ID, bus.Shards())
			if last, err = bus.Append(ctx, s.Run, last, journal.Entry{Subject: s, Body: rec.Body}); err != nil {
				return err
			}
		}
	}
	return nil
}

// cmdData makes a data directory with the runs of files: data DIR FILE…
func cmdData(ts *testscript.TestScript, _ bool, args []string) {
	_, bus, stop, err := server(context.Background(), ts.MkAbs(args[0]), "")
	ts.Check(err)
	defer stop()
	for _, name := range args[1:] {
		ts.Check(load(context.Background(), bus, filepath.Join(ts.Getenv("CORPUS"), name+".jsonl")))
	}
}

// cmdServe serves a data directory until the script ends, as `moorebus dev` does.
func cmdServe(ts *testscript.TestScript, _ bool, args []string) {
	_, _, stop, err := server(context.Background(), ts.MkAbs(args[0]), "127.0.0.1:0")
	ts.Check(err)
	ts.Defer(stop)
}

// cmdExits runs a command and holds it to its exit code: exits CODE replay …
func cmdExits(ts *testscript.TestScript, _ bool, args []string) {
	err := ts.Exec(args[1], args[2:]...)
	got := "0"
	if err != nil {
		got = strings.TrimPrefix(err.Error(), "exit status ")
	}
	if got != args[0] {
		ts.Fatalf("exit code %s, want %s", got, args[0])
	}
}

func TestScripts(t *testing.T) {
	corpus, err := filepath.Abs("../../testdata/runs")
	require.NoError(t, err)
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script",
		Setup: func(e *testscript.Env) error {
			e.Setenv("CORPUS", corpus)
			e.Setenv("HOME", e.WorkDir)
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"data": cmdData, "serve": cmdServe, "exits": cmdExits,
		},
		RequireExplicitExec: true,
	})
}

// output is written by the command and read by the test.
type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *output) lines() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return strings.Count(o.b.String(), "\n")
}

// TestFollowLive follows a run over a bus while it grows, until it ends.
func TestFollowLive(t *testing.T) {
	srv, bus, stop, err := server(t.Context(), t.TempDir(), "127.0.0.1:0")
	require.NoError(t, err)
	defer stop()
	f, err := filelog.Open("../../testdata/runs/task_single_calls.jsonl")
	require.NoError(t, err)
	defer func() { require.NoError(t, f.Close()) }()
	run := events.NewRun("default", f.Runs()[0].ID, bus.Shards())

	var out output
	done := make(chan error, 1)
	go func() {
		root := replaycmd.New(func(key string) string {
			return map[string]string{"NATS_URL": srv.ClientURL(), "NATS_TOKEN": "secret"}[key]
		})
		root.SetArgs([]string{run.ID, "--follow"})
		root.SetOut(&out)
		done <- cli.Execute(t.Context(), root)
	}()
	var last uint64
	n := 0
	for rec, err := range f.Read(t.Context(), f.Runs()[0], 0) {
		require.NoError(t, err)
		s, err := events.ParseSubject(rec.Subject)
		require.NoError(t, err)
		s.Run = run
		last, err = bus.Append(t.Context(), run, last, journal.Entry{Subject: s, Body: rec.Body})
		require.NoError(t, err)
		n++
		require.Eventually(t, func() bool { return out.lines() == n }, time.Minute, time.Millisecond)
	}
	require.NoError(t, <-done)
	require.Contains(t, out.b.String(), "planning → done")
}
