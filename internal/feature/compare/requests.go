package compare

import (
	"context"
	"embed"

	"github.com/moorebus/moorebus/internal/control"
	"github.com/moorebus/moorebus/internal/feature"
	"github.com/moorebus/moorebus/internal/feature/row"
	"github.com/moorebus/moorebus/internal/httpapi/requests"
	"github.com/moorebus/moorebus/internal/httpapi/route"
	"github.com/moorebus/moorebus/internal/httpapi/web"
	"github.com/moorebus/moorebus/pkg/events"
)

//go:embed page
var files embed.FS

// Feature returns the feature.
func Feature() feature.Feature {
	return feature.Feature{
		Row: row.Row{Name: "compare"}, Commands: []feature.Command{command},
		New:  func(c *control.Controller) feature.Part { return feature.Part{Rows: []route.Route{Compare.Row(c)}} },
		Page: &web.Page{Path: "/compare", Name: "Compare", Place: "/", Module: "compare/compare.js", Files: files},
	}
}

// Pair names two runs.
type Pair struct {
	requests.Scope
	A string `query:"a" doc:"The one run."`
	B string `query:"b" doc:"The other run."`
}

// Compare is the request. Its refusals are those of a run that is not there.
var Compare = route.Define(route.Route{
	Pattern: "GET /v1/compare", Summary: "Compares two runs after their last common event: tool calls, states and usage.",
	Codes: route.RunCodes,
}, func(ctx context.Context, c *control.Controller, in Pair) (*Comparison, error) {
	switch {
	case in.A == "":
		return nil, route.BadParameter("a: is missing; name a run")
	case in.B == "":
		return nil, route.BadParameter("b: is missing; name a run")
	}
	var runs [2]events.Run
	for i, id := range []string{in.A, in.B} {
		if _, err := c.Events(ctx, in.Namespace, id, 1); err != nil {
			return nil, err
		}
		var err error
		if runs[i], err = c.Place(in.Namespace, id); err != nil {
			return nil, err
		}
	}
	return Runs(ctx, c.Log, c.Store.Machine(), runs[0], runs[1])
})
