package certs

import (
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var now = time.Now()

func options(dir string) Options {
	return Options{Dir: dir, Server: "server", Hosts: []string{"bus.example", "127.0.0.1", "::1"}, Clients: []string{"planner"}, For: 24 * time.Hour, Now: now}
}

func contents(t *testing.T, dir string) map[string]string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	require.NoError(t, err)
	all := map[string]string{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		all[filepath.Base(file)] = string(text)
	}
	return all
}

// TestCertificatesOfServersAndClients: both sides of a connection accept each other, as servers do
// on their routes and as clients do that present a certificate of their own.
func TestCertificatesOfServersAndClients(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "tls")
	made, err := Make(options(dir))
	require.NoError(t, err)
	require.Len(t, made, 3)
	require.True(t, made[0].IsCA)
	require.Equal(t, []string{"bus.example", "127.0.0.1", "::1"}, HostsOf(made[1].Certificate))
	for name := range contents(t, dir) {
		info, err := os.Stat(filepath.Join(dir, name))
		require.NoError(t, err)
		want := os.FileMode(0o644)
		if filepath.Ext(name) == ".key" {
			want = 0o600
		}
		require.Equal(t, want, info.Mode(), name)
	}
	for _, client := range []string{"server", "planner"} {
		for _, host := range []string{"bus.example", "127.0.0.1"} {
			require.NoError(t, shake(t, dir, client, host), "%s to %s", client, host)
		}
		require.ErrorContains(t, shake(t, dir, client, "other.example"), "not other.example")
	}
}

// shake makes a connection on which both sides show a certificate.
func shake(t *testing.T, dir, client, host string) error {
	t.Helper()
	load := func(name string) tls.Certificate {
		pair, err := tls.LoadX509KeyPair(filepath.Join(dir, name+".pem"), filepath.Join(dir, name+".key"))
		require.NoError(t, err)
		return pair
	}
	ca, err := os.ReadFile(filepath.Join(dir, "ca.pem"))
	require.NoError(t, err)
	pool := x509.NewCertPool()
	require.True(t, pool.AppendCertsFromPEM(ca))
	listener, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{load("server")}, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert})
	require.NoError(t, err)
	defer func() { _ = listener.Close() }()
	go func() {
		conn, err := listener.Accept()
		if err == nil {
			_, _ = conn.Write([]byte("x"))
			_ = conn.Close()
		}
	}()
	raw, err := net.Dial("tcp", listener.Addr().String())
	require.NoError(t, err)
	conn := tls.Client(raw, &tls.Config{Certificates: []tls.Certificate{load(client)}, RootCAs: pool, ServerName: host})
	defer func() { _ = conn.Close() }()
	_, err = io.ReadFull(conn, make([]byte, 1)) // the server refuses after the client's part
	return err
}

func TestCertificatesAreKeptAndRenewed(t *testing.T) {
	o := options(t.TempDir())
	_, err := Make(o)
	require.NoError(t, err)
	before := contents(t, o.Dir)
	made, err := Make(o)
	require.NoError(t, err)
	require.True(t, made[0].Kept && made[1].Kept && made[2].Kept)
	require.Equal(t, before, contents(t, o.Dir))

	more := o
	more.Hosts = append(more.Hosts, "new.example")
	_, err = Make(more)
	require.ErrorContains(t, err, "is not for new.example: make it anew with --renew")
	later := o
	later.Now = now.Add(48 * time.Hour)
	_, err = Make(later)
	require.ErrorContains(t, err, "server.pem ended on")
	require.Equal(t, before, contents(t, o.Dir), "it was only looked at")

	// Nobody has to say again what the certificate is for.
	same := o
	same.Hosts, same.Renew = nil, true
	made, err = Make(same)
	require.NoError(t, err)
	require.False(t, made[1].Kept)
	require.Equal(t, o.Hosts, HostsOf(made[1].Certificate))

	// Ten years on, those who trust the old authority still accept the new certificates.
	more.Renew = true
	_, err = Make(more)
	require.NoError(t, err)
	old := o
	old.Renew, old.Now = true, now.Add(authorityFor-time.Hour)
	made, err = Make(old)
	require.NoError(t, err)
	after := contents(t, o.Dir)
	for _, key := range []string{"ca.key", "server.key", "planner.key"} {
		require.Equal(t, before[key], after[key])
	}
	require.NotEqual(t, before["ca.pem"], after["ca.pem"])
	pool := x509.NewCertPool()
	require.True(t, pool.AppendCertsFromPEM([]byte(before["ca.pem"])))
	_, err = made[1].Verify(x509.VerifyOptions{Roots: pool, DNSName: "bus.example", CurrentTime: old.Now})
	require.NoError(t, err)
}

func TestTheAuthoritysKeyIsKeptElsewhere(t *testing.T) {
	o := options(t.TempDir())
	_, err := Make(o)
	require.NoError(t, err)
	require.NoError(t, os.Remove(filepath.Join(o.Dir, "ca.key")))
	_, err = Make(o)
	require.NoError(t, err, "nothing has to be signed")
	o.Clients = append(o.Clients, "gateway")
	_, err = Make(o)
	require.ErrorContains(t, err, "ca.key is not here")
	require.NoFileExists(t, filepath.Join(o.Dir, "gateway.pem"))

	stranger := options(t.TempDir())
	_, err = Make(stranger)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(o.Dir, "ca.pem"), []byte(contents(t, stranger.Dir)["ca.pem"]), 0o600))
	_, err = Make(o)
	require.ErrorContains(t, err, "is not of the authority")
}
