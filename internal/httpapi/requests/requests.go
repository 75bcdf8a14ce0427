// Package requests states the requests of the HTTP API, one [route.Op] or [route.Stream] for each.
// A server has their rows. Commands call them, over HTTP or in their own process.
package requests

import (
	"context"
	"slices"

	"github.com/moorebus/moorebus/internal/control"
	"github.com/moorebus/moorebus/internal/httpapi/route"
)

// The inputs of several requests, and the answer of some.
type (
	// None is an input of nothing.
	None struct{}
	// Scope is the namespace of a request; empty: the client's, or the gateway's.
	Scope struct {
		Namespace string `header:"Moorebus-Namespace"`
	}
	// Named names something of the namespace.
	Named struct {
		Scope
		Name string `path:"name"`
	}
	// Run names a run.
	Run struct {
		Scope
		ID string `path:"id"`
	}
	// Page is a page of a list.
	Page struct {
		Scope
		Limit  int    `query:"limit" doc:"The most runs of the answer, 1 to 200. Default: 50. There may be fewer although more follow."`
		Cursor string `query:"cursor" doc:"The next of the previous answer."`
	}
	// Deleted is the answer to a removal.
	Deleted struct {
		Deleted bool `json:"deleted"`
	}
)

// Name names something of the client's namespace.
func Name(name string) Named { return Named{Name: name} }

// ID names a run of the client's namespace.
func ID(run string) Run { return Run{ID: run} }

// ofNamespace and ofRun define requests that name a namespace and a run.
func ofNamespace[T any](row route.Route, do func(c *control.Controller, ctx context.Context, ns string) (T, error)) *route.Op[*control.Controller, Scope, T] {
	return route.Define(row, func(ctx context.Context, c *control.Controller, in Scope) (T, error) { return do(c, ctx, in.Namespace) })
}

func ofRun[T any](row route.Route, do func(c *control.Controller, ctx context.Context, ns, id string) (T, error)) *route.Op[*control.Controller, Run, T] {
	return route.Define(row, func(ctx context.Context, c *control.Controller, in Run) (T, error) {
		return do(c, ctx, in.Namespace, in.ID)
	})
}

// OfName defines a request that names something of a namespace.
func OfName[S, T any](row route.Route, do func(s S, ctx context.Context, ns, name string) (T, error)) *route.Op[S, Named, T] {
	return route.Define(row, func(ctx context.Context, s S, in Named) (T, error) { return do(s, ctx, in.Namespace, in.Name) })
}

func with(codes []string, more ...string) []string { return slices.Concat(codes, more) }

// Rows returns the rows of all requests of the core that a controller answers alone.
func Rows(c *control.Controller) []route.Route {
	var rows []route.Route
	for _, o := range []interface {
		Row(c *control.Controller) route.Route
	}{
		Start, ListRuns, GetRun, Tree, Usage, ModelRequest, Fork,
		PostInputs, Decide, RaiseBudget, Resume, Cancel, Pause, Close,
		Stats, Costs, ListDead, DropDead, Retry, Waiting,
		ListAgents, GetAgent, PutAgent,
		Tools, Blob, Version, Table,
	} {
		rows = append(rows, o.Row(c))
	}
	return rows
}
