package toolfile_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/agentfile"
	"github.com/moorebus/moorebus/internal/compose/toolfile"
	"github.com/moorebus/moorebus/pkg/tool"
)

func write(t *testing.T, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "file.yaml")
	require.NoError(t, os.WriteFile(name, []byte(text), 0o600))
	return name
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
	registry, secrets, err := toolfile.Tools(file)
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
	_, secrets, err := toolfile.Tools(file)
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
			_, _, err = toolfile.Tools(file)
		}
		require.ErrorContains(t, err, want, text)
	}
}

func TestActorTools(t *testing.T) {
	registry, _, err := toolfile.ActorTools("", nil, false)
	require.NoError(t, err)
	require.Len(t, registry.Definitions(), 3+5, "and those of memory")
	_, _, err = toolfile.ActorTools("", []string{"gpu"}, false)
	require.ErrorContains(t, err, "gpu")
	_, _, err = toolfile.ActorTools(write(t, "name: a\nllm: {provider: scripted, script: [{text: hi}]}\n"), nil, false)
	require.ErrorContains(t, err, "no tools")
}
