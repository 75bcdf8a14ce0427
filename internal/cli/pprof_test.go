package cli

import (
	"bytes"
	"io"
	"log/slog"
	"net"
	"net/http"
	"regexp"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
)

// pprofFlags parses --pprof, or the lack of it.
func pprofFlags(t *testing.T, args ...string) *RoleFlags {
	t.Helper()
	flags := pflag.NewFlagSet("x", pflag.ContinueOnError)
	f := AddRoleFlags(flags)
	require.NoError(t, flags.Parse(args))
	return f
}

var servedAt = regexp.MustCompile(`http://127\.0\.0\.1:\d+/debug/pprof/`)

func TestPprof(t *testing.T) {
	var log bytes.Buffer
	stop, err := pprofFlags(t, "--pprof", ":0").ServePprof(slog.New(slog.NewTextHandler(&log, nil)))
	require.NoError(t, err)
	base := servedAt.FindString(log.String())
	require.NotEmpty(t, base, "an address without a host is on loopback: %s", log.String())
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	get := func(path string) (int, string) {
		answer, err := client.Get(base + path)
		require.NoError(t, err)
		defer func() { _ = answer.Body.Close() }()
		body, err := io.ReadAll(answer.Body)
		require.NoError(t, err)
		return answer.StatusCode, string(body)
	}
	status, body := get("goroutine?debug=1")
	require.Equal(t, http.StatusOK, status)
	require.Contains(t, body, "ServePprof")
	status, _ = get("cmdline")
	require.Equal(t, http.StatusNotFound, status, "it may hold a password")
	request, err := http.NewRequest("GET", base+"goroutine?debug=2", nil)
	require.NoError(t, err)
	request.Host = "evil.example"
	answer, err := client.Do(request)
	require.NoError(t, err)
	require.NoError(t, answer.Body.Close())
	require.Equal(t, http.StatusForbidden, answer.StatusCode, "a web page may have its own name point here")
	stop()
	_, err = client.Get(base)
	require.Error(t, err, "it ends when it is stopped")
}

func TestPprofIsOff(t *testing.T) {
	var log bytes.Buffer
	stop, err := pprofFlags(t).ServePprof(slog.New(slog.NewTextHandler(&log, nil)))
	require.NoError(t, err)
	defer stop()
	require.Empty(t, log.String())
}

func TestPprofBadAddress(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = taken.Close() }()
	for address, code := range map[string]int{"6060": ExitUsage, taken.Addr().String(): ExitConfig, "127.0.0.1:port": ExitConfig} {
		_, err := pprofFlags(t, "--pprof", address).ServePprof(quiet)
		require.ErrorContains(t, err, "--pprof: ")
		require.Equal(t, code, exitCode(t.Context(), err), address)
	}
}
