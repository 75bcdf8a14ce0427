package certs_test

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/certs"
)

// TestWatch: connections after a change of the files get the new certificate, and a pair that
// is no good changes nothing.
func TestWatch(t *testing.T) {
	dir := t.TempDir()
	made := func(until time.Duration, renew bool) {
		_, err := certs.Make(certs.Options{Dir: dir, Server: "server", For: until, Renew: renew, Now: time.Now()})
		require.NoError(t, err)
	}
	var logged bytes.Buffer
	synctest.Test(t, func(t *testing.T) {
		made(24*time.Hour, false)
		w, err := certs.Watch(dir, "server", slog.New(slog.NewTextHandler(&logged, nil)))
		require.NoError(t, err)
		days := func() int {
			ends := certs.EndsOf(shake(t, dir, w.Config()))
			require.Equal(t, w.Ends()["server"], ends["server"])
			require.Equal(t, w.Ends()["authority"], ends["authority"])
			return int(time.Until(ends["server"]).Hours()/24 + 0.5)
		}
		require.Equal(t, 1, days())
		time.Sleep(2 * time.Second) // in a bubble: the pause between two looks
		made(48*time.Hour, true)
		require.Equal(t, 2, days())

		time.Sleep(2 * time.Second) // in a bubble
		require.NoError(t, os.WriteFile(filepath.Join(dir, "server.pem"), []byte("half of it"), 0o600))
		require.Equal(t, 2, days())
		require.Contains(t, logged.String(), "took a new certificate")
		require.Contains(t, logged.String(), "cannot be used")
	})
	_, err := certs.Watch(t.TempDir(), "server", nil)
	require.Error(t, err)
	require.Nil(t, certs.EndsOf(func() (tls.ConnectionState, error) { return tls.ConnectionState{}, errors.New("no TLS") }))
}

// A certificate that cannot be used yet is used as soon as it can, without a change of its files,
// and the wait is logged once.
func TestWatchUntilItCanBeUsed(t *testing.T) {
	dir := t.TempDir()
	var logged bytes.Buffer
	synctest.Test(t, func(t *testing.T) {
		made := func(from time.Time, lifetime time.Duration) {
			_, err := certs.Make(certs.Options{Dir: dir, Server: "server", For: lifetime, Renew: true, Now: from})
			require.NoError(t, err)
		}
		made(time.Now(), 2*time.Hour)
		w, err := certs.Watch(dir, "server", slog.New(slog.NewTextHandler(&logged, nil)))
		require.NoError(t, err)
		hours := func() int { return int(time.Until(w.Ends()["server"]).Hours() + 0.5) }
		require.Equal(t, 2, hours())

		made(time.Now().Add(90*time.Minute), 4*time.Hour) // it begins an hour before that
		for range 5 {
			time.Sleep(2 * time.Second) // in a bubble: the pause between two looks
			require.Equal(t, 2, hours())
		}
		require.Equal(t, 1, strings.Count(logged.String(), "it begins on"))
		time.Sleep(31 * time.Minute) // in a bubble
		require.Equal(t, 5, hours())

		made(time.Now(), 8*time.Hour)
		key := filepath.Join(dir, "server.key")
		good, err := os.ReadFile(key)
		require.NoError(t, err)
		write := func(text []byte) { // as a read that fails, of files that stay the same
			require.NoError(t, os.WriteFile(key, text, 0o600))
			require.NoError(t, os.Chtimes(key, time.Time{}, time.Unix(1, 0)))
		}
		write(bytes.Repeat([]byte("x"), len(good)))
		time.Sleep(2 * time.Second) // in a bubble
		require.Equal(t, 5, hours())
		write(good)
		time.Sleep(2 * time.Second) // in a bubble
		require.Equal(t, 8, hours())
	})
}

// Files that cannot be used are refused, and what a careless operator should know is logged.
func TestWatchFiles(t *testing.T) {
	dir := t.TempDir()
	made := func(sub string, lifetime time.Duration, ago time.Duration) certs.Files {
		_, err := certs.Make(certs.Options{Dir: filepath.Join(dir, sub), Server: "server", For: lifetime, Now: time.Now().Add(-ago)})
		require.NoError(t, err)
		return certs.Files{Cert: filepath.Join(dir, sub, "server.pem"), Key: filepath.Join(dir, sub, "server.key")}
	}
	good, ended := made("good", time.Hour, 0), made("ended", time.Hour, 2*time.Hour)
	for what, f := range map[string]certs.Files{
		"does not match":              {Cert: good.Cert, Key: ended.Key},
		"is a directory":              {Cert: dir, Key: good.Key},
		"no such file":                {Cert: good.Cert, Key: good.Key, ClientCA: filepath.Join(dir, "none")},
		"has no certificate in PEM":   {Cert: good.Cert, Key: good.Key, ClientCA: good.Key},
		"failed to find any PEM data": {Cert: os.DevNull, Key: good.Key},
	} {
		_, err := certs.WatchFiles(f, nil)
		require.ErrorContains(t, err, what)
	}
	log := func(f certs.Files) string {
		var logged bytes.Buffer
		_, err := certs.WatchFiles(f, slog.New(slog.NewTextHandler(&logged, nil)))
		require.NoError(t, err)
		return logged.String()
	}
	require.Empty(t, log(good))
	require.Contains(t, log(ended), "it ended on")
	require.NoError(t, os.Chmod(good.Key, 0o644))
	require.Contains(t, log(good), "every user of this machine can read the key")
}

// shake connects and returns what the client sees.
func shake(t *testing.T, dir string, config *tls.Config) func() (tls.ConnectionState, error) {
	t.Helper()
	ca, err := os.ReadFile(filepath.Join(dir, "ca.pem"))
	require.NoError(t, err)
	roots := x509.NewCertPool()
	require.True(t, roots.AppendCertsFromPEM(ca))
	here, there := net.Pipe()
	done := make(chan error, 1)
	go func() { done <- tls.Server(there, config).Handshake() }()
	client := tls.Client(here, &tls.Config{RootCAs: roots, ServerName: "localhost"})
	require.NoError(t, client.Handshake())
	require.NoError(t, <-done)
	return func() (tls.ConnectionState, error) { return client.ConnectionState(), nil }
}
