// Package providerfile makes the callers of the model providers that a provider file and the
// environment describe, each with its adapter, and the prices of their models: what a planner asks.
package providerfile

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"os"
	"time"

	"github.com/moorebus/moorebus/internal/agentfile"
	"github.com/moorebus/moorebus/internal/prices"
	"github.com/moorebus/moorebus/internal/providers"
	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/moorebus/moorebus/pkg/llm/anthropic"
	"github.com/moorebus/moorebus/pkg/llm/scripted"
)

// adapters make the callers of the table of providers.
var adapters = map[string]func(*http.Client, agentfile.Provider, keys) (llm.Caller, error){
	providers.OpenAI: newOpenAI,
	providers.Responses: func(client *http.Client, e agentfile.Provider, keys keys) (llm.Caller, error) {
		return newResponses(client, e, keys)
	},
	providers.Anthropic: func(client *http.Client, e agentfile.Provider, keys keys) (llm.Caller, error) {
		return anthropic.New(anthropic.Options{
			APIKey: e.APIKey, Keys: keys, BaseURL: e.BaseURL, Model: e.Model, Header: header(e.Headers), MaxTokens: e.MaxTokens, HTTPClient: client,
			Like: e.Like, Capabilities: e.Capabilities, ExtraBody: e.ExtraBody, Query: e.Query,
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
		caller, err := newCaller(client, row.Name, e)
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
		caller, err := newCaller(client, name, e)
		if err != nil {
			return nil, fmt.Errorf("%s: provider %s: %w", file, name, err)
		}
		callers[name] = caller
	}
	return callers, nil
}

// newCaller makes the caller of an entry of a provider file.
func newCaller(client *http.Client, name string, e agentfile.Provider) (llm.Caller, error) {
	row, _ := providers.Find(e.Kind) // the file's reader knows the kinds
	e.Model = cmp.Or(e.Model, row.Model)
	return adapters[row.Name](client, e, keysOf(name, e))
}

// keys gives the keys that expire.
type keys = func(ctx context.Context, refused string) (string, error)

// keysOf returns nil for a provider without a command.
func keysOf(name string, e agentfile.Provider) keys {
	if len(e.APIKeyCommand) == 0 {
		return nil
	}
	command := newKeyCommand(e.APIKeyCommand, time.Duration(e.APIKeyTTL))
	return func(ctx context.Context, refused string) (string, error) {
		key, err := command.get(ctx, refused)
		if err != nil {
			return "", fmt.Errorf("provider %s: %w", name, err)
		}
		return key, nil
	}
}

func header(values map[string]string) http.Header {
	h := http.Header{}
	for name, value := range values {
		h.Set(name, value)
	}
	return h
}

// Prices returns the built-in prices, overridden by those of the file, which may be
// empty.
func Prices(file string) (llm.Prices, error) {
	builtin := prices.Builtin()
	if file == "" {
		return builtin, nil
	}
	read, err := agentfile.ReadPrices(file)
	if err != nil {
		return nil, fmt.Errorf("--prices: %w", err)
	}
	entries := make(map[string]llm.Price, len(read))
	for name, e := range read {
		price := llm.Price{Input: *e.Input, CachedInput: *e.Input, Output: *e.Output}
		if e.CachedInput != nil {
			price.CachedInput = *e.CachedInput
		}
		entries[name] = price
	}
	own, err := prices.New(entries)
	if err != nil {
		return nil, fmt.Errorf("--prices: %s: %w", file, err)
	}
	return builtin.With(own), nil
}

// ModelClient returns the HTTP client of a process that has many model calls in
// flight. It opens at most the given number of connections to one server (0: no
// bound) and keeps them open for later calls. Most providers' servers speak HTTP/2
// and take about a hundred calls on each connection; servers that speak HTTP/1.1,
// and all without TLS, take one.
func ModelClient(connections int) *http.Client {
	transport := &http.Transport{Proxy: http.ProxyFromEnvironment}
	if standard, ok := http.DefaultTransport.(*http.Transport); ok {
		transport = standard.Clone()
	}
	transport.MaxIdleConns = 0 // only the bound of each server
	transport.MaxIdleConnsPerHost = maxIdle
	transport.MaxConnsPerHost = connections
	return &http.Client{Transport: transport}
}

// maxIdle is more than a process can have open. The standard transport closes idle
// connections after 90 s.
const maxIdle = 1 << 20
