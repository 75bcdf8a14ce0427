package mcppins_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/mcppins"
	"github.com/moorebus/moorebus/pkg/tool/mcptool"
)

func pinned(t *testing.T) *mcppins.File {
	t.Helper()
	server, err := mcppins.Of(&mcptool.Said{Definitions: map[string]json.RawMessage{
		"b": json.RawMessage(`{"name":"b","description":"<b> & \u2028\u202e","inputSchema":{"maximum":1.5e+300}}`),
		"a": json.RawMessage(`{"name":"a"}`), mcptool.PinOfInstructions: json.RawMessage(`"Be kind."`),
	}})
	require.NoError(t, err)
	f := mcppins.New()
	f.Servers["srv"] = server
	return f
}

func TestFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pins.json")
	f := pinned(t)
	require.NoError(t, f.Write(path))
	first, err := os.ReadFile(path)
	require.NoError(t, err)
	info, err := os.Stat(path)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o644), info.Mode().Perm())
	read, err := mcppins.Read(path)
	require.NoError(t, err)
	require.Equal(t, f.Digests("srv"), read.Digests("srv"))
	require.Len(t, read.Digests("srv"), 3)
	require.Empty(t, read.Digests("other"))
	require.NoError(t, read.Write(path))
	again, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, string(first), string(again))
	left, err := os.ReadDir(filepath.Dir(path))
	require.NoError(t, err)
	require.Len(t, left, 1, "nothing is left beside it")
	require.Error(t, f.Write(filepath.Join(path, "no", "folder")))
}

func TestFilesThatAreRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pins.json")
	require.NoError(t, pinned(t).Write(path))
	good, err := os.ReadFile(path)
	require.NoError(t, err)
	_, err = mcppins.Read(path + ".missing")
	require.ErrorIs(t, err, os.ErrNotExist)
	for says, text := range map[string]string{
		"digest of the tool \"a\"":  strings.Replace(string(good), `"name": "a"`, `"name": "z"`, 1),
		"digest of the instruction": strings.Replace(string(good), "Be kind.", "Be cruel.", 1),
		"version: 0":                `{}`,
		"line 1":                    `{`,
		"unknown key":               `{"version": 1, "server": {}}`,
		"twice":                     `{"version": 1, "servers": {"a": {}, "a": {}}}`,
		"larger than 16 MiB":        strings.Repeat(" ", 17<<20),
	} {
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		_, err := mcppins.Read(path)
		require.ErrorContains(t, err, says)
		require.ErrorContains(t, err, path)
	}
}
