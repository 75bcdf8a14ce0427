package retry

import (
	"errors"
	"slices"
	"syscall"
)

// shortages are the errors of a system that lacks files, processes or memory now. The last one is a
// program that is being written.
var shortages = []error{syscall.EMFILE, syscall.ENFILE, syscall.EAGAIN, syscall.ENOMEM, syscall.ENOBUFS, syscall.ETXTBSY}

// Short reports whether err says that this machine lacks something for a moment. What did not begin
// for that reason can be tried again.
func Short(err error) bool {
	return slices.ContainsFunc(shortages, func(s error) bool { return errors.Is(err, s) })
}
