// Package providers is the table of the model providers that Moorebus knows by
// name. Adapters, commands, `moorebus doctor`, provider files and the reference
// in docs/ read it. To add a provider, add a row here, an adapter below pkg/llm,
// and the adapter's constructor in internal/compose/providerfile.
//
// A second table, table.json, says what model servers take and want for each model
// ([Capabilities]). An adapter has no knowledge of servers of its own.
package providers

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
)

// The names of the providers. Agents write them as `llm: {provider: …}`. All but
// [Scripted] are also the kinds of a provider file.
const (
	OpenAI    = "openai"
	Anthropic = "anthropic"
	// Responses is OpenAI's other API. It is a kind of provider files only: provider
	// openai takes it for the models that need it.
	Responses = "responses"
	// Scripted is always available: its replies stand in the agent's definition.
	Scripted = "scripted"
)

// The default base URLs.
const (
	OpenAIURL    = "https://api.openai.com/v1"
	AnthropicURL = "https://api.anthropic.com"
)

// Provider is one row of the table.
type Provider struct {
	// Name is the provider's name and the kind of provider files.
	Name string
	// For names the provider in messages to users.
	For string
	// KeyVar, URLVar and ModelVar are the environment variables with the key, the
	// base URL and the default model. The provider is configured if one of the
	// first two is set.
	KeyVar, URLVar, ModelVar string
	// Servers are other servers with the same API.
	Servers []Server
	// BaseURL is used when no other is given, ExampleURL is shown in errors, and
	// URLHint says how a base URL ends.
	BaseURL, ExampleURL, URLHint string
	// Path is the endpoint for replies, below the base URL. Redundant are endings
	// that a base URL may have all the same; they are cut off one after another.
	Path      string
	Redundant []string
	// ModelsPath is the list of models, below the base URL.
	ModelsPath string
	// Model is the default model.
	Model string
	// KeyHeader carries the key behind KeyPrefix. Headers are sent with every
	// request.
	KeyHeader, KeyPrefix string
	Headers              http.Header
	// Reply is what a reply is called in errors.
	Reply string
	// TypeFirst says that the type of a stated error counts more than its status.
	TypeFirst bool
}

// Trim removes from a base URL the slash at its end and the endings that are redundant.
func (p Provider) Trim(base *url.URL) {
	base.Path, base.RawPath = strings.TrimRight(base.Path, "/"), ""
	for _, end := range p.Redundant {
		base.Path = strings.TrimSuffix(base.Path, end)
	}
}

// Server is a server with a provider's API.
type Server struct{ Settings, For string }

// All returns the table.
func All() []Provider {
	return []Provider{{
		Name: OpenAI, For: "OpenAI",
		KeyVar: "OPENAI_API_KEY", URLVar: "OPENAI_BASE_URL", ModelVar: "OPENAI_MODEL",
		Servers: []Server{
			{"OPENAI_BASE_URL=http://localhost:11434/v1 OPENAI_MODEL=…", "Ollama"},
			{"OPENAI_BASE_URL=http://localhost:8080/v1", "llama.cpp, vLLM and others that speak OpenAI's protocol"},
		},
		BaseURL: OpenAIURL, ExampleURL: "http://localhost:11434/v1", URLHint: "usually in /v1",
		Path: "/chat/completions", Redundant: []string{"/chat/completions"}, ModelsPath: "models", Model: "gpt-4o-mini",
		KeyHeader: "Authorization", KeyPrefix: "Bearer ",
		Reply: "a chat completion",
	}, {
		Name: Anthropic, For: "Anthropic",
		KeyVar: "ANTHROPIC_API_KEY", URLVar: "ANTHROPIC_BASE_URL", ModelVar: "ANTHROPIC_MODEL",
		BaseURL: AnthropicURL, ExampleURL: AnthropicURL, URLHint: "before /v1/messages",
		Path: "/v1/messages", Redundant: []string{"/messages", "/v1"}, ModelsPath: "v1/models", Model: "claude-sonnet-4-5",
		KeyHeader: "X-Api-Key", Headers: http.Header{"Anthropic-Version": {"2023-06-01"}, "Accept": {"application/json"}},
		Reply: "a message", TypeFirst: true,
	}}
}

// kinds are the rows of the table, and those for provider files alone.
func kinds() []Provider {
	all := All()
	responses := all[0]
	responses.Name, responses.Reply = Responses, "a response"
	responses.Path, responses.Redundant = "/responses", []string{"/responses", "/chat/completions"}
	return append(all, responses)
}

// Find returns the row of a name.
func Find(name string) (Provider, bool) {
	for _, p := range kinds() {
		if p.Name == name {
			return p, true
		}
	}
	return Provider{}, false
}

// Sign adds the key, which may be empty, and the provider's own headers.
func (p Provider) Sign(h http.Header, key string) {
	for name, values := range p.Headers {
		h[name] = values
	}
	if key != "" {
		h.Set(p.KeyHeader, p.KeyPrefix+key)
	}
}

// Configured reports whether the environment names a key or a base URL.
func (p Provider) Configured(getenv func(string) string) bool {
	return getenv(p.KeyVar) != "" || getenv(p.URLVar) != ""
}

// Usual returns the name of the provider for agents that name none: the first one
// that is configured, else the first one.
func Usual(getenv func(string) string) string {
	all := All()
	for _, p := range all {
		if p.Configured(getenv) {
			return p.Name
		}
	}
	return all[0].Name
}

// Variables returns the variables that configure a provider, for messages:
// "OPENAI_API_KEY, OPENAI_BASE_URL, …".
func Variables() string {
	return join(", ", func(p Provider) string { return p.KeyVar + ", " + p.URLVar })
}

// Kinds returns the kinds of a provider file, for messages: "openai, anthropic or responses".
func Kinds() string {
	var names []string
	for _, p := range kinds() {
		names = append(names, p.Name)
	}
	last := len(names) - 1
	return strings.Join(names[:last], ", ") + " or " + names[last]
}

// Help returns a line for each provider, for --help.
func Help() string {
	return join("\n", func(p Provider) string {
		return fmt.Sprintf("  %-10s %s or %s; %s (default %s)", p.Name, p.KeyVar, p.URLVar, p.ModelVar, p.Model)
	})
}

// NoKey says what to set so that a real model answers.
func NoKey() string {
	var b strings.Builder
	b.WriteString("no model is configured. Set one of:\n")
	for _, p := range All() {
		fmt.Fprintf(&b, "  %-56s  for %s\n", p.KeyVar+"=…", p.For)
		for _, s := range p.Servers {
			fmt.Fprintf(&b, "  %-56s  for %s\n", s.Settings, s.For)
		}
	}
	return b.String() + "or give an agent whose model is scripted: --agent examples/quickstart.yaml"
}

func join(with string, of func(Provider) string) string {
	var all []string
	for _, p := range All() {
		all = append(all, of(p))
	}
	return strings.Join(all, with)
}
