//go:build race

package racing

// On reports whether this was built with the race detector.
const On = true
