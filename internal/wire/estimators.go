package wire

import (
	"github.com/moorebus/moorebus/internal/tokens"
	"github.com/moorebus/moorebus/internal/tokens/o200k"
)

// Estimators returns the token estimators that the commands know.
func Estimators() tokens.Set { return tokens.Set{tokens.O200K: o200k.Estimate} }
