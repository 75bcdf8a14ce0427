//go:build unix

package exectool

import (
	"errors"
	"os"
	"os/exec"
	"syscall"
)

// ownGroup starts the command as the leader of a session, which has no terminal, and so of a
// process group. The end of its context kills the group.
func ownGroup(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.Cancel = func() error {
		err := syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		if errors.Is(err, syscall.ESRCH) {
			return os.ErrProcessDone
		}
		return err
	}
}

// killGroup kills what is left of the group after its leader is gone. The
// system gives the leader's id to nobody else as long as the group has members,
// and where it has none there is nothing to kill.
func killGroup(cmd *exec.Cmd) {
	_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // usually: no such group
}
