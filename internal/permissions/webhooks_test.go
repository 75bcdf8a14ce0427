package permissions

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	webhooks "github.com/moorebus/moorebus/internal/feature/webhooks/row"
	"github.com/moorebus/moorebus/internal/kv"
	"github.com/moorebus/moorebus/internal/ports"
	"github.com/moorebus/moorebus/pkg/journal"
)

// TestWebhooks: the gateway keeps webhooks and may be the one that delivers. Nobody else reads their
// secrets.
func TestWebhooks(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	gateway, ctx := r.open(t, Gateway), t.Context()
	it := kv.Item{Key: "hook.default.a", Value: []byte("secret")}
	revision, err := gateway.Update(ctx, webhooks.Bucket, it)
	require.NoError(t, err)
	found := 0
	for _, err := range gateway.Each(ctx, webhooks.Bucket, "hook.>") {
		require.NoError(t, err)
		found++
	}
	require.Equal(t, 1, found)
	require.NoError(t, gateway.Delete(ctx, webhooks.Bucket, it.Key, revision))
	_, err = gateway.Update(ctx, webhooks.Bucket, it)
	require.NoError(t, err)
	led := errors.New("this process leads")
	lead := func(context.Context) error { return led }
	require.ErrorIs(t, gateway.Lead(ctx, ports.RoleKey{Role: Gateway, Name: "webhooks"}, lead), led)

	tap := r.open(t, Tap)
	_, err = tap.Get(ctx, webhooks.Bucket, it.Key)
	require.ErrorIs(t, err, journal.ErrDenied)
	for _, err := range tap.Each(ctx, webhooks.Bucket, "hook.>") {
		require.ErrorIs(t, err, journal.ErrDenied, "a secret")
	}
}
