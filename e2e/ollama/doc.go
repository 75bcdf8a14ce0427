// Package ollama holds the tests that run the moorebus command against a real Ollama on
// the loopback, over each of the three APIs that it serves: chat completions, Messages and
// Responses. The model is made by the tests (see chains in model_test.go): it says what the
// last byte of its prompt chooses, so every reply is known beforehand, and its file has
// 380 kB.
//
// `make ollama` builds a CPU-only Ollama into the user's cache directory, once, and runs
// the tests. Without it they skip themselves. The environment variable MOOREBUS_OLLAMA
// names another binary.
//
// A failed test prints every request and response of its run as they went over the wire.
//
// The package has tests, for Unix, and nothing to import.
package ollama
