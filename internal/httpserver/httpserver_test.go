package httpserver_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/certs"
	"github.com/moorebus/moorebus/internal/httpserver"
)

// pipes is a listener in memory, so that a bubble's clock rules over its connections.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error { p.once.Do(func() { close(p.closed) }); return nil }

func (p *pipes) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)} }

func (p *pipes) dial(context.Context, string, string) (net.Conn, error) {
	here, there := net.Pipe()
	p.conns <- there
	return here, nil
}

// serve serves a handler in a bubble until the end of the test.
func serve(t *testing.T, config *tls.Config, handler http.HandlerFunc) *pipes {
	p := &pipes{conns: make(chan net.Conn), closed: make(chan struct{})}
	server := httpserver.New(httpserver.Options{Handler: handler, TLS: config})
	ended := make(chan error, 1)
	go func() { ended <- server.ServeUntilClosed(p) }()
	t.Cleanup(func() {
		_ = server.Close()
		require.NoError(t, <-ended)
		time.Sleep(time.Second) // in a bubble: package http waits before it closes some connections
	})
	return p
}

// ends returns what comes until a connection is closed, and how long that takes from now on.
func ends(t *testing.T, c net.Conn) (string, time.Duration) {
	t.Helper()
	began := time.Now()
	answer, err := io.ReadAll(c)
	require.NoError(t, err)
	return string(answer), time.Since(began)
}

// drip sends a text, a byte each second, until the connection is closed.
func drip(c net.Conn, text string) {
	for i := range len(text) {
		time.Sleep(time.Second) // of a synctest bubble
		if _, err := io.WriteString(c, text[i:i+1]); err != nil {
			return
		}
	}
}

// A client that does not finish its header or its body, or asks for nothing more, loses its
// connection.
func TestSlowRequests(t *testing.T) {
	t.Parallel()
	for what, c := range map[string]struct {
		begin, drip string
		within      time.Duration
		answer      string
	}{
		"nothing":             {"", "", httpserver.HeaderTimeout, ""},
		"a slow header":       {"GET / HTTP/1.1\r\nHost: x\r\n", "X-Long: " + strings.Repeat("x", 1000), httpserver.HeaderTimeout, ""},
		"a slow body":         {"POST /read HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n", strings.Repeat("x", 1000), httpserver.ReadTimeout, "400 Bad"},
		"a slow chunk":        {"POST /read HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3E8\r\n", strings.Repeat("x", 1000), httpserver.ReadTimeout, "400 Bad"},
		"a body nobody wants": {"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n", strings.Repeat("x", 1000), httpserver.ReadTimeout, "200 OK"},
		"an idle connection":  {"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "", httpserver.IdleTimeout, "200 OK"},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := serve(t, nil, func(w http.ResponseWriter, r *http.Request) {
					if r.URL.Path == "/read" {
						_, err := io.ReadAll(r.Body)
						require.ErrorIs(t, err, os.ErrDeadlineExceeded)
						w.WriteHeader(http.StatusBadRequest)
					}
					_, err := io.WriteString(w, strings.Repeat("x", 5000)) // more than package http buffers
					require.NoError(t, err)
				})
				conn, _ := p.dial(t.Context(), "", "")
				var dripping sync.WaitGroup
				dripping.Go(func() {
					_, _ = io.WriteString(conn, c.begin)
					drip(conn, c.drip)
				})
				answer, took := ends(t, conn)
				require.InDelta(t, c.within.Seconds(), took.Seconds(), 2)
				require.Contains(t, answer, c.answer)
				_ = conn.Close()
				dripping.Wait()
			})
		})
	}
	synctest.Test(t, func(t *testing.T) {
		p := serve(t, nil, func(http.ResponseWriter, *http.Request) { t.Error("a header that is too large") })
		conn, _ := p.dial(t.Context(), "", "")
		go func() {
			_, _ = io.WriteString(conn, "GET / HTTP/1.1\r\nHost: x\r\nX-Large: "+strings.Repeat("x", 2*httpserver.MaxHeader)+"\r\n\r\n")
		}()
		status, err := bufio.NewReader(conn).ReadString('\n')
		require.NoError(t, err)
		require.Contains(t, status, "431")
		_ = conn.Close()
	})
}

// client returns a client of a listener, with HTTP/2 if it has TLS.
func client(t *testing.T, p *pipes, config *tls.Config) *http.Client {
	transport := &http.Transport{DialContext: p.dial, TLSClientConfig: config, ForceAttemptHTTP2: config != nil}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// pair returns the settings of a server and of its clients.
func pair(t *testing.T) (server, clients *tls.Config) {
	dir := t.TempDir()
	_, err := certs.Make(certs.Options{Dir: dir, Server: "server", For: 24 * time.Hour, Now: time.Now()})
	require.NoError(t, err)
	made, err := tls.LoadX509KeyPair(filepath.Join(dir, "server.pem"), filepath.Join(dir, "server.key"))
	require.NoError(t, err)
	ca, err := os.ReadFile(filepath.Join(dir, "ca.pem"))
	require.NoError(t, err)
	roots := x509.NewCertPool()
	require.True(t, roots.AppendCertsFromPEM(ca))
	now := func() time.Time { return made.Leaf.NotBefore.Add(2 * time.Hour) } // whatever a bubble's clock says
	return &tls.Config{Certificates: []tls.Certificate{made}, Time: now}, &tls.Config{RootCAs: roots, ServerName: "localhost", Time: now}
}

// both runs a test over HTTP/1.1 and over TLS with HTTP/2.
func both(t *testing.T, test func(t *testing.T, server, clients *tls.Config, url string)) {
	server, clients := pair(t)
	t.Run("HTTP 1.1", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) { test(t, nil, nil, "http://localhost/") })
	})
	t.Run("HTTP 2", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) { test(t, server, clients, "https://localhost/") })
	})
}

// A stream goes on for hours, however long nothing happens, after a request with a body and one
// without.
func TestStreams(t *testing.T) {
	t.Parallel()
	const pause = 10 * time.Minute
	both(t, func(t *testing.T, server, clients *tls.Config, url string) {
		p := serve(t, server, func(w http.ResponseWriter, r *http.Request) {
			_, err := io.ReadAll(r.Body)
			require.NoError(t, err)
			for i := range 10 {
				select {
				case <-time.After(pause):
				case <-r.Context().Done():
					t.Error("the stream was ended: ", context.Cause(r.Context()))
					return
				}
				_, err := fmt.Fprintf(w, "%d\n", i)
				require.NoError(t, err)
				require.NoError(t, http.NewResponseController(w).Flush())
			}
			time.Sleep(pause) // in a bubble
			_, err = fmt.Fprintln(w, "the end")
			require.NoError(t, err)
		})
		c := client(t, p, clients)
		for _, body := range []string{"", "body"} {
			resp, err := c.Post(url, "text/plain", strings.NewReader(body))
			require.NoError(t, err)
			got, err := io.ReadAll(resp.Body)
			require.NoError(t, err)
			require.NoError(t, resp.Body.Close())
			require.Equal(t, "0\n1\n2\n3\n4\n5\n6\n7\n8\n9\nthe end\n", string(got))
			require.Equal(t, clients != nil, resp.ProtoMajor == 2)
			time.Sleep(httpserver.IdleTimeout / 2) // in a bubble: the next request is one of the same connection
		}
	})
}

// A client that reads nothing of an answer loses it in time, and one that reads slowly gets all of
// it.
func TestSlowReaders(t *testing.T) {
	t.Parallel()
	const size = 16 << 20 // more than a client of HTTP/2 lets come before it reads
	both(t, func(t *testing.T, server, clients *tls.Config, url string) {
		failed := make(chan time.Duration, 1)
		p := serve(t, server, func(w http.ResponseWriter, r *http.Request) {
			began := time.Now()
			if _, err := w.Write(make([]byte, size)); err != nil {
				failed <- time.Since(began)
			}
		})
		c := client(t, p, clients)
		resp, err := c.Get(url)
		require.NoError(t, err)
		got, buf := 0, make([]byte, 64<<10)
		for err == nil {
			var n int
			n, err = io.ReadFull(resp.Body, buf)
			got += n
			time.Sleep(10 * time.Second) // in a bubble
		}
		require.ErrorIs(t, err, io.EOF)
		require.Equal(t, size, got, "after %d minutes", size/len(buf)/6)
		require.NoError(t, resp.Body.Close())

		resp, err = c.Get(url)
		require.NoError(t, err)
		took := <-failed
		require.GreaterOrEqual(t, took, httpserver.WriteTimeout)
		require.Less(t, took, 2*httpserver.WriteTimeout)
		_, err = io.ReadAll(resp.Body)
		require.Error(t, err)
		require.NoError(t, resp.Body.Close())
	})
}

// A client of HTTP/2 that reads nothing from its connection does not hold the streams.
func TestNobodyReadsTheConnection(t *testing.T) {
	t.Parallel()
	server, clients := pair(t)
	synctest.Test(t, func(t *testing.T) {
		failed := make(chan time.Duration, 1)
		p := serve(t, server, func(w http.ResponseWriter, r *http.Request) {
			began := time.Now()
			for {
				if _, err := w.Write(make([]byte, 1<<20)); err != nil {
					failed <- time.Since(began)
					return
				}
			}
		})
		stopped := make(chan struct{})
		c := client(t, p, clients)
		c.Transport.(*http.Transport).DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := p.dial(ctx, network, address)
			return &deaf{Conn: conn, stopped: stopped, closed: make(chan struct{})}, err
		}
		resp, err := c.Get("https://localhost/")
		require.NoError(t, err)
		close(stopped)
		require.Less(t, <-failed, 2*httpserver.WriteTimeout)
		_ = resp.Body.Close()
	})
}

// deaf is a connection whose end reads nothing more once it stopped.
type deaf struct {
	net.Conn
	stopped chan struct{}
	closed  chan struct{}
	once    sync.Once
}

func (d *deaf) Read(p []byte) (int, error) {
	select {
	case <-d.stopped:
		<-d.closed
	default:
	}
	return d.Conn.Read(p)
}

func (d *deaf) Close() error {
	d.once.Do(func() { close(d.closed) })
	return d.Conn.Close()
}

// Port scanners fill no log.
func TestHandshakesAreNotLogged(t *testing.T) {
	t.Parallel()
	server, _ := pair(t)
	synctest.Test(t, func(t *testing.T) {
		var logged bytes.Buffer
		p := &pipes{conns: make(chan net.Conn), closed: make(chan struct{})}
		s := httpserver.New(httpserver.Options{Handler: http.NotFoundHandler(), TLS: server, Logger: slog.New(slog.NewTextHandler(&logged, nil))})
		ended := make(chan error, 1)
		go func() { ended <- s.ServeUntilClosed(p) }()
		conn, _ := p.dial(t.Context(), "", "")
		_, took := ends(t, conn)
		require.Equal(t, httpserver.HeaderTimeout, took, "nothing was said")
		conn, _ = p.dial(t.Context(), "", "")
		go func() { _, _ = io.WriteString(conn, "GET / HTTP/1.1\r\nHost: x\r\n\r\n") }()
		answer, err := io.ReadAll(conn)
		require.NoError(t, err)
		require.Contains(t, string(answer), "400 Bad Request")
		synctest.Wait()
		require.NoError(t, s.Close())
		require.NoError(t, <-ended)
		require.Empty(t, logged.String())
	})
}
