package toolfile

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/agentfile"
)

// A tool file can require what a sandbox can have.
func TestAToolFileRequiresWhatASandboxHas(t *testing.T) {
	for _, hold := range []string{"pidns", "ipcns", "netns", "mountns", "landlock", "seccomp", "cgroup"} {
		docs, err := agentfile.ParseFile([]byte("tools:\n- {name: x, description: X., exec: {command: [cat]}, require: ["+hold+"]}\n"), agentfile.Options{})
		require.NoError(t, err)
		made, err := oneTool(&docs.Tools.Tools[0], nil)
		require.NoError(t, err)
		require.Equal(t, "x", made.Definition().Name)
	}
}
