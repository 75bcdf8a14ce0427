package exectool

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/pkg/tool"
)

// inKind is a tool in a kind of sandbox.
func inKind(t *testing.T, opts Options) *execTool {
	t.Helper()
	opts.Command = []string{"true"}
	made, err := New(tool.Definition{Name: "cmd"}, opts)
	require.NoError(t, err)
	return made.(*execTool)
}

// Another process of the same group does not end the calls of this one when it starts.
func TestASecondProcessInTheGroup(t *testing.T) {
	parent, err := delegated()
	if err != nil {
		t.Skip("reason: ", err)
	}
	busy, err := newBound(minMemory, minProcesses)
	require.NoError(t, err)
	left, err := newBound(minMemory, minProcesses)
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), "sleep", "infinity")
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(busy.files.Fd())}
	require.NoError(t, cmd.Start())
	fresh, err := newBound(minMemory, minProcesses)
	require.NoError(t, err)
	for _, b := range []*bound{busy, left} {
		require.NoError(t, os.Chtimes(b.dir, time.Time{}, time.Now().Add(-time.Hour)))
	}
	removeEmpty(parent)
	require.DirExists(t, fresh.dir)
	require.NoError(t, fresh.close())
	require.NoError(t, cmd.Process.Signal(syscall.Signal(0)))
	require.DirExists(t, busy.dir)
	require.NoDirExists(t, left.dir)
	require.NoError(t, busy.close())
	require.Error(t, cmd.Wait(), "closing it ends what is in it")
	require.NoDirExists(t, busy.dir)
}

func init() { commands["bomb"], commands["memory"] = bomb, memory }

// It takes a control group that is delegated, which CI's machine has not: there it runs in User-mode Linux,
// whose kernel has no Landlock.
func TestBoundsOfASandbox(t *testing.T) {
	parent, err := delegated()
	if err != nil {
		t.Skip("reason: ", err)
	}
	left := func() []string {
		found, err := filepath.Glob(filepath.Join(parent, callPrefix+"*"))
		require.NoError(t, err)
		return found
	}
	for name, opts := range kinds {
		t.Run(name, func(t *testing.T) {
			if is, _, _ := inKind(t, opts).run(t.Context(), tool.Call{}); !slices.Contains(is.Held, holdsBounds) {
				require.True(t, opts.flat && !slices.Contains(is.Held, holdsFiles), "%v", is)
				return // it may write where its bounds are
			}
			opts.Memory, opts.Processes, opts.Require = 128<<20, 20, []string{holdsBounds}
			got, err := run(t, "bomb", opts)
			require.NoError(t, err)
			require.Contains(t, got, "refused")
			_, err = run(t, "memory", opts)
			require.ErrorContains(t, err, "it had more memory than its tool allows")
			require.Empty(t, left())
		})
	}
}
