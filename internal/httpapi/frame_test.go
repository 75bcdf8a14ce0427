package httpapi

import (
	"bytes"
	"io"
	"log/slog"
	"net"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/httpapi/sse"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

// The cache of frames is bounded by number and by bytes. The oldest frames go first.
func TestFramesAreBounded(t *testing.T) {
	t.Parallel()
	codec, err := events.NewCodec()
	require.NoError(t, err)
	fs := frames{codec: codec, kept: map[position]*madeFrame{}}
	record := func(seq uint64, size int) journal.Record {
		return journal.Record{Seq: seq, Body: bytes.Repeat([]byte("x"), size)}
	}
	first := fs.of(0, record(1, 10))
	require.Same(t, first, fs.of(0, record(1, 10)))
	require.NotSame(t, first, fs.of(1, record(1, 10)), "another shard's")
	require.Equal(t, "poison", first.typ())
	for seq := range uint64(2 * keptFrames) {
		fs.of(0, record(seq+2, 10))
	}
	require.Len(t, fs.kept, keptFrames)
	require.Len(t, fs.order, keptFrames)
	require.NotSame(t, first, fs.of(0, record(1, 10)))
	for seq := range uint64(20) {
		fs.of(2, record(seq, keptBytes/10))
		require.LessOrEqual(t, fs.size, keptBytes)
	}
	require.Len(t, fs.kept, 10)
	fs.of(2, record(99, keptBytes+1))
	require.Empty(t, fs.kept)
	require.Empty(t, fs.order)
	require.Zero(t, fs.size)
}

func TestOneLine(t *testing.T) {
	t.Parallel()
	body := append(make([]byte, 0, 100), `{"a":1}`...)
	line := sse.OneLine(body)
	require.Same(t, &body[0], &line[0], "it is not copied")
	_ = append(line, '\n')
	require.Equal(t, byte(0), body[:8][7], "what is appended does not get into the body's memory")
	body = []byte("{\"a\":\r\n1}")
	require.Equal(t, `{"a":  1}`, string(sse.OneLine(body)))
	require.Equal(t, "{\"a\":\r\n1}", string(body))
}

func TestServeWaitingLeavesTheListener(t *testing.T) {
	t.Parallel()
	listener, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	require.NoError(t, err)
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	get := func(path string) (int, string) {
		resp, err := client.Get("http://" + listener.Addr().String() + path)
		require.NoError(t, err)
		defer func() { require.NoError(t, resp.Body.Close()) }()
		body, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		return resp.StatusCode, string(body)
	}
	end := ServeWaiting(listener, nil, slog.New(slog.DiscardHandler))
	code, _ := get("/healthz")
	require.Equal(t, http.StatusOK, code)
	code, body := get("/readyz")
	require.Equal(t, http.StatusServiceUnavailable, code)
	require.JSONEq(t, `{"code":"unavailable","message":"waiting for the bus"}`, body)
	require.NoError(t, end())

	next := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "next") })}
	ended := make(chan error, 1)
	go func() { ended <- next.Serve(listener) }()
	_, body = get("/")
	require.Equal(t, "next", body)
	require.NoError(t, next.Close())
	require.ErrorIs(t, <-ended, http.ErrServerClosed)
}
