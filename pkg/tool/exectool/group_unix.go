//go:build unix

package exectool

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"syscall"
	"time"
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

// pipeMost is more than a pipe holds.
const pipeMost = 1 << 20

// rest reads what a pipe holds, without waiting for more.
func rest(r *os.File, into io.Writer) {
	if r.SetReadDeadline(time.Time{}) != nil {
		return
	}
	conn, err := r.SyscallConn()
	if err != nil {
		return
	}
	part := make([]byte, 64<<10)
	_ = conn.Read(func(fd uintptr) bool {
		for read := 0; read < pipeMost; {
			n, err := syscall.Read(int(fd), part)
			if err == syscall.EINTR {
				continue
			}
			if n <= 0 {
				break
			}
			_, _ = into.Write(part[:n]) // neither a head nor a tail fails
			read += n
		}
		return true
	})
}
