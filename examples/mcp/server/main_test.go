package main

import (
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// The example's one command, as its README has it.
func TestExample(t *testing.T) {
	t.Parallel()
	cmd := exec.Command("go", "run", "./cmd/moorebus", "run", "--agent", "examples/mcp/agent.yaml", "--data", t.TempDir())
	cmd.Dir = filepath.Join("..", "..", "..")
	shown, answer := &writer{}, &writer{}
	cmd.Stdout, cmd.Stderr = answer, shown
	require.NoError(t, cmd.Run(), shown.text)
	require.Equal(t, "To do: the plants want water\n", answer.text)
	require.Contains(t, shown.text, "notes.add_note")
}

// writer keeps what is written.
type writer struct{ text string }

func (w *writer) Write(p []byte) (int, error) {
	w.text += string(p)
	return len(p), nil
}
