// Command replay reads runs back: it prints, verifies, compares and exports them
// and measures the fold. It changes nothing.
package main

import (
	"os"

	"github.com/moorebus/moorebus/internal/cli"
)

func main() { cli.Main(newCommand(os.Getenv)) }
