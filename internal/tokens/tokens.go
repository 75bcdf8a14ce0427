// Package tokens is the port to token estimators: how many tokens a text has for a
// model, as far as that is known without asking it.
//
// Estimators only take part in decisions (when memory is paged, what a call reserves
// of a budget), and the log holds the decisions. So two processes may estimate
// differently, and a replay needs no estimator. An agent's definition chooses one by
// name. Adapters are in the sub-packages.
package tokens

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Estimator says how many tokens a text has, 0 for an empty one. It is safe for
// concurrent use, does not block, and panics on no text.
type Estimator func(text string) int

// The names of the estimators that every installation has.
const (
	// Bytes4 is the rule of thumb of four bytes a token, and the default.
	Bytes4 = "bytes/4"
	// O200K counts with the vocabulary o200k_base of later OpenAI models, see
	// package o200k.
	O200K = "o200k"
)

// ByBytes4 is the estimator [Bytes4]: a quarter of the bytes, rounded up.
func ByBytes4(text string) int { return (len(text) + 3) / 4 }

// Set holds estimators by name. A nil Set has [Bytes4] alone, and every other one
// has it too.
type Set map[string]Estimator

// With returns s with the estimators of more, which override those of s.
func (s Set) With(more Set) Set {
	all := Set{}
	maps.Copy(all, s)
	maps.Copy(all, more)
	return all
}

// Named returns the estimator of that name; an empty one is [Bytes4]. The error
// says which names there are.
func (s Set) Named(name string) (Estimator, error) {
	if e := s[name]; e != nil && name != "" {
		return e, nil
	}
	if name == "" || name == Bytes4 {
		if e := s[Bytes4]; e != nil {
			return e, nil
		}
		return ByBytes4, nil
	}
	return nil, fmt.Errorf("token_estimator: %q is not known; there are: %s", name, strings.Join(s.Names(), ", "))
}

// Check returns the error of [Set.Named].
func (s Set) Check(name string) error {
	_, err := s.Named(name)
	return err
}

// Or returns the estimator of that name, or [ByBytes4] if there is none, so that a run
// continues in a process that lacks the estimator of its definition.
func (s Set) Or(name string) Estimator {
	e, err := s.Named(name)
	if err != nil {
		return ByBytes4
	}
	return e
}

// Names returns the names of the set, sorted, [Bytes4] among them.
func (s Set) Names() []string {
	names := append(slices.Collect(maps.Keys(s)), Bytes4)
	slices.Sort(names)
	return slices.Compact(names)
}
