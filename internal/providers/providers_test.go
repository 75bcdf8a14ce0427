package providers_test

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/providers"
)

var update = flag.Bool("update", false, "write the table into the documentation")

// TestReference compares the table of docs/reference/configuration.md.
func TestReference(t *testing.T) {
	const file, begin, end = "../../docs/reference/configuration.md", "-update -->\n", "<!-- end of providers -->"
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	head, rest, found := strings.Cut(string(text), begin)
	_, tail, foundEnd := strings.Cut(rest, end)
	require.True(t, found && foundEnd, "the marks are missing")
	var table strings.Builder
	table.WriteString("\n| provider | key | base URL | default address | model | default model |\n|---|---|---|---|---|---|\n")
	for _, p := range providers.All() {
		fmt.Fprintf(&table, "| `%s` | `%s` | `%s` | %s | `%s` | %s |\n", p.Name, p.KeyVar, p.URLVar, p.BaseURL, p.ModelVar, p.Model)
	}
	want := head + begin + table.String() + "\n" + end + tail
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(want), 0o600))
		return
	}
	require.Equal(t, want, string(text), "run go test ./internal/providers -update")
}

func TestMessages(t *testing.T) {
	require.Equal(t, "OPENAI_API_KEY, OPENAI_BASE_URL, ANTHROPIC_API_KEY, ANTHROPIC_BASE_URL", providers.Variables())
	require.Equal(t, "openai, anthropic or responses", providers.Kinds())
	for _, says := range []string{"OPENAI_API_KEY=…", "OPENAI_BASE_URL=http://localhost:11434/v1 OPENAI_MODEL=…", "for Anthropic", "scripted"} {
		require.Contains(t, providers.NoKey(), says)
	}
}
