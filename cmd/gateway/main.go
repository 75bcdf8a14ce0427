// Command gateway is the role between the bus and the world: the HTTP API, the
// event streams and the console.
package main

import (
	"github.com/moorebus/moorebus/internal/cli"
	"github.com/moorebus/moorebus/internal/role/gateway"
)

func main() { cli.Main(gateway.Command()) }
