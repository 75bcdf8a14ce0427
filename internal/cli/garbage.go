package cli

import (
	"math"
	"runtime"
	"runtime/debug"
)

// garbageRoom is how much more garbage may lie about, in bytes.
const garbageRoom = 256 << 20

// GarbageRoom lets the heap of a command that reads all of a log grow by up to 256 MiB
// more before it is collected, until the room is given up: such a command makes several
// kilobytes of garbage an event, and what it keeps may be large. Collecting it in the
// usual rhythm takes a fifth of the processor. Where memory is limited by GOMEMLIMIT it
// does nothing.
//
// What is set aside is never written to, so it takes up addresses and no memory; but
// the collector counts it as a part of the heap.
func GarbageRoom() (giveUp func()) {
	if debug.SetMemoryLimit(-1) < math.MaxInt64 {
		return func() {}
	}
	room := make([]byte, garbageRoom)
	return func() { runtime.KeepAlive(room) }
}
