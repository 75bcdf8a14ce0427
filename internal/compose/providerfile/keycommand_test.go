package providerfile_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/compose/providerfile"
	"github.com/moorebus/moorebus/pkg/llm"
)

// Each adapter sends the key of the command, and gets another after a status 401.
func TestKeyCommand(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("the commands are written for sh") // reason: Windows has none
	}
	for _, kind := range []string{"openai", "responses", "anthropic"} {
		t.Run(kind, func(t *testing.T) {
			count := filepath.Join(t.TempDir(), "count")
			var seen []string
			var valid atomic.Value
			valid.Store("token-number-x")
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				key := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ") + r.Header.Get("X-Api-Key")
				seen = append(seen, key)
				if key != valid.Load() {
					http.Error(w, `{"error":{"message":"expired: `+key+`"}}`, http.StatusUnauthorized)
					return
				}
				http.Error(w, `{"error":{"message":"bad request of `+key+`"}}`, http.StatusBadRequest)
			}))
			defer server.Close()
			text := fmt.Sprintf(`{"p": {"kind": %q, "base_url": %q, "model": "m", "api_key_command": ["sh", "-c", %q]}}`,
				kind, server.URL, "printf x >> "+count+"; printf 'token-number-'; cat "+count)
			callers, err := providerfile.Providers(write(t, text), func(string) string { return "" })
			require.NoError(t, err)
			ask := func() error {
				_, err := callers["p"].Call(t.Context(), llm.Request{Messages: []llm.Message{{Role: llm.RoleUser, Content: "hi"}}}, nil)
				require.Error(t, err)
				require.NotContains(t, err.Error(), "token-number")
				return err
			}
			require.ErrorContains(t, ask(), "bad request")
			require.ErrorContains(t, ask(), "bad request")
			require.Equal(t, []string{"token-number-x", "token-number-x"}, seen, "the key is kept")
			valid.Store("token-number-xx")
			require.ErrorContains(t, ask(), "bad request")
			require.Equal(t, []string{"token-number-x", "token-number-xx"}, seen[2:], "the key is renewed")
			valid.Store("none")
			var e *llm.Error
			require.ErrorAs(t, ask(), &e)
			require.Equal(t, llm.KindAuth, e.Kind)
			require.Len(t, seen, 6, "a request is repeated once")
			ran, err := os.ReadFile(count)
			require.NoError(t, err)
			require.Equal(t, "xxx", string(ran))

			failing := fmt.Sprintf(`{"p": {"kind": %q, "base_url": %q, "model": "m", "api_key_command": ["sh", "-c", "echo no login >&2; exit 3"]}}`, kind, server.URL)
			callers, err = providerfile.Providers(write(t, failing), func(string) string { return "" })
			require.NoError(t, err)
			require.ErrorAs(t, ask(), &e)
			require.Equal(t, llm.KindNetwork, e.Kind)
			require.Contains(t, e.Message, "provider p: the api_key_command sh failed: exit status 3: no login")
			require.Len(t, seen, 6, "nothing is sent without a key")
		})
	}
	for _, entry := range []string{"api_key: k, api_key_command: [a]", "api_key_env: K, api_key_command: [a]", "api_key_command: []", "api_key_ttl: 5m"} {
		_, err := providerfile.Providers(write(t, "p: {kind: openai, "+entry+"}\n"), func(string) string { return "" })
		require.ErrorContains(t, err, "p.api_key_", entry)
	}
}
