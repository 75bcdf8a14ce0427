package powerloss

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/moorebus/moorebus/internal/commandtest"
	"github.com/stretchr/testify/require"
)

// TestMain makes this program the load that the proof runs under strace.
func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == LoadCommand {
		if err := Load(context.Background(), os.Args[2]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// prove loses the power a few times.
func prove(t *testing.T, o Options) *Report {
	t.Helper()
	if testing.Short() {
		t.Skip("-short") // reason: it takes seconds, and only whole processes show it
	}
	bin, err := commandtest.Build("cmd", "./cmd/...")
	require.NoError(t, err)
	help, err := exec.Command(filepath.Join(bin, "moorebus"), "dev", "--help").Output()
	require.NoError(t, err)
	if !regexp.MustCompile(`--fsync .*\b` + o.Fsync + `\b`).Match(help) {
		t.Skip("reason: this build has no --fsync=" + o.Fsync)
	}
	o.Bin, o.Dir, o.Seed, o.Images, o.Runs, o.Lives, o.Workers = bin, t.TempDir(), 1, 20, 20, 2, 4
	r, err := Run(t.Context(), o)
	switch {
	case errors.Is(err, ErrNoTrace):
		t.Skip("reason: " + err.Error())
	case err != nil && strings.Contains(err.Error(), "use --fsync=always"):
		t.Skip("reason: this file system has no synchronous files: " + err.Error())
	}
	require.NoError(t, err)
	require.Equal(t, o.Images, r.Images)
	require.Greater(t, r.Seen, 1000, "the images hardly have to hold anything")
	require.Positive(t, r.Dropped, "the power losses took nothing")
	return r
}

// A server that flushes in groups loses nothing, on any file system that POSIX allows.
func TestGroupFlushLosesNothing(t *testing.T) {
	t.Parallel()
	r := prove(t, Options{Fsync: "group", Entries: EntriesStrict, GoOn: 20})
	require.Empty(t, r.Failures)
	require.Equal(t, 1, r.GoneOn)
}

// A server that flushes each event loses nothing where a file's flush takes its name
// along: nats-server flushes no directory after it has made a stream or a block in it.
func TestSyncAlwaysLosesNothing(t *testing.T) {
	t.Parallel()
	r := prove(t, Options{Fsync: "always", Entries: EntriesFile, GoOn: 20})
	require.Empty(t, r.Failures)
	require.Equal(t, 1, r.GoneOn)
}

// The proof can fail: a server that does not flush loses acknowledged events.
func TestRelaxedLosesEvents(t *testing.T) {
	t.Parallel()
	// On some of its images a command hangs, which is a failure like another one.
	r := prove(t, Options{Fsync: "relaxed", Entries: EntriesFile, Patience: 15 * time.Second})
	require.NotEmpty(t, r.Failures)
	kept := slices.IndexFunc(r.Failures, func(f Failure) bool { return f.Dir != "" })
	require.GreaterOrEqual(t, kept, 0)
	f := r.Failures[kept]
	require.DirExists(t, filepath.Join(f.Dir, "data"))
	require.NotEmpty(t, f.Dropped)
	require.True(t, slices.ContainsFunc(r.Failures, func(f Failure) bool {
		return strings.Contains(strings.Join(f.Problems, "\n"), "was acknowledged")
	}))
}

// What was seen has to be in the log: an event with its hash, and a call before its
// effect.
func TestLacks(t *testing.T) {
	t.Parallel()
	log := &imageLog{hashes: map[string][]string{}, called: map[string]bool{}, started: map[string]bool{}}
	first, second := []byte(`{"type":"LlmToolCall","subject":"r","n":1,"data":{"calls":[{"id":"a"},{"id":"b"}]}}`), []byte(`{"type":"ToolCallStarted","subject":"r","n":2,"data":{"call_id":"a"}}`)
	log.add(first)
	log.add(second)
	for _, m := range []mark{{Run: "r", N: 1}, {Run: "r", N: 2, Hash: hash(second)}, {Call: "r/a", Tool: toolOnce}, {Call: "r/b", Tool: toolIdempotent}, {Agent: "x"}} {
		require.Empty(t, log.lacks(m), m)
	}
	for says, m := range map[string]mark{
		"the log has 2 of the run":     {Run: "r", N: 3},
		"the log has 0 of the run":     {Run: "other", N: 1},
		"was acknowledged as":          {Run: "r", N: 1, Hash: hash(second)},
		"has no ToolCallStarted":       {Call: "r/b", Tool: toolOnce},
		"the log does not have the ca": {Call: "r/c", Tool: toolIdempotent},
	} {
		require.Contains(t, log.lacks(m), says)
	}
}
