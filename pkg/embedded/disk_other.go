//go:build !linux && !darwin

package embedded

// FreeSpace cannot tell on this system.
func FreeSpace(string) (free, total uint64, known bool) { return 0, 0, false }
