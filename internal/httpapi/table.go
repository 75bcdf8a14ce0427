package httpapi

import (
	"net/http"
	"slices"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/moorebus/moorebus/internal/httpapi/requests"
	"github.com/moorebus/moorebus/internal/httpapi/route"
	"github.com/moorebus/moorebus/internal/refusal"
)

// table has every request of the API.
func (s *Server) table() []route.Route {
	rows := append(slices.Concat(requests.Rows(s.control), s.cfg.Rows),
		requests.RunEvents.Row(s.getRunEvents), requests.RunStates.Row(s.getStates), requests.FollowEvents.Row(s.getEvents),
		own(route.Route{
			Pattern: "GET /metrics", Streams: []string{"text/plain"},
			Summary: "Returns the metrics of this gateway and of the queues of the bus, for Prometheus. docs/metrics.md lists them.",
		}, s.getMetrics),
		own(route.Route{
			Pattern: "GET /openapi.json", Open: true, Summary: "Returns this description as an OpenAPI 3.1 document.",
			Answer: &jsonschema.Schema{Type: "object", Required: []string{"openapi", "info", "paths"}},
		}, s.getOpenAPI),
		own(route.Route{Pattern: "GET /healthz", Open: true, Summary: "Returns 200 while the process is alive.", Answer: health{}}, s.getHealth),
		own(route.Route{
			Pattern: "GET /readyz", Open: true, Summary: "Reports whether the bus can store events, and has the streams and consumers that are needed.",
			Answer: health{}, Codes: []string{refusal.CodeDiskFull, refusal.CodeStoreFull},
		}, s.getReady),
		route.Route{
			Pattern: "GET /{$}", Handle: func(w http.ResponseWriter, r *http.Request) error { s.pages.ServeHTTP(w, r); return nil }, Open: true,
			Summary: "Returns the console, a page for people. Its pages and files are outside /v1.", Streams: []string{"text/html"},
		},
	)
	for i, row := range rows {
		if !row.Open && len(row.Streams) == 0 {
			rows[i].Handle = s.whileQuorum(row.Handle)
		}
	}
	for _, face := range s.cfg.Faces {
		rows = append(rows, face.Routes(s.streams)...)
	}
	return rows
}

// own is a request about the gateway's own process, without parameters.
func own(row route.Route, handle route.Endpoint) route.Route {
	return route.DefineStream[requests.None](row).Row(func(w http.ResponseWriter, r *http.Request, _ requests.None) error { return handle(w, r) })
}
