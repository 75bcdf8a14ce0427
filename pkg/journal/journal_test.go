package journal

import (
	"testing"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/stretchr/testify/require"
)

const id = "019325a0-0000-7000-8000-000000000001"

func TestFilterSubject(t *testing.T) {
	require.Equal(t, "moore.2.*.*.*.*.*", Filter{}.Subject(2))
	require.Equal(t, "moore.*.*.*.*.*.*", Filter{}.Subject(-1))
	full := Filter{Namespace: "ns", From: events.Planning, To: events.Acting, Pool: "web", Run: id}
	require.Equal(t, "moore.0.ns.planning.acting.web."+id, full.Subject(0))
	require.Equal(t, "moore.*.ns.planning.acting.web."+id, full.Subject(-1))
	run := events.NewRun("ns", id, 1)
	require.Equal(t, run.Filter(), Filter{Namespace: "ns", Run: id}.Subject(0))
}

func TestFilterMatch(t *testing.T) {
	subject := "moore.0.ns.planning.acting.web." + id
	for _, f := range []Filter{{}, {Namespace: "ns"}, {From: events.Planning}, {To: events.Acting}, {Pool: "web"}, {Run: id}} {
		require.True(t, f.Match(subject), "%+v", f)
	}
	for _, f := range []Filter{{Namespace: "n"}, {From: events.Acting}, {To: events.Planning}, {Pool: "we"}, {Run: id[1:]}} {
		require.False(t, f.Match(subject), "%+v", f)
	}
	for _, other := range []string{"", "moore", "moore.0.ns.planning.acting.web", subject + ".more"} {
		require.False(t, Filter{}.Match(other), other)
	}
}
