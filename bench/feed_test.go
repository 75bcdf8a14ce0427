package main

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestFeed(t *testing.T) {
	measures(t)
	s := feedSettings{
		bin: testBin, fsync: "relaxed", rate: 10, window: time.Second, clients: 8, watched: 2, stalled: 2, backlog: 12, writeTimeout: time.Second,
	}
	for _, p := range feedParts {
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			figures, err := p.run(t.Context(), s)
			require.NoError(t, err)
			for _, f := range values(t, figures) {
				require.GreaterOrEqual(t, f.Value, 0.0, f.What)
			}
			require.Greater(t, figures[0].Value, 0.0, figures[0].What)
		})
	}
}

// TestEventStream reads a stream that is cut, and one that leaves something out.
func TestEventStream(t *testing.T) {
	t.Parallel()
	var asked []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.Header.Get("Last-Event-ID"))
		answer := ": hello\n\nevent: Start\nid: 0:1\ndata: {}\n\nid: 0:2\ndata: " + strings.Repeat("x", 10000) + "\n\nid: 0:3\nda"
		if len(asked) > 1 {
			answer = "event: chunk\ndata: {}\n\nid: 0:3\ndata: {}\n\nid: 0:5\ndata: {}\n\n"
		}
		_, _ = io.WriteString(w, answer)
	}))
	defer server.Close()
	s := &eventStream{http: streamClient(4 << 10), url: server.URL}
	defer s.close()
	resumed, err := s.see(t.Context(), 0, 3)
	require.NoError(t, err)
	require.Equal(t, 1, resumed)
	require.Equal(t, []string{"", "0:2"}, asked)
	_, err = s.see(t.Context(), 3, 1)
	require.ErrorContains(t, err, "event 5 came after 3")
}
