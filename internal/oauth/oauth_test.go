package oauth

import (
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

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
