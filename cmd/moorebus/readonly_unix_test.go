//go:build unix

package main

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/commandtest"
)

// TestReadOnlyData: a data directory that cannot be written can be read, and nothing else. The
// reader is another user if the test is root's, who may write everywhere.
func TestReadOnlyData(t *testing.T) {
	if testing.Short() {
		t.Skip("-short") // reason: it starts processes
	}
	t.Parallel()
	built, err := commandtest.Build("cmd", "./cmd/moorebus")
	require.NoError(t, err)
	dir, err := os.MkdirTemp("", "moorebus-read-only-") // a test's own is another user's no business
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	require.NoError(t, os.Chmod(dir, 0o755))
	bin, data, temp := filepath.Join(dir, "moorebus"), filepath.Join(dir, "data"), filepath.Join(dir, "temp")
	program, err := os.ReadFile(filepath.Join(built, "moorebus"))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(bin, program, 0o755))
	require.NoError(t, os.Mkdir(temp, 0o777))
	require.NoError(t, os.Chmod(temp, 0o777)) // whatever the umask is
	agent := filepath.Join(dir, "agent.yaml")
	require.NoError(t, os.WriteFile(agent, []byte("name: adder\ntask: Add.\nllm: {provider: scripted, script: [{text: It is 42.}]}\n"), 0o644))
	moorebus := func(another bool, args ...string) (string, error) {
		cmd := exec.Command(bin, append(args, "--data", data)...)
		cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + temp, "TMPDIR=" + temp}
		if another && os.Getuid() == 0 {
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		}
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	out, err := moorebus(false, "run", "--fsync", "relaxed", "--agent", agent)
	require.NoError(t, err, out)
	mode := func(file, folder os.FileMode) {
		require.NoError(t, filepath.WalkDir(data, func(path string, entry fs.DirEntry, err error) error {
			if err == nil && entry.IsDir() {
				err = os.Chmod(path, folder)
			} else if err == nil {
				err = os.Chmod(path, file)
			}
			return err
		}))
	}
	mode(0o444, 0o555)
	t.Cleanup(func() { mode(0o644, 0o755) })
	for want, args := range map[string][]string{
		"adder":      {"runs"},
		"It is 42.":  {"show", "@last"},
		"1 run, 2":   {"replay", "verify", "--all"},
		"read-only:": {"runs"},
	} {
		out, err := moorebus(true, args...)
		require.NoError(t, err, out)
		require.Contains(t, out, want)
	}
	out, err = moorebus(true, "cancel", "@last")
	require.Error(t, err)
	require.Contains(t, out, "cannot be written")
	left, err := filepath.Glob(filepath.Join(temp, "moorebus-read-*"))
	require.NoError(t, err)
	require.Empty(t, left, "the copies are removed")
}
