//go:build unix

package mcptool

import (
	"os/exec"
	"syscall"
)

// ownGroup starts the command as the leader of a process group.
func ownGroup(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }

// endGroup asks the command's group to end.
func endGroup(cmd *exec.Cmd) {
	_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) // it may be gone already
}

// killGroup kills what there is of the group. The system gives the leader's id to
// nobody else as long as the group has members, and where it has none there is
// nothing to kill.
func killGroup(cmd *exec.Cmd) {
	_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // usually: no such group
}
