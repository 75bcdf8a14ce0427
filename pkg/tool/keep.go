package tool

import "context"

type keeperKey struct{}

type keepFunc = func(ctx context.Context, data []byte) (where string, err error)

// WithKeeper returns a context under which a call's tool may store data that is no
// text, such as an image, with its result. keep is safe for concurrent use and returns
// where the data is kept: `<bucket>/<key>`.
func WithKeeper(ctx context.Context, keep func(ctx context.Context, data []byte) (where string, err error)) context.Context {
	return context.WithValue(ctx, keeperKey{}, keep)
}

// KeeperFrom returns what stores data with the call's result; nil means that data is
// not kept.
func KeeperFrom(ctx context.Context) func(ctx context.Context, data []byte) (where string, err error) {
	keep, _ := ctx.Value(keeperKey{}).(keepFunc)
	return keep
}
