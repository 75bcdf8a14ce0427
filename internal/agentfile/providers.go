package agentfile

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/moorebus/moorebus/internal/agentfile/strict"
	"github.com/moorebus/moorebus/internal/providers"
	"github.com/moorebus/moorebus/pkg/events"
)

// Providers are a planner's model providers by the name that agents use.
type Providers map[string]Provider

// Provider says how a model provider is reached.
type Provider struct {
	// Kind is the protocol, by its name in the table of providers.
	Kind    string `json:"kind"`
	BaseURL string `json:"base_url,omitempty"`
	// APIKey is the key itself; APIKeyEnv the environment variable that holds
	// it. Neither: no key is sent.
	APIKey    string `json:"api_key,omitempty"`
	APIKeyEnv string `json:"api_key_env,omitempty"`
	// APIKeyCommand prints the key, which is kept for APIKeyTTL, in place of the other two.
	APIKeyCommand []string        `json:"api_key_command,omitempty"`
	APIKeyTTL     events.Duration `json:"api_key_ttl,omitempty"`
	// Model is asked where the agent names none.
	Model string `json:"model,omitempty"`
	// Headers are sent with every request, Query are parameters of its address, and
	// ExtraBody are further keys of its body.
	Headers   map[string]string          `json:"headers,omitempty"`
	Query     map[string]string          `json:"query,omitempty"`
	ExtraBody map[string]json.RawMessage `json:"extra_body,omitempty"`
	// Like names a row of the table of models, for addresses that are in none, and
	// Capabilities are keys of the table that differ for this server.
	Like         string          `json:"like,omitempty"`
	Capabilities json.RawMessage `json:"capabilities,omitempty"`
	// MaxTokens bounds the replies of agents that do not; of kind anthropic only.
	MaxTokens int `json:"max_tokens,omitempty"`
}

// ParseProviders reads a provider file: a mapping from names to providers.
func ParseProviders(data []byte, f Format) (Providers, error) {
	node, err := one(data, f)
	if err != nil {
		return nil, err
	}
	p := Providers{}
	if err := strict.Decode(node, &p); err != nil {
		return nil, err
	}
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(p)) {
		entry := p[name]
		if err := entry.check(name); err != nil {
			errs = append(errs, node.Place("", fmt.Errorf("%s%w", name, err)))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return p, nil
}

// ReadProviders is [ParseProviders] for a file of the given name, which stands
// at the beginning of every error.
func ReadProviders(name string) (Providers, error) {
	data, err := readFile(name)
	if err != nil {
		return nil, err
	}
	p, err := ParseProviders(data, Auto)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return p, nil
}

func (p *Provider) check(name string) error {
	_, known := providers.Find(p.Kind)
	switch {
	case !events.ValidToken(name):
		return errors.New(": is not a provider's name; use [a-z0-9][a-z0-9_-]{0,62}")
	case name == providers.Scripted:
		return errors.New(": is the provider whose replies stand in the agent definition; use another name")
	case !known:
		return fmt.Errorf(".kind: %q is not a kind; use %s", p.Kind, providers.Kinds())
	case p.APIKey != "" && p.APIKeyEnv != "":
		return errors.New(".api_key: excludes api_key_env; keep one of them")
	case p.APIKeyCommand != nil && (p.APIKey != "" || p.APIKeyEnv != ""):
		return errors.New(".api_key_command: excludes api_key and api_key_env; keep one of them")
	case p.APIKeyCommand != nil && (len(p.APIKeyCommand) == 0 || p.APIKeyCommand[0] == ""):
		return errors.New(".api_key_command: names no command; write [COMMAND, ARG…]")
	case p.APIKeyTTL != 0 && p.APIKeyCommand == nil:
		return errors.New(".api_key_ttl: is only for api_key_command")
	case p.APIKeyTTL < 0:
		return errors.New(".api_key_ttl: must be positive, such as 5m")
	case p.APIKeyEnv != "" && !validVariable(p.APIKeyEnv):
		return errors.New(".api_key_env: does not name an environment variable")
	case p.MaxTokens < 0:
		return fmt.Errorf(".max_tokens: must not be negative, is %d", p.MaxTokens)
	case p.BaseURL != "" && !hasVariable(p.BaseURL):
		if err := checkURL(p.BaseURL); err != nil {
			return fmt.Errorf(".base_url: %w", err)
		}
	}
	if string(p.Capabilities) == "null" {
		p.Capabilities = nil
	}
	if _, err := providers.HostOf(p.Kind, p.Like, p.BaseURL, p.Capabilities); err != nil {
		return fmt.Errorf(".%w", err)
	}
	if err := providers.CheckExtraBody(p.ExtraBody); err != nil {
		return fmt.Errorf(".%w", err)
	}
	return nil
}

// Expand replaces ${VAR} and ${VAR:-default} in base URLs, keys, parameters and header
// values, and fills in the keys that api_key_env names. lookup is a function
// such as os.LookupEnv. A variable that is not set and has no default is an
// error.
func (p Providers) Expand(lookup func(name string) (string, bool)) error {
	x := expander{lookup: lookup}
	for _, name := range slices.Sorted(maps.Keys(p)) {
		entry := p[name]
		entry.BaseURL = x.expand(name+".base_url", entry.BaseURL)
		entry.APIKey = x.expand(name+".api_key", entry.APIKey)
		x.expandMap(name+".headers", entry.Headers)
		x.expandMap(name+".query", entry.Query)
		if entry.APIKeyEnv != "" {
			entry.APIKey = x.variable(name+".api_key_env", entry.APIKeyEnv)
		}
		if entry.BaseURL != "" {
			if err := checkURL(entry.BaseURL); err != nil {
				x.errs = append(x.errs, fmt.Errorf("%s.base_url: with its variables filled in it %w", name, err))
			}
		}
		p[name] = entry
	}
	return errors.Join(x.errs...)
}

// Prices are what models cost, by the model's name or by `provider/model`; `*`
// and `provider/*` stand for every other one.
type Prices map[string]Price

// Price is in US dollars for a million tokens. Input and Output are there;
// without CachedInput input from the provider's cache costs as much as any other.
type Price struct {
	Input       *float64 `json:"input"`
	CachedInput *float64 `json:"cached_input,omitempty"`
	Output      *float64 `json:"output"`
}

// ParsePrices reads a price file: a mapping from models to prices.
func ParsePrices(data []byte, f Format) (Prices, error) {
	node, err := one(data, f)
	if err != nil {
		return nil, err
	}
	if node.Kind != strict.Object {
		return nil, node.Errorf("", "is %s, want a mapping from models to prices", node.Kind)
	}
	p := Prices{}
	if err := strict.Decode(node, &p); err != nil {
		return nil, err
	}
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(p)) {
		if err := p[name].check(); err != nil {
			// The names of models have dots and slashes: they are no paths.
			errs = append(errs, node.Get(name).Errorf(name, "%s", err))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return p, nil
}

// ReadPrices is [ParsePrices] for a file of the given name, which stands at the
// beginning of every error.
func ReadPrices(name string) (Prices, error) {
	data, err := readFile(name)
	if err != nil {
		return nil, err
	}
	p, err := ParsePrices(data, Auto)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return p, nil
}

func (p Price) check() error {
	for _, part := range []struct {
		key      string
		value    *float64
		required bool
	}{{"input", p.Input, true}, {"cached_input", p.CachedInput, false}, {"output", p.Output, true}} {
		switch {
		case part.value == nil && part.required:
			return fmt.Errorf("%s is missing: give dollars per million tokens, 0 for a model that costs nothing", part.key)
		case part.value != nil && *part.value < 0:
			return fmt.Errorf("%s must not be negative, is %v", part.key, *part.value)
		}
	}
	return nil
}
