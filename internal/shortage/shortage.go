// Package shortage tells what this machine lacks for a moment from what is wrong with a tool.
package shortage

import (
	"errors"
	"syscall"
)

// errnos are the errors of a system that lacks files, processes or memory now. The last one is a
// program that is being written.
var errnos = []error{syscall.EMFILE, syscall.ENFILE, syscall.EAGAIN, syscall.ENOMEM, syscall.ENOBUFS, syscall.ETXTBSY}

// Is reports whether err says that this machine lacks something for a moment. What did not begin
// for that reason can be tried again.
func Is(err error) bool {
	for _, errno := range errnos {
		if errors.Is(err, errno) {
			return true
		}
	}
	return false
}
