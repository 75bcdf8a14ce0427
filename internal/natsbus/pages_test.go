package natsbus_test

import (
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/natstest"
)

// A web page can have its browser send a request to the port of NATS, with lines of NATS in the body, or in the
// path and the header as far as they go. The server ends the connection at the first line, which is of HTTP.
func TestWebPagesPublishNothing(t *testing.T) {
	s := natstest.Start(t, natstest.Options{})
	nc, err := nats.Connect(s.URL)
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	heard, err := nc.SubscribeSync(">")
	require.NoError(t, err)
	require.NoError(t, nc.Flush())
	const lines = "CONNECT {\"verbose\":false}\r\nPUB moore.0.default.planning.done.default.x 2\r\nhi\r\nPING\r\n"
	for _, request := range []string{
		"POST / HTTP/1.1\r\nHost: %s\r\nContent-Type: text/plain\r\nContent-Length: 100\r\n\r\n" + lines,
		"POST /" + strings.Repeat("x", 5000) + " HTTP/1.1\r\nHost: %s\r\n\r\n" + lines,
		"PUT / HTTP/1.1\r\nHost: %s\r\n\r\n" + lines,
		"GET / HTTP/1.1\r\nHost: %s\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n" + lines,
		"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n%.0s" + lines,
	} {
		address := strings.TrimPrefix(s.URL, "nats://")
		conn, err := net.Dial("tcp", address)
		require.NoError(t, err)
		require.NoError(t, conn.SetDeadline(time.Now().Add(time.Minute)))
		_, err = fmt.Fprintf(conn, request, address)
		require.NoError(t, err)
		answer, _ := io.ReadAll(conn) // the server may reset the connection
		require.NotContains(t, string(answer), "PONG", "the lines of the body were read")
		require.NoError(t, conn.Close())
	}
	require.NoError(t, nc.Publish("own", nil))
	first, err := heard.NextMsg(time.Minute)
	require.NoError(t, err)
	require.Equal(t, "own", first.Subject, "a page published before it")
}
