package openapi_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/httpapi/openapi"
	"github.com/moorebus/moorebus/internal/httpapi/route"
)

// A row that lacks what the document needs is named.
func TestIncompleteRows(t *testing.T) {
	complete := route.Route{Pattern: "GET /v1/x/{id}", Summary: "Shows x.", Answer: map[string]string{}}
	for what, change := range map[string]func(*route.Route){
		"no Summary":           func(r *route.Route) { r.Summary = "" },
		"neither an Answer":    func(r *route.Route) { r.Answer = nil },
		`the code "odd"`:       func(r *route.Route) { r.Codes = []string{"odd"} },
		"JSON Schema of func":  func(r *route.Route) { r.Answer = func() {} },
		"JSON Schema of map[b": func(r *route.Route) { r.Body = map[bool]string{} },
	} {
		row := complete
		change(&row)
		_, err := openapi.Document([]route.Route{row})
		require.ErrorContains(t, err, "GET /v1/x/{id}")
		require.ErrorContains(t, err, what)
	}
	text, err := openapi.Document([]route.Route{complete})
	require.NoError(t, err)
	require.True(t, json.Valid(text))
}
