package httpapi_test

import (
	"encoding/json"
	"net/http"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
)

var placeholder = regexp.MustCompile(`\{[^}]*\}`)

// Every GET refuses a parameter that it does not have, and one that is given twice.
func TestParametersOfEveryGet(t *testing.T) {
	t.Parallel()
	r := simulatedRig(t, nil)
	var doc struct {
		Paths map[string]map[string]struct {
			Parameters []struct{ Name, In string }
		}
	}
	require.NoError(t, json.Unmarshal([]byte(r.do("GET", "/openapi.json", "").body), &doc))
	asked := 0
	for path, operations := range doc.Paths {
		get, is := operations["get"]
		if !is || path == "/" { // a page, whose links may have what they like
			continue
		}
		at := placeholder.ReplaceAllString(path, "x")
		refused := r.fails(http.StatusBadRequest, "bad_parameter", r.do("GET", at+"?nonsense=1", ""))
		require.Contains(t, refused.text(t, "message"), `"nonsense": unknown parameter`, path)
		for _, p := range get.Parameters {
			if p.In == "query" {
				again := r.fails(http.StatusBadRequest, "bad_parameter", r.do("GET", at+"?"+p.Name+"=1&"+p.Name+"=1", ""))
				require.Equal(t, p.Name+": is given twice", again.text(t, "message"), path)
			}
		}
		asked++
	}
	require.Greater(t, asked, 30)
}
