package exectool

import (
	"path/filepath"
	"slices"
	"testing"

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

func init() { commands["bomb"], commands["memory"] = bomb, memory }

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
			if is, _, _ := inKind(t, opts).run(t.Context(), tool.Call{}); !slices.Contains(is.Held, HoldsBounds) {
				require.True(t, opts.flat && !slices.Contains(is.Held, HoldsFiles), "%v", is)
				return // it may write where its bounds are
			}
			opts.Memory, opts.Processes, opts.Require = 128<<20, 20, []string{HoldsBounds}
			got, err := run(t, "bomb", opts)
			require.NoError(t, err)
			require.Contains(t, got, "refused")
			_, err = run(t, "memory", opts)
			require.ErrorContains(t, err, "it had more memory than its tool allows")
			require.Empty(t, left())
		})
	}
}
