// Command actor is the role that runs tools. It is the only process that needs
// the tools' credentials.
package main

import (
	"github.com/moorebus/moorebus/internal/cli"
	"github.com/moorebus/moorebus/internal/role/actor"
)

func main() { cli.Main(actor.Command()) }
