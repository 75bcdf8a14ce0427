package main

import (
	"context"
	"fmt"

	"github.com/moorebus/moorebus/internal/cli"
)

// part is one part of a benchmark with settings of type S.
type part[S any] struct {
	name string
	run  func(context.Context, S) ([]figure, error)
}

// runParts runs one part, or all if only is empty.
func runParts[S any](ctx context.Context, only string, s S, parts []part[S]) ([]figure, error) {
	var figures []figure
	var names []string
	for _, p := range parts {
		names = append(names, p.name)
		if only != "" && only != p.name {
			continue
		}
		more, err := p.run(ctx, s)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", p.name, err)
		}
		figures = append(figures, more...)
	}
	if figures == nil {
		return nil, cli.Usage("--only: %q is no part of it; use one of %v", only, names)
	}
	return figures, nil
}
