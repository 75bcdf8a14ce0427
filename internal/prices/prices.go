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
// Only a date may follow the model's name, since providers append one to name a
// release. A release with another price needs an entry of its own. Nothing else is
// guessed: gpt-4o-audio is another model.
package prices

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"unicode"

	"github.com/moorebus/moorebus/pkg/llm"
)

// Any is the name of the entry for every other model.
const Any = "*"

// Table holds prices by the name of the model, `provider/model` for that of one
// provider. It does not change once it is made and is safe for concurrent use.
type Table struct{ entries map[string]llm.Price }

var _ llm.Prices = (*Table)(nil)

// Most is the highest price of an entry, in US dollars for a million tokens: one dollar
// a token. With it the cost of any number of tokens is finite.
const Most = 1e6

// New makes a table. The error names every entry with a price that is negative,
// higher than [Most] or not a number, and every name that no model can have.
func New(entries map[string]llm.Price) (*Table, error) {
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(entries)) {
		p := entries[name]
		if err := checkName(name); err != nil {
			errs = append(errs, err)
		}
		for _, part := range []struct {
			key   string
			value float64
		}{{"input", p.Input}, {"cached_input", p.CachedInput}, {"output", p.Output}} {
			if !(part.value >= 0 && part.value <= Most) { // also not for NaN
				errs = append(errs, fmt.Errorf("%s: %s: must be a number from 0 to %.0f, is %v", name, part.key, Most, part.value))
			}
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return &Table{entries: maps.Clone(entries)}, nil
}

// checkName refuses names that no model can have.
func checkName(name string) error {
	provider, _, _ := strings.Cut(name, "/")
	switch {
	case name == "":
		return errors.New("a price without a model's name")
	case name != strings.TrimSpace(name) || strings.ContainsFunc(name, unicode.IsControl):
		return fmt.Errorf("%q: no model has this name: it has white space around it or control characters in it", name)
	case strings.Contains(name, Any) && name != Any && (provider == "" || name != provider+"/"+Any || strings.Contains(provider, Any)):
		return fmt.Errorf("%q: no model has this name: a star stands alone for every model, as in * or openai/*", name)
	}
	return nil
}

// With returns a table with the entries of both; those of over take precedence.
func (t *Table) With(over *Table) *Table {
	entries := maps.Clone(t.entries)
	maps.Copy(entries, over.entries)
	return &Table{entries: entries}
}

// release is the date that providers append to the name of a model.
var release = regexp.MustCompile(`-(20\d{2}-\d{2}-\d{2}|20\d{6})$`)

// Price returns the price of a provider's model.
func (t *Table) Price(provider, model string) (llm.Price, bool) {
	base := release.ReplaceAllString(model, "")
	for _, name := range []string{provider + "/" + model, model, provider + "/" + base, base, provider + "/" + Any, Any} {
		if p, ok := t.entries[name]; ok {
			return p, true
		}
	}
	return llm.Price{}, false
}
