package providerfile

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func shell(t *testing.T, script string, args ...string) *keyCommand {
	t.Helper()
	if runtime.GOOS == "windows" {
		t.Skip("the commands are written for sh") // reason: Windows has none
	}
	return newKeyCommand(append([]string{"sh", "-c", script}, args...), 0)
}

func TestKeysAreShared(t *testing.T) {
	file := filepath.Join(t.TempDir(), "count")
	s := shell(t, `printf x >> "$0"; echo " key-of-the-command "`, file)
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			key, err := s.get(t.Context(), "")
			if err != nil || key != "key-of-the-command" {
				t.Errorf("%q, %v", key, err)
			}
		})
	}
	all.Wait()
	ran := func() string {
		data, err := os.ReadFile(file)
		require.NoError(t, err)
		return string(data)
	}
	require.Equal(t, "x", ran())
	s.until = time.Now() // as after the ttl
	_, err := s.get(t.Context(), "")
	require.NoError(t, err)
	require.Equal(t, "xx", ran())
}

func TestKeyCommandFails(t *testing.T) {
	for script, want := range map[string]string{
		"exit 0":                    "printed no key",
		"echo a; echo b":            "a newline",
		"cat /dev/zero":             "more than 65536 bytes",
		"echo login $0 >&2; exit 3": "exit status 3: login [secret]",
	} {
		_, err := shell(t, script, "argument-secret").get(t.Context(), "")
		require.ErrorContains(t, err, "the api_key_command sh ", script)
		require.ErrorContains(t, err, want, script)
	}
	_, err := shell(t, "head -c 5000 /dev/zero | tr '\\0' e >&2; exit 1").get(t.Context(), "")
	require.Equal(t, 500, strings.Count(err.Error()[len("the api_key_command sh failed: exit status 1: "):], "e"))
	late := shell(t, "exec sleep 600")
	late.timeout = 50 * time.Millisecond
	_, err = late.get(t.Context(), "")
	require.ErrorContains(t, err, "did not end within 50ms")
	_, err = newKeyCommand([]string{"/no/such/command"}, 0).get(t.Context(), "")
	require.ErrorContains(t, err, "/no/such/command failed")
}
