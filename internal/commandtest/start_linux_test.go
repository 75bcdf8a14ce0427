package commandtest

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestCommandsEndWithTheirParent: this test again, as a process of its own, starts a
// command and is killed. The command has the other end of a pipe, which closes then.
func TestCommandsEndWithTheirParent(t *testing.T) {
	if os.Getenv("COMMANDTEST_PARENT") != "" {
		cmd := exec.Command("sh", "-c", "echo started; exec sleep 600")
		cmd.Stdout = os.Stdout
		ended, err := Start(cmd)
		require.NoError(t, err)
		<-ended
	}
	parent := exec.Command(os.Args[0], "-test.run", "^TestCommandsEndWithTheirParent$")
	parent.Env = append(os.Environ(), "COMMANDTEST_PARENT=1")
	read, write, err := os.Pipe()
	require.NoError(t, err)
	parent.Stdout = write
	ended, err := Start(parent)
	require.NoError(t, err)
	require.NoError(t, write.Close())
	said := bufio.NewReader(read)
	line, err := said.ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "started\n", line)
	require.NoError(t, parent.Process.Kill())
	<-ended
	_, err = io.ReadAll(said)
	require.NoError(t, err, "nobody has the pipe any more")
}
