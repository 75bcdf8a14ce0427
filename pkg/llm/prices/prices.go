// Package prices says what models cost.
//
// A [Table] finds a model's price by the first of these names that it has, for
// the model gpt-4o-2024-08-06 of the provider openai:
//
//	openai/gpt-4o-2024-08-06
//	gpt-4o-2024-08-06
//	openai/gpt-4o
//	gpt-4o
//	openai/*
//	*
//
// What stands behind the family's name may only be a date, as the providers
// append one to name a release. A release that costs something else than its
// family needs an entry of its own. Nothing else is guessed: gpt-4o-audio is
// another model.
package prices

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"

	"github.com/moorebus/moorebus/pkg/llm"
)

// Any is the name of the entry that holds where no other does.
const Any = "*"

// Table holds prices by the name of the model, `provider/model` for that of one
// provider. It does not change once it is made and is safe for concurrent use.
type Table struct{ entries map[string]llm.Price }

var _ llm.Prices = (*Table)(nil)

// New makes a table. The error names every entry with a price that is negative
// or not a number.
func New(entries map[string]llm.Price) (*Table, error) {
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(entries)) {
		p := entries[name]
		if name == "" {
			errs = append(errs, errors.New("a price without a model's name"))
		}
		for _, part := range []struct {
			key   string
			value float64
		}{{"input", p.Input}, {"cached_input", p.CachedInput}, {"output", p.Output}} {
			if !(part.value >= 0) || math.IsInf(part.value, 1) { // also not for NaN
				errs = append(errs, fmt.Errorf("%s: %s: must be a number from 0, is %v", name, part.key, part.value))
			}
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return &Table{entries: maps.Clone(entries)}, nil
}

// With returns a table that has the entries of both, where a name is in both
// those of over.
func (t *Table) With(over *Table) *Table {
	entries := maps.Clone(t.entries)
	maps.Copy(entries, over.entries)
	return &Table{entries: entries}
}

// release is the date that providers append to the name of a model.
var release = regexp.MustCompile(`-(20\d{2}-\d{2}-\d{2}|20\d{6})$`)

// Price returns the price of a provider's model.
func (t *Table) Price(provider, model string) (llm.Price, bool) {
	family := release.ReplaceAllString(model, "")
	for _, name := range []string{provider + "/" + model, model, provider + "/" + family, family, provider + "/" + Any, Any} {
		if p, ok := t.entries[name]; ok {
			return p, true
		}
	}
	return llm.Price{}, false
}
