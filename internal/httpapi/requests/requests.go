// Package requests states the requests of the HTTP API, one [route.Op] for each. A server has
// their rows. Commands call them, over HTTP or in their own process.
package requests

import (
	"github.com/moorebus/moorebus/internal/control"
	"github.com/moorebus/moorebus/internal/httpapi/route"
)

// Scope is the namespace of a request; empty: the client's, or the gateway's.
type Scope struct {
	Namespace string `header:"Moorebus-Namespace"`
}

// Deleted is the answer to a removal.
type Deleted struct {
	Deleted bool `json:"deleted"`
}

// None is an input of nothing.
type None struct{}

// op is an [route.Op] of any types.
type op interface {
	Row(c *control.Controller) route.Route
}

// Rows returns the rows of all requests that a controller carries out alone.
func Rows(c *control.Controller) []route.Route {
	var rows []route.Route
	for _, o := range []op{
		ListQuotas, GetQuota, PutQuota, DeleteQuota,
	} {
		rows = append(rows, o.Row(c))
	}
	return rows
}
