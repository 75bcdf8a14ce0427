package main

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/certs"
	"github.com/moorebus/moorebus/internal/commandtest"
	"github.com/moorebus/moorebus/internal/freeport"
)

// tlsSite is a process with --tls-cert and --client-ca, and what its clients need.
type tlsSite struct {
	t             *testing.T
	bin, dir, url string
	address       string
	log           *os.File
}

// certificates makes those of an authority of its own.
func certificates(t *testing.T, dir string, lifetime time.Duration, renew bool, clients ...string) {
	t.Helper()
	_, err := certs.Make(certs.Options{Dir: dir, Server: "server", Clients: clients, For: lifetime, Renew: renew, Now: time.Now()})
	require.NoError(t, err)
}

func newTLSSite(t *testing.T) *tlsSite {
	dir := t.TempDir()
	bin, err := commandtest.Build("cmd", "./cmd/moorebus")
	require.NoError(t, err)
	addresses, err := freeport.Addresses(1)
	require.NoError(t, err)
	s := &tlsSite{t: t, bin: filepath.Join(bin, "moorebus"), dir: dir, address: addresses[0], url: "https://" + addresses[0]}
	certificates(t, s.path("tls"), 24*time.Hour, false, "alice")
	certificates(t, s.path("others"), 24*time.Hour, false, "mallory")
	s.trust("tls")
	s.log, err = os.Create(s.path("log"))
	require.NoError(t, err)
	t.Cleanup(func() { _ = s.log.Close() })
	cmd := exec.Command(s.bin, "dev", "--data", s.path("data"), "--listen", s.address, "--log-level", "info",
		"--tls-cert", s.path("tls/server.pem"), "--tls-key", s.path("tls/server.key"), "--client-ca", s.path("clients.pem"))
	cmd.Stderr = io.MultiWriter(os.Stderr, s.log)
	ended, err := commandtest.Start(cmd)
	require.NoError(t, err)
	t.Cleanup(func() { _ = cmd.Process.Kill(); <-ended })
	require.Eventually(t, func() bool { return s.get("tls/alice", "/readyz") == nil }, time.Minute, 20*time.Millisecond)
	return s
}

func (s *tlsSite) path(name string) string { return filepath.Join(s.dir, name) }

// trust has the process let in the clients of these authorities.
func (s *tlsSite) trust(dirs ...string) {
	var all []byte
	for _, dir := range dirs {
		ca, err := os.ReadFile(s.path(dir + "/ca.pem"))
		require.NoError(s.t, err)
		all = append(all, ca...)
	}
	require.NoError(s.t, os.WriteFile(s.path("clients.pem.new"), all, 0o600))
	require.NoError(s.t, os.Rename(s.path("clients.pem.new"), s.path("clients.pem")))
}

// config is that of a client, such as tls/alice; empty: one without a certificate.
func (s *tlsSite) config(client string) *tls.Config {
	ca, err := os.ReadFile(s.path("tls/ca.pem"))
	require.NoError(s.t, err)
	c := &tls.Config{RootCAs: x509.NewCertPool()}
	require.True(s.t, c.RootCAs.AppendCertsFromPEM(ca))
	if client != "" {
		pair, err := tls.LoadX509KeyPair(s.path(client+".pem"), s.path(client+".key"))
		require.NoError(s.t, err)
		c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil }
	}
	return c
}

// get makes a request on a connection of its own.
func (s *tlsSite) get(client, path string) error {
	transport := &http.Transport{TLSClientConfig: s.config(client), ForceAttemptHTTP2: true}
	defer transport.CloseIdleConnections()
	resp, err := (&http.Client{Transport: transport}).Get(s.url + path)
	if err != nil {
		return err
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusOK || resp.ProtoMajor != 2 {
		return fmt.Errorf("%s %s", resp.Proto, resp.Status)
	}
	return nil
}

// ends returns until when the certificate is valid that the process presents.
func (s *tlsSite) ends() time.Time {
	conn, err := tls.Dial("tcp", s.address, s.config("tls/alice"))
	require.NoError(s.t, err)
	defer func() { _ = conn.Close() }()
	return conn.ConnectionState().PeerCertificates[0].NotAfter
}

// command runs a command on the gateway.
func (s *tlsSite) command(args ...string) (string, error) {
	cmd := exec.Command(s.bin, args...)
	cmd.Env = append(os.Environ(), "MOOREBUS_URL="+s.url, "MOOREBUS_CA="+s.path("tls/ca.pem"), "MOOREBUS_DATA=", "NATS_URL=")
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// TestTLS: a gateway with certificates lets in clients with one of the authority, follows its files,
// and serves streams over HTTP/2.
func TestTLS(t *testing.T) {
	if testing.Short() {
		t.Skip("-short") // reason: it starts processes
	}
	t.Parallel()
	s := newTLSSite(t)
	require.Error(t, s.get("", "/healthz"))
	require.Error(t, s.get("others/mallory", "/healthz"))
	resp, err := http.Get("http://" + s.address + "/healthz")
	require.NoError(t, err)
	require.Equal(t, http.StatusBadRequest, resp.StatusCode)
	require.NoError(t, resp.Body.Close())

	mine := []string{"--cert", s.path("tls/alice.pem"), "--cert-key", s.path("tls/alice.key")}
	out, err := s.command(append([]string{"runs"}, mine...)...)
	require.NoError(t, err, out)
	out, err = s.command("runs")
	require.Error(t, err)
	require.Contains(t, out, "only clients with a certificate: give --cert and --cert-key")
	out, err = s.command(append([]string{"runs", "--url", "http://" + s.address}, mine...)...)
	require.Error(t, err, out)

	transport := &http.Transport{TLSClientConfig: s.config("tls/alice"), ForceAttemptHTTP2: true}
	defer transport.CloseIdleConnections()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.url+"/v1/events", nil)
	require.NoError(t, err)
	req.Header.Set("Accept", "text/event-stream")
	stream, err := (&http.Client{Transport: transport}).Do(req)
	require.NoError(t, err)
	require.Equal(t, 2, stream.ProtoMajor)
	line, err := bufio.NewReader(stream.Body).ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, ": moorebus\n", line)
	require.NoError(t, stream.Body.Close())

	before := s.ends()
	certificates(t, s.path("tls"), 48*time.Hour, true, "alice")
	require.Eventually(t, func() bool { return s.ends().After(before) }, time.Minute, 20*time.Millisecond)
	after := s.ends()
	require.NoError(t, os.WriteFile(s.path("tls/server.pem"), []byte("half of it"), 0o600))
	require.Eventually(t, func() bool {
		require.Equal(t, after, s.ends())
		text, err := os.ReadFile(s.log.Name())
		return err == nil && strings.Contains(string(text), "cannot be used")
	}, time.Minute, 20*time.Millisecond)

	// A certificate that has ended does not replace one that is valid.
	certificates(t, s.path("ended"), time.Nanosecond, false)
	for _, name := range []string{"server.pem", "server.key"} {
		text, err := os.ReadFile(s.path("ended/" + name))
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(s.path("tls/"+name), text, 0o600))
	}
	require.Eventually(t, func() bool {
		require.Equal(t, after, s.ends())
		text, err := os.ReadFile(s.log.Name())
		return err == nil && strings.Contains(string(text), "it ended on")
	}, time.Minute, 20*time.Millisecond)
}

// Authorities of clients are read again, too: a new one lets its clients in, and a removed one does
// not.
func TestClientAuthoritiesChange(t *testing.T) {
	if testing.Short() {
		t.Skip("-short") // reason: it starts processes
	}
	t.Parallel()
	s := newTLSSite(t)
	s.trust("tls", "others")
	require.Eventually(t, func() bool { return s.get("others/mallory", "/healthz") == nil }, time.Minute, 20*time.Millisecond)
	s.trust("others")
	require.Eventually(t, func() bool { return s.get("tls/alice", "/healthz") != nil }, time.Minute, 20*time.Millisecond)
	require.NoError(t, s.get("others/mallory", "/healthz"))
}

// Clients that dawdle lose their connections: one that says nothing, one that does not finish its
// header, and one that does not finish its body.
func TestSlowClients(t *testing.T) {
	if testing.Short() {
		t.Skip("-short") // reason: it takes the 30 seconds that a body may take
	}
	t.Parallel()
	s := newTLSSite(t)
	var all sync.WaitGroup
	for what, begin := range map[string]string{
		"header": "GET /v1/runs HTTP/1.1\r\nHost: x\r\n",
		"body":   "POST /v1/runs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{",
	} {
		all.Go(func() {
			conn, err := tls.Dial("tcp", s.address, s.config("tls/alice"))
			if err == nil {
				_, err = io.WriteString(conn, begin)
			}
			if err == nil {
				_ = conn.SetReadDeadline(time.Now().Add(2 * time.Minute))
				_, err = io.Copy(io.Discard, conn)
			}
			if err != nil {
				t.Errorf("%s: %v", what, err)
			}
		})
	}
	all.Go(func() {
		conn, err := net.Dial("tcp", s.address)
		if err == nil {
			_ = conn.SetReadDeadline(time.Now().Add(2 * time.Minute))
			_, err = io.Copy(io.Discard, conn)
		}
		if err != nil {
			t.Errorf("a handshake: %v", err)
		}
	})
	all.Wait()
	require.NoError(t, s.get("tls/alice", "/healthz"))
}
