//go:build unix

package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/commandtest"
	"github.com/moorebus/moorebus/internal/freeport"
)

// TestFewFiles: streams beyond what the process has files for are refused, and requests are
// answered meanwhile.
func TestFewFiles(t *testing.T) {
	if testing.Short() {
		t.Skip("-short") // reason: it starts a process
	}
	t.Parallel()
	bin, err := commandtest.Build("cmd", "./cmd/moorebus")
	require.NoError(t, err)
	addresses, err := freeport.Addresses(1)
	require.NoError(t, err)
	url := "http://" + addresses[0]
	cmd := exec.Command("sh", "-c", `ulimit -n 256 && exec "$0" "$@"`, filepath.Join(bin, "moorebus"), "dev", "--data", t.TempDir(), "--listen", addresses[0])
	logged, log := io.Pipe()
	cmd.Stderr = log
	ended, err := commandtest.Start(cmd)
	require.NoError(t, err)
	t.Cleanup(func() { _ = cmd.Process.Kill(); <-ended; _ = log.Close() })
	up, fewer := make(chan struct{}), false
	go func() {
		defer func() { _, _ = io.Copy(io.Discard, logged) }()
		for lines := bufio.NewScanner(logged); lines.Scan(); {
			fewer = fewer || strings.Contains(lines.Text(), "allows fewer event streams")
			if strings.Contains(lines.Text(), "moorebus is up") {
				close(up)
				break
			}
		}
	}()
	select {
	case <-up:
	case err := <-ended:
		t.Fatal(err)
	}
	require.True(t, fewer, "the log says so")

	ctx, stop := context.WithTimeout(t.Context(), 2*time.Minute)
	defer stop()
	var transport http.Transport
	defer transport.CloseIdleConnections()
	client := http.Client{Transport: &transport}
	refused := 0
	for i := range 240 {
		req, err := http.NewRequestWithContext(ctx, "GET", url+"/v1/events", nil)
		require.NoError(t, err)
		req.Header.Set("Accept", "text/event-stream")
		answer, err := client.Do(req)
		require.NoError(t, err, "stream %d", i)
		defer func() { _ = answer.Body.Close() }()
		if answer.StatusCode != http.StatusOK {
			require.Equal(t, http.StatusTooManyRequests, answer.StatusCode)
			_, _ = io.Copy(io.Discard, answer.Body)
			refused++
		}
	}
	require.Equal(t, 240-128, refused)
	ask := func(method, path, body string, want int) {
		req, err := http.NewRequestWithContext(ctx, method, url+path, strings.NewReader(body))
		require.NoError(t, err)
		answer, err := client.Do(req)
		require.NoError(t, err)
		text, _ := io.ReadAll(answer.Body)
		require.NoError(t, answer.Body.Close())
		require.Equal(t, want, answer.StatusCode, "%s", text)
	}
	for i := range 20 {
		ask("GET", "/readyz", "", http.StatusOK)
		ask("POST", "/v1/runs", fmt.Sprintf(`{"agent": {"name": "a%d", "llm": {"provider": "scripted", "script": [{"text": "x"}]}}, "task": "x"}`, i), http.StatusCreated)
	}
}
