package natsbus

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/pkg/embedded"
	"github.com/moorebus/moorebus/pkg/events"
)

// TestPoolTools: what the operator assigns to a pool is announced by that pool alone,
// until the operator says otherwise; no announcement changes that.
func TestPoolTools(t *testing.T) {
	t.Parallel()
	conn := inProcess(t, startServer(t, embedded.Options{}))
	set := func(lists map[string][]string) error {
		return Init(t.Context(), conn, InitOptions{Pools: []string{"web", "bank"}, PoolTools: lists})
	}
	listed := func() []string {
		bus := reopenBus(t, conn, GroupCommitAuto)
		for _, pool := range []string{"bank", "web"} {
			for _, instance := range []string{"a", "b"} {
				spec := events.ToolSpec{Name: "pay", Pool: pool, Description: "pays", Effect: "once", Risk: "high"}
				require.NoError(t, bus.Announce(t.Context(), pool, instance, []events.ToolSpec{spec}))
			}
		}
		tools, err := bus.Tools(t.Context())
		require.NoError(t, err)
		var pools []string
		for _, tool := range tools {
			pools = append(pools, tool.Pool+"/"+tool.Name)
		}
		return pools
	}
	require.NoError(t, set(nil))
	require.Equal(t, []string{"bank/pay", "web/pay"}, listed())
	require.NoError(t, set(map[string][]string{"bank": {"pay", "refund"}}))
	require.Equal(t, []string{"bank/pay"}, listed())
	require.NoError(t, set(map[string][]string{"web": {"search"}}), "other pools keep theirs")
	require.NoError(t, set(nil))
	require.Equal(t, []string{"bank/pay"}, listed())
	require.ErrorContains(t, set(map[string][]string{"web": {"pay"}}), "assigned to the pools bank and web")
	require.NoError(t, set(map[string][]string{"web": {"pay"}, "bank": {}}))
	require.Equal(t, []string{"web/pay"}, listed())
}
