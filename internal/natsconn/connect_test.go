package natsconn

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/moorebus/moorebus/internal/certs"
	"github.com/moorebus/moorebus/internal/natstest"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"
	"github.com/stretchr/testify/require"
)

func TestFromEnv(t *testing.T) {
	dir := t.TempDir()
	context := filepath.Join(dir, "nats", "context")
	require.NoError(t, os.MkdirAll(context, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(context, "prod.json"),
		[]byte(`{"description":"x","url":"nats://prod","user":"u","password":"p","ca":"~/ca.pem","inbox_prefix":"_R"}`), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(context, "bad.json"), []byte(`{`), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(context, "here.json"), []byte(`{"token":"t","tls_first":false}`), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(context, "domain.json"), []byte(`{"url":"nats://a","jetstream_domain":"hub"}`), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(context, "first.json"), []byte(`{"url":"nats://a","tls_first":true}`), 0o600))
	env := func(pairs ...string) func(string) string {
		return func(key string) string {
			for i := 0; i < len(pairs); i += 2 {
				if pairs[i] == key {
					return pairs[i+1]
				}
			}
			return map[string]string{"XDG_CONFIG_HOME": dir, "HOME": "/users/me"}[key]
		}
	}
	for _, c := range []struct {
		env  []string
		want ConnectOptions
	}{
		{nil, ConnectOptions{}},
		{[]string{"NATS_URL", "nats://a,nats://b", "NATS_CREDS", "/c", "NATS_CA", "/ca"}, ConnectOptions{URL: "nats://a,nats://b", Creds: "/c", CA: "/ca"}},
		{[]string{"NATS_USER", "u", "NATS_PASSWORD", "p"}, ConnectOptions{User: "u", Password: "p"}},
		{[]string{"NATS_NKEY", "/n"}, ConnectOptions{NKey: "/n"}},
		{[]string{"NATS_NKEY_SEED", "SUseed"}, ConnectOptions{Seed: "SUseed"}},
		{[]string{"NATS_CONTEXT", "prod", "NATS_NKEY_SEED", "SUseed"}, ConnectOptions{URL: "nats://prod", Seed: "SUseed", CA: "/users/me/ca.pem", InboxPrefix: "_R"}},
		{[]string{"NATS_CONTEXT", "prod"}, ConnectOptions{URL: "nats://prod", User: "u", Password: "p", CA: "/users/me/ca.pem", InboxPrefix: "_R"}},
		{[]string{"NATS_CONTEXT", "prod", "NATS_CREDS", "/c"}, ConnectOptions{URL: "nats://prod", Creds: "/c", CA: "/users/me/ca.pem", InboxPrefix: "_R"}},
		{[]string{"NATS_CONTEXT", "here"}, ConnectOptions{URL: nats.DefaultURL, Token: "t"}},
	} {
		got, err := FromEnv(env(c.env...))
		require.NoError(t, err)
		require.Equal(t, c.want, got)
	}
	for _, bad := range [][]string{
		{"NATS_CONTEXT", "none"}, {"NATS_CONTEXT", "bad"}, {"NATS_CONTEXT", "../x"}, {"NATS_PASSWORD", "p"},
		{"NATS_CONTEXT", "domain"}, {"NATS_CONTEXT", "first"}, {"NATS_NKEY_SEED", "SUseed", "NATS_NKEY", "/n"},
	} {
		_, err := FromEnv(env(bad...))
		require.ErrorContains(t, err, bad[0])
	}
	_, err := FromEnv(env("NATS_CONTEXT", "domain"))
	require.ErrorContains(t, err, "jetstream_domain")
	require.Equal(t, "nats://xxxxx@a,nats://b", ConnectOptions{URL: "nats://u:p@a,nats://b"}.Server())
	require.Equal(t, nats.DefaultURL, ConnectOptions{}.Server())
	require.Empty(t, SelectedContext(env()))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "nats", "context.txt"), []byte("prod\n"), 0o600))
	require.Equal(t, "prod", SelectedContext(env()))
}

var quiet = slog.New(slog.DiscardHandler)

func TestConnectWaits(t *testing.T) {
	t.Parallel()
	srv := natstest.Start(t, natstest.Options{})
	srv.Stop()
	url := srv.URL
	_, err := Connect(t.Context(), ConnectOptions{URL: url, Logger: quiet})
	require.ErrorContains(t, err, "NATS_URL")
	ended, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, err = Connect(ended, ConnectOptions{URL: url, Wait: true, Logger: quiet})
	require.ErrorIs(t, err, context.DeadlineExceeded)
	got := make(chan *nats.Conn, 1)
	go func() {
		conn, err := Connect(t.Context(), ConnectOptions{URL: url, Wait: true, Logger: quiet})
		if err != nil {
			t.Error(err)
		}
		got <- conn
	}()
	srv.Start()
	conn := <-got
	require.True(t, conn.IsConnected())
	open, stop := WhileOpen(t.Context(), conn)
	defer stop()
	require.NoError(t, open.Err())
	conn.Close()
	<-open.Done()
	require.ErrorIs(t, context.Cause(open), nats.ErrConnectionClosed)
}

// TestWaitingSaysWhy: a process that waits for a server whose certificate it refuses says so.
func TestWaitingSaysWhy(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, name := range []string{"server", "other"} {
		_, err := certs.Make(certs.Options{Dir: filepath.Join(dir, name), Server: "server", Hosts: []string{"127.0.0.1"}, For: time.Hour, Now: time.Now()})
		require.NoError(t, err)
	}
	user, err := nkeys.CreateUser()
	require.NoError(t, err)
	secret, err := user.Seed()
	require.NoError(t, err)
	public, err := user.PublicKey()
	require.NoError(t, err)
	seed := filepath.Join(dir, "seed")
	require.NoError(t, os.WriteFile(seed, secret, 0o644)) //nolint:gosec // that is what is tried
	srv := natstest.Start(t, natstest.Options{More: fmt.Sprintf("tls { cert_file: %q, key_file: %q }\nauthorization { users: [{nkey: %s}] }",
		filepath.Join(dir, "server", "server.pem"), filepath.Join(dir, "server", "server.key"), public)})
	o := ConnectOptions{URL: srv.URL, CA: filepath.Join(dir, "other", "ca.pem"), NKey: seed}
	_, err = Connect(t.Context(), o)
	require.ErrorContains(t, err, "set NATS_CA")
	read, write := io.Pipe()
	o.Wait, o.Logger = true, slog.New(slog.NewTextHandler(write, nil))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, err := Connect(ctx, o)
		_ = write.CloseWithError(err)
	}()
	lines := bufio.NewScanner(read)
	for _, want := range []string{"chmod 600", "waiting for the bus", "set NATS_CA"} {
		require.True(t, lines.Scan(), "%s: %v", want, lines.Err())
		require.Contains(t, lines.Text(), want)
	}
	cancel()
	go io.Copy(io.Discard, read) //nolint:errcheck // it ends with the pipe
	<-ended
}

// TestSeed: the seed of an nkey itself lets in, and an error does not show it.
func TestSeed(t *testing.T) {
	t.Parallel()
	user, err := nkeys.CreateUser()
	require.NoError(t, err)
	seed, err := user.Seed()
	require.NoError(t, err)
	public, err := user.PublicKey()
	require.NoError(t, err)
	account, err := nkeys.CreateAccount()
	require.NoError(t, err)
	other, err := account.Seed()
	require.NoError(t, err)
	srv := natstest.Start(t, natstest.Options{More: fmt.Sprintf("authorization { users: [{nkey: %s}] }", public)})
	conn, err := Connect(t.Context(), ConnectOptions{URL: srv.URL, Seed: string(seed) + "\n"})
	require.NoError(t, err)
	conn.Close()
	for _, bad := range []string{string(other), "SUAAAAAAAAAAA"} {
		_, err = Connect(t.Context(), ConnectOptions{URL: srv.URL, Seed: bad})
		require.ErrorContains(t, err, "NATS_NKEY_SEED is not the seed")
		require.NotContains(t, err.Error(), bad)
	}
}

func TestMayPublish(t *testing.T) {
	t.Parallel()
	id := Identity{publish: &subjectRules{Allow: []string{"a.*.c", "b.>"}, Deny: []string{"b.x"}}}
	for subject, want := range map[string]bool{
		"a.b.c": true, "a.*.c": true, "a.b": false, "a.b.c.d": false, "b.c": true, "b.c.d": true, "b.>": true, "b": false, "b.x": false,
		"a.>": false, ">": false, "*.b.c": false,
	} {
		require.Equal(t, want, id.MayPublish(subject), subject)
	}
	require.True(t, id.Limited())
	require.False(t, Identity{publish: &subjectRules{Allow: []string{">"}}}.Limited())
	require.True(t, Identity{publish: &subjectRules{Deny: []string{"b"}}}.Limited())
	require.True(t, Identity{}.MayPublish("x"))
}
