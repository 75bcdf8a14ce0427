package main

import (
	"fmt"
	"os"
)

// tmpfsAllowed lets durable benchmarks use a file system in memory: for tests of the
// benchmarks themselves.
var tmpfsAllowed bool

// dataDir makes a fresh data directory in TMPDIR. It refuses to measure flushes on a
// file system that lies in memory.
func dataDir(durable bool) (string, error) {
	if at := os.TempDir(); durable && !tmpfsAllowed && inMemory(at) {
		return "", fmt.Errorf("%s lies in memory, so a flush there costs nothing: set TMPDIR to a directory on a disk", at)
	}
	return os.MkdirTemp("", "moorebus-bench-")
}
