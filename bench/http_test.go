package main

import (
	"net/http"
	"net/http/httptest"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Real processes, as a user starts them: `moorebus dev` with a scripted model and with an
// endpoint, and a server with a process for each role.
func TestHTTP(t *testing.T) {
	measures(t)
	for flags, cases := range map[string][]string{
		"dev":   {"dev, fsync default, scripted", "dev, fsync default, openai"},
		"split": {"split, fsync default, scripted", "split, fsync default, openai"},
	} {
		t.Run(flags, func(t *testing.T) {
			t.Parallel()
			found := values(t, run(t, "http", "--layout", flags, "--fsync", "default", "--bin", testBin, "--runs", "5", "--warm-up", "2", "--rounds", "2"))
			for _, at := range cases {
				require.Positive(t, found[at+": runs"].Value)
				require.Positive(t, found[at+": runs"].Share)
				require.Positive(t, found[at+": CPU per run"].Value)
				require.GreaterOrEqual(t, found[at+": a run, p99"].Value, found[at+": a run, median"].Value)
			}
		})
	}
}

// A stream that is cut is resumed behind its last event, and a run whose end comes twice
// is an error.
func TestEndsAreReadOnceAcrossCuts(t *testing.T) {
	t.Parallel()
	var asked []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.Header.Get("Last-Event-ID"))
		n := min(len(asked), 3)
		_, _ = w.Write([]byte(": moorebus\n\nevent: LlmFinalAnswer\nid: 0:" + strconv.Itoa(n) + "\ndata: {\"subject\":\"run-" + strconv.Itoa(n) + "\"}\n\nid: 0:9\ndata: {\"sub"))
	}))
	defer server.Close()
	ends := &runEnds{stream: endStream{client: server.Client(), url: server.URL}, at: map[string]time.Time{}, waits: map[string]chan<- time.Time{}}
	require.NoError(t, ends.stream.connect(t.Context()))
	late := ends.of("run-2")
	ends.read(t.Context())
	require.Equal(t, []string{"", "0:1", "0:2", "0:3"}, asked)
	require.ErrorContains(t, ends.failed(), "twice that run run-3 ended")
	<-late
	<-ends.of("run-1")
}

func TestFlushesAreNotMeasuredInMemory(t *testing.T) {
	if !inMemory("/dev/shm") {
		t.Skip("reason: /dev/shm is no file system in memory here")
	}
	t.Setenv("TMPDIR", "/dev/shm")
	allowed := tmpfsAllowed
	defer func() { tmpfsAllowed = allowed }()
	tmpfsAllowed = false
	_, err := dataDir(true)
	require.ErrorContains(t, err, "set TMPDIR to a directory on a disk")
	tmpfsAllowed = true
	for _, durable := range []bool{true, false} {
		dir, err := dataDir(durable)
		require.NoError(t, err)
		require.DirExists(t, dir)
	}
}
