//go:build !race

package llmtest

const raced = false
