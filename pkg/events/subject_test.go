package events_test

import (
	"hash/fnv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/moorebus/moorebus/pkg/events"
)

func TestGoldenSubjects(t *testing.T) {
	run := events.NewRun("default", runID, 1)
	require.Equal(t, "moore.0.default.*.*.*."+runID, run.Filter())
	s := events.Subject{Run: run, From: events.Planning, To: events.ParallelActing, Pool: "web"}
	require.Equal(t, "moore.0.default.planning.parallel_acting.web."+runID, s.String())
	s = events.Subject{Run: events.Run{Shard: 3, Namespace: "team-a", ID: runID}, From: events.Control, To: events.Nobody, Pool: events.DefaultPool}
	require.Equal(t, "moore.3.team-a.control.none.default."+runID, s.String())

	require.Equal(t, "MOORE_7", events.StreamName(7))
}

func TestStatesAreSnakeCase(t *testing.T) {
	for state, name := range map[events.State]string{
		events.Idle: "Idle", events.Planning: "Planning", events.Acting: "Acting", events.ParallelActing: "ParallelActing",
		events.WaitingForHuman: "WaitingForHuman", events.WaitingForUser: "WaitingForUser", events.Observing: "Observing",
		events.Reflecting: "Reflecting", events.Paging: "Paging", events.Done: "Done", events.Errored: "Error", events.Cancelled: "Cancelled",
	} {
		require.Equal(t, name, state.Name())
		require.True(t, events.ValidToken(string(state)))
	}
}

// vectors were computed with an FNV-1a of another language.
func TestShardVectors(t *testing.T) {
	const id = "0190b5a8-3d6f-7c3a-8a4e-5f6a7b8c9d0e" // FNV-1a-32: 2340789156
	for shards, want := range map[int]int{0: 0, 1: 0, 3: 0, 5: 1, 8: 4} {
		require.Equal(t, want, events.ShardOf(id, shards), "%d shards", shards)
	}
}

func TestShardIsFNV1a(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		id, shards := uuid7().Draw(t, "id"), rapid.IntRange(1, 1000).Draw(t, "shards")
		h := fnv.New32a()
		_, _ = h.Write([]byte(id))
		want := int(uint64(h.Sum32()) % uint64(shards))
		require.Equal(t, want, events.ShardOf(id, shards))
		s := events.Subject{Run: events.NewRun("ns", id, shards), From: "a", To: "b", Pool: "c"}
		require.NoError(t, s.CheckShard(shards))
		s.Run.Shard++
		require.Error(t, s.CheckShard(shards))
	})
}

func uuid7() *rapid.Generator[string] {
	return rapid.StringMatching(`[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}`)
}

func TestSubjectRoundTrip(t *testing.T) {
	token := rapid.StringMatching(`[a-z0-9][a-z0-9_-]{0,62}`)
	rapid.Check(t, func(t *rapid.T) {
		s := events.Subject{
			Run:  events.Run{Shard: rapid.IntRange(0, 1<<20).Draw(t, "shard"), Namespace: token.Draw(t, "ns"), ID: uuid7().Draw(t, "run")},
			From: events.State(token.Draw(t, "from")), To: events.State(token.Draw(t, "to")), Pool: token.Draw(t, "pool"),
		}
		back, err := events.ParseSubject(s.String())
		require.NoError(t, err)
		require.Equal(t, s, back)
		back, err = events.ParseSubject(events.FeedPrefix + s.String())
		require.NoError(t, err)
		require.Equal(t, s, back)
	})
}

func TestSubjectRefusals(t *testing.T) {
	const good = "moore.0.default.planning.acting.web." + runID
	_, err := events.ParseSubject(good)
	require.NoError(t, err)
	long := strings.Repeat("a", 64)
	for _, bad := range []string{
		"", ".", "......", "moore", good + ".x", good[:len(good)-1], "more" + good[5:], "feed.feed." + good, "chunk." + good,
		strings.Replace(good, ".0.", ".-1.", 1), strings.Replace(good, ".0.", ".+1.", 1), strings.Replace(good, ".0.", ".00.", 1),
		strings.Replace(good, ".0.", ".x.", 1), strings.Replace(good, ".0.", "..", 1), strings.Replace(good, ".0.", ".99999999999999999999.", 1),
		strings.Replace(good, "default", "", 1), strings.Replace(good, "default", "Default", 1), strings.Replace(good, "default", long, 1),
		strings.Replace(good, "default", "-x", 1), strings.Replace(good, "planning", "*", 1), strings.Replace(good, "acting.web", ">", 1),
		strings.Replace(good, "web", "w b", 1), strings.Replace(good, "web", "é", 1), strings.Replace(good, runID, strings.ToUpper(runID), 1),
		strings.Replace(good, ".web", "", 1),
	} {
		_, err := events.ParseSubject(bad)
		require.Error(t, err, bad)
	}
}

func FuzzParseSubject(f *testing.F) {
	f.Add("moore.0.default.planning.acting.web." + runID)
	f.Add("feed.moore.12.team-a.control.none.default." + runID)
	f.Add("moore.0.default.*.*.*." + runID)
	f.Add("moore......")
	f.Fuzz(func(t *testing.T, text string) {
		s, err := events.ParseSubject(text)
		if err != nil {
			return
		}
		if got := s.String(); got != strings.TrimPrefix(text, events.FeedPrefix) {
			t.Fatalf("%q parses to %q", text, got)
		}
		if back, err := events.ParseSubject(s.String()); err != nil || back != s {
			t.Fatalf("%q does not parse to what it was made of: %v", s, err)
		}
	})
}
