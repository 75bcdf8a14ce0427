package conceal

import (
	"errors"
	"fmt"
	"math"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// Process makes memory and environment of this process unreadable for other processes of
// the same user. It also means no core dumps, and debuggers for root only. What the shell
// that started this process left open is closed for the programs that it starts.
func Process() error {
	if err := Files(); err != nil {
		return err
	}
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("hiding the environment from tools: %w", err)
	}
	return nil
}

// Files keeps all files that this process has open from the programs that it starts.
func Files() error {
	err := unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC)
	if err == nil {
		return nil
	}
	files, listed := os.ReadDir("/proc/self/fd") // Linux before 5.11 has no such call
	if listed != nil {
		return fmt.Errorf("keeping open files from commands: %w", errors.Join(err, listed))
	}
	for _, file := range files {
		if fd, err := strconv.Atoi(file.Name()); err == nil && fd > 2 {
			unix.CloseOnExec(fd)
		}
	}
	return nil
}
