package oauth

import (
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// A request waits for a token as long as its context says, and hiding a token does not wait.
func TestAuthorizationServerThatHangs(t *testing.T) {
	t.Parallel()
	asked, answer := make(chan struct{}, 10), make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked <- struct{}{}
		<-answer
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"access_token": "abcdefgh", "token_type": "Bearer", "expires_in": 3600}`))
	}))
	t.Cleanup(server.Close)
	a := New(Config{ClientID: "c", ClientSecret: "s", TokenURL: server.URL}, http.DefaultTransport)
	ctx, cancel := context.WithCancel(t.Context())
	failed := make(chan error, 2)
	for range 2 {
		go func() { failed <- a.Set(httptest.NewRequestWithContext(ctx, http.MethodPost, "/", nil)) }()
	}
	<-asked
	require.Equal(t, "text", a.Hide("text"))
	last := httptest.NewRequest(http.MethodDelete, "/", nil)
	a.SetKnown(last)
	require.Empty(t, last.Header)
	cancel()
	require.ErrorContains(t, <-failed, "context canceled")
	require.ErrorContains(t, <-failed, "context canceled")
	close(answer)
	req := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", nil)
	require.NoError(t, a.Set(req))
	require.Equal(t, "Bearer abcdefgh", req.Header.Get("Authorization"))
	require.Empty(t, asked, "the token of the requests that have ended is used")
}

// A token that others may read, or a file without one, is of no use. The error says what to do.
func TestTokenFiles(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "token.json")
	set := func() error {
		req, err := http.NewRequest(http.MethodGet, "http://127.0.0.1", nil)
		require.NoError(t, err)
		err = New(Config{TokenFile: file}, http.DefaultTransport).Set(req)
		if err == nil {
			require.Equal(t, "Bearer abcdefgh", req.Header.Get("Authorization"))
		}
		return err
	}
	require.ErrorContains(t, set(), "no such file")
	require.NoError(t, os.WriteFile(file, []byte(`{"access_token": "abcdefgh"}`), 0o600))
	require.NoError(t, set())
	require.NoError(t, os.Chmod(file, 0o640))
	require.ErrorContains(t, set(), "chmod 600")
	require.NoError(t, os.Chmod(file, 0o600))
	require.NoError(t, os.WriteFile(file, []byte(`token`), 0o600))
	require.ErrorContains(t, set(), "holds no token")
	require.NoError(t, os.WriteFile(file, []byte(`{"access_token": "abcdefgh", "expiry": "2020-01-01T00:00:00Z"}`), 0o600))
	require.ErrorContains(t, set(), "no refresh_token")
}

// The error about a missing file names the command that writes it.
func TestNoTokenFile(t *testing.T) {
	t.Parallel()
	a := New(Config{TokenFile: filepath.Join(t.TempDir(), "token.json")}, http.DefaultTransport)
	err := a.Set(httptest.NewRequest(http.MethodPost, "/", nil))
	require.ErrorContains(t, err, "moorebus mcp login")
}
