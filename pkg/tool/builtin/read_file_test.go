package builtin

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/tooltest"
	"github.com/moorebus/moorebus/pkg/tool"
)

// sharedFolder has files inside, and one outside that must stay unread.
func sharedFolder(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	root := filepath.Join(dir, "root")
	require.NoError(t, os.MkdirAll(filepath.Join(root, "sub"), 0o700))
	for name, content := range map[string]string{
		"secret": "the secret", "root/a.txt": "hello, wörld\n", "root/sub/b.txt": "below",
		"root/empty": "", "root/binary": "\x7fELF\x00\x01", "root/long": strings.Repeat("ü", 1000),
	} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600))
	}
	require.NoError(t, os.Symlink("../secret", filepath.Join(root, "link")))
	require.NoError(t, os.Symlink(filepath.Join(dir, "secret"), filepath.Join(root, "absolute")))
	require.NoError(t, os.Symlink("..", filepath.Join(root, "up")))
	require.NoError(t, os.Symlink("a.txt", filepath.Join(root, "inside")))
	require.NoError(t, syscall.Mkfifo(filepath.Join(root, "pipe"), 0o600))
	return root
}

func readFileTool(t *testing.T, max int64) tool.Tool {
	t.Helper()
	made, err := New(ReadFile, Options{Root: sharedFolder(t), MaxBytes: max})
	require.NoError(t, err)
	return made
}

func readArgs(t *testing.T, args map[string]any) tool.Call {
	t.Helper()
	raw, err := json.Marshal(args)
	require.NoError(t, err)
	return tool.Call{Name: ReadFile, Arguments: string(raw)}
}

func TestReadFileSuite(t *testing.T) {
	tooltest.Suite{
		Success: func(t *testing.T) tooltest.Case {
			return tooltest.Case{Tool: readFileTool(t, 0), Arguments: `{"path":"a.txt"}`, Want: "hello, wörld\n"}
		},
		Failure: func(t *testing.T) tooltest.Case {
			return tooltest.Case{Tool: readFileTool(t, 0), Arguments: `{"path":"../secret"}`, Code: tool.CodeInvalidArguments, Want: "leads out"}
		},
	}.Run(t)
}

func TestReadFileReads(t *testing.T) {
	r := readFileTool(t, 0)
	for path, want := range map[string]string{
		"sub/b.txt": "below", "./sub/../a.txt": "hello, wörld\n", "inside": "hello, wörld\n", "empty": "",
	} {
		got, err := r.Run(t.Context(), readArgs(t, map[string]any{"path": path}))
		require.NoError(t, err, path)
		require.Equal(t, want, got)
	}
	got, err := r.Run(t.Context(), readArgs(t, map[string]any{"path": "a.txt", "offset": 7, "limit": 100}))
	require.NoError(t, err)
	require.Equal(t, "wörld\n", got)
}

func TestReadFileInParts(t *testing.T) {
	r := readFileTool(t, 301)
	got, err := r.Run(t.Context(), readArgs(t, map[string]any{"path": "long"}))
	require.NoError(t, err)
	require.Equal(t, strings.Repeat("ü", 150)+"\n[moorebus: output cut at 300 bytes of 2000; go on with offset 300]", got)
	got, err = r.Run(t.Context(), readArgs(t, map[string]any{"path": "long", "offset": 1900}))
	require.NoError(t, err)
	require.Equal(t, strings.Repeat("ü", 50), got)
	got, err = r.Run(t.Context(), readArgs(t, map[string]any{"path": "long", "offset": 2000}))
	require.NoError(t, err)
	require.Empty(t, got)
}

func TestReadFileRefuses(t *testing.T) {
	r := readFileTool(t, 0)
	for name, c := range map[string]struct {
		args map[string]any
		want string
	}{
		"parent":         {map[string]any{"path": "../secret"}, "leads out"},
		"hidden parent":  {map[string]any{"path": "sub/../../secret"}, "leads out"},
		"absolute":       {map[string]any{"path": "/etc/passwd"}, "absolute path"},
		"link":           {map[string]any{"path": "link"}, "escapes"},
		"absolute link":  {map[string]any{"path": "absolute"}, "escapes"},
		"linked folder":  {map[string]any{"path": "up/secret"}, "escapes"},
		"missing":        {map[string]any{"path": "none"}, `no file "none"`},
		"no path":        {map[string]any{}, "path is missing"},
		"folder":         {map[string]any{"path": "sub"}, "not a regular file"},
		"pipe":           {map[string]any{"path": "pipe"}, "not a regular file"},
		"binary":         {map[string]any{"path": "binary"}, "not a text file"},
		"offset":         {map[string]any{"path": "a.txt", "offset": 99}, "beyond the end"},
		"minus offset":   {map[string]any{"path": "a.txt", "offset": -1}, "negative"},
		"limit":          {map[string]any{"path": "a.txt", "limit": 0}, "at least 1"},
		"NUL in path":    {map[string]any{"path": "a\x00b"}, "cannot be read"},
		"unknown key":    {map[string]any{"path": "a.txt", "mode": "w"}, "mode"},
		"not an integer": {map[string]any{"path": "a.txt", "offset": 1.5}, "offset"},
	} {
		got, err := r.Run(t.Context(), readArgs(t, c.args))
		require.ErrorContains(t, err, c.want, name)
		require.NotContains(t, err.Error(), os.TempDir()+"/", name)
		require.Empty(t, got)
		var f *tool.Failure
		require.ErrorAs(t, err, &f, name)
	}
}
