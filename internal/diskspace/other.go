//go:build !linux && !darwin

package diskspace

// Free cannot tell on this system.
func Free(string) (free, total uint64, known bool) { return 0, 0, false }
