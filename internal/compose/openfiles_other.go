//go:build !unix

package compose

// OpenFiles cannot tell on this system.
func OpenFiles() (limit uint64, known bool) { return 0, false }
