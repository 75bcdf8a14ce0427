package announce_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/moorebus/moorebus/internal/announce"
	"github.com/moorebus/moorebus/internal/buckets"
	"github.com/moorebus/moorebus/internal/control/controltest"
	"github.com/moorebus/moorebus/internal/journaltest"
	"github.com/moorebus/moorebus/internal/journaltest/simtest"
	"github.com/moorebus/moorebus/internal/kv"
	"github.com/moorebus/moorebus/internal/natsbus"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/stretchr/testify/require"
)

// TestDirectory reads the announcements of two processes on one bus.
func TestDirectory(t *testing.T) {
	t.Run("simulated", func(t *testing.T) {
		bus := simtest.New(simtest.Options{})
		testDirectory(t, announce.NewDirectory(bus, nil), announce.NewDirectory(bus.NewProcess(), nil))
	})
	t.Run("NATS", func(t *testing.T) {
		bus := controltest.NATS(t, natsbus.InitOptions{})
		testDirectory(t, announce.NewDirectory(bus, nil), announce.NewDirectory(bus, nil))
	})
}

func testDirectory(t *testing.T, dir, other *announce.Directory) {
	spec := func(name, pool, description string) events.ToolSpec {
		return events.ToolSpec{Name: name, Description: description, Schema: json.RawMessage(`{"type":"object"}`), Effect: "pure", Pool: pool, Risk: "low"}
	}
	web, db := journaltest.NewToken(t), journaltest.NewToken(t)
	// named returns the tools that this test announced.
	named := func(t *testing.T) []events.ToolSpec {
		t.Helper()
		all, err := dir.Tools(t.Context())
		require.NoError(t, err)
		var own []events.ToolSpec
		for _, tool := range all {
			if tool.Pool == web || tool.Pool == db {
				own = append(own, tool)
			}
		}
		return own
	}
	t.Run("nothing", func(t *testing.T) { require.Empty(t, named(t)) })
	t.Run("tools", func(t *testing.T) {
		ctx := t.Context()
		require.NoError(t, dir.Announce(ctx, web, "host-1:77/x", []events.ToolSpec{spec("search", web, "finds"), spec("fetch", web, "gets")}))
		require.NoError(t, dir.Announce(ctx, web, "host-2", []events.ToolSpec{spec("search", web, "finds")}))
		require.NoError(t, dir.Announce(ctx, db, "host-1:77/x", []events.ToolSpec{spec("search", db, "finds rows")}))
		want := []events.ToolSpec{spec("fetch", web, "gets")}
		if web < db {
			want = append(want, spec("search", web, "finds"), spec("search", db, "finds rows"))
		} else {
			want = append(want, spec("search", db, "finds rows"), spec("search", web, "finds"))
		}
		require.Eventually(t, func() bool { return len(named(t)) == 3 }, time.Minute, 20*time.Millisecond)
		require.Equal(t, want, named(t))
		require.NoError(t, dir.Announce(ctx, db, "host-1:77/x", []events.ToolSpec{spec("query", db, "asks")}))
		require.Equal(t, "query", named(t)[1].Name, "the same instance replaces what it said")
	})
	t.Run("pools", func(t *testing.T) {
		ctx, bare := t.Context(), journaltest.NewToken(t)
		require.NoError(t, dir.Announce(ctx, bare, "host-3", nil))
		var pools []announce.Pool
		require.Eventually(t, func() bool {
			var err error
			pools, err = dir.Pools(ctx)
			require.NoError(t, err)
			return slices.ContainsFunc(pools, func(p announce.Pool) bool { return p.Name == bare && p.Living })
		}, time.Minute, 20*time.Millisecond, "an actor without tools serves its pool too")
		require.Subset(t, pools, []announce.Pool{
			{Name: web, Living: true, Tools: []events.ToolSpec{spec("fetch", web, "gets"), spec("search", web, "finds")}},
			{Name: db, Living: true, Tools: []events.ToolSpec{spec("query", db, "asks")}},
			{Name: events.DefaultPool},
		})
		require.True(t, slices.IsSortedFunc(pools, func(x, y announce.Pool) int { return strings.Compare(x.Name, y.Name) }))
	})
	t.Run("withdrawn", func(t *testing.T) {
		ctx, pool, provider := t.Context(), journaltest.NewToken(t), journaltest.NewToken(t)
		require.NoError(t, dir.Announce(ctx, pool, "host.1", []events.ToolSpec{spec("search", pool, "finds")}))
		require.NoError(t, dir.Announce(ctx, pool, "host-2", []events.ToolSpec{spec("fetch", pool, "gets")}))
		require.NoError(t, dir.AnnounceProviders(ctx, "host.1", []string{provider}))
		require.NoError(t, dir.Withdraw(ctx, pool, "host.1"))
		require.NoError(t, dir.WithdrawProviders(ctx, "host.1"))
		tools, err := dir.PoolTools(ctx, pool)
		require.NoError(t, err)
		require.Equal(t, []events.ToolSpec{spec("fetch", pool, "gets")}, tools, "others stay")
		providers, err := dir.Providers(ctx)
		require.NoError(t, err)
		require.NotContains(t, providers, provider)
		require.NoError(t, dir.Withdraw(ctx, pool, "host-2"))
		pools, err := dir.Pools(ctx)
		require.NoError(t, err)
		require.Contains(t, pools, announce.Pool{Name: pool}, "nobody serves it")
		require.NoError(t, dir.Withdraw(ctx, journaltest.NewToken(t), "nobody"))
	})
	t.Run("withdrawn too late", func(t *testing.T) {
		ctx, pool, provider := t.Context(), journaltest.NewToken(t), journaltest.NewToken(t)
		for _, process := range []*announce.Directory{dir, other} {
			require.NoError(t, process.Announce(ctx, pool, "host", []events.ToolSpec{spec("search", pool, "finds")}))
			require.NoError(t, process.AnnounceProviders(ctx, "host", []string{provider}))
		}
		announced := func() (tools []events.ToolSpec, providers []string) {
			tools, err := dir.PoolTools(ctx, pool)
			require.NoError(t, err)
			providers, err = dir.Providers(ctx)
			require.NoError(t, err)
			return tools, providers
		}
		require.NoError(t, dir.Withdraw(ctx, pool, "host"))
		require.NoError(t, dir.WithdrawProviders(ctx, "host"))
		tools, providers := announced()
		require.Len(t, tools, 1, "the other process announces them")
		require.Contains(t, providers, provider)
		require.NoError(t, other.Withdraw(ctx, pool, "host"))
		require.NoError(t, other.WithdrawProviders(ctx, "host"))
		tools, providers = announced()
		require.Empty(t, tools)
		require.NotContains(t, providers, provider)
	})
	t.Run("offers", func(t *testing.T) {
		ctx, tool := t.Context(), journaltest.NewToken(t)
		before, err := dir.Offers(ctx)
		if err != nil {
			require.ErrorIs(t, err, journal.ErrNotReady)
		}
		one := announce.Offers{First: map[string]string{tool: web}, Providers: []string{"p"}, Revision: before.Revision}
		require.NoError(t, dir.PutOffers(ctx, one))
		require.ErrorIs(t, dir.PutOffers(ctx, one), journal.ErrConflict)
		after, err := dir.Offers(ctx)
		require.NoError(t, err)
		require.Equal(t, one.First, after.First)
		require.Equal(t, one.Providers, after.Providers)
		after.First = map[string]string{tool: db}
		require.NoError(t, dir.PutOffers(ctx, after))
		last, err := dir.Offers(ctx)
		require.NoError(t, err)
		require.Equal(t, db, last.First[tool])
	})
	t.Run("refusals", func(t *testing.T) {
		require.Error(t, dir.Announce(t.Context(), "*", "i", nil))
		require.Error(t, dir.Announce(t.Context(), web, "i", []events.ToolSpec{spec("search", db, "of another pool")}))
		require.ErrorContains(t, dir.Announce(t.Context(), web, "i", []events.ToolSpec{spec("moorebus_search", web, "")}), "are Moorebus' own")
	})
	t.Run("providers", func(t *testing.T) {
		ctx, one, two := t.Context(), journaltest.NewToken(t), journaltest.NewToken(t)
		require.NoError(t, dir.AnnounceProviders(ctx, "a", []string{two, one}))
		require.NoError(t, dir.AnnounceProviders(ctx, "b", []string{one}))
		got, err := dir.Providers(ctx)
		require.NoError(t, err)
		require.Subset(t, got, []string{one, two})
		require.IsIncreasing(t, got)
	})
	t.Run("claims", func(t *testing.T) {
		ctx, name := t.Context(), journaltest.NewToken(t)
		claim := func(kind, digest string) journal.Claim {
			return journal.Claim{Kind: kind, Name: name, Digest: digest}
		}
		claims := func() (own []journal.Claim, seqs []uint64) {
			all, err := dir.Claims(ctx)
			require.NoError(t, err)
			for _, c := range all {
				if c.Name == name {
					seqs, c.Seq = append(seqs, c.Seq), 0
					own = append(own, c)
				}
			}
			return own, seqs
		}
		says := func(instance, digest string) {
			require.NoError(t, dir.AnnounceProviders(ctx, instance, []string{name}, claim(journal.ClaimAgent, digest), claim(journal.ClaimProvider, digest)))
		}
		says("host-1:77/x", "one")
		says("host-2", "two")
		want := []journal.Claim{
			{Kind: journal.ClaimAgent, Name: name, Digest: "one", Instance: "host-1:77/x"},
			{Kind: journal.ClaimProvider, Name: name, Digest: "one", Instance: "host-1:77/x"},
			{Kind: journal.ClaimAgent, Name: name, Digest: "two", Instance: "host-2"},
			{Kind: journal.ClaimProvider, Name: name, Digest: "two", Instance: "host-2"},
		}
		got, before := claims()
		require.Equal(t, want, got)
		says("host-2", "two")
		got, after := claims()
		require.Equal(t, want, got)
		require.Equal(t, before[:2], after[:2])
		require.Greater(t, after[2], before[2], "said again")
		require.NoError(t, dir.AnnounceProviders(ctx, "host-1:77/x", []string{name}))
		got, _ = claims()
		require.Equal(t, want[2:], got)
		names, err := dir.Providers(ctx)
		require.NoError(t, err)
		require.Contains(t, names, name)
	})
}

func TestAnnouncementsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := announce.NewDirectory(simtest.New(simtest.Options{}), nil)
		require.NoError(t, dir.Announce(t.Context(), "web", "a", []events.ToolSpec{{Name: "search", Pool: "web"}}))
		require.NoError(t, dir.AnnounceProviders(t.Context(), "a", []string{"openai"}))
		time.Sleep(buckets.AnnouncementTTL - time.Second) // in the bubble
		tools, err := dir.Tools(t.Context())
		require.NoError(t, err)
		require.Len(t, tools, 1)
		time.Sleep(2 * time.Second) // in the bubble
		tools, err = dir.Tools(t.Context())
		require.NoError(t, err)
		require.Empty(t, tools)
		names, err := dir.Providers(t.Context())
		require.NoError(t, err)
		require.Empty(t, names)
	})
}

// An empty value, which only another tool writes, stands for a deleted one. It is an error, also for a gateway
// that has just started: who announced a name first would be decided anew.
func TestEmptyOffers(t *testing.T) {
	t.Parallel()
	bus := simtest.New(simtest.Options{})
	require.NoError(t, announce.NewDirectory(bus, nil).PutOffers(t.Context(), announce.Offers{}))
	before, err := announce.NewDirectory(bus, nil).Offers(t.Context())
	require.NoError(t, err)
	_, err = bus.Update(t.Context(), buckets.Offers, kv.Item{Key: buckets.Offers.Keys, Revision: before.Revision})
	require.NoError(t, err)
	_, err = announce.NewDirectory(bus, nil).Offers(t.Context())
	require.ErrorContains(t, err, "what is remembered of announcements")
}
