package wire

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"os"

	"github.com/moorebus/moorebus/internal/agentfile"
	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/moorebus/moorebus/pkg/llm/anthropic"
	"github.com/moorebus/moorebus/pkg/llm/openai"
	"github.com/moorebus/moorebus/pkg/llm/scripted"
)

// The names of the providers that need no file.
const (
	OpenAI    = "openai"
	Anthropic = "anthropic"
	Scripted  = "scripted"
)

// defaultModel is asked at the provider's own address when nobody names a
// model. A server of one's own usually ignores the name.
const (
	defaultModel          = "gpt-4o-mini"
	defaultAnthropicModel = "claude-sonnet-4-5"
)

// NoKey says what to set so that a real model answers.
const NoKey = `no model is configured. Set one of:
  OPENAI_API_KEY=…                                          for OpenAI
  ANTHROPIC_API_KEY=…                                       for Anthropic
  OPENAI_BASE_URL=http://localhost:11434/v1 OPENAI_MODEL=…  for Ollama
  OPENAI_BASE_URL=http://localhost:8080/v1                  for llama.cpp, vLLM and others that speak OpenAI's protocol
or give an agent whose model is scripted: --agent examples/quickstart.yaml`

// Providers makes the model providers of a process: scripted always, openai
// where OPENAI_API_KEY or OPENAI_BASE_URL is set, anthropic where
// ANTHROPIC_API_KEY or ANTHROPIC_BASE_URL is, and those of the provider file (may
// be empty), which may replace both.
func Providers(file string, getenv func(string) string) (map[string]llm.Caller, error) {
	return ProvidersOver(nil, file, getenv)
}

// ProvidersOver is [Providers] with the HTTP client of all of them; nil: each has
// its own.
func ProvidersOver(client *http.Client, file string, getenv func(string) string) (map[string]llm.Caller, error) {
	providers := map[string]llm.Caller{Scripted: scripted.New()}
	if key, base := getenv("OPENAI_API_KEY"), getenv("OPENAI_BASE_URL"); key != "" || base != "" {
		caller, err := openai.New(openai.Options{APIKey: key, BaseURL: base, Model: model(getenv("OPENAI_MODEL")), HTTPClient: client})
		if err != nil {
			return nil, fmt.Errorf("OPENAI_BASE_URL: %w", err)
		}
		providers[OpenAI] = caller
	}
	if key, base := getenv("ANTHROPIC_API_KEY"), getenv("ANTHROPIC_BASE_URL"); key != "" || base != "" {
		caller, err := anthropicCaller(client, agentfile.Provider{APIKey: key, BaseURL: base, Model: getenv("ANTHROPIC_MODEL")})
		if err != nil {
			return nil, fmt.Errorf("ANTHROPIC_BASE_URL: %w", err)
		}
		providers[Anthropic] = caller
	}
	if file == "" {
		return providers, nil
	}
	entries, err := agentfile.ReadProviders(file)
	if err != nil {
		return nil, err
	}
	if err := entries.Expand(os.LookupEnv); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	for name, e := range entries {
		caller, err := newCaller(client, e)
		if err != nil {
			return nil, fmt.Errorf("%s: provider %s: %w", file, name, err)
		}
		providers[name] = caller
	}
	return providers, nil
}

// newCaller makes the caller of an entry of a provider file.
func newCaller(client *http.Client, e agentfile.Provider) (llm.Caller, error) {
	if e.Kind == agentfile.KindAnthropic {
		return anthropicCaller(client, e)
	}
	return openai.New(openai.Options{APIKey: e.APIKey, BaseURL: e.BaseURL, Model: model(e.Model), Header: header(e.Headers), HTTPClient: client})
}

func anthropicCaller(client *http.Client, e agentfile.Provider) (llm.Caller, error) {
	return anthropic.New(anthropic.Options{
		APIKey: e.APIKey, BaseURL: e.BaseURL, Model: cmp.Or(e.Model, defaultAnthropicModel), Header: header(e.Headers), MaxTokens: e.MaxTokens, HTTPClient: client,
	})
}

func model(name string) string {
	if name == "" {
		return defaultModel
	}
	return name
}

func header(values map[string]string) http.Header {
	h := http.Header{}
	for name, value := range values {
		h.Set(name, value)
	}
	return h
}

// CheckScript checks the script of a scripted agent, for readers of agent
// files.
func CheckScript(script json.RawMessage) error {
	settings := append([]byte(`{"provider":"scripted","script":`), script...)
	if len(script) == 0 {
		settings = []byte(`{"provider":"scripted"`)
	}
	_, err := scripted.Parse(append(settings, '}'))
	return err
}
