// Command replay reads runs back: it prints, verifies, compares and exports them
// and measures the fold. It changes nothing.
package main

import (
	"os"

	"github.com/moorebus/moorebus/internal/cli"
	"github.com/moorebus/moorebus/internal/replaycmd"
)

func main() { cli.Main(replaycmd.New(os.Getenv)) }
