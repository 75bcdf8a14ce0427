package permissions

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/ports"
	"github.com/moorebus/moorebus/pkg/journal"
)

// TestWebhooks: the gateway keeps webhooks and may be the one that delivers. Nobody else reads their
// secrets.
func TestWebhooks(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	gateway, ctx := r.open(t, Gateway), t.Context()
	revision, err := gateway.PutWebhookValue(ctx, "hook.default.a", []byte("secret"), 0, 0)
	require.NoError(t, err)
	found := 0
	require.NoError(t, gateway.WebhookValues(ctx, "hook", func(string, []byte, uint64) { found++ }))
	require.Equal(t, 1, found)
	require.NoError(t, gateway.DeleteWebhookValue(ctx, "hook.default.a", revision))
	_, err = gateway.PutWebhookValue(ctx, "hook.default.a", []byte("secret"), 0, 0)
	require.NoError(t, err)
	led := errors.New("this process leads")
	lead := func(context.Context) error { return led }
	require.ErrorIs(t, gateway.Lead(ctx, ports.Keep{Role: Gateway, Name: "webhooks"}, lead), led)

	tap := r.open(t, Tap)
	_, _, err = tap.WebhookValue(ctx, "hook.default.a")
	require.ErrorIs(t, err, journal.ErrDenied)
	require.ErrorIs(t, tap.WebhookValues(ctx, "hook", func(string, []byte, uint64) { t.Error("a secret") }), journal.ErrDenied)
}
