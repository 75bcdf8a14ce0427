package e2e

import (
	"flag"
	"fmt"
	"os"
	"testing"

	"github.com/moorebus/moorebus/internal/binaries"
)

// bin is the directory of the commands under test.
var bin string

// TestMain builds all commands, the example of an MCP server, and the nats-server of
// the version that the module names.
func TestMain(m *testing.M) {
	flag.Parse()
	if !testing.Short() {
		var err error
		if bin, err = binaries.Build("cmd", "./cmd/...", "./examples/mcp/server", "github.com/nats-io/nats-server/v2"); err != nil {
			fmt.Fprintln(os.Stderr, "e2e:", err)
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

// needsCommands skips a short test: all of these start the commands as processes.
func needsCommands(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("-short") // reason: the commands take long to build and start
	}
}
