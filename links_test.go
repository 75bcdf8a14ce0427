package moorebus_test

import (
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The adapters and servers that a role's program may lack.
var (
	toolAdapters  = []string{module + "/pkg/tool/", module + "/internal/toolset", module + "/internal/compose/toolfile", module + "/internal/confine"}
	modelAdapters = []string{module + "/pkg/llm/", module + "/internal/llmhttp", module + "/internal/compose/providerfile"}
	httpAPI       = []string{module + "/internal/httpapi", module + "/internal/a2a", module + "/internal/agui"}
	natsServer    = []string{"github.com/nats-io/nats-server/", module + "/pkg/embedded", module + "/internal/datadir"}
	onBusAlone    = []string{module + "/internal/feature/backup", module + "/internal/feature/retention"}
	everyRole     = []string{module + "/internal/host", module + "/pkg/agent", module + "/internal/compose"}
)

// absent are the packages that a program must not link, by the beginning of their paths. SECURITY.md
// says it to people. The gateway writes requests as models are sent them, for which it needs the
// adapters of their APIs. replay reads data directories, for which it needs a server.
var absent = map[string][][]string{
	"planner":  {toolAdapters, httpAPI, natsServer, everyRole[:2:2], {module + "/internal/control"}},
	"actor":    {modelAdapters, httpAPI, natsServer, everyRole[:2:2], {module + "/internal/control", module + "/internal/planner"}},
	"observer": {toolAdapters, modelAdapters, httpAPI, natsServer, everyRole, {module + "/internal/control", module + "/internal/planner", module + "/internal/actor"}},
	"gateway":  {toolAdapters, natsServer, onBusAlone, everyRole, {module + "/pkg/llm/scripted", module + "/internal/actor"}},
	"replay":   {toolAdapters, modelAdapters, httpAPI, everyRole},
}

// TestProgramsLinkOnlyWhatTheyNeed: a process cannot be made to use what its program does not hold.
func TestProgramsLinkOnlyWhatTheyNeed(t *testing.T) {
	for program, prefixes := range absent {
		out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", "./cmd/"+program).Output()
		require.NoError(t, err)
		linked := strings.Fields(string(out))
		require.Contains(t, linked, module+"/internal/natsbus", program)
		for _, prefix := range slices.Concat(prefixes...) {
			for _, p := range linked {
				require.False(t, strings.HasPrefix(p, prefix), "cmd/%s links %s: have what imports it take a function from the command of the role, or move what both need below", program, p)
			}
		}
	}
}
