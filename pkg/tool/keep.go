package tool

import "context"

// Keeper stores data that is no text, such as an image that a tool returned, and
// returns where it is kept, in words that lead to it: `<bucket>/<key>`. It is
// safe for concurrent use.
type Keeper interface {
	Keep(ctx context.Context, data []byte) (where string, err error)
}

type keeperKey struct{}

// WithKeeper returns a context under which a call's tool may store data with its
// result.
func WithKeeper(ctx context.Context, k Keeper) context.Context {
	return context.WithValue(ctx, keeperKey{}, k)
}

// KeeperFrom returns the call's keeper; false means that data is not kept.
func KeeperFrom(ctx context.Context) (Keeper, bool) {
	k, ok := ctx.Value(keeperKey{}).(Keeper)
	return k, ok
}
