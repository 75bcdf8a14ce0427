// Command planner is the role that calls models. It is the only process that
// needs the keys of model providers.
package main

import (
	"github.com/moorebus/moorebus/internal/cli"
	"github.com/moorebus/moorebus/internal/role/planner"
)

func main() { cli.Main(planner.Command()) }
