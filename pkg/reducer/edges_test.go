package reducer_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/reducer"
)

var edges = reducer.Edges(reducer.DefaultTable())

// checkEdge requires that whatever may be published is among the edges, on which
// permissions are given.
func checkEdge(t require.TestingT, before *reducer.Memory, s events.Subject, p events.Payload) {
	for _, from := range reducer.Origins(reducer.DefaultTable(), before, p) {
		found := slices.ContainsFunc(edges, func(e reducer.Edge) bool {
			return e.From == from && e.To == s.To && (e.Pool == s.Pool || e.Pool == events.Wildcard)
		})
		require.True(t, found, "%s in %s goes from %s to %s in pool %s, which is no edge", p.Type(), before.State, from, s.To, s.Pool)
	}
}

// TestEdges: the edges of the built-in table, state by state, and no others.
func TestEdges(t *testing.T) {
	got := map[events.State][]string{}
	for _, e := range edges {
		got[e.From] = append(got[e.From], fmt.Sprintf("%s.%s", e.To, e.Pool))
	}
	ended := " error.agents error.default"
	for from, want := range map[events.State]string{
		events.Idle: "acting.*" + ended + " observing.default paging.default parallel_acting.* planning.default reflecting.default waiting_for_human.default waiting_for_user.default",
		events.Planning: "acting.* done.agents done.default" + ended + " none.default parallel_acting.* planning.default" +
			" reflecting.default waiting_for_human.default waiting_for_user.default",
		events.Reflecting:      strings.TrimSpace(ended) + " none.default planning.default",
		events.Acting:          strings.TrimSpace(ended) + " none.default observing.default waiting_for_human.default",
		events.ParallelActing:  strings.TrimSpace(ended) + " none.default observing.default parallel_acting.*",
		events.Observing:       strings.TrimSpace(ended) + " none.default paging.default planning.default reflecting.default",
		events.Paging:          strings.TrimSpace(ended) + " none.default planning.default",
		events.WaitingForHuman: "acting.*" + ended + " none.default observing.default parallel_acting.* planning.default waiting_for_human.default",
		events.WaitingForUser:  "done.agents done.default" + ended + " none.default planning.default",
		events.Control: "acting.* cancelled.agents cancelled.default" + ended + " none.default observing.default paging.default parallel_acting.*" +
			" planning.default reflecting.default waiting_for_human.default waiting_for_user.default",
		// A poisoned run may be ended by whoever meets it; nobody owns these.
		events.Done: strings.TrimSpace(ended), events.Errored: strings.TrimSpace(ended), events.Cancelled: strings.TrimSpace(ended),
	} {
		require.Equal(t, want, strings.Join(got[from], " "), "from %s", from)
		delete(got, from)
	}
	require.Empty(t, got)
}
