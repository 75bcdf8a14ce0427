package host_test

import (
	"context"
	"encoding/json"
	"flag"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/moorebus/moorebus/internal/host"
	"github.com/moorebus/moorebus/internal/journaltest/simtest"
	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/moorebus/moorebus/pkg/llm/scripted"
	"github.com/moorebus/moorebus/pkg/tool"
	"github.com/moorebus/moorebus/pkg/tool/typed"
)

func TestMain(m *testing.M) {
	// Those that run beside others wait for a server or a clock most of the time.
	if err := flag.Set("test.parallel", "8"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

type query struct {
	Q string `json:"q"`
}

// running runs and announces the host until the test ends, or stop is called.
func running(t *testing.T, o host.Options) (h *host.Host, stop func()) {
	t.Helper()
	h, err := host.New(o)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- h.Run(ctx) }()
	stop = func() {
		if cancel != nil {
			cancel()
			cancel = nil
			require.NoError(t, <-ended)
		}
	}
	t.Cleanup(stop)
	require.NoError(t, h.Announce(t.Context()))
	return h, stop
}

func TestHostRefusesToolsWithBadSchemas(t *testing.T) {
	t.Parallel()
	made, err := typed.New(tool.Definition{Name: "broken", Effect: tool.Pure}, func(context.Context, query) (string, error) { return "", nil })
	require.NoError(t, err)
	def := made.Definition()
	def.Schema = json.RawMessage(`{"type":"wrong"}`)
	registry, err := tool.NewRegistry(tool.Redefine(made, def))
	require.NoError(t, err)
	_, err = host.New(host.Options{
		Bus: simtest.New(simtest.Options{}), Tools: registry, Providers: map[string]llm.Caller{"mock": scripted.NewMock()},
	})
	require.ErrorContains(t, err, `tool "broken": schema: invalid JSON Schema`)
}
