package compose_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/cli"
	"github.com/moorebus/moorebus/internal/compose"
	"github.com/moorebus/moorebus/internal/compose/providerfile"
	"github.com/moorebus/moorebus/internal/providers"
	"github.com/moorebus/moorebus/pkg/events"
)

func env(values map[string]string) func(string) string {
	return func(name string) string { return values[name] }
}

func write(t *testing.T, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "file.yaml")
	require.NoError(t, os.WriteFile(name, []byte(text), 0o600))
	return name
}

func TestCheckProviderSaysWhatToSet(t *testing.T) {
	check := func(provider string, values map[string]string) error {
		return compose.CheckProvider(events.Agent{LLM: events.LLM{Provider: provider}}, "", env(values))
	}
	require.NoError(t, check("scripted", nil))
	require.NoError(t, check("openai", map[string]string{"OPENAI_API_KEY": "k"}))
	for _, provider := range []string{"openai", "anthropic", "mystery"} {
		var exit *cli.ExitError
		require.True(t, errors.As(check(provider, nil), &exit))
		require.Equal(t, cli.ExitConfig, exit.Code)
	}
	require.ErrorContains(t, check("openai", nil), "OPENAI_API_KEY")
	require.NoError(t, check("anthropic", map[string]string{"ANTHROPIC_API_KEY": "k"}))
	require.ErrorContains(t, check("anthropic", nil), "ANTHROPIC_API_KEY")
	_, err := providerfile.Providers("", env(map[string]string{"ANTHROPIC_BASE_URL": "localhost"}))
	require.ErrorContains(t, err, "ANTHROPIC_BASE_URL")
	require.ErrorContains(t, check("mystery", nil), "mystery")
}

func TestAssistantAsksWhomThereIs(t *testing.T) {
	for _, c := range []struct{ openai, anthropic, want string }{
		{"", "", providers.OpenAI}, {"k", "k", providers.OpenAI}, {"", "k", providers.Anthropic},
	} {
		t.Setenv("OPENAI_API_KEY", c.openai)
		t.Setenv("OPENAI_BASE_URL", "")
		t.Setenv("ANTHROPIC_API_KEY", c.anthropic)
		docs, err := compose.Documents("", "")
		require.NoError(t, err)
		require.Equal(t, c.want, docs.Agent.LLM.Provider)
	}
}

func TestDocuments(t *testing.T) {
	t.Setenv("ANTHROPIC_API_KEY", "")
	docs, err := compose.Documents("", "")
	require.NoError(t, err)
	require.Equal(t, providers.OpenAI, docs.Agent.LLM.Provider)
	require.Equal(t, []string{"calculator", "current_time"}, docs.Agent.Tools)
	both := write(t, "name: a\nllm: {provider: scripted, script: [{text: hi}]}\n---\ntools: [{builtin: calculator}]\n")
	docs, err = compose.Documents(both, "")
	require.NoError(t, err)
	require.NotNil(t, docs.Tools)
	_, err = compose.Documents(both, both)
	require.ErrorContains(t, err, "remove one of them")
}
