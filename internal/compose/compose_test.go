package compose_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/agentfile"
	"github.com/moorebus/moorebus/internal/cli"
	"github.com/moorebus/moorebus/internal/compose"
	"github.com/moorebus/moorebus/internal/providers"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/tool"
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

func TestStallFlag(t *testing.T) {
	for text, good := range map[string]bool{"20m": true, "0s": false, "-1h": false} {
		flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
		f := compose.AddGatewayFlags(flags)
		require.Positive(t, f.StallAfter)
		err := flags.Set("stall", text)
		if good {
			require.NoError(t, err)
			require.Equal(t, 20*time.Minute, f.StallAfter)
			continue
		}
		var wrong *cli.ExitError
		require.ErrorAs(t, err, &wrong)
		require.Equal(t, cli.ExitUsage, wrong.Code)
	}
}

func TestProviders(t *testing.T) {
	names := func(file string, values map[string]string) []string {
		callers, err := compose.Providers(file, env(values))
		require.NoError(t, err)
		var names []string
		for name := range callers {
			names = append(names, name)
		}
		return names
	}
	require.ElementsMatch(t, []string{"scripted"}, names("", nil))
	for _, row := range providers.All() {
		require.ElementsMatch(t, []string{"scripted", row.Name}, names("", map[string]string{row.KeyVar: "k"}))
		require.ElementsMatch(t, []string{"scripted", row.Name}, names("", map[string]string{row.URLVar: "http://localhost:1/v1"}))
	}
	file := write(t, "local: {kind: openai, base_url: http://localhost:1/v1, model: small}\nclaude: {kind: anthropic, api_key: k, max_tokens: 100}\n")
	require.ElementsMatch(t, []string{"scripted", "local", "claude"}, names(file, nil))

	for text, want := range map[string]string{
		"local: {kind: openai, base_url: nonsense}\n":                          "local",
		"local: {kind: openai, base_urll: x}\n":                                "base_urll",
		"local: {kind: other, base_url: http://localhost:1}\n":                 "kind",
		"local: {kind: openai, base_url: \"http://${MOOREBUS_NO_SUCH}/v1\"}\n": "MOOREBUS_NO_SUCH",
	} {
		_, err := compose.Providers(write(t, text), env(nil))
		require.ErrorContains(t, err, want, text)
	}
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
	_, err := compose.Providers("", env(map[string]string{"ANTHROPIC_BASE_URL": "localhost"}))
	require.ErrorContains(t, err, "ANTHROPIC_BASE_URL")
	require.ErrorContains(t, check("mystery", nil), "mystery")
}

func TestToolsAreMadeAsTheFileSays(t *testing.T) {
	t.Setenv("MOOREBUS_TEST_KEY", "a very secret key")
	file, err := agentfile.ParseTools([]byte(`
tools:
  - {name: ask, description: Asks., http: {url: "http://127.0.0.1:1/ask", headers: {Authorization: "Bearer ${MOOREBUS_TEST_KEY}"}}, effect: idempotent, pool: web, risk: high}
  - {name: count, description: Counts., exec: {command: [wc, -w], env: {LANG: C}}}
  - {builtin: calculator, pool: math}
`), agentfile.YAML)
	require.NoError(t, err)
	registry, secrets, err := compose.Tools(file)
	require.NoError(t, err)
	require.Equal(t, []string{"Bearer a very secret key", "a very secret key"}, secrets, "a server may say the token alone")
	require.Equal(t, []string{"default", "math", "web"}, registry.Pools())
	calculator, ok := registry.Lookup("calculator")
	require.True(t, ok)
	require.Equal(t, tool.Pure, calculator.Definition().Effect)
	require.Equal(t, "math", calculator.Definition().Pool)
	ask, _ := registry.Lookup("ask")
	require.Equal(t, tool.High, ask.Definition().Risk)
	out := registry.Execute(t.Context(), tool.Call{Name: "calculator", Arguments: `{"expression":"1/8"}`})
	require.Equal(t, "0.125", out.Result)
}

// What variables put into the URL of a tool is taken out of its results: a server may say what it
// was asked. Its scheme and host are not.
func TestVariablesOfURLsAreSecrets(t *testing.T) {
	t.Setenv("WIRE_TEST_BASE", "http://127.0.0.1:1/v1")
	t.Setenv("WIRE_TEST_HOST", "127.0.0.1:1")
	t.Setenv("WIRE_TEST_KEY", "query/secret")
	file, err := agentfile.ParseTools([]byte(`
tools:
  - {name: a, description: A., http: {url: "${WIRE_TEST_BASE}/find?units=imperial&key=${WIRE_TEST_KEY}"}}
  - {name: b, description: B., a2a: "http://user:pass-word@${WIRE_TEST_HOST}/agents"}
`), agentfile.YAML)
	require.NoError(t, err)
	_, secrets, err := compose.Tools(file)
	require.NoError(t, err)
	require.ElementsMatch(t, []string{"query/secret", "query%2Fsecret", "pass-word"}, secrets)
}

func TestToolsThatCannotBe(t *testing.T) {
	for text, want := range map[string]string{
		"tools: [{name: a, description: A., exec: {command: [wc]}, schema: {type: nonsense}}]": "schema",
		"tools: [{builtin: read_file}]":                    "root",
		"tools: [{builtin: calculator}]\nmcp: no.mcp.json": "no.mcp.json",
	} {
		file, err := agentfile.ParseTools([]byte(text), agentfile.YAML)
		if err == nil {
			_, _, err = compose.Tools(file)
		}
		require.ErrorContains(t, err, want, text)
	}
}

func TestActorTools(t *testing.T) {
	registry, _, err := compose.ActorTools("", nil, false)
	require.NoError(t, err)
	require.Len(t, registry.Definitions(), 3+5, "and those of memory")
	_, _, err = compose.ActorTools("", []string{"gpu"}, false)
	require.ErrorContains(t, err, "gpu")
	_, _, err = compose.ActorTools(write(t, "name: a\nllm: {provider: scripted, script: [{text: hi}]}\n"), nil, false)
	require.ErrorContains(t, err, "no tools")
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
