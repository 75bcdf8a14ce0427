// Command replay reads runs back: it prints, verifies, compares and exports them
// and measures the fold. It changes nothing.
package main

import (
	"context"
	"os"

	"github.com/moorebus/moorebus/internal/cli"
)

func main() {
	cli.Main(func(ctx context.Context) error { return cli.Execute(ctx, newCommand(os.Getenv)) })
}
