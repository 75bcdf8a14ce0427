package natsbus

import (
	"testing"
	"time"

	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/stretchr/testify/require"
)

// Values of webhooks are replaced and removed on condition of their revisions, a removed key can be
// put anew, and what has a lifetime is forgotten.
func TestWebhookValues(t *testing.T) {
	t.Parallel()
	bus, ctx := newBus(t, 1), t.Context()
	first, err := bus.PutWebhookValue(ctx, "hook.default.a", []byte("1"), 0, 0)
	require.NoError(t, err)
	_, err = bus.PutWebhookValue(ctx, "hook.default.a", []byte("2"), 0, 0)
	require.ErrorIs(t, err, journal.ErrConflict)
	second, err := bus.PutWebhookValue(ctx, "hook.default.a", []byte("2"), first, 0)
	require.NoError(t, err)
	_, err = bus.PutWebhookValue(ctx, "dead.default.a.x", []byte("3"), 0, 0)
	require.NoError(t, err)
	found := map[string]string{}
	take := func(key string, value []byte, _ uint64) { found[key] = string(value) }
	require.NoError(t, bus.WebhookValues(ctx, "hook", take))
	require.Equal(t, map[string]string{"hook.default.a": "2"}, found)

	require.ErrorIs(t, bus.DeleteWebhookValue(ctx, "hook.default.a", first), journal.ErrConflict)
	require.NoError(t, bus.DeleteWebhookValue(ctx, "hook.default.a", second))
	_, _, err = bus.WebhookValue(ctx, "hook.default.a")
	require.ErrorIs(t, err, journal.ErrNotFound)
	clear(found)
	require.NoError(t, bus.WebhookValues(ctx, "hook", take))
	require.Empty(t, found)
	_, err = bus.PutWebhookValue(ctx, "hook.default.a", []byte("4"), 0, time.Second)
	require.NoError(t, err)
	value, _, err := bus.WebhookValue(ctx, "hook.default.a")
	require.NoError(t, err)
	require.Equal(t, "4", string(value))
	require.Eventually(t, func() bool {
		_, _, err := bus.WebhookValue(ctx, "hook.default.a")
		return err != nil
	}, time.Minute, 100*time.Millisecond)
	for _, key := range []string{"hook", "hook.default.A", "a.b.c.d.e", "hook.default.*"} {
		_, err := bus.PutWebhookValue(ctx, key, []byte("x"), 0, 0)
		require.ErrorContains(t, err, "not a", key)
	}
}
