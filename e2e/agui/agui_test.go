// Package agui tests AG-UI with the protocol's own client and schemas, against a real process.
package agui

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/commandtest"
	"github.com/moorebus/moorebus/internal/freeport"
	"github.com/moorebus/moorebus/internal/nodetest"
)

var bin string

func TestMain(m *testing.M) {
	flag.Parse()
	if !testing.Short() {
		var err error
		if bin, err = commandtest.Build("cmd", "./cmd/..."); err != nil {
			fmt.Fprintln(os.Stderr, "e2e/agui:", err)
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

const patience = 3 * time.Minute

// serve starts a server with the agents of a file, and returns its URL.
func serve(t *testing.T, file string) string {
	t.Helper()
	if testing.Short() {
		t.Skip("-short") // reason: it starts processes
	}
	addresses, err := freeport.Addresses(1)
	require.NoError(t, err)
	var log bytes.Buffer
	cmd := exec.Command(filepath.Join(bin, "moorebus"), "dev", "--agent", file, "--data", t.TempDir(), "--fsync", "relaxed", "--listen", addresses[0])
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir()}
	cmd.Stdout, cmd.Stderr = &log, &log
	done, err := commandtest.Start(cmd)
	require.NoError(t, err)
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it has no state to keep
		<-done
		if t.Failed() {
			t.Log(log.String())
		}
	})
	url := "http://" + addresses[0]
	require.Eventually(t, func() bool {
		response, err := http.Get(url + "/readyz")
		if err != nil {
			return false
		}
		require.NoError(t, response.Body.Close())
		return response.StatusCode == http.StatusOK
	}, patience, 50*time.Millisecond)
	return url
}

func node(t *testing.T, file string, arguments ...string) string {
	t.Helper()
	script, err := os.ReadFile(file)
	require.NoError(t, err)
	out, err := nodetest.Command(t, string(script), arguments...).CombinedOutput()
	require.NoError(t, err, string(out))
	return string(out)
}

// TestOracle: 50 threads with approvals, tools of the client, sub-agents, failures and
// cancellations, each joined after every event. The client and the schemas are the protocol's own.
func TestOracle(t *testing.T) {
	nodetest.Modules(t)
	out := node(t, "testdata/oracle.mjs", serve(t, "testdata/shop.yaml"), "50")
	var result struct{ Threads, Events int }
	require.NoError(t, json.Unmarshal([]byte(out[bytes.LastIndexByte([]byte(out[:len(out)-1]), '\n')+1:]), &result), out)
	require.Equal(t, 50, result.Threads)
	t.Log(out)
}

// TestExample runs the program of docs/how-to/ag-ui.md as it stands there.
func TestExample(t *testing.T) {
	nodetest.Modules(t)
	text, err := os.ReadFile("../../docs/how-to/ag-ui.md")
	require.NoError(t, err)
	found := regexp.MustCompile("(?s)```js\n(.*?)```").FindSubmatch(text)
	require.NotNil(t, found)
	require.Less(t, bytes.Count(found[1], []byte("\n")), 30)
	file := filepath.Join(t.TempDir(), "example.mjs")
	require.NoError(t, os.WriteFile(file, found[1], 0o600))
	out := node(t, file, serve(t, "testdata/example.yaml")+"/v1/ag-ui/guide", "A room, please.")
	require.Equal(t, "Where are you?\nI book it.\nBooked: {\"city\":\"Bergen\"}\n", out)
}
