package agentfile_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/agentfile"
	"github.com/moorebus/moorebus/pkg/tool"
)

const toolText = `tools:
  - name: search
    description: Searches.
    schema: {type: object, properties: {q: {type: string}}}
    http: {url: "https://${HOST:-example.com}/search", headers: {Authorization: "Bearer ${KEY}", X-Plain: "$${KEY}"}}
    effect: pure
    timeout: 10s
    retries: 2
    pool: web
    risk: low
  - {name: word_count, exec: {command: [wc, -w], env: {LANG: C}, dir: data}}
  - {builtin: calculator}
  - {builtin: read_file, root: docs}
  - {builtin: http_get, name: fetch, hosts: [example.com]}
`

func env(values map[string]string) func(string) (string, bool) {
	return func(name string) (string, bool) {
		v, ok := values[name]
		return v, ok
	}
}

func TestParseTools(t *testing.T) {
	f, err := agentfile.ParseTools([]byte(toolText), agentfile.YAML)
	require.NoError(t, err)
	require.Len(t, f.Tools, 5)
	def := f.Tools[0].Definition()
	require.Equal(t, tool.Definition{
		Name: "search", Description: "Searches.", Schema: []byte(`{"type":"object","properties":{"q":{"type":"string"}}}`),
		Effect: tool.Pure, Pool: "web", Risk: tool.Low, Timeout: 10 * time.Second, Retries: 2,
	}, def)
	require.Equal(t, []string{"wc", "-w"}, f.Tools[1].Exec.Command)
	require.Equal(t, "calculator", f.Tools[2].Name)
	require.Equal(t, "fetch", f.Tools[4].Name)

	require.NoError(t, f.Expand(env(map[string]string{"KEY": "secret"})))
	require.Equal(t, "https://example.com/search", f.Tools[0].HTTP.URL)
	require.Equal(t, map[string]string{"Authorization": "Bearer secret", "X-Plain": "${KEY}"}, f.Tools[0].HTTP.Headers)
}

func TestExpandErrors(t *testing.T) {
	for text, want := range map[string]string{
		"https://x/${MISSING}": "MISSING is not set",
		"https://x/${NO":       "${ without }",
		"https://x/${1A}":      "does not name a variable",
		"${RELATIVE}":          "not an absolute",
	} {
		f, err := agentfile.ParseTools([]byte("tools:\n- {name: a, http: {url: '"+text+"'}}\n"), agentfile.YAML)
		require.NoError(t, err)
		err = f.Expand(env(map[string]string{"RELATIVE": "se-cret"}))
		require.ErrorContains(t, err, want)
		require.ErrorContains(t, err, "tools[0]")
		require.NotContains(t, err.Error(), "se-cret")
	}
}

func TestMalformedToolFiles(t *testing.T) {
	for name, c := range map[string]struct {
		data string
		want []string
	}{
		"unknown key":      {"tools:\n- builtin: calculator\n  efect: pure\n", []string{"line 3", "tools[0].efect", "did you mean effect?"}},
		"nested":           {"tools:\n- name: a\n  http:\n    ulr: x\n", []string{"line 4", "tools[0].http.ulr", "unknown key"}},
		"none of three":    {"tools:\n- name: a\n", []string{"line 2", "tools[0]", "exactly one"}},
		"two of three":     {"tools:\n- {name: a, builtin: x, exec: {command: [y]}}\n", []string{"line 2", "exactly one"}},
		"name":             {"tools:\n- {name: a b, builtin: x}\n", []string{"line 2", "tools[0].name"}},
		"twice":            {"tools:\n- {builtin: x}\n- {name: x, builtin: y}\n", []string{"line 3", "tools[1].name", "tools[0]"}},
		"effect":           {"tools:\n- {builtin: x,\n   effect: sometimes}\n", []string{"line 3", "tools[0].effect", "idempotent"}},
		"risk":             {"tools:\n- {builtin: x, risk: none}\n", []string{"tools[0].risk"}},
		"pool":             {"tools:\n- {builtin: x, pool: A.B}\n", []string{"tools[0].pool"}},
		"reserved pool":    {"tools:\n- {builtin: x, pool: agents}\n", []string{"tools[0].pool", "reserved"}},
		"timeout":          {"tools:\n- {builtin: x, timeout: fast}\n", []string{"tools[0].timeout"}},
		"negative timeout": {"tools:\n- {builtin: x, timeout: -1s}\n", []string{"tools[0].timeout"}},
		"retries":          {"tools:\n- {builtin: x, retries: -1}\n", []string{"tools[0].retries"}},
		"breaker":          {"tools:\n- {builtin: x, breaker: {open: -1s}}\n", []string{"tools[0].breaker", "{off: true}"}},
		"breaker's key":    {"tools:\n- {builtin: x, breaker: {fails: 1}}\n", []string{"tools[0].breaker.fails", "unknown key"}},
		"url":              {"tools:\n- {name: x, http: {url: /search}}\n", []string{"tools[0].http.url"}},
		"no url":           {"tools:\n- {name: x, http: {method: GET}}\n", []string{"tools[0].http.url", "missing"}},
		"no command":       {"tools:\n- {name: x, exec: {command: []}}\n", []string{"tools[0].exec.command"}},
		"schema":           {"tools:\n- {builtin: x, schema: 3}\n", []string{"tools[0].schema"}},
		"sandbox":          {"tools:\n- {name: x, exec: {command: [y]}, sandbox: loose}\n", []string{"tools[0].sandbox", "use strict or off"}},
		"sandbox of none":  {"tools:\n- {builtin: x, sandbox: off}\n", []string{"tools[0].sandbox", "exec tools alone"}},
		"root":             {"tools:\n- {builtin: x, root: /}\n", []string{"tools[0].root"}},
		"hosts":            {"tools:\n- {builtin: x, hosts: [a]}\n", []string{"tools[0].hosts"}},
		"mcp without file": {"tools: []\nmcp: {servers: {}}\n", []string{"line 2", "mcp", "names no file"}},
		"mcp's key":        {"tools: []\nmcp:\n  file: a\n  server: {}\n", []string{"line 4", "mcp.server", "unknown key"}},
		"mcp's risk":       {"mcp:\n  file: a\n  servers: {x: {risk: some}}\n", []string{"line 3", "mcp.servers.x.risk", "is not a risk"}},
		"mcp's pool":       {"mcp:\n  file: a\n  servers: {x: {pool: agents}}\n", []string{"line 3", "mcp.servers.x.pool", "reserved"}},
		"names, not tools": {"tools: [search]\n", []string{"line 1", "tools[0]", "want a mapping"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := agentfile.ParseTools([]byte(c.data), agentfile.Auto)
			require.Error(t, err)
			for _, want := range c.want {
				require.ErrorContains(t, err, want)
			}
		})
	}
}

func TestProviders(t *testing.T) {
	p, err := agentfile.ParseProviders([]byte(`groq:
  kind: openai
  base_url: https://${GROQ_HOST}/v1
  api_key_env: GROQ_KEY
  model: llama
  headers: {X-Team: "${TEAM:-none}"}
local: {kind: openai, base_url: "http://localhost:11434/v1", max_tokens: 100}
`), agentfile.YAML)
	require.NoError(t, err)
	require.NoError(t, p.Expand(env(map[string]string{"GROQ_HOST": "api.groq.example", "GROQ_KEY": "k"})))
	require.Equal(t, agentfile.Provider{
		Kind: "openai", BaseURL: "https://api.groq.example/v1", APIKey: "k", APIKeyEnv: "GROQ_KEY", Model: "llama",
		Headers: map[string]string{"X-Team": "none"},
	}, p["groq"])
	require.Equal(t, 100, p["local"].MaxTokens)

	for text, want := range map[string]string{
		"a: {kind: soap}":                               "line 1: a.kind",
		"a: {kind: openai,\n key: x}":                   "line 2: a.key: unknown key",
		"a: {kind: openai, base_url: nowhere}":          "a.base_url",
		"scripted: {kind: openai}":                      "scripted",
		"A B: {kind: openai}":                           "not a provider's name",
		"a: {kind: openai, api_key: x, api_key_env: Y}": "a.api_key",
		"a: {kind: openai, api_key_env: 'not a name'}":  "a.api_key_env",
		"a: {kind: openai, max_tokens: -1}":             "a.max_tokens",
		"a: {kind: openai}\na: {kind: openai}":          "twice",
		"a: {kind: openai}\n---\nb: {kind: openai}":     "second document",
		"- a": "want a mapping",
	} {
		_, err := agentfile.ParseProviders([]byte(text), agentfile.Auto)
		require.ErrorContains(t, err, want, text)
	}
	q, err := agentfile.ParseProviders([]byte("a: {kind: openai, api_key_env: NOPE}"), agentfile.YAML)
	require.NoError(t, err)
	require.ErrorContains(t, q.Expand(env(nil)), "NOPE is not set")
}
