package exectool

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// What a command wrote is read even if no processor is free for it while its output may still come,
// and if something that it left behind holds its output open.
func TestOutputIsReadLate(t *testing.T) {
	if _, err := exec.LookPath("sh"); err != nil {
		t.Skip("reason: there is no sh")
	}
	text := strings.Repeat("x", 4000)
	for range 50 {
		cmd := exec.CommandContext(t.Context(), "sh", "-c", "sleep 60 & printf "+text+"; printf e >&2")
		ownGroup(cmd)
		stdout, stderr := &head{max: 1 << 20}, &tail{max: 1 << 10}
		out, err := feed(cmd, "{}", stdout, stderr)
		require.NoError(t, err)
		require.NoError(t, cmd.Wait())
		out.end(0)
		killGroup(cmd)
		require.Equal(t, text, stdout.String())
		require.Equal(t, "e", stderr.String())
	}
}
