//go:build !linux && !darwin

package console

// freeSpace cannot tell on this system.
func freeSpace(string) (bytes uint64, known bool) { return 0, false }
