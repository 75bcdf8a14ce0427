package e2e

import (
	"flag"
	"fmt"
	"os"
	"testing"

	"github.com/moorebus/moorebus/internal/commandtest"
)

// TestMain builds all commands, the examples of an MCP server and of a NATS service, and the nats-server of the
// version that the module names.
func TestMain(m *testing.M) {
	flag.Parse()
	if !testing.Short() {
		var err error
		if bin, err = commandtest.Build("cmd", "./cmd/...", "./examples/mcp/server", "./examples/services", "github.com/nats-io/nats-server/v2"); err != nil {
			fmt.Fprintln(os.Stderr, "e2e:", err)
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}
