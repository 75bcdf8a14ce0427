package agentfile_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
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

func TestServices(t *testing.T) {
	f, err := agentfile.ParseTools([]byte("tools:\n- {service: text}\n- {builtin: calculator}\n- {service: shop, pool: web}\n"), agentfile.Auto)
	require.NoError(t, err)
	require.Len(t, f.Tools, 1)
	require.Equal(t, []agentfile.ServiceEntry{{Service: "text"}, {Service: "shop", Pool: "web"}}, f.Services)
	for entry, want := range map[string]string{
		"{service: a.b}":                     `line 2: tools[0].service: "a.b" is not the name of a NATS service`,
		"{service: a, pool: client}":         `tools[0].pool: "client" is not a pool of actors`,
		"{service: a, timeout: 5s}":          "tools[0].service: allows only the key pool with it",
		"{service: a, exec: {command: [x]}}": "tools[0].service: allows only the key pool with it",
		"{service: a, name: b}":              "tools[0].service: allows only the key pool with it",
		"{service: a}\n- {service: a}":       `tools[1].service: "a" is named twice`,
	} {
		_, err := agentfile.ParseTools([]byte("tools:\n- "+entry+"\n"), agentfile.Auto)
		require.ErrorContains(t, err, want, entry)
	}
}

func TestAgentsElsewhereAreExpanded(t *testing.T) {
	f, err := agentfile.ParseTools([]byte("tools:\n- {name: far, a2a: '${HOST}/a2a', headers: {Authorization: 'Bearer ${KEY}'}}\n"), agentfile.Auto)
	require.NoError(t, err)
	require.ErrorContains(t, f.Expand(env(map[string]string{"HOST": "se-cret", "KEY": "k"})), "tools[0] (far).a2a: with its variables filled in it is not an absolute")
	f, err = agentfile.ParseTools([]byte("tools:\n- {name: far, a2a: '${HOST}/a2a', headers: {Authorization: 'Bearer ${KEY}'}}\n"), agentfile.Auto)
	require.NoError(t, err)
	require.NoError(t, f.Expand(env(map[string]string{"HOST": "http://far.example", "KEY": "k"})))
	require.Equal(t, "http://far.example/a2a", f.Tools[0].A2A)
	require.Equal(t, map[string]string{"Authorization": "Bearer k"}, f.Tools[0].Headers)
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
		"unknown key":       {"tools:\n- builtin: calculator\n  efect: pure\n", []string{"line 3", "tools[0].efect", "did you mean effect?"}},
		"nested":            {"tools:\n- name: a\n  http:\n    ulr: x\n", []string{"line 4", "tools[0].http.ulr", "unknown key"}},
		"none of three":     {"tools:\n- name: a\n", []string{"line 2", "tools[0]", "exactly one"}},
		"two of three":      {"tools:\n- {name: a, builtin: x, exec: {command: [y]}}\n", []string{"line 2", "exactly one"}},
		"name":              {"tools:\n- {name: a b, builtin: x}\n", []string{"line 2", "tools[0].name"}},
		"twice":             {"tools:\n- {builtin: x}\n- {name: x, builtin: y}\n", []string{"line 3", "tools[1].name", "tools[0]"}},
		"effect":            {"tools:\n- {builtin: x,\n   effect: sometimes}\n", []string{"line 3", "tools[0].effect", "idempotent"}},
		"risk":              {"tools:\n- {builtin: x, risk: none}\n", []string{"tools[0].risk"}},
		"pool":              {"tools:\n- {builtin: x, pool: A.B}\n", []string{"tools[0].pool"}},
		"reserved pool":     {"tools:\n- {builtin: x, pool: agents}\n", []string{"tools[0].pool", "reserved"}},
		"timeout":           {"tools:\n- {builtin: x, timeout: fast}\n", []string{"tools[0].timeout"}},
		"negative timeout":  {"tools:\n- {builtin: x, timeout: -1s}\n", []string{"tools[0].timeout"}},
		"retries":           {"tools:\n- {builtin: x, retries: -1}\n", []string{"tools[0].retries"}},
		"breaker":           {"tools:\n- {builtin: x, breaker: {open: -1s}}\n", []string{"tools[0].breaker", "{off: true}"}},
		"breaker's key":     {"tools:\n- {builtin: x, breaker: {fails: 1}}\n", []string{"tools[0].breaker.fails", "unknown key"}},
		"url":               {"tools:\n- {name: x, http: {url: /search}}\n", []string{"tools[0].http.url"}},
		"no url":            {"tools:\n- {name: x, http: {method: GET}}\n", []string{"tools[0].http.url", "missing"}},
		"no command":        {"tools:\n- {name: x, exec: {command: []}}\n", []string{"tools[0].exec.command"}},
		"schema":            {"tools:\n- {builtin: x, schema: 3}\n", []string{"tools[0].schema"}},
		"sandbox":           {"tools:\n- {name: x, exec: {command: [y]}, sandbox: loose}\n", []string{"tools[0].sandbox", "use strict, bwrap, runsc or off"}},
		"network of none":   {"tools:\n- {builtin: x, network: host}\n", []string{"tools[0].network", "exec tools alone"}},
		"read of none":      {"tools:\n- {builtin: x, read: [/srv]}\n", []string{"tools[0].read", "exec tools alone"}},
		"sandbox of none":   {"tools:\n- {builtin: x, sandbox: off}\n", []string{"tools[0].sandbox", "exec tools alone"}},
		"root":              {"tools:\n- {builtin: x, root: /}\n", []string{"tools[0].root"}},
		"hosts":             {"tools:\n- {builtin: x, hosts: [a]}\n", []string{"tools[0].hosts"}},
		"pins without file": {"mcp: {file: .mcp.json, pinned: \"\"}\n", []string{"line 1", "mcp.pinned", "names no file"}},
		"mcp without file":  {"tools: []\nmcp: {servers: {}}\n", []string{"line 2", "mcp", "names no file"}},
		"mcp's key":         {"tools: []\nmcp:\n  file: a\n  server: {}\n", []string{"line 4", "mcp.server", "unknown key"}},
		"mcp's risk":        {"mcp:\n  file: a\n  servers: {x: {risk: some}}\n", []string{"line 3", "mcp.servers.x.risk", "is not a risk"}},
		"mcp's pool":        {"mcp:\n  file: a\n  servers: {x: {pool: agents}}\n", []string{"line 3", "mcp.servers.x.pool", "reserved"}},
		"names, not tools":  {"tools: [search]\n", []string{"line 1", "tools[0]", "want a mapping"}},
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
  query: {api-version: "${VERSION:-v1}"}
  like: groq
  capabilities: {efforts: [low], forced_tools: false}
  extra_body: {service_tier: flex, thinking: {keep: all}}
local: {kind: openai, base_url: "http://localhost:11434/v1", max_tokens: 100}
`), agentfile.YAML)
	require.NoError(t, err)
	require.NoError(t, p.Expand(env(map[string]string{"GROQ_HOST": "api.groq.example", "GROQ_KEY": "k"})))
	require.Equal(t, agentfile.Provider{
		Kind: "openai", BaseURL: "https://api.groq.example/v1", APIKey: "k", APIKeyEnv: "GROQ_KEY", Model: "llama",
		Headers: map[string]string{"X-Team": "none"}, Query: map[string]string{"api-version": "v1"},
		Like: "groq", Capabilities: json.RawMessage(`{"efforts":["low"],"forced_tools":false}`),
		ExtraBody: map[string]json.RawMessage{"service_tier": json.RawMessage(`"flex"`), "thinking": json.RawMessage(`{"keep":"all"}`)},
	}, p["groq"])
	require.Equal(t, 100, p["local"].MaxTokens)

	for text, want := range map[string]string{
		"a: {kind: soap}":                                   "line 1: a.kind",
		"a: {kind: openai,\n key: x}":                       "line 2: a.key: unknown key",
		"a: {kind: openai, base_url: nowhere}":              "a.base_url",
		"scripted: {kind: openai}":                          "scripted",
		"A B: {kind: openai}":                               "not a provider's name",
		"a: {kind: openai, api_key: x, api_key_env: Y}":     "a.api_key",
		"a: {kind: openai, api_key_env: 'not a name'}":      "a.api_key_env",
		"a: {kind: openai, max_tokens: -1}":                 "a.max_tokens",
		"a: {kind: openai,\n like: olama}":                  `line 2: a.like: "olama" is not a row of the table of models; use openai, `,
		"a: {kind: openai, like: anthropic}":                "a.like: row anthropic is not for kind openai",
		"a:\n kind: openai\n capabilities:\n  images: some": `line 4: a.capabilities.images: "some" is not a value of it; use none, user, all`,
		"a: {kind: openai, capabilities: {colour: red}}":    "a.capabilities.colour: is not a key; docs/models.md has them",
		"a: {kind: openai, capabilities: [x]}":              "a.capabilities: must be a mapping",
		"a: {kind: openai, extra_body: {messages: []}}":     "a.extra_body.messages: is set by Moorebus itself",
		"a: {kind: openai, query: {v: 1}}":                  `a.query.v: is a number, want a string; put it in quotes: "1"`,
		"a: {kind: openai}\na: {kind: openai}":              "twice",
		"a: {kind: openai}\n---\nb: {kind: openai}":         "second document",
		"- a": "want a mapping",
	} {
		_, err := agentfile.ParseProviders([]byte(text), agentfile.Auto)
		require.ErrorContains(t, err, want, text)
	}
	q, err := agentfile.ParseProviders([]byte("a: {kind: openai, api_key_env: NOPE}"), agentfile.YAML)
	require.NoError(t, err)
	require.ErrorContains(t, q.Expand(env(nil)), "NOPE is not set")
}

func variables(values map[string]string) func(string) (string, bool) {
	return func(name string) (string, bool) { v, ok := values[name]; return v, ok }
}

// A file as other programs have them, with keys that mean nothing here.
const mcpFile = `{
  "$schema": "https://example.org/mcp.json",
  "inputs": [],
  "mcpServers": {
    "web": {"type": "http", "url": "https://${HOST:-example.org}/mcp", "headers": {"Authorization": "Bearer ${TOKEN}"}, "timeout": 5000},
    "old": {"command": "x", "disabled": true},
    "fs": {"type": "stdio", "command": "${RUNNER:-npx}", "args": ["-y", "${PACKAGE}@1", "."], "env": {"ROOT": "${DIR:-/srv}", "PRICE": "$${5}"},
           "cwd": "${DIR:-sub}", "autoApprove": ["read"], "alwaysAllow": []},
    "cursor": {"url": "http://localhost:1"}
  }
}`

func TestMCPFile(t *testing.T) {
	t.Parallel()
	servers, notes, err := agentfile.ParseMCP([]byte(mcpFile), variables(map[string]string{"TOKEN": "t0ken", "PACKAGE": "pkg"}))
	require.NoError(t, err)
	require.Equal(t, []agentfile.MCPServer{
		{Name: "cursor", URL: "http://localhost:1"},
		{Name: "fs", Command: []string{"npx", "-y", "pkg@1", "."}, Env: map[string]string{"ROOT": "/srv", "PRICE": "${5}"}, Dir: "sub", Filled: []string{"pkg"}},
		{Name: "web", URL: "https://example.org/mcp", Headers: map[string]string{"Authorization": "Bearer t0ken"}, Filled: []string{"t0ken"}},
	}, servers)
	require.ElementsMatch(t, []string{
		"$schema means nothing here", "inputs means nothing here", "mcpServers.web.timeout means nothing here", "mcpServers.old is disabled",
		"mcpServers.fs.autoApprove means nothing here", "mcpServers.fs.alwaysAllow means nothing here",
	}, notes)
}

func TestMCPFilesThatCannotBe(t *testing.T) {
	t.Parallel()
	for text, want := range map[string][]string{
		``:                          {"not valid JSON"},
		`{"servers": {}}`:           {"mcpServers", "is missing"},
		`{"mcpServers": []}`:        {"mcpServers", "is missing"},
		`{"mcpServers": {"a": 1}}`:  {"mcpServers.a", "want a mapping"},
		`{"mcpServers": {"a": {}}}`: {"mcpServers.a.command", "is missing"},
		"{\"mcpServers\": {\n\"a\": {\"type\": \"sse\", \"url\": \"http://h\"}}}": {"line 2", "mcpServers.a.type", "streamable HTTP replaced"},
		`{"mcpServers": {"a": {"type": "carrier pigeon"}}}`:                       {"mcpServers.a.type", "not known"},
		`{"mcpServers": {"a": {"type": "http"}}}`:                                 {"mcpServers.a.url", "is missing"},
		`{"mcpServers": {"a": {"type": "stdio", "command": "x", "url": "y"}}}`:    {"mcpServers.a.url", "belongs to"},
		`{"mcpServers": {"a": {"command": "x", "url": "http://h"}}}`:              {"mcpServers.a.command", "not both"},
		`{"mcpServers": {"a": {"url": "ftp://h"}}}`:                               {"mcpServers.a.url", "absolute http"},
		`{"mcpServers": {"a": {"command": "x", "args": [1]}}}`:                    {"mcpServers.a.args[0]", "want a string"},
		`{"mcpServers": {"a": {"command": "x", "env": {"PORT": 80}}}}`:            {"mcpServers.a.env.PORT", "put it in quotes"},
		`{"mcpServers": {"a": {"command": "x", "command": "y"}}}`:                 {"command"},
		`{"mcpServers": {"a": {"command": "${NOPE}"}}}`:                           {"mcpServers.a.command", "NOPE is not set"},
		`{"mcpServers": {"a": {"command": "x", "args": ["${NOPE}"]}}}`:            {"mcpServers.a.args[0]", "NOPE is not set"},
		`{"mcpServers": {"a": {"command": "x", "env": {"K": "${NOPE}"}}}}`:        {"mcpServers.a.env.K", "NOPE is not set"},
		`{"mcpServers": {"a": {"url": "http://${NOPE}"}}}`:                        {"mcpServers.a.url", "NOPE is not set"},
		`{"mcpServers": {"a": {"url": "http://h", "headers": {"K": "${NOPE}"}}}}`: {"mcpServers.a.headers.K", "NOPE is not set"},
		`{"mcpServers": {"a": {"command": "${NOPE"}}}`:                            {"mcpServers.a.command", "without }"},
	} {
		_, _, err := agentfile.ParseMCP([]byte(text), variables(nil))
		require.Error(t, err, text)
		for _, part := range want {
			require.ErrorContains(t, err, part, text)
		}
	}
	_, _, err := agentfile.ParseMCP(make([]byte, agentfile.MaxSize+1), variables(nil))
	require.ErrorIs(t, err, agentfile.ErrTooLarge)
}

func TestToolFileWithMCP(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(name, text string) string {
		file := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		return file
	}
	file := write("tools.yaml", "mcp: .mcp.json\n")
	write(".mcp.json", `{"mcpServers": {"a": {"command": "x"}, "b": {"command": "x", "cwd": "sub"}, "c": {"command": "x", "cwd": "/abs"}}}`)
	tools, err := agentfile.ReadTools(file)
	require.NoError(t, err)
	require.Equal(t, &agentfile.MCP{File: filepath.Join(dir, ".mcp.json")}, tools.MCP)
	servers, notes, err := agentfile.ReadMCP(tools.MCP.File, variables(nil))
	require.NoError(t, err)
	require.Empty(t, notes)
	require.Equal(t, []string{dir, filepath.Join(dir, "sub"), "/abs"}, []string{servers[0].Dir, servers[1].Dir, servers[2].Dir})

	docs, err := agentfile.ReadFile(write("both.yaml", `
name: a
llm: {provider: openai}
---
tools: [{builtin: calculator}]
mcp:
  file: /etc/mcp.json
  pinned: pins.json
  trust_hints: true
  servers: {a: {pool: web, risk: low, effect: pure, timeout: 5s, tools: [read]}, b: {trust_hints: false}}
`), agentfile.Options{})
	require.NoError(t, err)
	require.Equal(t, "/etc/mcp.json", docs.Tools.MCP.File)
	require.Equal(t, filepath.Join(dir, "pins.json"), docs.Tools.MCP.Pinned)
	require.Equal(t, []bool{true, false, true}, []bool{docs.Tools.MCP.Trusts("a"), docs.Tools.MCP.Trusts("b"), docs.Tools.MCP.Trusts("c")})
	require.False(t, tools.MCP.Trusts("a"), "nobody says so")
	a := docs.Tools.MCP.Servers["a"]
	require.Equal(t, agentfile.MCPTools{Pool: "web", Risk: tool.Low, Effect: tool.Pure, Timeout: a.Timeout, Tools: []string{"read"}}, a)
	_, _, err = agentfile.ReadMCP(filepath.Join(dir, "none"), variables(nil))
	require.ErrorContains(t, err, "none")
	_, _, err = agentfile.ReadMCP(write("bad.json", "{"), variables(nil))
	require.ErrorContains(t, err, "bad.json")
}

func TestPrices(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"YAML": "gpt-4.1: {input: 2, cached_input: 0.5, output: 8.0}\n\"*\": {input: 1, output: 0}\n",
		"JSON": `{"gpt-4.1": {"input": 2, "cached_input": 5e-1, "output": 8}, "*": {"input": 1, "output": 0}}`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, err := agentfile.ParsePrices([]byte(text), agentfile.Auto)
			require.NoError(t, err)
			require.Len(t, p, 2)
			require.Equal(t, 2.0, *p["gpt-4.1"].Input)
			require.Equal(t, 0.5, *p["gpt-4.1"].CachedInput)
			require.Equal(t, 8.0, *p["gpt-4.1"].Output)
			require.Nil(t, p["*"].CachedInput)
			require.Zero(t, *p["*"].Output)
		})
	}
}

func TestWrongPrices(t *testing.T) {
	t.Parallel()
	for text, says := range map[string]string{
		"a: {input: 1, output: 2}\nm.1: {input: -1, output: 2}": "line 2: m.1: input must not be negative, is -1",
		"m: {input: 1, cached_input: -0.5, output: 2}":          "line 1: m: cached_input must not be negative",
		"m: {input: .nan, output: 2}":                           "line 1: m.input: ",
		"m: {input: .inf, output: 2}":                           "line 1: m.input: ",
		`{"m": {"input": 1e999, "output": 2}}`:                  "line 1: m.input: 1e999 is not a number in range",
		"m: {input: cheap, output: 2}":                          "line 1: m.input: is a string, want a number",
		"m: {input: 1}":                                         "line 1: m: output is missing",
		"m: {output: 1, input: }":                               "line 1: m: input is missing",
		"m: {input: 1, output: 2, currency: EUR}":               "line 1: m.currency: unknown key",
		"m: 5": "line 1: m: is a number, want a mapping",
		"m: {input: 1, output: 1}\nm: {input: 2, output: 2}": "line 2",
		"- m": "is a list, want a mapping from models to prices",
		"5":   "is a number, want a mapping from models to prices",
	} {
		_, err := agentfile.ParsePrices([]byte(text), agentfile.Auto)
		require.ErrorContains(t, err, says, text)
	}
}

func TestPriceFile(t *testing.T) {
	t.Parallel()
	missing := filepath.Join(t.TempDir(), "prices.yaml")
	_, err := agentfile.ReadPrices(missing)
	require.ErrorContains(t, err, missing)
	require.NoError(t, os.WriteFile(missing, []byte("m: {input: 1}"), 0o600))
	_, err = agentfile.ReadPrices(missing)
	require.ErrorContains(t, err, missing+": line 1: m: output is missing")
}

func TestMCPOAuth(t *testing.T) {
	t.Parallel()
	const file = `{"mcpServers": {
		"a": {"type": "http", "url": "https://a", "oauth": {"client_id": "c", "client_secret": "${SECRET}", "token_url": "https://id/token", "scopes": ["read"]}},
		"b": {"type": "http", "url": "https://b", "oauth": {"clientId": "x", "callbackPort": 8080}},
		"c": {"type": "http", "url": "https://c", "oauth": {"token_file": "c.json"}}
	}}`
	servers, notes, err := agentfile.ParseMCP([]byte(file), variables(map[string]string{"SECRET": "hush-hush"}))
	require.NoError(t, err)
	require.Equal(t, &agentfile.MCPOAuth{ClientID: "c", ClientSecret: "hush-hush", TokenURL: "https://id/token", Scopes: []string{"read"}}, servers[0].OAuth)
	require.Equal(t, []string{"hush-hush"}, servers[0].Filled)
	require.Nil(t, servers[1].OAuth, "other programs send a person to log in")
	require.Contains(t, strings.Join(notes, "\n"), "mcpServers.b.oauth (it has neither client_secret nor token_file)")
	path := filepath.Join(t.TempDir(), ".mcp.json")
	require.NoError(t, os.WriteFile(path, []byte(file), 0o600))
	servers, _, err = agentfile.ReadMCP(path, variables(map[string]string{"SECRET": "hush-hush"}))
	require.NoError(t, err)
	require.Equal(t, filepath.Join(filepath.Dir(path), "c.json"), servers[2].OAuth.TokenFile)
	for says, text := range map[string]string{
		`oauth: belongs to`: `{"mcpServers": {"a": {"command": "x", "oauth": {"token_file": "f"}}}}`,
		"secret":            `{"mcpServers": {"a": {"type": "http", "url": "https://a", "oauth": {"client_secret": "x", "secret": "y"}}}}`,
	} {
		_, _, err := agentfile.ParseMCP([]byte(text), variables(nil))
		require.ErrorContains(t, err, says)
	}
}
