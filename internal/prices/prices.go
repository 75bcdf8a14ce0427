// Package prices has the prices of models.
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
// release. A release with another price needs its own entry. Nothing else is
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

// Builtin returns the prices that are known without a file: for short requests at the
// standard rate, without discounts for batches and without the cost of cache writes.
// They are of 2026-10-10 and change without notice. Sources:
//
//	https://platform.openai.com/docs/pricing
//	https://platform.claude.com/docs/en/about-claude/pricing
func Builtin() *Table {
	return &Table{entries: map[string]llm.Price{
		"gpt-4o":            {Input: 2.5, CachedInput: 1.25, Output: 10},
		"gpt-4o-2024-05-13": {Input: 5, CachedInput: 5, Output: 15},
		"gpt-4o-mini":       {Input: 0.15, CachedInput: 0.075, Output: 0.6},
		"gpt-4.1":           {Input: 2, CachedInput: 0.5, Output: 8},
		"gpt-4.1-mini":      {Input: 0.4, CachedInput: 0.1, Output: 1.6},
		"gpt-4.1-nano":      {Input: 0.1, CachedInput: 0.025, Output: 0.4},
		"gpt-5":             {Input: 1.25, CachedInput: 0.125, Output: 10},
		"gpt-5-mini":        {Input: 0.25, CachedInput: 0.025, Output: 2},
		"gpt-5-nano":        {Input: 0.05, CachedInput: 0.005, Output: 0.4},
		"o3":                {Input: 2, CachedInput: 0.5, Output: 8},
		"o4-mini":           {Input: 1.1, CachedInput: 0.275, Output: 4.4},

		"claude-opus-4-5":   {Input: 5, CachedInput: 0.5, Output: 25},
		"claude-opus-4-6":   {Input: 5, CachedInput: 0.5, Output: 25},
		"claude-opus-4-7":   {Input: 5, CachedInput: 0.5, Output: 25},
		"claude-opus-4-8":   {Input: 5, CachedInput: 0.5, Output: 25},
		"claude-opus-5":     {Input: 5, CachedInput: 0.5, Output: 25},
		"claude-opus-5-5":   {Input: 4, CachedInput: 0.2, Output: 20},
		"claude-sonnet-4-5": {Input: 3, CachedInput: 0.3, Output: 15},
		"claude-sonnet-5":   {Input: 2, CachedInput: 0.2, Output: 10},
		"claude-sonnet-5-5": {Input: 2, CachedInput: 0.1, Output: 10},
		"claude-haiku-4-5":  {Input: 1, CachedInput: 0.1, Output: 5},
	}}
}
