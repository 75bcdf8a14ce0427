package agentfile

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/moorebus/moorebus/internal/agentfile/strict"
)

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
