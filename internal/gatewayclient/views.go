package gatewayclient

import (
	"context"
	"strconv"

	"github.com/moorebus/moorebus/internal/compare"
	"github.com/moorebus/moorebus/internal/control/dead"
	"github.com/moorebus/moorebus/internal/control/forking"
	"github.com/moorebus/moorebus/internal/control/list"
	"github.com/moorebus/moorebus/internal/control/record"
)

// Compare is the method of [control.Controller].
func (c *Client) Compare(ctx context.Context, ns, a, b string) (*compare.Comparison, error) {
	return ask[*compare.Comparison](ctx, c, request{namespace: ns, path: path("compare"), query: query("a", a, "b", b)})
}

// Tree is [list.Lister.Tree].
func (c *Client) Tree(ctx context.Context, ns, id string) (list.Tree, error) {
	return ask[list.Tree](ctx, c, request{namespace: ns, path: path("runs", id, "tree")})
}

// Usage is [record.Reader.Usage].
func (c *Client) Usage(ctx context.Context, ns, id string) (*record.Usage, error) {
	return ask[*record.Usage](ctx, c, request{namespace: ns, path: path("runs", id, "usage")})
}

// Dead is [dead.Keeper.Dead].
func (c *Client) Dead(ctx context.Context, ns string, o dead.Options) ([]dead.Dead, error) {
	found, err := ask[struct{ Dead []dead.Dead }](ctx, c, request{namespace: ns, path: path("dead"), query: query("all", strconv.FormatBool(o.All), "dropped", strconv.FormatBool(o.Dropped))})
	return found.Dead, err
}

// DropDead is [dead.Keeper.DropDead].
func (c *Client) DropDead(ctx context.Context, ns string, names []string) error {
	_, err := post[struct{}](ctx, c, request{namespace: ns, path: path("dead", "drop")}, map[string]any{"names": names})
	return err
}

// Retry is [dead.Keeper.Retry].
func (c *Client) Retry(ctx context.Context, ns, id, key string) (dead.Retried, error) {
	r := request{namespace: ns, path: path("runs", id, "retry")}
	if key != "" {
		r.header = map[string]string{forking.KeyHeader: key}
	}
	return post[dead.Retried](ctx, c, r, struct{}{})
}
