//go:build race

package llmtest

// raced is whether the race detector is in. It makes everything slower by about ten.
const raced = true
