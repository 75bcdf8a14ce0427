package wire

import (
	"cmp"
	"fmt"
	"net/http"
	"os"

	"github.com/moorebus/moorebus/internal/agentfile"
	"github.com/moorebus/moorebus/internal/providers"
	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/moorebus/moorebus/pkg/llm/anthropic"
	"github.com/moorebus/moorebus/pkg/llm/openai"
	"github.com/moorebus/moorebus/pkg/llm/scripted"
)

// adapters make the callers of the table of providers.
var adapters = map[string]func(*http.Client, agentfile.Provider) (llm.Caller, error){
	providers.OpenAI: func(client *http.Client, e agentfile.Provider) (llm.Caller, error) {
		return openai.New(openai.Options{APIKey: e.APIKey, BaseURL: e.BaseURL, Model: e.Model, Header: header(e.Headers), HTTPClient: client})
	},
	providers.Anthropic: func(client *http.Client, e agentfile.Provider) (llm.Caller, error) {
		return anthropic.New(anthropic.Options{
			APIKey: e.APIKey, BaseURL: e.BaseURL, Model: e.Model, Header: header(e.Headers), MaxTokens: e.MaxTokens, HTTPClient: client,
		})
	},
}

// Providers makes the model providers of a process: scripted always, those that
// the environment configures, and those of the provider file (may be empty), which
// may replace them.
func Providers(file string, getenv func(string) string) (map[string]llm.Caller, error) {
	return ProvidersOver(nil, file, getenv)
}

// ProvidersOver is [Providers] with the HTTP client of all of them; nil: each has
// its own.
func ProvidersOver(client *http.Client, file string, getenv func(string) string) (map[string]llm.Caller, error) {
	callers := map[string]llm.Caller{providers.Scripted: scripted.New()}
	for _, row := range providers.All() {
		if !row.Configured(getenv) {
			continue
		}
		e := agentfile.Provider{Kind: row.Name, APIKey: getenv(row.KeyVar), BaseURL: getenv(row.URLVar), Model: getenv(row.ModelVar)}
		caller, err := newCaller(client, e)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", row.URLVar, err)
		}
		callers[row.Name] = caller
	}
	if file == "" {
		return callers, nil
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
		callers[name] = caller
	}
	return callers, nil
}

// newCaller makes the caller of an entry of a provider file.
func newCaller(client *http.Client, e agentfile.Provider) (llm.Caller, error) {
	row, _ := providers.Find(e.Kind) // the file's reader knows the kinds
	e.Model = cmp.Or(e.Model, row.Model)
	return adapters[row.Name](client, e)
}

func header(values map[string]string) http.Header {
	h := http.Header{}
	for name, value := range values {
		h.Set(name, value)
	}
	return h
}
