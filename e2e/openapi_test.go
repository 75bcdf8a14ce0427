package e2e

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestGatewayServesThePage: the gateway in a process of its own has the requests of
// docs/http-api.md, which is written from all roles in one process, and no others.
func TestGatewayServesThePage(t *testing.T) {
	t.Parallel()
	s := startCluster(t, setup{tools: []string{"stock"}}).stage()
	var served struct {
		Paths map[string]map[string]any `json:"paths"`
	}
	require.NoError(t, s.api.get(t.Context(), "/openapi.json", &served))
	page, err := os.ReadFile("../docs/http-api.md")
	require.NoError(t, err)
	var shown, known []string
	for _, heading := range regexp.MustCompile("(?m)^## `(.*)`$").FindAllStringSubmatch(string(page), -1) {
		shown = append(shown, heading[1])
	}
	for path, methods := range served.Paths {
		for method := range methods {
			known = append(known, strings.ToUpper(method)+" "+path)
		}
	}
	require.ElementsMatch(t, shown, known)
}
