// Command observer is the role that commits results. It needs no credentials but
// the bus's.
package main

import (
	"github.com/moorebus/moorebus/internal/cli"
	"github.com/moorebus/moorebus/internal/role/observer"
)

func main() { cli.Main(observer.Command()) }
