package commandtest

import (
	"os/exec"
	"runtime"
)

// Start starts a command. The channel is closed when the command has ended; then
// cmd.ProcessState says how. On Linux the command is killed when this process ends, even
// if nothing is left to clean up after it.
func Start(cmd *exec.Cmd) (ended <-chan struct{}, err error) {
	over, started := make(chan struct{}), make(chan error)
	go func() {
		// For Linux, the parent of a process is the thread that started it, not the program.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		dieWithParent(cmd)
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // the state says how it ended
			close(over)
		}
	}()
	return over, <-started
}
