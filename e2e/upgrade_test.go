package e2e

import (
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/moorebus/moorebus/internal/commandtest"
	"github.com/stretchr/testify/require"
)

// TestUpgrade plays all conversations on a bus of an older build while its roles are replaced
// one by one by those of this build and back again, in two orders. Builds of both work side by
// side, nothing is lost or repeated, and both builds find the log sound.
func TestUpgrade(t *testing.T) {
	needsCommands(t)
	t.Parallel()
	revision, err := os.ReadFile("testdata/previous")
	require.NoError(t, err)
	older, err := commandtest.BuildRevision(strings.TrimSpace(string(revision)), "./cmd/moorebus")
	if errors.Is(err, commandtest.ErrNoHistory) {
		t.Skip(err) // reason: a source archive or a shallow clone has no earlier build
	}
	require.NoError(t, err)

	all := conversations(t)
	c := startOlderCluster(t, older, setup{planners: 2, actors: 2, observers: 2, gateways: 1, tools: toolNames(all)})
	s := c.stage()
	s.gentle = true
	roles := []string{"observer", "planner", "actor", "gateway"}
	for _, to := range []struct {
		name  string
		older bool
		first string // whose turn it is first
	}{{"forth", false, "observer"}, {"back", true, "gateway"}, {"forth again", false, "gateway"}} {
		if to.first == "gateway" {
			slices.Reverse(roles)
		}
		t.Run(to.name, func(t *testing.T) {
			if !to.older { // the operator's first step; what the older build sees then is its bus with more on it
				c.init(t, false)
			}
			for _, role := range roles {
				middle := s.milestone(t, 60)
				s.play(t, all, func() {
					await(t, middle, "some events")
					for i := range c.numberOf(role) {
						require.NoError(t, c.roles[instance(role, i)].terminate())
						c.outdated[instance(role, i)] = to.older
						c.start(role, i)
					}
				})
			}
		})
	}
	c.verifyAll()
	out := runOf(t, older, c.env(), "moorebus", "replay", "verify", "--all")
	require.Zero(t, out.code, "replay verify --all of the older build: %s%s", out.stdout, out.stderr)
}
