package agent

import (
	"github.com/moorebus/moorebus/internal/tokens"
	"github.com/moorebus/moorebus/internal/tokens/o200k"
)

// estimators are those of every host, and the application's own.
func (o HostOptions) estimators() tokens.Set {
	return tokens.Set{tokens.O200K: o200k.Estimate}.With(o.Estimators)
}

// Estimator registers a token estimator of the application's own under a name, for
// the setting token_estimator of the definition.
func (b *Builder) Estimator(name string, e tokens.Estimator) *Builder {
	b.estimators = b.estimators.With(tokens.Set{name: e})
	return b
}
